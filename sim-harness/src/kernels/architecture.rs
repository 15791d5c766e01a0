//! The models that can be served: what their published `config.json` says.

use std::fmt;

use super::Precision;

/// Routed experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Routed experts of a layer.
    pub count: u32,
    /// Experts a token goes to.
    pub topk: u32,
    /// Width of one expert.
    pub intermediate: u32,
    /// Experts that every token goes to.
    pub shared: u32,
    /// Layers at the start that have a dense network instead.
    pub dense_layers: u32,
}

/// Multi-head latent attention: keys and values are kept as one short vector a
/// token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Width of the vector that queries are made from.
    pub q_rank: u32,
    /// Width of the kept vector.
    pub kv_rank: u32,
    /// Elements of a key that carry the position.
    pub rope: u32,
    /// Elements of a value head.
    pub v_head_dim: u32,
}

/// The architecture of one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Architecture {
    /// Its name, without its publisher.
    pub name: &'static str,
    /// Transformer layers.
    pub layers: u32,
    /// Architecture width.
    pub hidden: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements of a query head.
    pub head_dim: u32,
    /// Width of the dense network.
    pub intermediate: u32,
    /// Entries of the vocabulary.
    pub vocab: u32,
    /// Routed experts, if it has them.
    pub experts: Option<Experts>,
    /// Latent attention, if it has it.
    pub latent: Option<Latent>,
    /// Queries and keys are normalised.
    pub qk_norm: bool,
    /// Tokens that every second layer looks back over, if limited.
    pub window: Option<u32>,
}

/// No model of the table has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownModel {
    /// The name that was asked for.
    pub found: String,
}

impl fmt::Display for UnknownModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "found {:?}; allowed: ", self.found)?;
        for (i, model) in MODELS.iter().enumerate() {
            write!(f, "{}{}", if i > 0 { ", " } else { "" }, model.name)?;
        }
        f.write_str(", with or without a publisher and a suffix such as -Instruct")
    }
}

impl std::error::Error for UnknownModel {}

const fn dense(
    name: &'static str,
    (layers, hidden): (u32, u32),
    (heads, kv_heads, head_dim): (u32, u32, u32),
    intermediate: u32,
    vocab: u32,
) -> Architecture {
    Architecture {
        name,
        layers,
        hidden,
        heads,
        kv_heads,
        head_dim,
        intermediate,
        vocab,
        experts: None,
        latent: None,
        qk_norm: false,
        window: None,
    }
}

const fn sparse(model: Architecture, count: u32, topk: u32, intermediate: u32) -> Architecture {
    let experts = Experts { count, topk, intermediate, shared: 0, dense_layers: 0 };
    Architecture { experts: Some(experts), ..model }
}

const fn deepseek(
    name: &'static str,
    heads: u32,
    vocab: u32,
    count: u32,
    dense_layers: u32,
) -> Architecture {
    let experts = Experts { count, topk: 8, intermediate: 2_048, shared: 1, dense_layers };
    let latent = Latent { q_rank: 1_536, kv_rank: 512, rope: 64, v_head_dim: 128 };
    Architecture {
        experts: Some(experts),
        latent: Some(latent),
        ..dense(name, (61, 7_168), (heads, heads, 192), 18_432, vocab)
    }
}

const fn qk_norm(model: Architecture) -> Architecture {
    Architecture { qk_norm: true, ..model }
}

const fn windowed(model: Architecture, window: u32) -> Architecture {
    Architecture { window: Some(window), ..model }
}

