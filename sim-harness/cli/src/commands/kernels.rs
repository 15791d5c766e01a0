//! `tidegate-sim kernels`.

use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};
use tidegate_sim::kernels::score::{Report, Split};
use tidegate_sim::kernels::{self, Effort, Fit, Gpu, Model, Sample, TABLES, Tier, gpu};

use super::CommandError;
use crate::files;

/// Flags of `kernels`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Fit the kernel times of one GPU to a sweep of it.
    Fit(FitArgs),
    /// Compare predicted kernel times with measured ones.
    Score(ScoreArgs),
}

#[derive(Debug, clap::Args)]
struct FitArgs {
    /// The sweep: a folder with aic_vllm_{gemm,attn_context,attn_generation,moe,allreduce}.csv,
    /// plain or gzipped. Those that are absent are left out.
    #[arg(long, value_name = "DIR")]
    profiles: PathBuf,
    /// The GPU, as in the sweep's column `system`; several with commas between.
    #[arg(long, value_name = "NAME")]
    gpu: String,
    /// Where the fit goes.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Data sheets of more GPUs: a CSV file as the data set's gpus.csv, with
    /// sm_count, boost_hz and l2_bytes if you know them.
    #[arg(long, value_name = "FILE")]
    gpus: Option<PathBuf>,
    /// An eighth of the size, a little less accurate.
    #[arg(long)]
    compact: bool,
    /// Where the timings are from; kept in the file.
    #[arg(long, value_name = "TEXT", default_value = "a kernel sweep")]
    source: String,
}

#[derive(Debug, clap::Args)]
struct ScoreArgs {
    /// The GPU, as in the sweep's column `system`.
    #[arg(long, value_name = "NAME")]
    gpu: String,
    /// What may be known: a sweep of this GPU, or its data sheet and fits of
    /// other GPUs.
    #[arg(long, value_enum)]
    tier: TierArg,
    /// Measured tier: the sweep to fit on. Without it, one part of --test is.
    #[arg(long, value_name = "DIR")]
    train: Option<PathBuf>,
    /// The sweep to judge by.
    #[arg(long, value_name = "DIR")]
    test: PathBuf,
    /// Measured tier without --train: what part of --test is held out; the rest
    /// is fitted on.
    #[arg(long, value_enum, default_value = "points")]
    split: SplitArg,
    /// With --split random: the share that is fitted on.
    #[arg(long, value_name = "SHARE", default_value_t = 0.3, value_parser = share)]
    share: f64,
    /// With --split random or shapes: another draw.
    #[arg(long, value_name = "N", default_value_t = 1)]
    salt: u64,
    /// Cross tier: GPUs that must not be used either, such as the siblings.
    #[arg(long, value_name = "GPU,…", value_delimiter = ',')]
    without: Vec<String>,
    /// Cross tier: fits to use instead of those that the project ships.
    #[arg(long, value_name = "FILE")]
    fits: Option<PathBuf>,
    /// Data sheets of more GPUs: a CSV file as the data set's gpus.csv, with
    /// sm_count, boost_hz and l2_bytes if you know them.
    #[arg(long, value_name = "FILE")]
    gpus: Option<PathBuf>,
    /// Predict for a server, which finds nothing in the L2; sweeps that repeat
    /// one kernel find all that fits.
    #[arg(long)]
    serving: bool,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "allowed is a number from 0 to 1".into())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TierArg {
    /// Fit on a sweep of the GPU.
    Measured,
    /// Data sheet and shipped fits of other GPUs.
    Cross,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SplitArg {
    /// Every second size of a curve.
    Points,
    /// Whole curves.
    Shapes,
    /// Single shapes.
    Random,
}

impl Args {
    pub(super) fn run(self) -> Result<(), CommandError> {
        match self.what {
            What::Fit(args) => args.run(),
            What::Score(args) => args.run(),
        }
    }
}

impl FitArgs {
    fn run(self) -> Result<(), CommandError> {
        let known = sheets(self.gpus.as_deref())?;
        let effort = if self.compact { Effort::Compact } else { Effort::Full };
        let mut fits = Vec::new();
        for name in self.gpu.split(',') {
            let gpu = named(&known, name)?;
            let samples = sweep("--profiles", &self.profiles, gpu, name)?;
            fits.push(Fit::new(gpu, &samples, effort));
        }
        let bytes = kernels::encode(&self.source, &fits);
        std::fs::write(&self.out, &bytes)
            .map_err(|error| CommandError::Write(self.out.clone(), error))?;
        super::print(&format!("{} bytes to {}\n", bytes.len(), self.out.display()))
    }
}

impl ScoreArgs {
    fn run(self) -> Result<(), CommandError> {
        let known = sheets(self.gpus.as_deref())?;
        let gpu = named(&known, &self.gpu)?;
        let mut test = sweep("--test", &self.test, gpu, &self.gpu)?;
        let (tier, model) = match self.tier {
            TierArg::Measured => {
                let train = if let Some(folder) = &self.train {
                    sweep("--train", folder, gpu, &self.gpu)?
                } else {
                    let (train, held_out) = self.split().part(&test);
                    test = held_out;
                    train
                };
                (Tier::Measured, Model::measured(Fit::new(gpu, &train, Effort::Full)))
            }
            TierArg::Cross => {
                let mut without = Vec::new();
                for name in &self.without {
                    without.push(named(&known, name)?.name.clone());
                }
                let mut others = match &self.fits {
                    Some(path) => fits(path)?,
                    None => kernels::shipped(),
                };
                others.retain(|fit| !without.contains(&fit.gpu().name));
                (Tier::Cross, Model::cross(gpu, &others))
            }
        };
        let model = if self.serving { model.serving() } else { model };
        let report = Report::new(&model, tier, &test);
        super::print(&if self.json {
            format!("{}\n", report.to_json())
        } else {
            report.to_string()
        })
    }

    fn split(&self) -> Split {
        match self.split {
            SplitArg::Points => Split::Points,
            SplitArg::Shapes => Split::Shapes(self.salt),
            SplitArg::Random => Split::Random(self.share, self.salt),
        }
    }
}

/// The project's data sheets, after those of a file.
fn sheets(file: Option<&Path>) -> Result<Vec<Gpu>, CommandError> {
    let mut known = Vec::new();
    if let Some(path) = file {
        let text = files::read_text(path).map_err(|error| CommandError::File("--gpus", error))?;
        let name = path.display().to_string();
        known = Gpu::parse(&name, &text).map_err(|error| CommandError::Csv("--gpus", error))?;
    }
    known.extend(Gpu::all());
    Ok(known)
}

fn named<'a>(known: &'a [Gpu], name: &str) -> Result<&'a Gpu, CommandError> {
    gpu::find(known, name).ok_or_else(|| {
        let mut names: Vec<&str> = known.iter().map(|gpu| gpu.name.as_str()).collect();
        names.dedup();
        CommandError::UnknownGpu { name: name.into(), known: names.join(", ") }
    })
}

