//! Which step time a deployment has: the best that is known of its GPU, or one
//! of the simpler models that it is compared with.

use std::fmt;

use super::{
    Breakdown, Composed, CsvError, Deployment, Execution, Explained, Fit, Forward, Gpu, HostTime,
    LayerFiles, LayerProfile, Link, Model, Roofline, Sample, StepModel, Sweep, plain_name,
};
use crate::engine::{Chunk, StepTime, Work};

/// Kernel timings at hand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Profiles<'a> {
    /// Layer-wise profiles; nothing when absent.
    pub layers: Option<LayerFiles<'a>>,
    /// Sweeps of single kernels, by the GPU's name.
    pub sweeps: &'a [(String, Vec<Sample>)],
    /// Fits of kernel times to sweeps.
    pub fits: &'a [Fit],
    /// Data sheets beside those of the project.
    pub gpus: &'a [Gpu],
}

/// Who prices the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pricing {
    /// The best that the profiles allow, with the host.
    Model,
    /// The same kernels without the host.
    Kernels,
    /// The data sheet.
    Roofline,
    /// fleet-sim: `W + H × n` an iteration.
    FleetSim,
}

impl Pricing {
    /// All, the model first.
    pub const ALL: [Self; 4] = [Self::Model, Self::Kernels, Self::Roofline, Self::FleetSim];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Kernels => "measured_kernels",
            Self::Roofline => "roofline",
            Self::FleetSim => "fleet_sim",
        }
    }
}

/// Why a run cannot be priced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PriceError {
    /// A profile cannot be read.
    Profile(CsvError),
    /// Nothing is known of the GPU.
    Gpu(String),
    /// fleet-sim has no figures for it.
    FleetSim(String),
}

impl fmt::Display for PriceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Profile(error) => error.fmt(f),
            Self::Gpu(name) => write!(f, "no kernel timings and no data sheet of {name:?}"),
            Self::FleetSim(name) => {
                write!(f, "fleet-sim has figures for H100 and A100, not {name:?}")
            }
        }
    }
}

impl std::error::Error for PriceError {}

impl From<CsvError> for PriceError {
    fn from(error: CsvError) -> Self {
        Self::Profile(error)
    }
}

/// One deployment to price.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    /// The GPU, as the run names it.
    pub gpu: &'a str,
    /// The model on it.
    pub deployment: Deployment,
    /// How passes are run.
    pub execution: Execution,
    /// The host.
    pub host: HostTime,
}

/// A step time, and where its kernels come from.
pub struct Priced {
    /// The step time.
    pub time: Box<dyn StepTime + Send>,
    /// `layer profile`, `sweep`, `data sheet`, `fleet-sim`, or the GPUs that a
    /// fit rests on.
    pub source: String,
}

/// fleet-sim's `W` and `H`, in seconds; `H` is a sequence's at 8,192 tokens. Its
/// profiles are of Llama-3-70B on 8 GPUs, and it has no others.
struct FleetSim {
    fixed: f64,
    sequence: f64,
    chunk: f64,
}

impl FleetSim {
    fn named(gpu: &str) -> Option<Self> {
        let (fixed, sequence, chunk) = match plain_name(gpu) {
            name if name.starts_with("h100") => (4.0e-3, 0.32e-3, 1_024.0),
            name if name.starts_with("a100") => (8.0e-3, 0.65e-3, 512.0),
            _ => return None,
        };
        Some(Self { fixed, sequence, chunk })
    }
}

impl StepTime for FleetSim {
    fn step(&self, work: &Work<'_>) -> u64 {
        let new: f64 = work.prefill.iter().map(|chunk| f64::from(chunk.new)).sum();
        let context = work.decode_context as f64 / f64::from(work.decode.max(1));
        let iteration = self.fixed + self.sequence * context / 8_192.0 * f64::from(work.decode);
        let iterations = libm::ceil(new / self.chunk).max(1.0);
        ((iteration * iterations * 1e9) as u64).max(1)
    }
}

/// Passes of the families that a sweep has, and nothing of the others.
struct SweptOnly<F>(F);

impl<F: Forward> Forward for SweptOnly<F> {
    fn tokens(&self, tokens: u32, graph: bool) -> Breakdown {
        Breakdown { elementwise: 0.0, ..self.0.tokens(tokens, graph) }
    }

