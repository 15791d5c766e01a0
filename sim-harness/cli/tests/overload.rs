//! Overload with live pools behind a real Envoy: what the filter's shaping
//! leaves to those who were promised something. Minutes long, so only under
//! `make prove`; two cores suffice.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at once"
)]

use tidegate_envoy_support::{Envoy, missing};
use tidegate_sim_cli::replay::{
    Options, Promises, Run, Senders, Style, TenantReport, TenantRow, run_tenants,
};
use tidegate_sim_cli::serve::{Handle, parse_pools, start};
use tokio::sync::Mutex;

/// Steps are long, so that few of them make a busy pool: two cores are not what
/// is measured. They are hardly longer for what is in them: what a full pool
/// costs its users anyway is not what is measured either. A request of 500 and 16
/// tokens takes some 17 steps of 0.27 s; with 64 slots on each of two replicas 28
/// a second are served at most.
const POOLS: &str = r#"{"pools": [
    {"name": "short", "model": "m", "max_model_len": 8192, "ports": [0, 0],
     "timing": {"step_ms": 250, "prefill_us_per_token": 5, "decode_us_per_request": 200,
                "context_ns_per_token": 0},
     "engine": {"max_num_seqs": 64}},
    {"name": "long", "model": "m", "max_model_len": 131072, "ports": [0, 0]}]}"#;
/// Requests a second that the pool serves, at the most.
const CAPACITY: f64 = 28.0;
const SIZE: &str = r#""input_tokens": 500, "output_tokens": 16"#;
/// Seconds that are not counted.
const WARM: u64 = 10;
/// Seconds that are: 620 requests at 10 a second.
const SECONDS: u64 = 62;
/// Share of the processors' time from which on they are what is measured.
const BUSY: f64 = 0.6;

/// A guaranteed tenant, whose 10 requests a second are some 46 at a time, and a
/// spot one.
const GUARANTEED: &str = r#"
    {"name": "gold", "class": "guaranteed", "tokens_per_second": 20000, "requests": 72},
    {"name": "spot", "class": "spot", "tokens_per_second": "unlimited"}"#;
/// Two tenants that share a pool by their weights.
const ELASTIC: &str = r#"
    {"name": "two", "weight": 2, "tokens_per_second": "unlimited", "on_limit": "hold",
     "ttft_target_ms": 60000},
    {"name": "one", "weight": 1, "tokens_per_second": "unlimited", "on_limit": "hold",
     "ttft_target_ms": 60000}"#;
const UNSHAPED: &str = r#"
    {"name": "two", "tokens_per_second": "unlimited"},
    {"name": "one", "tokens_per_second": "unlimited"}"#;

/// The pool's replicas run so many requests each.
const TIGHT: &str = r#", "capacity": {"replicas": 2, "requests": 64}"#;
/// A few more, so that the engine has the next one when a slot comes free: it
/// takes a step of 17 to come from the gateway.
const BUSY_POOL: &str = r#", "capacity": {"replicas": 2, "requests": 72}"#;

/// One after the other: each needs the machine for itself.
static ALONE: Mutex<()> = Mutex::const_new(());

fn skipped() -> bool {
    if std::env::var_os("TIDEGATE_PROVE").is_none() {
        eprintln!("skipped: TIDEGATE_PROVE=1 runs it, for minutes");
        return true;
    }
    missing()
}

/// A pool, and an Envoy whose filter has these tenants.
struct Gateway {
    pools: Handle,
    envoy: Envoy,
    config: String,
}

impl Gateway {
    async fn start(capacity: &str, entitlements: &str) -> Self {
        let pools = start(parse_pools(POOLS.as_bytes()).unwrap()).await.unwrap();
        let ports = |name: &str| [0, 1].map(|replica| pools.pool(name)[replica].port());
        let config = format!(
            r#"{{"version": 1, "buffer_bytes": 16777216, "models": [{{"match": "*", "pools": [
                {{"name": "short", "cluster": "short", "max_model_len": 8192{capacity}}},
                {{"name": "long", "cluster": "long", "max_model_len": 131072}}]}}],
            "tenants": {{"from": [{{"header": "x-team"}}], "default": "others", "entitlements": [
                {{"name": "others", "tokens_per_second": 1}}, {entitlements}]}}}}"#
        );
        let builder = Envoy::builder().backends(ports("short"), ports("long")).workers(2);
        let envoy = builder.exact_balance().configuration(&config).start().unwrap();
        Self { pools, envoy, config }
    }

    /// Lets these senders send; what they send in the first `warm` seconds does
    /// not count.
    async fn run(&self, warm: u64, senders: &[String]) -> (Run, TenantReport) {
        let text = format!(
            r#"{{"seconds": {}, "warmup_s": {warm}, "tenants": [{}]}}"#,
            warm + SECONDS,
            senders.join(", ")
        );
        let senders = Senders::parse(text.as_bytes()).unwrap();
        let promises = Promises::from_config(self.config.as_bytes(), &senders).unwrap();
        let style = Style { stream_share: 1.0, usage_share: 1.0, ..Style::new("m", 1) };
        let options = Options::new(&self.envoy.url(), style);
        let before = self.processor_time();
        let run = run_tenants(&options, &senders, std::future::pending(), |_| {}).await.unwrap();
        let own = (self.processor_time() - before) / run.duration.as_secs_f64();
        let report = TenantReport::new(&run, &senders, Some(&promises));
        report.print(&mut std::io::stdout()).unwrap();
        println!("\nOurs: {:.0} % of one processor\n", 100.0 * own);
        if report.busy.is_some_and(|busy| busy > BUSY) {
            println!("The machine was busier than {:.0} %: it is measured too.\n", 100.0 * BUSY);
        }
        (run, report)
    }

    /// Seconds of processor time that the pools, the clients and Envoy took.
    fn processor_time(&self) -> f64 {
        let of = |process: &str| {
            let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
            // After the name, which may hold anything: state is field 3, user and
            // system time 14 and 15, in hundredths of a second.
            let (_, fields) = stat.rsplit_once(") ").unwrap();
            let ticks = |at: usize| fields.split(' ').nth(at - 3).unwrap().parse::<f64>().unwrap();
            (ticks(14) + ticks(15)) / 100.0
        };
        of("self") + of(&self.envoy.pid().to_string())
    }

    async fn stop(self) {
        drop(self.envoy);
        self.pools.stop().await;
    }
}

