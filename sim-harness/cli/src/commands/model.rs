//! Flags that name a model and the GPUs of one replica of it.

use clap::ValueEnum;
use tidegate_sim::kernels::{Architecture, Deployment, Precision};

use super::CommandError;

/// What a replica runs, and on what.
#[derive(Debug, clap::Args)]
pub(super) struct ModelArgs {
    /// The model, such as Llama-3.1-70B.
    #[arg(long, value_name = "NAME")]
    pub(super) model: String,
    /// The GPU, such as h100_sxm.
    #[arg(long, value_name = "NAME")]
    pub(super) gpu: String,
    /// GPUs of a replica: they split every layer.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) tp: u32,
    /// How weights are stored.
    #[arg(long, value_enum, default_value = "bf16")]
    weights: PrecisionArg,
    /// How keys and values are stored.
    #[arg(long, value_enum, default_value = "bf16")]
    kv: PrecisionArg,
}

impl ModelArgs {
    /// Names of the precisions of weights and of keys and values.
    pub(super) fn precisions(&self) -> [&'static str; 2] {
        let of = |arg: PrecisionArg| {
            let precision = Precision::from(arg);
            Precision::NAMED.iter().find(|(_, one)| *one == precision).map_or("", |(name, _)| name)
        };
        [of(self.weights), of(self.kv)]
    }

    /// The model on its GPUs, its experts split as all else is.
    pub(super) fn deployment(&self) -> Result<Deployment, CommandError> {
        let model = Architecture::find(&self.model)
            .map_err(|error| CommandError::Flag("--model".into(), error.to_string()))?;
        let (weights, kv) = (self.weights.into(), self.kv.into());
        Ok(Deployment { weights, kv, ..Deployment::new(model, self.tp) })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PrecisionArg {
    /// bfloat16.
    Bf16,
    /// 8-bit float, one scale a tensor.
    Fp8,
    /// 8-bit float, one scale a block.
    Fp8Block,
}

impl From<PrecisionArg> for Precision {
    fn from(arg: PrecisionArg) -> Self {
        match arg {
            PrecisionArg::Bf16 => Self::Bf16,
            PrecisionArg::Fp8 => Self::Fp8,
            PrecisionArg::Fp8Block => Self::Fp8Block,
        }
    }
}