    fn sequences(&self, sampled: u32) -> Breakdown {
        Breakdown { sampler: 0.0, ..self.0.sequences(sampled) }
    }

    fn decode_attention(&self, sequences: u32, context: f64) -> f64 {
        self.0.decode_attention(sequences, context)
    }

    fn prefill_attention(&self, chunk: Chunk) -> f64 {
        self.0.prefill_attention(chunk)
    }

    fn packed_rows(&self) -> u32 {
        self.0.packed_rows()
    }
}

/// A GPU of a measured run that is in no list of data sheets. Source: NVIDIA's
/// Ada white paper; the peaks are those with 32-bit accumulation.
fn rtx_4090() -> Gpu {
    Gpu {
        name: "rtx_4090".into(),
        memory: 25_757_220_864.0,
        bandwidth: 1_008e9,
        bf16: 165.2e12,
        fp8: Some(330.3e12),
        capability: 89,
        per_node: 8,
        link: 32e9,
        sms: 128.0,
        clock: 2.52e9,
        l2: 75_497_472.0,
        power: 450.0,
    }
}

/// A GPU by a run's name for it: `RTXPRO6000` is `rtx_pro_6000_server`.
pub fn find_gpu(name: &str, more: &[Gpu]) -> Option<Gpu> {
    let wanted = plain_name(name);
    let mut known = Gpu::all();
    known.push(rtx_4090());
    let all = || more.iter().chain(&known);
    let exact = all().find(|gpu| plain_name(&gpu.name) == wanted);
    let shortened =
        || all().find(|gpu| !wanted.is_empty() && plain_name(&gpu.name).starts_with(&wanted));
    let lengthened = || {
        let known = all().filter(|gpu| wanted.starts_with(&plain_name(&gpu.name)));
        // The rest tells the memory or the like, and must not change the number.
        let known = known.filter(|gpu| {
            let rest = wanted.get(plain_name(&gpu.name).len()..).unwrap_or_default();
            !gpu.name.contains('_') || !rest.starts_with(|c: char| c.is_ascii_digit())
        });
        known.filter(|gpu| gpu.name.contains('_')).max_by_key(|gpu| gpu.name.len())
    };
    let word = || {
        let lower = name.to_ascii_lowercase();
        let words: Vec<&str> = lower.split(|c: char| !c.is_ascii_alphanumeric()).collect();
        all().find(|gpu| gpu.name.split('_').next().is_some_and(|first| words.contains(&first)))
    };
    exact.or_else(shortened).or_else(lengthened).or_else(word).cloned()
}

