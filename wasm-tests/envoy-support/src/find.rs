//! Where Envoy and the filter are.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// The root of the workspace.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// The Envoy binary: `ENVOY`, else the one that `make envoy` installed into
/// `.envoy`, else the one on the `PATH`.
pub fn envoy_binary() -> Result<PathBuf, String> {
    if let Some(given) = env::var_os("ENVOY").filter(|v| !v.is_empty()) {
        let path = PathBuf::from(given);
        return if path.is_file() {
            Ok(path)
        } else {
            Err(format!("ENVOY names {}, which is no file", path.display()))
        };
    }
    let path = env::var_os("PATH").unwrap_or_default();
    installed(&root().join(".envoy"), 8)
        .or_else(|| env::split_paths(&path).map(|dir| dir.join("envoy")).find(|p| p.is_file()))
        .ok_or_else(|| "no Envoy found: `make envoy` installs it, ENVOY=/path names one".into())
}

/// Looks for `_bin/envoy` below `dir`.
fn installed(dir: &Path, depth: u32) -> Option<PathBuf> {
    let mut below: Vec<PathBuf> =
        fs::read_dir(dir).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    below.sort();
    if dir.file_name() == Some(OsStr::new("_bin")) {
        return below.into_iter().find(|p| p.is_file() && p.ends_with("envoy"));
    }
    if depth == 0 {
        return None;
    }
    below.iter().filter(|p| p.is_dir()).find_map(|p| installed(p, depth - 1))
}

/// The filter: `TIDEGATE_WASM`, else `target/tidegate.wasm`.
pub fn wasm_file() -> Result<PathBuf, String> {
    let path = match env::var_os("TIDEGATE_WASM").filter(|v| !v.is_empty()) {
        Some(given) => PathBuf::from(given),
        None => root().join("target/tidegate.wasm"),
    };
    // Envoy may run in another directory.
    fs::canonicalize(&path)
        .map_err(|e| format!("no filter at {}: {e}; `make wasm` builds it", path.display()))
}

/// Whether a test must be skipped because Envoy or the filter is missing. Says
/// so on stderr.
///
/// # Panics
///
/// When something is missing and `TIDEGATE_REQUIRE` lists `envoy`: there a skip
/// is a failure.
pub fn missing() -> bool {
    match envoy_binary().and_then(|_| wasm_file()) {
        Ok(_) => false,
        Err(reason) => skip("envoy", &reason),
    }
}

/// Says that a test is skipped, or fails where it may not be; true.
pub(crate) fn skip(part: &str, reason: &str) -> bool {
    let required = env::var("TIDEGATE_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|listed| listed.trim() == part),
        "TIDEGATE_REQUIRE lists {part}, but: {reason}"
    );
    eprintln!("skipped: {reason}");
    true
}