fn sender(team: &str, rest: &str) -> String {
    format!(r#"{{"name": "{team}", "headers": {{"x-team": "{team}"}}, {rest}, {SIZE}}}"#)
}

/// As many clients as there are slots: refused ones come again soon.
fn saturating(team: &str, rest: &str) -> String {
    sender(team, &format!(r#""clients": 128, "pause_s": 0.5{rest}"#))
}

fn p99(row: &TenantRow) -> f64 {
    row.ttft.unwrap().p99
}

/// Tokens a second of the answers to this sender, or to all, in the seconds after
/// `warm`. An answer that is only partly within them counts in part, from its
/// first token on: clients run in step, and whole ones would count by the luck of
/// their phase; and a request that waits uses nothing.
fn served(run: &Run, sender: Option<usize>, warm: u64) -> f64 {
    let (from, to) = (warm as f64, (warm + SECONDS) as f64);
    let mut tokens = 0.0;
    for outcome in &run.outcomes {
        let Ok(answer) = &outcome.result else { continue };
        if sender.is_none_or(|sender| sender == outcome.tenant) {
            let start = outcome.request.arrival as f64 / 1e9;
            let end = start + answer.end.as_secs_f64();
            let start = start + answer.first_token.unwrap().as_secs_f64();
            let within = (end.min(to) - start.max(from)).max(0.0) / (end - start);
            tokens += within * f64::from(outcome.prompt_tokens() + answer.output_tokens);
        }
    }
    tokens / SECONDS as f64
}

/// Alone and under ten times what the pool can serve, in turns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_does_not_slow_a_guaranteed_tenant() {
    if skipped() {
        return;
    }
    let _alone = ALONE.lock().await;
    let gateway = Gateway::start(TIGHT, GUARANTEED).await;
    let gold = sender("gold", r#""rate": 10"#);
    let flood = sender("spot", &format!(r#""rate": {}"#, 10.0 * CAPACITY));
    let mut ratios = Vec::new();
    for _ in 0..3 {
        let (_, alone) = gateway.run(WARM, std::slice::from_ref(&gold)).await;
        let (run, flooded) = gateway.run(WARM, &[gold.clone(), flood.clone()]).await;
        let (alone, flooded) = (&alone.rows[0], &flooded.rows[0]);
        for row in [alone, flooded] {
            assert!(row.asked >= 500 && row.admitted == row.asked && row.failed.is_empty());
        }
        assert!(alone.ttft.unwrap().p50 >= 0.3, "too fast to tell");
        // Each token is an event.
        let output: u32 =
            run.outcomes.iter().filter_map(|o| Some(o.result.as_ref().ok()?.output_tokens)).sum();
        let events = f64::from(output) / run.duration.as_secs_f64();
        assert!(events <= 2000.0, "{events} events a second");
        ratios.push(p99(flooded) / p99(alone));
        println!(
            "guaranteed tenant, p99 of TTFT: {:.0} ms alone, {:.0} ms flooded; {events:.0} events/s\n",
            1e3 * p99(alone),
            1e3 * p99(flooded)
        );
    }
    gateway.stop().await;
    ratios.sort_by(f64::total_cmp);
    println!("flooded / alone: {:.3}, median of {ratios:.3?}", ratios[1]);
    assert!(ratios[1] <= 1.2, "{ratios:?}");
}

/// Both want more than the pool has; then one comes after the other had it all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_elastic_tenants_share_by_their_weights() {
    if skipped() {
        return;
    }
    let _alone = ALONE.lock().await;
    let gateway = Gateway::start(BUSY_POOL, ELASTIC).await;
    for starved in [0, 30] {
        let late = format!(r#", "from_s": {starved}"#);
        let senders = [saturating("two", ""), saturating("one", &late)];
        let (run, _) = gateway.run(starved + WARM, &senders).await;
        let [two, one] = [0, 1].map(|place| served(&run, Some(place), starved + WARM));
        let ratio = two / one;
        println!("two elastic tenants, one starved for {starved} s before: {ratio:.3} to 1");
        assert!((ratio / 2.0 - 1.0).abs() <= 0.03, "{ratio}");
    }
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shaping_costs_no_throughput() {
    if skipped() {
        return;
    }
    let _alone = ALONE.lock().await;
    let mut rates = Vec::new();
    for (capacity, entitlements) in [("", UNSHAPED), (BUSY_POOL, ELASTIC)] {
        let gateway = Gateway::start(capacity, entitlements).await;
        let senders = [saturating("two", ""), saturating("one", "")];
        let (run, _) = gateway.run(WARM, &senders).await;
        rates.push(served(&run, None, WARM));
        gateway.stop().await;
    }
    let share = rates[1] / rates[0];
    println!(
        "throughput of the pool: {:.0} tokens/s unshaped, {:.0} shaped: {:.1} %",
        rates[0],
        rates[1],
        100.0 * share
    );
    assert!(share >= 0.97, "{share}");
}
