//! `tidegate-sim serve`.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::json;

use super::CommandError;
use crate::files;
use crate::serve::{parse_pools, start};

/// Flags of `serve`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The pools document: {"pools": [{"name", "model", "max_model_len",
    /// "ports": [0, ...], "tokenizer", "host", "timing"}]}.
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
