//! `tidegate-sim demo`.

use super::CommandError;
use crate::demo::{self, Ended};

/// Flags of `demo`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Requests to send.
    #[arg(long, value_name = "N", default_value_t = 300,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    requests: u32,
    /// Leave it running until Ctrl-C.
    #[arg(long)]
    keep: bool,
}

impl Args {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        match demo::run(self.requests as usize, self.keep).await.map_err(CommandError::Demo)? {
            Ended::Done => Ok(()),
            Ended::Interrupted => Err(CommandError::Interrupted),
        }
    }
}