/// Every known model. Source: the `config.json` that its publisher ships with
/// the weights.
pub const MODELS: [Architecture; 21] = [
    dense("CodeLlama-34B", (48, 8_192), (64, 8, 128), 22_016, 32_000),
    deepseek("DeepSeek-V3", 128, 129_280, 256, 3),
    deepseek("Kimi-K2", 64, 163_840, 384, 1),
    dense("Llama-2-70B", (80, 8_192), (64, 8, 128), 28_672, 32_000),
    dense("Llama-2-7B", (32, 4_096), (32, 32, 128), 11_008, 32_000),
    dense("Llama-3-70B", (80, 8_192), (64, 8, 128), 28_672, 128_256),
    dense("Llama-3-8B", (32, 4_096), (32, 8, 128), 14_336, 128_256),
    dense("Llama-3.1-405B", (126, 16_384), (128, 8, 128), 53_248, 128_256),
    dense("Llama-3.1-70B", (80, 8_192), (64, 8, 128), 28_672, 128_256),
    dense("Llama-3.1-8B", (32, 4_096), (32, 8, 128), 14_336, 128_256),
    sparse(dense("Mixtral-8x22B", (56, 6_144), (48, 8, 128), 16_384, 32_000), 8, 2, 16_384),
    sparse(dense("Mixtral-8x7B", (32, 4_096), (32, 8, 128), 14_336, 32_000), 8, 2, 14_336),
    dense("Qwen2.5-72B", (80, 8_192), (64, 8, 128), 29_568, 152_064),
    dense("Qwen2.5-7B", (28, 3_584), (28, 4, 128), 18_944, 152_064),
    qk_norm(sparse(
        dense("Qwen3-235B-A22B", (94, 4_096), (64, 4, 128), 12_288, 151_936),
        128,
        8,
        1_536,
    )),
    qk_norm(sparse(dense("Qwen3-30B-A3B", (48, 2_048), (32, 4, 128), 6_144, 151_936), 128, 8, 768)),
    qk_norm(dense("Qwen3-32B", (64, 5_120), (64, 8, 128), 25_600, 151_936)),
    qk_norm(dense("Qwen3-8B", (36, 4_096), (32, 8, 128), 12_288, 151_936)),
    qk_norm(sparse(
        dense("Qwen3-Coder-480B-A35B", (62, 6_144), (96, 8, 128), 8_192, 151_936),
        160,
        8,
        2_560,
    )),
    windowed(
        sparse(dense("gpt-oss-120b", (36, 2_880), (64, 8, 64), 2_880, 201_088), 128, 4, 2_880),
        128,
    ),
    windowed(
        sparse(dense("gpt-oss-20b", (24, 2_880), (64, 8, 64), 2_880, 201_088), 32, 4, 2_880),
        128,
    ),
];

/// Published names of the same architecture.
const ALIASES: [(&str, &str); 4] = [
    ("deepseek-r1", "DeepSeek-V3"),
    ("llama-3.3-70b", "Llama-3.1-70B"),
    ("meta-llama-3-8b", "Llama-3-8B"),
    ("meta-llama-3-70b", "Llama-3-70B"),
];

impl Architecture {
    /// The model of a published name: `meta-llama/Llama-3.1-70B-Instruct` is
    /// `Llama-3.1-70B`.
    pub fn find(name: &str) -> Result<&'static Self, UnknownModel> {
        let plain = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
        let plain = plain
            .strip_prefix("meta-llama-3.")
            .map_or_else(|| plain.clone(), |rest| format!("llama-3.{rest}"));
        let matches = |known: &str| {
            let rest = plain.strip_prefix(&known.to_ascii_lowercase());
            rest.filter(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
        };
        let aliased = ALIASES.iter().find(|(alias, _)| matches(alias).is_some());
        let by_alias = aliased.and_then(|(_, known)| MODELS.iter().find(|m| m.name == *known));
        let by_name = MODELS.iter().filter(|m| matches(m.name).is_some());
        let found = by_alias.or_else(|| by_name.max_by_key(|m| m.name.len()));
        found.ok_or_else(|| UnknownModel { found: name.into() })
    }

    /// Layers whose network is made of routed experts.
    pub fn expert_layers(&self) -> u32 {
        self.experts.map_or(0, |experts| self.layers - experts.dense_layers)
    }

    /// Elements of keys and values of one token in one layer, on one of `tp`
    /// GPUs. Heads are split as far as there are any; a latent vector is not.
    pub fn kv_elements(&self, tp: u32) -> u64 {
        match self.latent {
            Some(latent) => u64::from(latent.kv_rank + latent.rope),
            None => 2 * u64::from(self.kv_heads_on(tp)) * u64::from(self.head_dim),
        }
    }

    /// Query heads on one of `tp` GPUs.
    pub fn heads_on(&self, tp: u32) -> u32 {
        self.heads.div_ceil(tp.max(1)).max(1)
    }

    /// Key and value heads on one of `tp` GPUs. At least 1: what cannot be split
    /// is copied.
    pub fn kv_heads_on(&self, tp: u32) -> u32 {
        self.kv_heads.div_ceil(tp.max(1)).max(1)
    }

    /// Parameters of the embedding and of the head. They stay in bfloat16 when
    /// the rest is quantised, and both are kept.
    pub fn vocabulary_parameters(&self) -> u64 {
        2 * u64::from(self.vocab) * u64::from(self.hidden)
    }