impl Profiles<'_> {
    /// The kernels of a deployment, and where they come from.
    fn passes(&self, asked: &Asked<'_>) -> Result<(Box<dyn Forward + Send>, String), PriceError> {
        let gpu = find_gpu(asked.gpu, self.gpus);
        if let Some(files) = &self.layers {
            let link = Link::of(gpu.as_ref().map_or(32e9, |gpu| gpu.link));
            let found = LayerProfile::parse(files, asked.gpu, asked.deployment, link)?;
            if let Some(profile) = found {
                return Ok((Box::new(profile), "layer profile".into()));
            }
        }
        let gpu = gpu.ok_or_else(|| PriceError::Gpu(asked.gpu.into()))?;
        let own = self.fits.iter().find(|fit| fit.gpu().name == gpu.name);
        if let Some(sweep) = self.sweep(&gpu).filter(|_| own.is_none()) {
            return Ok((Box::new(Composed::new(asked.deployment, sweep)), "sweep".into()));
        }
        let model = match own {
            Some(fit) => Model::measured(fit.clone()),
            None => Model::cross(&gpu, self.fits),
        };
        let sources: Vec<&str> = model.sources().collect();
        let source = format!("fit of {}", sources.join(", "));
        Ok((Box::new(Composed::new(asked.deployment, model.serving())), source))
    }

    /// What was timed on a GPU, if it is enough for a step.
    fn sweep(&self, gpu: &Gpu) -> Option<Sweep> {
        let (_, samples) = self.sweeps.iter().find(|(name, _)| *name == gpu.name)?;
        Some(Sweep::new(gpu, samples)).filter(|sweep| !sweep.is_empty())
    }

    /// Kernels as they were timed: a layer profile, or the families of a sweep.
    fn timed(&self, asked: &Asked<'_>) -> Result<(Box<dyn Forward + Send>, String), PriceError> {
        let sweep = find_gpu(asked.gpu, self.gpus).and_then(|gpu| self.sweep(&gpu));
        let (pass, source) = self.passes(asked)?;
        Ok(match sweep {
            _ if source == "layer profile" => (pass, source),
            Some(sweep) => {
                (Box::new(SweptOnly(Composed::new(asked.deployment, sweep))), "sweep".into())
            }
            None => (Box::new(SweptOnly(pass)), source),
        })
    }

    /// One step of a deployment, family by family; of [`Pricing::Model`] and
    /// [`Pricing::Roofline`] only.
    pub fn explain(
        &self,
        asked: &Asked<'_>,
        pricing: Pricing,
        work: &Work<'_>,
    ) -> Result<(Explained, String), PriceError> {
        let (pass, host, source) = if pricing == Pricing::Roofline {
            let gpu = find_gpu(asked.gpu, self.gpus);
            let gpu = gpu.ok_or_else(|| PriceError::Gpu(asked.gpu.into()))?;
            let pass: Box<dyn Forward + Send> =
                Box::new(Composed::new(asked.deployment, Roofline(gpu)));
            (pass, HostTime::NONE, "data sheet".into())
        } else {
            let (pass, source) = self.passes(asked)?;
            (pass, asked.host, source)
        };
        let layers = asked.deployment.model.layers;
        let step = StepModel::new(pass, layers, host, asked.execution.clone());
        Ok((step.explain(work), source))
    }

    /// Prices a deployment.
    pub fn price(&self, asked: &Asked<'_>, pricing: Pricing) -> Result<Priced, PriceError> {
        let Asked { deployment, execution, host, .. } = asked;
        let layers = deployment.model.layers;
        let model = |pass: Box<dyn Forward + Send>, host: HostTime| {
            StepModel::new(pass, layers, host, execution.clone())
        };
        match pricing {
            Pricing::Model => {
                let (pass, source) = self.passes(asked)?;
                Ok(Priced { time: Box::new(model(pass, *host)), source })
            }
            Pricing::Kernels => {
                let (pass, source) = self.timed(asked)?;
                Ok(Priced { time: Box::new(model(pass, HostTime::NONE)), source })
            }
            Pricing::Roofline => {
                let gpu = find_gpu(asked.gpu, self.gpus);
                let gpu = gpu.ok_or_else(|| PriceError::Gpu(asked.gpu.into()))?;
                let pass: Box<dyn Forward + Send> =
                    Box::new(Composed::new(*deployment, Roofline(gpu)));
                Ok(Priced {
                    time: Box::new(model(pass, HostTime::NONE)),
                    source: "data sheet".into(),
                })
            }
            Pricing::FleetSim => {
                let time = FleetSim::named(asked.gpu)
                    .ok_or_else(|| PriceError::FleetSim(asked.gpu.into()))?;
                Ok(Priced { time: Box::new(time), source: "fleet-sim".into() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_found_by_a_runs_names_for_them() {
        for (name, known) in [
            ("RTXPRO6000", "rtx_pro_6000_server"),
            ("RTX4090", "rtx_4090"),
            ("L4", "l4"),
            ("l40s", "l40s"),
            ("L40S-48GB", "l40s"),
            ("NVIDIA H100 80GB HBM3", "h100_sxm"),
            ("A100-SXM-80GB", "a100_sxm"),
            ("H100_PCIe", "h100_pcie"),
            ("", ""),
            ("H100", "h100_sxm"),
            ("h100_sxm", "h100_sxm"),
            ("NVIDIA-none", ""),
        ] {
            let found = find_gpu(name, &[]).map_or(String::new(), |gpu| gpu.name);
            assert_eq!(found, known, "{name}");
        }
    }

    #[test]
    fn fleet_sims_published_iterations_come_out() {
        // Its H100 at 8,704 tokens: 5.4, 6.7, 9.4, 14.9 and 25.8 ms at 4 to 64.
        let h100 = FleetSim::named("h100_sxm").unwrap();
        for (n, ms) in [(4, 5.4), (8, 6.7), (16, 9.4), (32, 14.9), (64, 25.8)] {
            let work = Work { decode: n, decode_context: u64::from(n) * 8_704, ..Work::default() };
            assert!((h100.step(&work) as f64 / 1e6 - ms).abs() < 0.06, "{n}");
        }
        assert!(FleetSim::named("l40s").is_none());
    }
}
