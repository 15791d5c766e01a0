//! `tidegate-sim savings`.

use std::path::PathBuf;

use super::CommandError;
use crate::savings::{self, CASES, Size};

/// Flags of `savings`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The folder with the published traces.
    #[arg(long, value_name = "DIR", default_value = "../shared/data/traces")]
    traces: PathBuf,
    /// This case alone.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Little of everything, to see that it works: no figure of it means anything.
    #[arg(long)]
    small: bool,
    /// Threads, at most; 0: one a core. The page is the same.
    #[arg(long, default_value_t = 0)]
    threads: usize,
}

impl Args {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let wanted = |name: &str| self.only.as_ref().is_none_or(|only| only == name);
        let cases: Vec<_> = CASES.iter().filter(|case| wanted(case.name)).collect();
        if cases.is_empty() {
            let names: Vec<&str> = CASES.iter().map(|case| case.name).collect();
            let found = self.only.unwrap_or_default();
            let why = format!("found {found:?}; allowed: {}", names.join(", "));
            return Err(CommandError::Flag("--only".into(), why));
        }
        let size = if self.small { Size::small() } else { Size::default() };
        super::print(&savings::page(&cases, &self.traces, &size, self.threads)?)
    }
}
