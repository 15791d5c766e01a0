//! Measured closed-loop points: so many requests always in flight.

use super::runs::RunsError;
use crate::kernels::Precision;
use crate::kernels::csv::Table;

/// One point, with the means that were measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The engine: `vllm`, `sglang`, `trtllm`.
    pub backend: String,
    /// Its version; empty when not told.
    pub version: String,
    /// The model, with its publisher.
    pub model: String,
    /// The GPU, as profiles name it.
    pub system: String,
    /// `agg`: prompts and answers on the same GPUs; `disagg`.
    pub mode: String,
    /// How weights are stored, as the file has it.
    pub precision: String,
    /// Prompt tokens asked for.
    pub input: u32,
    /// Output tokens asked for.
    pub output: u32,
    /// Requests in flight; 0 when not told.
    pub concurrency: u32,
    /// GPUs that split every layer.
    pub tp: u32,
    /// Engines with their own requests.
    pub dp: u32,
    /// GPUs that share the experts out.
    pub ep: u32,
    /// Stages of a pipeline.
    pub pp: u32,
    /// When it was measured; empty when not told.
    pub date: String,
    /// Mean time to the first token. Milliseconds.
    pub ttft_ms: f64,
    /// Mean time of each later token. Milliseconds.
    pub tpot_ms: f64,
}

impl Point {
    /// How weights are stored, where that is one of ours.
    pub fn weights(&self) -> Option<Precision> {
        match self.precision.as_str() {
            "" | "bf16" | "bfloat16" | "fp16" | "float16" => Some(Precision::Bf16),
            "fp8" => Some(Precision::Fp8),
            _ => None,
        }
    }
}

/// Reads points. Those that were split over prompt and answer GPUs have no `tp`;
/// they are kept, with 0.
pub fn parse_points(file: &str, text: &str) -> Result<Vec<Point>, RunsError> {
    let columns = [
        "backend",
        "model_path",
        "system",
        "isl",
        "osl",
        "concurrency",
        "silicon_ttft_ms",
        "silicon_tpot_ms",
    ];
    let mut table = Table::new(file, text, &columns)?;
    let mut points = Vec::new();
    while let Some(row) = table.next()? {
        let text = |column: &str| row.text(column).unwrap_or_default().to_string();
        let size = |column: &str, none: u32| match row.text(column) {
            None | Some("") => none,
            Some(cell) => cell.parse::<f64>().map_or(none, |n| n as u32),
        };
        let mode = if row.text("mode").is_some() { text("mode") } else { "agg".into() };
        points.push(Point {
            backend: text("backend"),
            version: text("backend_version"),
            model: text("model_path"),
            system: text("system"),
            mode,
            precision: text("precision"),
            input: row.count("isl")?,
            output: row.count("osl")?,
            concurrency: match row.text("concurrency") {
                Some("") => 0,
                _ => row.count("concurrency")?,
            },
            tp: size("tp_size", 0),
            dp: size("attention_dp_size", 1).max(1),
            ep: size("moe_ep_size", 1).max(1),
            pp: size("pp_size", 1).max(1),
            date: text("measured"),
            ttft_ms: row.positive("silicon_ttft_ms")?,
            tpot_ms: row.positive("silicon_tpot_ms")?,
        });
    }
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_read_with_and_without_their_optional_fields() {
        let head = "backend,model_path,system,isl,osl,concurrency,tp_size,precision,silicon_ttft_ms,silicon_tpot_ms";
        let points = parse_points(
            "p",
            &format!("{head}\nvllm,a/b,g,10,20,4,2,fp8,1.5,2.5\nvllm,a/b,g,10,20,4,,nvfp4,1,2\n"),
        );
        let points = points.unwrap();
        assert_eq!((points[0].tp, points[0].dp, points[0].mode.as_str()), (2, 1, "agg"));
        assert_eq!((points[0].weights(), points[1].weights()), (Some(Precision::Fp8), None));
        let broken = parse_points("p", &format!("{head}\nvllm,a/b,g,10,20,0,2,fp8,1.5,2.5\n"));
        let broken = broken.unwrap_err().to_string();
        assert!(broken.contains("p: line 2, column concurrency: found \"0\""), "{broken}");
    }
}
