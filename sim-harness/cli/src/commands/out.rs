//! Files of a report.

use std::path::{Path, PathBuf};

use tidegate_sim::report::File;

use super::CommandError;

/// Where a report goes.
#[derive(Debug, clap::Args)]
pub(super) struct OutArgs {
    /// Write the report here, as one HTML page with plots and the same numbers as
    /// JSON and CSV: see docs/report.md. The folder is made if there is none.
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
}

/// Writes all of them, over those that are there, and says where.
pub(super) fn write(folder: &Path, files: &[File]) -> Result<(), CommandError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        |error| CommandError::Write(path, error)
    };
    std::fs::create_dir_all(folder).map_err(failed(folder))?;
    for file in files {
        let path = folder.join(&file.name);
        std::fs::write(&path, &file.text).map_err(failed(&path))?;
    }
    eprintln!("{} files in {}", files.len(), folder.display());
    Ok(())
}
