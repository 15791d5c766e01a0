//! A measured load curve: offered load in steps, and what came of it.

use super::runs::RunsError;
use crate::kernels::csv::Table;

/// One configuration of the server, with its stages of rising load.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Its name.
    pub variant: String,
    /// Sequences in a batch, where told.
    pub max_num_seqs: Option<u32>,
    /// Whether prefixes were cached.
    pub prefix_caching: bool,
    /// Whether prompts were cut into chunks.
    pub chunked_prefill: bool,
    /// In order of load.
    pub stages: Vec<Stage>,
}

/// One stage. Means.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stage {
    /// Requests a second that were offered.
    pub offered: f64,
    /// Requests.
    pub requests: u32,
    /// Prompt tokens.
    pub input: f64,
    /// Produced tokens.
    pub output: f64,
    /// Milliseconds.
    pub ttft_ms: f64,
    /// Milliseconds.
    pub e2e_ms: f64,
    /// Milliseconds of each token after the first, from the two above.
    pub tpot_ms: f64,
    /// Requests a second that were answered.
    pub achieved: f64,
}

/// Reads curves, in the order of the file.
pub fn parse_curves(file: &str, text: &str) -> Result<Vec<Curve>, RunsError> {
    let columns = [
        "variant",
        "max_num_seqs",
        "prefix_caching",
        "chunked_prefill",
        "offered_rps",
        "requests",
        "input_tokens_mean",
        "output_tokens_mean",
        "ttft_mean_ms",
        "e2e_mean_ms",
        "achieved_rps",
    ];
    let mut table = Table::new(file, text, &columns)?;
    let mut curves: Vec<Curve> = Vec::new();
    while let Some(row) = table.next()? {
        let variant = row.text("variant").unwrap_or_default();
        let (ttft_ms, e2e_ms) = (row.positive("ttft_mean_ms")?, row.positive("e2e_mean_ms")?);
        let output = row.positive("output_tokens_mean")?;
        let stage = Stage {
            offered: row.positive("offered_rps")?,
            requests: row.count("requests")?,
            input: row.positive("input_tokens_mean")?,
            output,
            ttft_ms,
            e2e_ms,
            tpot_ms: (e2e_ms - ttft_ms) / (output - 1.0).max(1.0),
            achieved: row.positive("achieved_rps")?,
        };
        match curves.iter_mut().find(|curve| curve.variant == variant) {
            Some(curve) => curve.stages.push(stage),
            None => curves.push(Curve {
                variant: variant.into(),
                max_num_seqs: row.text("max_num_seqs").and_then(|cell| cell.parse().ok()),
                prefix_caching: row.text("prefix_caching") == Some("1"),
                chunked_prefill: row.text("chunked_prefill") == Some("1"),
                stages: vec![stage],
            }),
        }
    }
    for curve in &mut curves {
        curve.stages.sort_by(|a, b| a.offered.total_cmp(&b.offered));
    }
    Ok(curves)
}

/// Where a curve bends: what is answered at the first load of which less than 95
/// of 100 requests are answered in time. Nothing when all are.
pub fn knee(stages: impl IntoIterator<Item = (f64, f64)>) -> Option<f64> {
    let mut stages = stages.into_iter();
    stages.find(|(offered, achieved)| *achieved < 0.95 * offered).map(|(_, achieved)| achieved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_grouped_and_the_knee_found() {
        let head = "variant,max_num_seqs,prefix_caching,chunked_prefill,stage,offered_rps,requests,input_tokens_mean,output_tokens_mean,ttft_mean_ms,e2e_mean_ms,achieved_rps";
        let rows = "a,128,0,1,1,20,10,200,11,50,150,12\na,128,0,1,0,10,10,200,11,50,150,10\nb,,,,0,1,1,1,1,1,1,1\n";
        let curves = parse_curves("c", &format!("{head}\n{rows}")).unwrap();
        assert_eq!(
            (curves.len(), curves[0].max_num_seqs, curves[1].max_num_seqs),
            (2, Some(128), None)
        );
        assert_eq!((curves[0].stages[0].offered, curves[0].stages[0].tpot_ms), (10.0, 10.0));
        assert!(curves[0].chunked_prefill && !curves[0].prefix_caching);
        let pairs = |curve: &Curve| {
            curve.stages.iter().map(|s| (s.offered, s.achieved)).collect::<Vec<_>>()
        };
        assert_eq!((knee(pairs(&curves[0])), knee(pairs(&curves[1]))), (Some(12.0), None));
    }
}
