//! What replicas run on: figures, or a real GPU with a model on it.

use crate::engine::{Config, Linear, StepTime};
use crate::kernels::{
    Architecture, Asked, Deployment, Execution, Gpu, HostTime, Memory, Precision, Pricing,
    Profiles, find_gpu, shipped,
};

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

/// How many GPUs one replica has, and who does what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// GPUs that split every layer. At least 1.
    pub tp: u32,
    /// Replicas of the attention that step together. At least 1.
    pub data_parallel: u32,
    /// Experts are shared out over all GPUs, not split like the layers.
    pub expert_parallel: bool,
}

/// A part of a [`Hardware`] that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HardwareError {
    /// `gpu`, `architecture`, or what of the layout: `tp`, `dp`, `ep`.
    pub field: &'static str,
    /// What is allowed.
    pub allowed: String,
}

impl Hardware {
    /// A model on GPUs of whose memory the engine takes the share `utilization`,
    /// above 0, at most 1.
    pub fn new(
        gpu: &str,
        architecture: &str,
        layout: Layout,
        (weights, kv): (Precision, Precision),
        utilization: f64,
    ) -> Result<Self, HardwareError> {
        // The library's errors name what was found too.
        let wrong = |field, error: String| {
            let allowed = error.split_once("allowed: ").map_or(&*error, |(_, allowed)| allowed);
            HardwareError { field, allowed: allowed.into() }
        };
        let gpu = find_gpu(gpu, &[]).ok_or_else(|| {
            let known: Vec<String> = Gpu::all().into_iter().map(|gpu| gpu.name).collect();
            wrong("gpu", known.join(", "))
        })?;
        let model = Architecture::find(architecture)
            .map_err(|error| wrong("architecture", error.to_string()))?;
        let Layout { tp, data_parallel: dp, expert_parallel } = layout;
        let ep = if expert_parallel { tp.saturating_mul(dp) } else { 1 };
        let deployment = Deployment { ep, dp, weights, kv, ..Deployment::new(model, tp) };
        deployment.check().map_err(|error| wrong(error.field(), error.to_string()))?;
        Ok(Self { gpu, deployment, utilization })
    }

    /// Replicas of the attention that step together.
    pub fn ranks(&self) -> u32 {
        self.deployment.dp
    }

    /// KV blocks that the weights leave, for each rank.
    pub fn kv_blocks(&self, engine: &Config) -> u32 {
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
    pub fn step_time(&self, engine: &Config) -> Result<Box<dyn StepTime + Send>, String> {
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
                    host: HostTime::vllm(
                        engine.async_scheduling,
                        deployment.tp,
                        // Only who shares experts waits for the others.
                        if deployment.ep > 1 { deployment.dp } else { 1 },
                    ),
                };
                let profiles = Profiles { fits: &fits, ..Profiles::default() };
                let priced = profiles.price(&asked, Pricing::Model);
                Ok(priced.map_err(|error| error.to_string())?.time)
            }
        }
    }
}
