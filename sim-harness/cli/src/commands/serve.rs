//! `tidegate-sim serve`.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::json;

use super::CommandError;
use crate::files;
use crate::serve::{POOLS_EXAMPLE, parse_pools, start};

/// The document in full, for `--help`.
fn help() -> String {
    format!(
        "The pools document; a field that is absent has the value that `long` has here:\n\n\
         {POOLS_EXAMPLE}\n\n\
         name, model, max_model_len and ports are required. Each port is one replica; 0 lets\n\
         the system choose. In `timing`:\n  \
         step_ms                 each step, milliseconds\n  \
         prefill_us_per_token    each prompt token in a step, microseconds\n  \
         decode_us_per_request   each request that decodes in a step, microseconds\n  \
         context_ns_per_token    each token of context that it reads, nanoseconds\n  \
         max_num_seqs            requests in one batch, at most\n  \
         max_num_batched_tokens  tokens in one step, at most; at least max_num_seqs\n  \
         kv_cache_tokens         tokens that the KV cache holds; at least, and by default\n                          \
         no less than, max_model_len\n  \
         block_size              tokens of one KV block\n  \
         enable_prefix_caching   keep KV blocks for later prompts with the same start\n  \
         async_scheduling        compose a step while the one before it runs\n  \
         speed                   divides every time"
    )
}

/// Flags of `serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = help())]
pub(super) struct Args {
    /// The pools document, in JSON: see below.
    #[arg(long, value_name = "FILE")]
    pools: PathBuf,
    /// Print the addresses as one line of JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let bytes = files::read(&self.pools).map_err(|e| CommandError::File("--pools", e))?;
        let pools = parse_pools(&bytes).map_err(CommandError::Pools)?;
        let handle = start(pools).await.map_err(CommandError::Serve)?;
        let mut text = String::new();
        if self.json {
            let rows = handle.addresses().iter().map(|replica| {
                json!({"pool": replica.pool, "replica": replica.index,
                       "address": replica.address.to_string()})
            });
            text = json!({"replicas": rows.collect::<Vec<_>>()}).to_string() + "\n";
        } else {
            for replica in handle.addresses() {
                let _ =
                    writeln!(text, "{}/{} http://{}", replica.pool, replica.index, replica.address);
            }
        }
        super::print(&text)?;
        // Without a signal handler there is nothing to wait for: stop at once.
        let _ = tokio::signal::ctrl_c().await;
        handle.stop().await;
        Ok(())
    }
}
