//! The fleet's texts are as hard to estimate as real ones: a report's estimate
//! error is within two points of what `calibrate` finds on real bodies. Those stand
//! beside the project; without them this test says so and passes, unless
//! `TIDEGATE_REQUIRE` lists `data`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at once")]

use std::path::Path;

use tidegate_sim::SECOND;
use tidegate_sim::fleet;
use tidegate_sim_cli::calibrate::calibrate_mixed;
use tidegate_sim_cli::{files, scenario};

#[test]
fn the_fleet_s_estimates_err_as_calibrate_s() {
    let Some(path) = files::shared_data("tokens/chat_bodies.jsonl.gz") else { return };
    let lines = files::read_text(&path).unwrap();
    let report = calibrate_mixed(&lines, 8_192).unwrap();
    let regress = report.estimators.iter().find(|score| score.name == "regress").unwrap();
    let real = regress.mape_after_50.unwrap();
    for name in ["two-pools", "tenants"] {
        let file = format!("../scenarios/{name}.toml");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let mut scenario = scenario::load(&path).unwrap().scenario;
        (scenario.end, scenario.warm_up) = (30 * SECOND, 10 * SECOND);
        let (answers, fleet, ..) = fleet::run(&scenario, 1).unwrap().errors;
        println!("real bodies {:.2} %, {name} {:.2} % of {answers}", 100.0 * real, 100.0 * fleet);
        assert!(answers > 100 && (fleet - real).abs() <= 0.02, "{name}: {fleet}, {real}");
    }
}
