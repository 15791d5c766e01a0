//! Replays one Mooncake-shaped trace with AISimulate's vLLM scheduler and its
//! built-in polynomial step time, round robin over the workers, at the trace's
//! own times.

use std::path::Path;

use dynamo_mocker::config::MockerConfig;
use dynamo_mocker::replay::simulate_trace_file;

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let [_, trace, trace_block, workers, engine] = args.as_slice() else {
        anyhow::bail!("usage: aisimulate-bench TRACE TOKENS_PER_ID WORKERS ENGINE_JSON");
    };
    let config = MockerConfig::from_value(serde_json::from_str(engine)?)?;
    let report = simulate_trace_file(
        config,
        Path::new(trace),
        trace_block.parse()?,
        workers.parse()?,
        1.0,
    )?;
    let report = serde_json::to_value(&report)?;
    for field in ["completed_requests", "total_output_tokens", "duration_ms"] {
        println!("{field} {}", report[field]);
    }
    Ok(())
}
