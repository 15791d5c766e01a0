//! Pools under pressure in the shipped filter: what another pool can take goes
//! there, over all workers, and nothing stays counted.

mod support;

use std::time::Duration;
use support::{Worker, used};
use tidegate_wasm_tests::Host;

const CONFIG: &str = r#"{"version": 1, "models": [{"match": "*", "pools": [
    {"name": "short", "cluster": "short-cluster", "max_model_len": 8192, "threshold": 4096,
     "capacity": {"replicas": 2, "requests": 1}, "threshold_range": [1024, 8192],
     "spill": {"enter": 1, "leave": 0.5, "dwell_ms": 1000}},
    {"name": "long", "cluster": "long-cluster", "max_model_len": 131072,
     "capacity": {"replicas": 4, "requests": 1}}]}]}"#;

#[test]
fn a_full_pool_sends_on_what_fits_elsewhere_over_all_workers() {
    let host = Host::new();
    let [one, two] = ["one", "two"].map(|name| Worker::on(&host, name, CONFIG));
    let (first, pool) = one.place();
    assert_eq!(pool, "short-cluster");
    let (second, pool) = two.place();
    assert_eq!(pool, "short-cluster");
    let (third, pool) = one.place();
    assert_eq!(pool, "long-cluster");
    assert_eq!(third.stream().filter_state("tidegate_reason").unwrap().unwrap(), b"spill");
    host.advance(Duration::from_secs(1));
    one.vm.tick(one.root).unwrap();
    let gauge = |name: &str| host.gauge(&format!("tidegate.{name}")).unwrap();
    assert_eq!((gauge("pool_pressure.short"), gauge("pool_spills.short")), (1000, 1));
    assert_eq!((gauge("pool_requests.long"), gauge("pool_pressure.long")), (1, 250));
    // One ends, one's client leaves.
    first.answer(&used(100, 10)).unwrap();
    second.abort().unwrap();
    let (fourth, pool) = two.place();
    assert_eq!(pool, "short-cluster");
    for exchange in [third, fourth] {
        exchange.answer(&used(100, 10)).unwrap();
    }
    assert_eq!(one.count("reason.spill"), 1);
    assert_eq!(one.count("over_route"), 0, "it was sent there on purpose");
    host.advance(Duration::from_secs(1));
    one.vm.tick(one.root).unwrap();
    for name in ["pool_pressure.short", "pool_spills.short", "pool_requests.long"] {
        assert_eq!(gauge(name), 0, "{name}");
    }
    // The short pool was fuller, so its threshold gave way a little.
    assert!((3900..4000).contains(&gauge("pool_threshold.short")));
}
