//! The subcommands: flags in, library calls, text out. One file each.

mod calibrate;
mod demo;
mod engine;
mod kernels;
mod model;
mod out;
mod plan;
mod prior;
mod replay;
mod run;
mod savings;
mod serve;
mod step;
mod validate;

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use tidegate_sim::fleet::FleetError;
use tidegate_sim::kernels::{CsvError, StoreError};
use tidegate_sim::plan::PlanError;

use crate::calibrate::CalibrateError;
use crate::demo::DemoError;
use crate::engine::RunError;
use crate::files::FileError;
use crate::interrupt;
use crate::replay::{PromisesError, ReplayError, WindowsError};
use crate::scenario::ScenarioError;
use crate::serve::{PoolsError, ServeError};
use crate::validate::ValidateError;

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
    /// Send a published workload, or that of many tenants, to a gateway and report
    /// what became of it.
    Replay(replay::Args),
    /// Score the estimators on bodies whose token counts are known.
    Calibrate(calibrate::Args),
    /// Fit the prior that the filter ships to texts with known token counts.
    Prior(prior::Args),
    /// Run a trace through simulated replicas, in virtual time.
    Engine(Box<engine::Args>),
    /// Run gateways with the filter's policy, pools and tenants' clients, in
    /// virtual time.
    Run(run::Args),
    /// How many GPUs a load needs: in one pool, in one well-tuned pool, and in
    /// several with Tidegate before them.
    Plan(Box<plan::Args>),
    /// Make docs/savings.md: plans for all kinds of loads, each checked at three rates.
    Savings(savings::Args),
    /// Pools, a real Envoy with the filter, and load, all on this machine.
    Demo(demo::Args),
    /// Times of single GPU kernels: fit them, and score them against a sweep.
    Kernels(kernels::Args),
    /// Explain one step's time by kernel family.
    Step(step::Args),
    /// Replay measured serving runs and say how far off the model is.
    Validate(validate::Args),
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
    /// The tenants document.
    Tenants(crate::replay::SendersError),
    /// What the gateway's configuration promises them.
    Promises(PromisesError),
    /// The replay.
    Replay(ReplayError),
    /// The bodies to score.
    Calibrate(CalibrateError),
    /// A flag whose value is not allowed; carries its name.
    Flag(Cow<'static, str>, String),
    /// Measured runs or kernel timings.
    Validate(ValidateError),
    /// The demo.
    Demo(DemoError),
    /// The simulation.
    Engine(RunError),
    /// The scenario's file.
    Scenario(ScenarioError),
    /// The simulation of a fleet.
    Fleet(FleetError),
    /// The plan of a fleet.
    Plan(PlanError),
    /// A table; carries the flag that named it.
    Csv(&'static str, CsvError),
    /// No data sheet has this name.
    UnknownGpu {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A folder has no timing of the GPU.
    NoSamples {
        /// The flag that named the folder.
        flag: &'static str,
        /// The folder.
        folder: PathBuf,
        /// The GPU.
        gpu: String,
        /// The tables that were found and read.
        tables: String,
    },
    /// A file of kernel fits.
    Fits(PathBuf, StoreError),
    /// A file that could not be written.
    Write(PathBuf, io::Error),
    /// Standard output.
    Output(io::Error),
    /// No request was answered; carries the first failure.
    NothingAnswered(String),
    /// Ctrl-C ended it.
    Interrupted,
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(flag, error) => write!(f, "{flag}: {error}"),
            Self::Pools(error) => write!(f, "--pools: {error}"),
            Self::Serve(error) => error.fmt(f),
            Self::Windows(error) => write!(f, "--config: {error}"),
            Self::Tenants(error) => write!(f, "--tenants: {error}"),
            Self::Promises(error) => write!(f, "--config: {error}"),
            Self::Replay(error) => error.fmt(f),
            Self::Calibrate(error @ CalibrateError::Tokenizer { .. }) => {
                write!(f, "--tokenizer: {error}")
            }
            Self::Calibrate(error) => write!(f, "--bodies: {error}"),
            Self::Flag(flag, why) => write!(f, "{flag}: {why}"),
            Self::Validate(error) => error.fmt(f),
            Self::Demo(error) => error.fmt(f),
            Self::Engine(error) => error.fmt(f),
            Self::Scenario(error) => error.fmt(f),
            Self::Fleet(error) => error.fmt(f),
            Self::Plan(error) => error.fmt(f),
            Self::Csv(flag, error) => write!(f, "{flag}: {error}"),
            Self::UnknownGpu { name, known } => {
                write!(f, "--gpu: found {name:?}, allowed is one of {known}, or one of --gpus")
            }
            Self::NoSamples { flag, folder, gpu, tables } => {
                let tables = if tables.is_empty() { "none" } else { tables };
                write!(
                    f,
                    "{flag}: no timing of {gpu} in {}; tables aic_vllm_*.csv[.gz] found: {tables}",
                    folder.display()
                )
            }
            Self::Fits(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Write(path, error) => write!(f, "cannot write {}: {error}", path.display()),
            Self::Output(error) => write!(f, "cannot write the output: {error}"),
            Self::NothingAnswered(why) => write!(f, "no request was answered: {why}"),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl CommandError {
    /// What the command's process ends with.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Interrupted => interrupt::EXIT_CODE,
            // As a command that the signal of a broken pipe ends.
            _ if self.is_broken_pipe() => 141,
            _ => 1,
        }
    }

    /// There is nothing to tell: the person knows, or nobody reads.
    pub fn is_silent(&self) -> bool {
        matches!(self, Self::Interrupted) || self.is_broken_pipe()
    }

    /// The reader of the output has left, as `head` does.
    fn is_broken_pipe(&self) -> bool {
        let (Self::Output(error) | Self::Demo(DemoError::Io(error))) = self else { return false };
        error.kind() == io::ErrorKind::BrokenPipe
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
            Command::Prior(args) => args.run(),
            Command::Demo(args) => args.run().await,
            Command::Engine(args) => args.run(),
            Command::Run(args) => args.run(),
            Command::Plan(args) => args.run(),
            Command::Savings(args) => args.run(),
            Command::Kernels(args) => args.run(),
            Command::Step(args) => args.run(),
            Command::Validate(args) => args.run(),
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
        let rate = error(&format!("{gateway} --tenants f --rate 2"));
        assert!(rate.contains("cannot be used with"), "{rate}");
        let timeout = error(&format!("{gateway} --synthetic azure --timeout 0"));
        assert!(timeout.contains("1..=86400"), "{timeout}");
    }

    #[test]
    fn help_shows_whole_documents() {
        let help = Cli::try_parse_from(["tidegate-sim", "serve", "--help"]).unwrap_err();
        let help = help.to_string();
        assert!(help.contains(crate::serve::POOLS_EXAMPLE), "{help}");
        assert!(help.contains("microseconds"), "{help}");
        let help = Cli::try_parse_from(["tidegate-sim", "replay", "--help"]).unwrap_err();
        let help = help.to_string();
        assert!(help.contains(crate::replay::TENANTS_EXAMPLE), "{help}");
    }

    #[test]
    fn errors_name_their_flag_and_have_their_exit_code() {
        let wrong = CalibrateError::Tokenizer { name: "x".into(), known: vec!["t".into()] };
        let wrong = CommandError::Calibrate(wrong);
        assert!(wrong.to_string().starts_with("--tokenizer: found \"x\""), "{wrong}");
        assert!(CommandError::Calibrate(CalibrateError::Empty).to_string().starts_with("--bodies"));
        assert_eq!((wrong.exit_code(), wrong.is_silent()), (1, false));
        let pipe = || io::Error::from(io::ErrorKind::BrokenPipe);
        for error in [CommandError::Output(pipe()), CommandError::Demo(DemoError::Io(pipe()))] {
            assert_eq!((error.exit_code(), error.is_silent()), (141, true));
        }
        let full = CommandError::Output(io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!((full.exit_code(), full.is_silent()), (1, false));
        assert_eq!(CommandError::Interrupted.exit_code(), 130);
    }
}
