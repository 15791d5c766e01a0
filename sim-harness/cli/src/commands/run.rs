//! `tidegate-sim run`.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Instant;

use tidegate_sim::SECOND;
use tidegate_sim::fleet::{self, Follow, Record, Report, Scenario};
use tidegate_sim::policy::Policy;
use tidegate_sim::report::{File, perfetto};

use super::CommandError;
use super::out::{self, OutArgs};
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
    #[command(flatten)]
    out: OutArgs,
    /// The replica whose steps trace.json has, for ui.perfetto.dev; default: the
    /// first of the pool with the largest window.
    #[arg(long, value_name = "POOL/N", requires = "out")]
    trace_replica: Option<ReplicaName>,
    /// The trace begins after so many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, requires = "out")]
    trace_from: u32,
    /// It has steps, and requests that came, of so many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, requires = "out",
          value_parser = clap::value_parser!(u32).range(1..))]
    trace_seconds: u32,
}

/// A replica of a pool, from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ReplicaName {
    pool: String,
    replica: u32,
}

impl FromStr for ReplicaName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.rsplit_once('/').filter(|(pool, _)| !pool.is_empty());
        let parts = parts.and_then(|(pool, replica)| Some((pool, replica.parse().ok()?)));
        let (pool, replica) = parts.ok_or("allowed: a pool's name, / and a replica's number")?;
        Ok(Self { pool: pool.into(), replica })
    }
}

impl Args {
    fn follow(&self, scenario: &Scenario) -> Option<Follow> {
        let largest = || {
            let pool = scenario.pools.iter().max_by_key(|pool| pool.engine.max_model_len)?;
            Some(ReplicaName { pool: pool.name.clone(), replica: 0 })
        };
        let ReplicaName { pool, replica } = self.trace_replica.clone().or_else(largest)?;
        let from = u64::from(self.trace_from) * SECOND;
        let until = from + u64::from(self.trace_seconds) * SECOND;
        Some(Follow { pool, replica, from, until })
    }

    /// The files of a recorded run.
    fn write(
        &self,
        folder: &Path,
        seed: u64,
        report: &Report,
        record: &Record,
    ) -> Result<(), CommandError> {
        let name = self.scenario.file_stem().unwrap_or(self.scenario.as_os_str());
        let page = record.page(report, &name.to_string_lossy(), seed);
        let mut files = page.files(report.json());
        files.extend(
            record
                .trace
                .as_ref()
                .map(|trace| File { name: "trace.json".into(), text: perfetto(trace) }),
        );
        out::write(folder, &files)
    }

    pub(super) fn run(self) -> Result<(), CommandError> {
        let mut loaded = scenario::load(&self.scenario).map_err(CommandError::Scenario)?;
        loaded.scenario.policy = self.policy.unwrap_or(loaded.scenario.policy);
        let start = Instant::now();
        let (scenario, seed) = (&loaded.scenario, self.seed.unwrap_or(loaded.seed));
        let report = match &self.out.out {
            None => fleet::run(scenario, seed).map_err(CommandError::Fleet)?,
            Some(folder) => {
                let recorded = fleet::record(scenario, seed, self.follow(scenario));
                let (report, record) = recorded.map_err(CommandError::Fleet)?;
                self.write(folder, seed, &report, &record)?;
                report
            }
        };
        let seconds = start.elapsed().as_secs_f64();
        let text = if self.json { report.json().to_string() + "\n" } else { report.text() };
        super::print(&text)?;
        // Not on the standard output, which is the same each time.
        let rate = report.asked() as f64 / seconds;
        eprintln!("{seconds:.3} s of real time: {rate:.0} requests a second");
        Ok(())
    }
}
