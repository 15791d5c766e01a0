//! `tidegate-sim serve`.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::json;

use super::CommandError;
use crate::files;
use crate::serve::{Admin, FAULTS, POOLS_EXAMPLE, SPEEDS, parse_pools, start};

/// The document in full, for `--help`.
fn help() -> String {
    format!(
        "The pools document; a field that is absent has the value that `long` has here:\n\n\
         {POOLS_EXAMPLE}\n\n\
         name, model, max_model_len and ports are required. Each port is one replica; 0 lets\n\
         the system choose. `speed` makes a replica's time pass faster. How long a step takes\n\
         is said by `timing`:\n  \
         step_ms                 each step, milliseconds\n  \
         prefill_us_per_token    each prompt token in a step, microseconds\n  \
         decode_us_per_request   each request that decodes in a step, microseconds\n  \
         context_ns_per_token    each token of context that it reads, nanoseconds\n\
         or by `hardware`, from kernel times fitted to real GPUs (see `tidegate-sim step`):\n  \
         gpu, architecture       such as h100_sxm and Llama-3.1-8B; the KV cache is what\n                          \
         the weights leave of the memory\n  \
         tp                      GPUs that split every layer\n  \
         data_parallel_size      attention ranks that step together\n  \
         enable_expert_parallel  experts are shared out over all GPUs, not split\n  \
         weights, kv_cache_dtype bf16, fp8, fp8_block\n\
         In `engine`, by vLLM's names:\n  \
         scheduling_policy       fcfs, or priority: by the requests' `priority`, lowest first\n  \
         max_num_seqs            requests in one batch, at most\n  \
         max_num_batched_tokens  tokens in one step, at most; at least max_num_seqs\n  \
         kv_cache_tokens         tokens that the KV cache holds; at least, and with `timing`\n                          \
         by default no less than, max_model_len\n  \
         block_size              tokens of one KV block\n  \
         enable_prefix_caching   keep KV blocks for later prompts with the same start\n  \
         async_scheduling        compose a step while the one before it runs\n\n\
         With --admin ADDRESS:\n  \
         GET    http://ADDRESS/replicas\n  \
         PUT    http://ADDRESS/replicas/short/0/fault   makes a replica fail\n  \
         DELETE http://ADDRESS/replicas/short/0/fault   heals it\n\n\
         A fault is one of these, each also with \"seconds\": how long it lasts:\n\
         {FAULTS}"
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
    /// Take faults on this address; port 0 lets the system choose.
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,
    /// Makes every replica's time pass faster, on top of its pool's `speed`.
    #[arg(long, value_name = "X", default_value = "1", value_parser = speedup)]
    speedup: f64,
}

fn speedup(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|x| SPEEDS.contains(x));
    number.ok_or_else(|| format!("must be a number from {} to {}", SPEEDS.start(), SPEEDS.end()))
}

impl Args {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let bytes = files::read(&self.pools).map_err(|e| CommandError::File("--pools", e))?;
        let mut pools = parse_pools(&bytes).map_err(CommandError::Pools)?;
        for pool in &mut pools {
            pool.speed *= self.speedup;
        }
        let admin = match self.admin {
            Some(address) => Some(Admin::bind(address).await.map_err(CommandError::Serve)?),
            None => None,
        };
        let handle = start(pools).await.map_err(CommandError::Serve)?;
        let admin_address = admin.as_ref().and_then(|admin| admin.address().ok());
        let mut text = String::new();
        if self.json {
            let rows = handle.addresses().iter().map(|replica| {
                json!({"pool": replica.pool, "replica": replica.index,
                       "address": replica.address.to_string()})
            });
            let admin = admin_address.map(|address| address.to_string());
            let rows = rows.collect::<Vec<_>>();
            text = json!({"replicas": rows, "admin": admin}).to_string() + "\n";
        } else {
            for replica in handle.addresses() {
                let _ =
                    writeln!(text, "{}/{} http://{}", replica.pool, replica.index, replica.address);
            }
            if let Some(address) = admin_address {
                let _ = writeln!(text, "admin http://{address}/replicas");
            }
        }
        super::print(&text)?;
        // Without a signal handler there is nothing to wait for: stop at once.
        let end = async {
            let _ = tokio::signal::ctrl_c().await;
        };
        let handle = if let Some(admin) = admin {
            admin.serve(handle, end).await
        } else {
            end.await;
            Some(handle)
        };
        if let Some(handle) = handle {
            handle.stop().await;
        }
        Ok(())
    }
}
