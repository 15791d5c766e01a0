//! `tidegate-sim calibrate`.

use super::CommandError;
use crate::calibrate::{calibrate, calibrate_mixed};
use crate::files;
use std::path::PathBuf;

/// Flags of `calibrate`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Request bodies with their true token counts, one JSON object a line:
    /// {"body": "…", "prompt_tokens": {"NAME": 12}, "tools_tokens": null};
    /// plain or gzipped.
    #[arg(long, value_name = "FILE")]
    bodies: PathBuf,
    /// Whose counts are the truth: a name in the file's `prompt_tokens`.
    #[arg(long, value_name = "NAME", required_unless_present = "mixed")]
    tokenizer: Option<String>,
    /// Send each body once for every tokenizer of the file, in turn, with the
    /// tokenizer's name for the model's.
    #[arg(long, conflicts_with = "tokenizer")]
    mixed: bool,
    /// Where the pools part, in prompt tokens.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    threshold: u64,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let lines =
            files::read_text(&self.bodies).map_err(|e| CommandError::File("--bodies", e))?;
        let report = match &self.tokenizer {
            Some(tokenizer) => calibrate(&lines, tokenizer, self.threshold),
            None => calibrate_mixed(&lines, self.threshold),
        };
        let report = report.map_err(CommandError::Calibrate)?;
        let text = if self.json { format!("{}\n", report.to_json()) } else { report.to_string() };
        super::print(&text)
    }
}
