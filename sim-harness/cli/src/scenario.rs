//! Scenario files: TOML that says what to simulate.

use std::fmt;
use std::path::Path;

use serde_json::Value;
use tidegate_sim::fleet::{DocumentError, Loaded};

use crate::files::{self, FileError};

/// Why a scenario cannot be run.
#[derive(Debug)]
pub enum ScenarioError {
    /// The file cannot be read.
    File(FileError),
    /// Not TOML; carries the parser's words.
    NotToml(String),
    /// What it says is wrong.
    Document(DocumentError),
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => error.fmt(f),
            Self::NotToml(why) => write!(f, "the scenario is not TOML: {why}"),
            Self::Document(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ScenarioError {}

/// Reads a scenario. Paths in it start at its own folder.
pub fn load(path: &Path) -> Result<Loaded, ScenarioError> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let text = files::read_text(path).map_err(ScenarioError::File)?;
    let document: Value =
        toml::from_str(&text).map_err(|error| ScenarioError::NotToml(error.to_string()))?;
    let read = |name: &str| files::read(&folder.join(name)).map_err(|error| error.to_string());
    Loaded::parse(&document, &read).map_err(ScenarioError::Document)
}