    /// Parameters of one layer's attention.
    pub fn attention_parameters(&self) -> u64 {
        let [hidden, heads, kv_heads, dim] =
            [self.hidden, self.heads, self.kv_heads, self.head_dim].map(u64::from);
        match self.latent {
            None => hidden * (heads + 2 * kv_heads) * dim + heads * dim * hidden,
            Some(latent) => {
                let [q, kv, rope, v] =
                    [latent.q_rank, latent.kv_rank, latent.rope, latent.v_head_dim].map(u64::from);
                let keys = dim - rope;
                hidden * q
                    + q * heads * dim
                    + hidden * (kv + rope)
                    + kv * heads * (keys + v)
                    + heads * v * hidden
            }
        }
    }

    /// Parameters of one layer's routed experts.
    pub fn expert_parameters(&self) -> u64 {
        let hidden = u64::from(self.hidden);
        self.experts.map_or(0, |e| 3 * hidden * u64::from(e.intermediate) * u64::from(e.count))
    }

    /// Parameters of all layers that are neither routed experts nor vocabulary.
    pub fn dense_parameters(&self) -> u64 {
        let hidden = u64::from(self.hidden);
        let attention = u64::from(self.layers) * self.attention_parameters();
        let dense_layers = u64::from(self.layers - self.expert_layers());
        let dense = dense_layers * 3 * hidden * u64::from(self.intermediate);
        let sparse = self.experts.map_or(0, |experts| {
            let shared = 3 * hidden * u64::from(experts.shared * experts.intermediate);
            let router = hidden * u64::from(experts.count);
            u64::from(self.expert_layers()) * (shared + router)
        });
        attention + dense + sparse
    }

    /// All parameters, norms and biases aside.
    pub fn parameters(&self) -> u64 {
        self.dense_parameters()
            + u64::from(self.expert_layers()) * self.expert_parameters()
            + self.vocabulary_parameters()
    }
}

impl Precision {
    /// All of them, by the names that documents give them.
    pub const NAMED: [(&str, Self); 3] =
        [("bf16", Self::Bf16), ("fp8", Self::Fp8), ("fp8_block", Self::Fp8Block)];

    /// Bytes of one number.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Bf16 => 2,
            Self::Fp8 | Self::Fp8Block => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_names_are_found() {
        for (name, known) in [
            ("meta-llama/Llama-3.1-8B", "Llama-3.1-8B"),
            ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen3-30B-A3B"),
            ("nvidia/Llama-3.1-70B-Instruct-FP8", "Llama-3.1-70B"),
            ("meta-llama/Meta-Llama-3.1-8B", "Llama-3.1-8B"),
            ("meta-llama/Meta-Llama-3-8B", "Llama-3-8B"),
            ("deepseek-ai/DeepSeek-R1-0528", "DeepSeek-V3"),
            ("moonshotai/Kimi-K2.5", "Kimi-K2"),
            ("qwen3-235b-a22b-fp8", "Qwen3-235B-A22B"),
            ("GPT-OSS-120B", "gpt-oss-120b"),
        ] {
            assert_eq!(Architecture::find(name).unwrap().name, known, "{name}");
        }
        for name in ["", "Llama-3.1-80B", "Llama-3.1-8Bx", "Qwen3-3", "MiniMaxAI/MiniMax-M2.5"] {
            let error = Architecture::find(name).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("Qwen3-32B"), "{error}");
        }
    }

    #[test]
    fn parameters_are_the_published_totals() {
        for (name, billions) in [
            ("Llama-3.1-8B", 8.03),
            ("Llama-3.1-70B", 70.55),
            ("Llama-3.1-405B", 405.85),
            ("DeepSeek-V3", 671.03),
            ("Qwen3-235B-A22B", 235.09),
            ("Mixtral-8x7B", 46.70),
            ("gpt-oss-120b", 116.8),
            ("Qwen2.5-7B", 7.615),
            ("Kimi-K2", 1_026.4),
        ] {
            let model = Architecture::find(name).unwrap();
            let found = model.parameters() as f64 / 1e9;
            assert!((found / billions - 1.0).abs() < 5e-4, "{name}: {found}");
        }
    }

    #[test]
    fn keys_and_values_split_as_far_as_there_are_heads() {
        let llama = Architecture::find("Llama-3.1-70B").unwrap();
        assert_eq!(llama.kv_elements(1) * u64::from(llama.layers) * 2, 327_680);
        assert_eq!(llama.kv_elements(8), 256);
        assert_eq!(llama.kv_elements(16), 256);
        let deepseek = Architecture::find("DeepSeek-V3").unwrap();
        assert_eq!(deepseek.kv_elements(8) * u64::from(deepseek.layers) * 2, 70_272);
    }
}