fn fits(path: &Path) -> Result<Vec<Fit>, CommandError> {
    let bytes = files::read(path).map_err(|error| CommandError::File("--fits", error))?;
    let (_, fits) =
        kernels::decode(&bytes).map_err(|error| CommandError::Fits(path.to_path_buf(), error))?;
    Ok(fits)
}

/// All samples of a GPU in a folder: under its own name, else under the one
/// that was asked for.
fn sweep(
    flag: &'static str,
    folder: &Path,
    gpu: &Gpu,
    asked: &str,
) -> Result<Vec<Sample>, CommandError> {
    match tables(flag, folder, &gpu.name) {
        Err(CommandError::NoSamples { .. }) if asked != gpu.name => tables(flag, folder, asked),
        result => result,
    }
}

fn tables(flag: &'static str, folder: &Path, gpu: &str) -> Result<Vec<Sample>, CommandError> {
    let mut samples = Vec::new();
    let mut found = Vec::new();
    for table in TABLES {
        let paths = ["csv.gz", "csv"].map(|end| folder.join(format!("aic_vllm_{table}.{end}")));
        let Some(path) = paths.iter().find(|path| path.exists()) else { continue };
        let text = files::read_text(path).map_err(|error| CommandError::File(flag, error))?;
        let name = path.display().to_string();
        samples.extend(
            kernels::parse(table, &name, &text, gpu).map_err(|e| CommandError::Csv(flag, e))?,
        );
        found.push(table);
    }
    if samples.is_empty() {
        return Err(CommandError::NoSamples {
            flag,
            folder: folder.to_path_buf(),
            gpu: gpu.into(),
            tables: found.join(", "),
        });
    }
    Ok(samples)
}
