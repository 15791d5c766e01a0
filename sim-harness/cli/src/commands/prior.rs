//! `tidegate-sim prior`.

use super::CommandError;
use crate::files;
use crate::prior::table;
use std::path::PathBuf;

/// Flags of `prior`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Texts with their token counts under several vocabularies, one JSON
    /// object a line: {"text": "…", "tokens": {"NAME": 12}}; plain or gzipped.
    #[arg(long, value_name = "FILE")]
    texts: PathBuf,
}

impl Args {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let lines = files::read_text(&self.texts).map_err(|e| CommandError::File("--texts", e))?;
        let table = table(&lines).map_err(|why| CommandError::Flag("--texts".into(), why))?;
        super::print(&table)
    }
}
