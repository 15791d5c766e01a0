//! Measured runs and kernel timings from folders, for
//! [`tidegate_sim::validate`].

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use tidegate_sim::kernels::{self, CsvError, Fit, Gpu, LayerFiles, Sample, TABLES};
use tidegate_sim::kernels::{Profiles, find_gpu};
use tidegate_sim::validate::{
    Curve, Point, Report, Run, join_prompts, judge_curve, judge_points, judge_run, parse_curves,
    parse_meta, parse_points, parse_prompts, parse_requests, parse_series,
};

use crate::files::{self, FileError};

/// Why nothing can be validated.
#[derive(Debug)]
pub enum ValidateError {
    /// A folder cannot be listed.
    Folder(PathBuf, std::io::Error),
    /// A file cannot be read.
    File(FileError),
    /// Kernel timings that are not in their format.
    Profile(CsvError),
}

impl fmt::Display for ValidateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path, error) => write!(f, "cannot list {}: {error}", path.display()),
            Self::File(error) => error.fmt(f),
            Self::Profile(error) => write!(f, "--profiles: {error}"),
        }
    }
}

impl std::error::Error for ValidateError {}

/// What a folder of measured runs holds.
#[derive(Debug, Default)]
pub struct Measured {
    runs: Vec<Run>,
    points: Vec<Point>,
    curves: Vec<(String, Curve)>,
    /// What was found and cannot be replayed.
    not: Vec<(String, String)>,
}

/// Kernel timings of a folder.
#[derive(Debug, Default)]
pub struct Timings {
    layers: Option<[String; 4]>,
    sweeps: Vec<(String, Vec<Sample>)>,
    gpus: Vec<Gpu>,
    /// Fits to take instead of the shipped ones.
    fits: Option<Vec<Fit>>,
}

/// The text of a file of this name, plain or gzipped; nothing when absent.
fn optional(folder: &Path, name: &str) -> Result<Option<String>, ValidateError> {
    let plain = folder.join(name);
    let packed = folder.join(format!("{name}.gz"));
    let path = [plain, packed].into_iter().find(|path| path.is_file());
    path.map(|path| files::read_text(&path).map_err(ValidateError::File)).transpose()
}

/// Reads every file of a folder that is in one of the known formats. Others are
/// kept by name, with the reason why they are not replayed.
pub fn read_measured(folder: &Path) -> Result<Measured, ValidateError> {
    let listed = std::fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let listed = listed.map_err(|error| ValidateError::Folder(folder.into(), error))?;
    let mut paths: Vec<PathBuf> = listed.into_iter().map(|entry| entry.path()).collect();
    paths.retain(|path| path.is_file());
    paths.sort();
    let mut found = Measured::default();
    let (mut metas, mut requests) = (Vec::new(), BTreeMap::new());
    let (mut series, mut prompts) = (BTreeMap::new(), BTreeMap::new());
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = name.strip_suffix(".gz").unwrap_or(&name).to_string();
        let text = match files::read_text(&path) {
            Ok(text) => text,
            Err(error) => {
                found.not.push((name, error.to_string()));
                continue;
            }
        };
        let head = text.lines().next().unwrap_or_default();
        let has = |column: &str| head.split(',').any(|c| c.trim() == column);
        let read = if text.trim_start().starts_with('[') {
            parse_meta(&name, &text).map(|read| metas.extend(read))
        } else if head.starts_with('{') && head.contains("\"hash_ids\"") {
            parse_prompts(&name, &text).map(|read| prompts.extend(read))
        } else if has("run") && has("scheduled_s") {
            parse_requests(&name, &text).map(|read| requests.extend(read))
        } else if has("run") && has("waiting") {
            parse_series(&name, &text).map(|read| series.extend(read))
        } else if has("silicon_ttft_ms") {
            parse_points(&name, &text).map(|read| found.points.extend(read))
        } else if has("variant") && has("offered_rps") {
            let stem = name.strip_suffix(".csv").unwrap_or(&name).to_string();
            parse_curves(&name, &text).map(|read| {
                found.curves.extend(read.into_iter().map(|curve| (stem.clone(), curve)));
            })
        } else {
            let reason = if has("prompt_ms") {
                "medians of single prompts and tokens on an engine of 2023: there is no schedule"
            } else {
                "not in one of the known formats"
            };
            found.not.push((name.clone(), reason.into()));
            Ok(())
        };
        // A file that is broken is told, and the others are replayed.
        if let Err(error) = read {
            found.not.push((name, error.to_string()));
        }
    }
    for meta in metas {
        let Some(mut requests) = requests.remove(&meta.run) else {
            found.not.push((meta.run, "no requests of it were recorded".into()));
            continue;
        };
        join_prompts(&mut requests, &prompts);
        let series = series.remove(&meta.run).unwrap_or_default();
        found.runs.push(Run { meta, requests, series });
    }
    let without = requests.into_keys();
    found.not.extend(without.map(|run| (run, "nothing tells its GPU and model".into())));
    Ok(found)
}

