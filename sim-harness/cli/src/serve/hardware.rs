//! What a pool's replicas run on: the field `hardware` of the pools document.

use tidegate_sim::engine::{Config, Linear, StepTime};
use tidegate_sim::kernels::{
    Architecture, Deployment, Execution, Gpu, HostTime, Memory, Precision, shipped,
};
use tidegate_sim::validate::{Asked, Pricing, Profiles, find_gpu};

use crate::fields::{FieldError, Fields};

/// Who says how long a step takes.
#[derive(Clone, Debug)]
pub enum Timing {
    /// Figures of the document.
    Linear(Linear),
    /// A GPU with a model on it, by the fitted kernels that the project ships.
    Hardware(Box<Hardware>),
}

/// A GPU with a model on it.
#[derive(Clone, Debug)]
pub struct Hardware {
    gpu: Gpu,
    deployment: Deployment,
    /// The engine's share of the memory, above 0, at most 1.
    utilization: f64,
}

pub(super) const FIELDS: [&str; 6] =
    ["gpu", "architecture", "tp", "weights", "kv_cache_dtype", "gpu_memory_utilization"];

const PRECISIONS: [(&str, Precision); 3] =
    [("bf16", Precision::Bf16), ("fp8", Precision::Fp8), ("fp8_block", Precision::Fp8Block)];

/// What an error of the library says is allowed.
fn allowed(error: &str) -> String {
    error.split_once("allowed: ").map_or(error, |(_, allowed)| allowed).into()
}

impl Hardware {
    pub(super) fn parse(fields: &Fields) -> Result<Self, FieldError> {
        let name = fields.text("gpu")?;
        let gpu = find_gpu(name, &[]).ok_or_else(|| {
            let known: Vec<String> = Gpu::all().into_iter().map(|gpu| gpu.name).collect();
            fields.wrong("gpu", known.join(", "))
        })?;
        let model = Architecture::find(fields.text("architecture")?)
            .map_err(|error| fields.wrong("architecture", allowed(&error.to_string())))?;
        let precision = |field: &str| {
            let Some(value) = fields.get(field) else { return Ok(Precision::Bf16) };
            let found = PRECISIONS.iter().find(|(name, _)| value.as_str() == Some(*name));
            found
                .map(|(_, precision)| *precision)
                .ok_or_else(|| fields.wrong(field, PRECISIONS.map(|(name, _)| name).join(", ")))
        };
        let tp = fields.whole("tp", 1..=64, Some(1))? as u32;
        let deployment = Deployment {
            weights: precision("weights")?,
            kv: precision("kv_cache_dtype")?,
            ..Deployment::new(model, tp)
        };
        deployment.check().map_err(|error| fields.wrong("tp", allowed(&error.to_string())))?;
        let utilization = fields.number("gpu_memory_utilization", 0.01..=1.0, 0.9)?;
        Ok(Self { gpu, deployment, utilization })
    }

    /// KV blocks that the weights leave.
    pub(super) fn kv_blocks(&self, engine: &Config) -> u32 {
        self.deployment.kv_blocks(&Memory {
            bytes: self.gpu.memory,
            utilization: self.utilization,
            batched_tokens: engine.max_num_batched_tokens,
            seats: engine.max_num_seqs,
            block: engine.block_size,
        })
    }
}

impl Timing {
    /// A step time for one replica. Fails when no kernel times are known.
    pub(super) fn step_time(&self, engine: &Config) -> Result<Box<dyn StepTime + Send>, String> {
        match self {
            Self::Linear(linear) => Ok(Box::new(*linear)),
            Self::Hardware(hardware) => {
                let Hardware { gpu, deployment, .. } = hardware.as_ref();
                let fits = shipped();
                let asked = Asked {
                    gpu: &gpu.name,
                    deployment: *deployment,
                    execution: Execution::vllm(
                        engine.max_num_batched_tokens,
                        engine.max_num_seqs,
                        engine.max_model_len,
                    ),
                    host: HostTime::vllm(engine.async_scheduling, deployment.tp, 1),
                };
                let profiles = Profiles { fits: &fits, ..Profiles::default() };
                let priced = profiles.price(&asked, Pricing::Model);
                Ok(priced.map_err(|error| error.to_string())?.time)
            }
        }
    }
}
