//! `tidegate-sim run`.

use std::path::PathBuf;
use std::time::Instant;

use tidegate_sim::fleet;
use tidegate_sim::policy::Policy;

use super::CommandError;
use crate::scenario;

/// Flags of `run`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The scenario: a TOML file, as those in sim-harness/scenarios.
    #[arg(value_name = "SCENARIO.toml")]
    scenario: PathBuf,
    /// Seed of all that is drawn; default: the scenario's.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Who chooses pools: tidegate, oracle, bytes/4, input-only, spillover, spillover:N,
    /// homogeneous; default: the scenario's.
    #[arg(long, value_name = "P")]
    policy: Option<Policy>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let mut loaded = scenario::load(&self.scenario).map_err(CommandError::Scenario)?;
        loaded.scenario.policy = self.policy.unwrap_or(loaded.scenario.policy);
        let start = Instant::now();
        let seed = self.seed.unwrap_or(loaded.seed);
        let report = fleet::run(&loaded.scenario, seed).map_err(CommandError::Fleet)?;
        let seconds = start.elapsed().as_secs_f64();
        let text = if self.json { report.json().to_string() + "\n" } else { report.text() };
        super::print(&text)?;
        // Not on the standard output, which is the same each time.
        let rate = report.asked() as f64 / seconds;
        eprintln!("{seconds:.3} s of real time: {rate:.0} requests a second");
        Ok(())
    }
}