/// Reads the kernel timings of a folder, as far as the measured runs' GPUs need
/// them.
pub fn read_profiles(folder: &Path, measured: &Measured) -> Result<Timings, ValidateError> {
    let hardware = measured.runs.iter().map(|run| run.meta.hardware.as_str());
    let systems = measured.points.iter().map(|point| point.system.as_str());
    let words = measured.curves.iter().flat_map(|(file, _)| file.split('_'));
    let words = words.filter(|word| word.len() > 2);
    let gpus: Vec<&str> = hardware.chain(systems).chain(words).collect();
    read_timings(folder, &gpus)
}

/// Reads the kernel timings of a folder that are of these GPUs. Data sheets of
/// more GPUs are taken from `gpus.csv` there or beside it.
pub fn read_timings(folder: &Path, gpus: &[&str]) -> Result<Timings, ValidateError> {
    let mut found = Timings::default();
    for place in [folder, folder.parent().unwrap_or(folder)] {
        if let Some(text) = optional(place, "gpus.csv")? {
            found.gpus = Gpu::parse("gpus.csv", &text).map_err(ValidateError::Profile)?;
            break;
        }
    }
    let layer = |part: &str| optional(folder, &format!("llmservingsim_vllm_{part}.csv"));
    if let (Some(dense), Some(per_sequence), Some(attention)) =
        (layer("dense")?, layer("per_sequence")?, layer("attention")?)
    {
        let moe = layer("moe")?.unwrap_or_default();
        found.layers = Some([dense, per_sequence, attention, moe]);
    }
    let known = gpus.iter().filter_map(|name| find_gpu(name, &found.gpus));
    let mut names: Vec<String> = known.map(|gpu| gpu.name).collect();
    names.sort();
    names.dedup();
    let mut tables = Vec::new();
    for table in TABLES {
        let file = format!("aic_vllm_{table}.csv");
        if let Some(text) = optional(folder, &file)? {
            tables.push((table, file, text));
        }
    }
    for name in names {
        let mut samples = Vec::new();
        for (table, file, text) in &tables {
            let read = kernels::parse(table, file, text, &name);
            samples.extend(read.map_err(ValidateError::Profile)?);
        }
        if !samples.is_empty() {
            found.sweeps.push((name, samples));
        }
    }
    Ok(found)
}

impl Timings {
    /// Takes these fits instead of the shipped ones.
    pub fn set_fits(&mut self, fits: Vec<Fit>) {
        self.fits = Some(fits);
    }

    /// Data sheets of the folder.
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// Hands them to the library, with the fits that the project ships.
    pub fn with_profiles<T>(&self, use_them: impl FnOnce(&Profiles<'_>) -> T) -> T {
        let shipped;
        let fits = if let Some(fits) = &self.fits {
            fits.as_slice()
        } else {
            shipped = kernels::shipped();
            &shipped
        };
        let layers = self.layers.as_ref().map(|[dense, per_sequence, attention, moe]| LayerFiles {
            dense,
            per_sequence,
            attention,
            moe,
        });
        let (sweeps, gpus) = (&self.sweeps, &self.gpus);
        use_them(&Profiles { layers, sweeps, fits, gpus })
    }
}

/// Replays all whose names contain `only`.
pub fn run(measured: &Measured, timings: &Timings, only: Option<&str>) -> Report {
    timings.with_profiles(|profiles| run_with(measured, profiles, only))
}

fn run_with(measured: &Measured, profiles: &Profiles<'_>, only: Option<&str>) -> Report {
    let wanted = |name: &str| only.is_none_or(|only| name.contains(only));
    let mut report = Report::default();
    for run in measured.runs.iter().filter(|run| wanted(&run.meta.run)) {
        match judge_run(run, profiles) {
            Ok(judged) => report.runs.push(judged),
            Err(reason) => report.not_replayed.push((run.meta.run.clone(), reason)),
        }
    }
    for (file, curve) in &measured.curves {
        let name = format!("{file} {}", curve.variant);
        if !wanted(&name) {
            continue;
        }
        match judge_curve(curve, file, profiles) {
            Ok(judged) => report.runs.push(judged),
            Err(reason) => report.not_replayed.push((name, reason)),
        }
    }
    let (judged, not) = judge_points(&measured.points, profiles, &wanted);
    report.runs.extend(judged);
    report.not_replayed.extend(not);
    let unread = measured.not.iter().filter(|(name, _)| wanted(name)).cloned();
    report.not_replayed.extend(unread);
    report
}
