//! What an operator pastes: engines' flags, the filter's document, Envoy's
//! clusters.

use std::fmt::Write as _;

use serde_json::Value;

use super::answer::{Alternative, Plan};
use super::trial::names;
use crate::kernels::Precision;

/// One pool of the answer.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolPlan {
    /// Its name.
    pub name: &'static str,
    /// Replicas.
    pub replicas: u32,
    /// vLLM's `--max-model-len`.
    pub max_model_len: u32,
    /// vLLM's `--max-num-seqs`.
    pub max_num_seqs: u32,
    /// vLLM's `--max-num-batched-tokens`.
    pub max_num_batched_tokens: u32,
    /// Share of all requests.
    pub share: f64,
    /// Mean use of its KV cache.
    pub kv: f64,
    /// The command of one replica.
    pub command: String,
}

impl Plan {
    /// The pools of an alternative, smallest window first; none where no number
    /// of replicas is enough.
    pub fn pools(&self, one: &Alternative) -> Vec<PoolPlan> {
        let Ok(size) = &one.size else { return Vec::new() };
        let names = names(one.layout.shapes.len()).iter().copied();
        let pools = one.layout.shapes.iter().zip(names).zip(&size.replicas);
        let uses = size.shares.iter().zip(&size.kv);
        pools
            .zip(uses)
            .map(|(((shape, name), replicas), (share, kv))| PoolPlan {
                name,
                replicas: *replicas,
                max_model_len: shape.window,
                max_num_seqs: shape.seats,
                max_num_batched_tokens: shape.batched,
                share: *share,
                kv: *kv,
                command: self.command(shape.window, shape.seats, shape.batched),
            })
            .collect()
    }

    fn command(&self, window: u32, seats: u32, batched: u32) -> String {
        let deployment = &self.question.deployment;
        let mut out = format!("vllm serve {}", deployment.model.name);
        // Writing to a string cannot fail.
        let _ = write!(out, " --tensor-parallel-size {}", deployment.tp);
        if deployment.dp > 1 {
            let _ = write!(out, " --data-parallel-size {}", deployment.dp);
        }
        if deployment.ep > 1 {
            out.push_str(" --enable-expert-parallel");
        }
        if deployment.weights != Precision::Bf16 {
            out.push_str(" --quantization fp8");
        }
        if deployment.kv != Precision::Bf16 {
            out.push_str(" --kv-cache-dtype fp8");
        }
        let _ = write!(
            out,
            " --max-model-len {window} --max-num-seqs {seats} --max-num-batched-tokens {batched} \
             --gpu-memory-utilization {}",
            self.question.utilization
        );
        out
    }

    /// The filter's document of an alternative: what its simulation ran.
    pub fn config(&self, one: &Alternative) -> Value {
        one.layout.document()
    }

    /// A cluster for each pool, for Envoy's `static_resources`. Addresses are for
    /// the operator to replace.
    pub fn clusters(&self, one: &Alternative) -> String {
        let mut out = String::from("clusters:\n");
        for pool in self.pools(one) {
            let name = pool.name;
            let _ = write!(
                out,
                "- name: {name} # {replicas} replicas
  type: STRICT_DNS
  connect_timeout: 2s
  lb_policy: LEAST_REQUEST
  health_checks:
  - {{ http_health_check: {{ path: /health }}, timeout: 5s, interval: 5s, \
                 unhealthy_threshold: 2, healthy_threshold: 1 }}
  load_assignment:
    cluster_name: {name}
    endpoints:
    - lb_endpoints:
      - metadata: {{ filter_metadata: {{ tidegate: {{ pool: {name} }} }} }}
        endpoint: {{ address: {{ socket_address: {{ address: vllm-{name}, port_value: 8000 }} }} }}
",
                replicas = pool.replicas
            );
        }
        out
    }
}
