//! The subcommands: flags in, library calls, text out. One file each.

mod calibrate;
mod demo;
mod replay;
mod serve;

use std::fmt;
use std::io::{self, Write as _};

use clap::{Parser, Subcommand};

use crate::calibrate::CalibrateError;
use crate::demo::DemoError;
use crate::files::FileError;
use crate::replay::{ReplayError, WindowsError};
use crate::serve::{PoolsError, ServeError};

/// GPU pools that are not there, and load for a gateway that is.
#[derive(Debug, Parser)]
#[command(name = "tidegate-sim", version, about)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start OpenAI-compatible backends that answer as vLLM does.
    Serve(serve::Args),
    /// Send a published workload to a gateway and report what became of it.
    Replay(replay::Args),
    /// Score the estimators on bodies whose token counts are known.
    Calibrate(calibrate::Args),
    /// Pools, a real Envoy with the filter, and load, all on this machine.
    Demo(demo::Args),
}

/// Why a command failed.
#[derive(Debug)]
pub enum CommandError {
    /// A file; carries the flag that named it.
    File(&'static str, FileError),
    /// The pools document.
    Pools(PoolsError),
    /// The backends.
    Serve(ServeError),
    /// The gateway's configuration.
    Windows(WindowsError),
    /// The replay.
    Replay(ReplayError),
    /// The bodies to score.
    Calibrate(CalibrateError),
    /// The demo.
    Demo(DemoError),
    /// Standard output.
    Output(io::Error),
    /// No request was answered; carries the failures.
    NothingAnswered(String),
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(flag, error) => write!(f, "{flag}: {error}"),
            Self::Pools(error) => write!(f, "--pools: {error}"),
            Self::Serve(error) => error.fmt(f),
            Self::Windows(error) => write!(f, "--config: {error}"),
            Self::Replay(error) => error.fmt(f),
            Self::Calibrate(error) => write!(f, "--bodies: {error}"),
            Self::Demo(error) => error.fmt(f),
            Self::Output(error) => write!(f, "cannot write the output: {error}"),
            Self::NothingAnswered(why) => write!(f, "no request was answered: {why}"),
        }
    }
}

impl std::error::Error for CommandError {}

impl Cli {
    /// Runs the command to its end.
    pub async fn run(self) -> Result<(), CommandError> {
        match self.command {
            Command::Serve(args) => args.run().await,
            Command::Replay(args) => args.run().await,
            Command::Calibrate(args) => args.run(),
            Command::Demo(args) => args.run().await,
        }
    }
}

fn print(text: &str) -> Result<(), CommandError> {
    let mut out = io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(CommandError::Output)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_flags_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_wrong_flag_says_what_is_allowed() {
        let error = |args: &str| {
            let args = ["tidegate-sim"].into_iter().chain(args.split(' '));
            Cli::try_parse_from(args).unwrap_err().to_string()
        };
        let gateway = "replay --gateway http://a";
        assert!(error(&format!("{gateway} --synthetic azur")).contains("azure, lmsys, agent"));
        assert!(error(&format!("{gateway} --synthetic azure --caps x")).contains("none, actual"));
        let both = error(&format!("{gateway} --synthetic azure --trace f"));
        assert!(both.contains("cannot be used with"), "{both}");
        assert!(error(gateway).contains("--trace"));
        let share = error(&format!("{gateway} --synthetic azure --stream-share 2"));
        assert!(share.contains("0 to 1"), "{share}");
        assert!(error("serve").contains("--pools"));
    }
}
