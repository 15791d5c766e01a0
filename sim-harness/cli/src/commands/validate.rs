//! `tidegate-sim validate`.

use std::path::PathBuf;

use super::CommandError;
use crate::files;
use crate::validate;

/// Flags of `validate`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Measured runs: every CSV file, JSON lines and JSON document of this
    /// folder that is in a known format, plain or gzipped.
    #[arg(long, value_name = "DIR")]
    measured: PathBuf,
    /// Kernel timings: llmservingsim_vllm_{dense,per_sequence,attention,moe}.csv
    /// and aic_vllm_{gemm,attn_context,attn_generation,moe,allreduce}.csv, plain
    /// or gzipped. Those that are absent are done without.
    #[arg(long, value_name = "DIR")]
    profiles: PathBuf,
    /// Fits of kernel times to take instead of the shipped ones.
    #[arg(long, value_name = "FILE")]
    fits: Option<PathBuf>,
    /// Replay only runs whose names contain this.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let measured = validate::read_measured(&self.measured).map_err(CommandError::Validate)?;
        let mut profiles =
            validate::read_profiles(&self.profiles, &measured).map_err(CommandError::Validate)?;
        if let Some(path) = &self.fits {
            let bytes = files::read(path).map_err(|error| CommandError::File("--fits", error))?;
            let fits = tidegate_sim::kernels::decode(&bytes);
            let (_, fits) = fits.map_err(|error| CommandError::Fits(path.clone(), error))?;
            profiles.set_fits(fits);
        }
        let report = validate::run(&measured, &profiles, self.only.as_deref());
        super::print(&if self.json { format!("{:#}\n", report.json()) } else { report.text() })
    }
}
