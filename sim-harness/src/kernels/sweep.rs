//! Timings of single kernels, as the sweeps publish them.

use super::csv::{CsvError, Row, Table};
use super::{DecodeAttention, Moe, Precision, PrefillAttention};

/// How the tokens of a sweep choose their experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Routing {
    /// Every expert gets the same number of tokens.
    Balanced,
    /// An expert's share falls with its rank to this power.
    PowerLaw(f64),
}

impl Routing {
    /// What a served model's routing is priced as: trained routers are neither
    /// even nor steep.
    pub const SERVED: Self = Self::PowerLaw(1.01);

    pub(super) fn exponent(self) -> f64 {
        match self {
            Self::Balanced => 0.0,
            Self::PowerLaw(exponent) => exponent,
        }
    }
}

/// One kernel with the sizes it runs on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// Tokens, outputs, inputs.
    Gemm {
        /// Tokens.
        m: u32,
        /// Outputs.
        n: u32,
        /// Inputs.
        k: u32,
        /// Of both operands.
        precision: Precision,
    },
    /// Attention of a prompt.
    Prefill(PrefillAttention),
    /// Attention of new tokens.
    Decode(DecodeAttention),
    /// Routed experts.
    Moe(Moe, Routing),
    /// Sum over the GPUs of a node.
    AllReduce {
        /// GPUs.
        gpus: u32,
        /// 2-byte numbers.
        elements: u64,
        /// Inside a CUDA graph.
        graph: bool,
    },
}

/// What a kernel took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The kernel.
    pub shape: Shape,
    /// Its time. Microseconds.
    pub micros: f64,
}

/// Kernels that share a form and its constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// BF16 and FP8 with one scale a tensor.
    Gemm,
    /// Prompts.
    Prefill,
    /// New tokens.
    Decode,
    /// BF16 and FP8 with a scale a block.
    Moe,
    /// The sweeps time the host there, so it is scored apart.
    GemmFp8Block,
    /// An untuned kernel in the sweeps, so it is scored apart.
    MoeFp8,
    /// Few sizes, another kind of hardware: scored apart.
    AllReduce,
}

impl Family {
    /// All, those of the mean first.
    pub const ALL: [Self; 7] = [
        Self::Gemm,
        Self::Prefill,
        Self::Decode,
        Self::Moe,
        Self::GemmFp8Block,
        Self::MoeFp8,
        Self::AllReduce,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gemm => "gemm",
            Self::Prefill => "prefill_attention",
            Self::Decode => "decode_attention",
            Self::Moe => "moe",
            Self::GemmFp8Block => "gemm_fp8_block",
            Self::MoeFp8 => "moe_fp8",
            Self::AllReduce => "all_reduce",
        }
    }

    /// Counts in the overall mean.
    pub fn is_counted(self) -> bool {
        matches!(self, Self::Gemm | Self::Prefill | Self::Decode | Self::Moe)
    }
}

impl Shape {
    /// The family it belongs to.
    pub fn family(&self) -> Family {
        match self {
            Self::Gemm { precision: Precision::Fp8Block, .. } => Family::GemmFp8Block,
            Self::Gemm { .. } => Family::Gemm,
            Self::Prefill(_) => Family::Prefill,
            Self::Decode(_) => Family::Decode,
            Self::Moe(Moe { precision: Precision::Fp8, .. }, _) => Family::MoeFp8,
            Self::Moe(..) => Family::Moe,
            Self::AllReduce { .. } => Family::AllReduce,
        }
    }

