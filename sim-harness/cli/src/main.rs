//! The command `tidegate-sim`. All it does is in the library.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;
use tidegate_sim_cli::commands::{Cli, CommandError};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let ours = error.downcast_ref::<CommandError>();
            // With its causes; never a backtrace, which helps nobody here.
            if !ours.is_some_and(CommandError::is_silent) {
                eprintln!("tidegate-sim: {error:#}");
            }
            ExitCode::from(ours.map_or(1, CommandError::exit_code))
        }
    }
}

fn run() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(cli.run())?;
    Ok(())
}