    /// Occurs when language models are served. A rule of the sizes alone, never
    /// of the time. Experts count where their shape is that of Mixtral 8x7B or
    /// 8x22B, Qwen3 30B, 235B or Coder 480B, DeepSeek V3 or Kimi K2.
    pub fn is_realistic(&self) -> bool {
        match *self {
            Self::Gemm { m, n, k, .. } => {
                m <= 16_384 && n >= 512 && (512..=16_384).contains(&k) && (n <= 16_384 || k <= 8192)
            }
            Self::Prefill(PrefillAttention { batch, new, heads, kv_heads, .. }) => {
                let whole = kv_heads > 0 && heads.is_multiple_of(kv_heads);
                let ratio = if whole { heads / kv_heads } else { 0 };
                u64::from(batch) * u64::from(new) <= 32_768
                    && new >= 16
                    && heads >= 4
                    && kv_heads <= 32
                    && matches!(ratio, 1 | 4..=8 | 10 | 12 | 16)
            }
            Self::Decode(DecodeAttention { batch, context, heads, kv_heads, .. }) => {
                batch <= 512 && context >= 128.0 && heads >= 4 && heads >= 2 * kv_heads
            }
            Self::Moe(Moe { tokens, hidden, intermediate, experts, .. }, _) => {
                tokens <= 16_384
                    && matches!(
                        (hidden, intermediate, experts),
                        (4096, 14_336, 8)
                            | (6144, 16_384, 8)
                            | (2048, 768, 128)
                            | (4096, 1536, 128)
                            | (6144, 2560, 160)
                            | (7168, 2048, 256 | 384)
                    )
            }
            Self::AllReduce { .. } => true,
        }
    }

    /// What tells its curve from others of the family, and its place on it. The
    /// precision is no part of either. `wide`: curves that share weights or
    /// heads are one.
    pub(super) fn place(&self, wide: bool) -> (Vec<u64>, u64) {
        let batch_of = |batch: u32| u64::from(if wide { 0 } else { batch });
        match *self {
            Self::Gemm { m, n, k, .. } => (vec![n.into(), k.into()], m.into()),
            Self::Prefill(s) => (
                [
                    batch_of(s.batch),
                    s.heads.into(),
                    s.kv_heads.into(),
                    s.head_dim.into(),
                    s.context.into(),
                ]
                .into(),
                s.new.into(),
            ),
            Self::Decode(s) => (
                [batch_of(s.batch), s.heads.into(), s.kv_heads.into(), s.head_dim.into()].into(),
                s.context as u64,
            ),
            Self::Moe(s, routing) => {
                let sizes =
                    [s.hidden, s.intermediate, s.topk, s.experts, s.tp, s.ep].map(u64::from);
                let routing = if wide { 0 } else { (routing.exponent() * 1000.0) as u64 };
                (sizes.into_iter().chain([routing]).collect(), s.tokens.into())
            }
            Self::AllReduce { gpus, elements, graph } => {
                (vec![gpus.into(), u64::from(graph)], elements)
            }
        }
    }
}

/// The tables of a sweep, by the names they have in a folder. Each may be
/// plain or gzipped there.
pub const TABLES: [&str; 5] = ["gemm", "attn_context", "attn_generation", "moe", "allreduce"];

type Read = fn(&Row<'_>) -> Result<Shape, CsvError>;

/// Reads the lines of one GPU from one table; `table` is one of [`TABLES`].
/// `gpu` is the name in the column `system`.
///
/// # Errors
///
/// A cell that is not what its column holds, by line and column. Lines of other
/// GPUs are not looked at.
pub fn parse(table: &str, file: &str, text: &str, gpu: &str) -> Result<Vec<Sample>, CsvError> {
    let (required, read): (&[&str], Read) = match table {
        "gemm" => (&["system", "gemm_dtype", "m", "n", "k", "latency_us"], gemm),
        "attn_context" => (&ATTENTION_CONTEXT, prefill),
        "attn_generation" => (&ATTENTION_GENERATION, decode),
        "moe" => (&MOE, moe),
        _ => (&["system", "backend", "num_gpus", "message_size", "latency_us"], all_reduce),
    };
    let mut table = Table::new(file, text, required)?;
    let mut samples = Vec::new();
    while let Some(row) = table.next()? {
        if row.text("system").is_some_and(|system| system.eq_ignore_ascii_case(gpu)) {
            samples.push(Sample { shape: read(&row)?, micros: row.positive("latency_us")? });
        }
    }
    Ok(samples)
}

const ATTENTION_CONTEXT: [&str; 8] = [
    "system",
    "kv_cache_dtype",
    "batch_size",
    "isl",
    "num_heads",
    "num_key_value_heads",
    "head_dim",
    "latency_us",
];
const ATTENTION_GENERATION: [&str; 8] = [
    "system",
    "kv_cache_dtype",
    "batch_size",
    "kv_len",
    "num_heads",
    "num_key_value_heads",
    "head_dim",
    "latency_us",
];
const MOE: [&str; 11] = [
    "system",
    "moe_dtype",
    "distribution",
    "num_tokens",
    "hidden_size",
    "inter_size",
    "topk",
    "num_experts",
    "moe_tp_size",
    "moe_ep_size",
    "latency_us",
];

fn precision(row: &Row<'_>, column: &str) -> Result<Precision, CsvError> {
    match row.text(column) {
        Some("bfloat16" | "bf16" | "float16") => Ok(Precision::Bf16),
        Some("fp8") => Ok(Precision::Fp8),
        Some("fp8_block") => Ok(Precision::Fp8Block),
        _ => Err(row.error(column, "bfloat16, fp8 or fp8_block")),
    }
}

fn gemm(row: &Row<'_>) -> Result<Shape, CsvError> {
    let precision = precision(row, "gemm_dtype")?;
    Ok(Shape::Gemm { m: row.count("m")?, n: row.count("n")?, k: row.count("k")?, precision })
}

fn prefill(row: &Row<'_>) -> Result<Shape, CsvError> {
    Ok(Shape::Prefill(PrefillAttention {
        batch: row.count("batch_size")?,
        new: row.count("isl")?,
        // No such column in the published sweeps: nothing computed before.
        context: row.text("context").map_or(Ok(0), |cell| {
            cell.parse().map_err(|_| row.error("context", "a whole number from 0"))
        })?,
        heads: row.count("num_heads")?,
        kv_heads: row.count("num_key_value_heads")?,
        head_dim: row.count("head_dim")?,
        kv: precision(row, "kv_cache_dtype")?,
    }))
}

fn decode(row: &Row<'_>) -> Result<Shape, CsvError> {
    Ok(Shape::Decode(DecodeAttention {
        batch: row.count("batch_size")?,
        context: f64::from(row.count::<u32>("kv_len")?),
        heads: row.count("num_heads")?,
        kv_heads: row.count("num_key_value_heads")?,
        head_dim: row.count("head_dim")?,
        kv: precision(row, "kv_cache_dtype")?,
    }))
}

fn moe(row: &Row<'_>) -> Result<Shape, CsvError> {
    let cell = row.text("distribution").unwrap_or_default();
    let routing = match cell.strip_prefix("power_law_").map(str::parse::<f64>) {
        None if matches!(cell, "balanced" | "uniform") => Routing::Balanced,
        Some(Ok(exponent)) if (0.0..=8.0).contains(&exponent) => Routing::PowerLaw(exponent),
        _ => {
            return Err(
                row.error("distribution", "balanced, or power_law_ and an exponent from 0 to 8")
            );
        }
    };
    let moe = Moe {
        tokens: row.count("num_tokens")?,
        hidden: row.count("hidden_size")?,
        intermediate: row.count("inter_size")?,
        topk: row.count("topk")?,
        experts: row.count("num_experts")?,
        tp: row.count("moe_tp_size")?,
        ep: row.count("moe_ep_size")?,
        precision: precision(row, "moe_dtype")?,
    };
    Ok(Shape::Moe(moe, routing))
}

fn all_reduce(row: &Row<'_>) -> Result<Shape, CsvError> {
    let graph = match row.text("backend") {
        Some("vllm_graph") => true,
        Some("vllm_eager") => false,
        _ => return Err(row.error("backend", "vllm_graph or vllm_eager")),
    };
    Ok(Shape::AllReduce {
        gpus: row.count("num_gpus")?,
        elements: row.count("message_size")?,
        graph,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "system,gemm_dtype,m,n,k,latency_us\n";

    #[test]
    fn lines_of_the_gpu_are_read_and_others_are_not_looked_at() {
        let text = format!("{HEAD}a,fp8,1,2,3,4.5\nb,nonsense,x,,,\nA,bfloat16,4,5,6,0.5\n");
        let samples = parse("gemm", "f", &text, "a").unwrap();
        let shape = |m, n, k, precision| Shape::Gemm { m, n, k, precision };
        assert_eq!(
            samples,
            [
                Sample { shape: shape(1, 2, 3, Precision::Fp8), micros: 4.5 },
                Sample { shape: shape(4, 5, 6, Precision::Bf16), micros: 0.5 },
            ]
        );
    }

    #[test]
    fn a_wrong_cell_is_named() {
        let error = |table: &str, text: &str| parse(table, "f.csv", text, "a").unwrap_err();
        let of = |line: &str| {
            let error = error("gemm", &format!("{HEAD}\na,fp8,1,2,3,4\n{line}\n"));
            assert_eq!((error.file.as_str(), error.line), ("f.csv", 4));
            (error.column, error.found)
        };
        let expected = |column: &str, found: &str| (column.to_string(), found.to_string());
        assert_eq!(of("a,fp4,1,2,3,4"), expected("gemm_dtype", "fp4"));
        assert_eq!(of("a,fp8,0,2,3,4"), expected("m", "0"));
        assert_eq!(of("a,fp8,1,-2,3,4"), expected("n", "-2"));
        assert_eq!(of("a,fp8,1,2,99999999999,4"), expected("k", "99999999999"));
        assert_eq!(of("a,fp8,1,2,3,nan"), expected("latency_us", "nan"));
        assert_eq!(of("a,fp8,1,2,3,0"), expected("latency_us", "0"));
        assert_eq!(of("a,fp8,1,2"), expected("k", "4 cells"));
        let missing = error("moe", "system,moe_dtype\n");
        assert_eq!((missing.line, missing.column.as_str()), (1, "distribution"));
        let routing = format!("{}\na,fp8,zipf,1,1,1,1,1,1,1,1\n", MOE.join(","));
        assert_eq!(error("moe", &routing).column, "distribution");
        let backend = "system,backend,num_gpus,message_size,latency_us\na,mpi,2,1,1\n";
        assert_eq!(error("allreduce", backend).found, "mpi");
    }

    #[test]
    fn precisions_of_a_shape_have_one_place() {
        let shape = |n, precision| Shape::Gemm { m: 8, n, k: 64, precision };
        let [a, b] = [Precision::Bf16, Precision::Fp8].map(|p| shape(32, p).place(false));
        assert_eq!(a, b);
        assert_ne!(a, shape(33, Precision::Bf16).place(false));
    }

    #[test]
    fn serving_shapes_are_told_by_their_sizes() {
        let gemm = |m, n, k| Shape::Gemm { m, n, k, precision: Precision::Bf16 }.is_realistic();
        assert!(gemm(16_384, 512, 512) && gemm(1, 65_536, 8192));
        assert!(!gemm(32_768, 512, 512) && !gemm(1, 256, 512) && !gemm(1, 65_536, 10_240));
        let prefill = |batch, new, heads, kv_heads| {
            let kv = Precision::Bf16;
            let shape =
                PrefillAttention { batch, new, context: 0, heads, kv_heads, head_dim: 128, kv };
            Shape::Prefill(shape).is_realistic()
        };
        assert!(prefill(1, 32_768, 32, 8) && prefill(2, 16, 4, 4));
        assert!(!prefill(2, 32_768, 32, 8) && !prefill(1, 16, 6, 2) && !prefill(1, 16, 10, 4));
    }
}
