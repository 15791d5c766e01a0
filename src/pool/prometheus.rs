//! Reads how busy an engine is from its metrics, in Prometheus' text format.
//!
//! Names: vLLM's `v1/metrics/loggers.py` (`gpu_cache_usage_perc` until 2025) and
//! SGLang's `metrics/collector.py`. Only these are read; a name's series (one for
//! each engine of a data-parallel server, or each replica that an aggregator
//! knows) are summed, uses of KV caches averaged.

use super::report::{Reading, thousandths};

/// The longest name, or value, that is of interest.
const WORD: usize = 32;

#[derive(Clone, Copy)]
enum Metric {
    Waiting,
    Running,
    KvUse,
}

const NAMES: [(&[u8], Metric); 7] = [
    (b"vllm:num_requests_waiting", Metric::Waiting),
    (b"vllm:num_requests_running", Metric::Running),
    (b"vllm:kv_cache_usage_perc", Metric::KvUse),
    (b"vllm:gpu_cache_usage_perc", Metric::KvUse),
    (b"sglang:num_queue_reqs", Metric::Waiting),
    (b"sglang:num_running_reqs", Metric::Running),
    (b"sglang:token_usage", Metric::KvUse),
];

/// Where in a line it is.
#[derive(Clone, Copy)]
enum Place {
    Name,
    Labels { quoted: bool, escaped: bool },
    Value,
    Rest,
}

/// Reads a document that may be cut anywhere. Holds 32 bytes of it.
#[derive(Clone)]
pub struct MetricsScanner {
    place: Place,
    word: [u8; WORD],
    length: usize,
    metric: Metric,
    /// Sum and number of values, by metric.
    totals: [(f64, u32); 3],
}

impl Default for MetricsScanner {
    fn default() -> Self {
        Self {
            place: Place::Name,
            word: [0; WORD],
            length: 0,
            metric: Metric::Waiting,
            totals: [(0.0, 0); 3],
        }
    }
}

impl MetricsScanner {
    /// Reads on.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            bytes = rest;
            match (self.place, byte) {
                (_, b'\n') => self.line_ends(),
                (Place::Rest, _) => {
                    // Most of a document is passed over here.
                    let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
                    bytes = rest.get(end..).unwrap_or_default();
                }
                (Place::Name, b'{' | b' ' | b'\t') => self.name_ends(byte),
                (Place::Name, _) => self.push(byte),
                (Place::Labels { quoted: true, escaped }, _) => {
                    let quoted = escaped || byte != b'"';
                    self.place =
                        Place::Labels { quoted, escaped: quoted && !escaped && byte == b'\\' };
                }
                (Place::Labels { .. }, b'}') => self.place = Place::Value,
                (Place::Labels { .. }, b'"') => {
                    self.place = Place::Labels { quoted: true, escaped: false };
                }
                (Place::Labels { .. }, _) => {}
                (Place::Value, b' ' | b'\t' | b'\r') if self.length == 0 => {}
                // A time may follow.
                (Place::Value, b' ' | b'\t' | b'\r') => self.value_ends(),
                (Place::Value, _) => self.push(byte),
            }
        }
    }

    /// What the document says; `None` if it has none of the names.
    pub fn finish(mut self) -> Option<Reading> {
        self.line_ends();
        let [waiting, running, kv_use] = self.totals;
        let of = |(sum, count): (f64, u32), parts: f64| {
            if count > 0 { thousandths(sum / parts) } else { None }
        };
        let reading = Reading {
            waiting: of(waiting, 1.0),
            running: of(running, 1.0),
            kv_use: of(kv_use, kv_use.1.into()),
        };
        (reading != Reading::default()).then_some(reading)
    }

    fn push(&mut self, byte: u8) {
        if let Some(slot) = self.word.get_mut(self.length) {
            *slot = byte;
            self.length += 1;
        } else {
            self.place = Place::Rest;
        }
    }

    fn word(&self) -> &[u8] {
        self.word.get(..self.length).unwrap_or_default()
    }

    fn name_ends(&mut self, byte: u8) {
        let known = NAMES.iter().find(|(name, _)| *name == self.word());
        self.place = match known {
            Some((_, metric)) => {
                self.metric = *metric;
                match byte {
                    b'{' => Place::Labels { quoted: false, escaped: false },
                    _ => Place::Value,
                }
            }
            None => Place::Rest,
        };
        self.length = 0;
    }

    /// Infinite and not a number is no JSON, and no amount.
    fn value_ends(&mut self) {
        let value = serde_json::from_slice::<f64>(self.word()).ok();
        if let Some(value) = value.filter(|value| thousandths(*value).is_some())
            && let Some((sum, count)) = self.totals.get_mut(self.metric as usize)
        {
            *sum += value;
            *count = count.saturating_add(1);
        }
        (self.place, self.length) = (Place::Rest, 0);
    }

    fn line_ends(&mut self) {
        if let Place::Value = self.place {
            self.value_ends();
        }
        (self.place, self.length) = (Place::Name, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(pieces: &[&[u8]]) -> Option<Reading> {
        let mut scanner = MetricsScanner::default();
        for piece in pieces {
            scanner.feed(piece);
        }
        scanner.finish()
    }

    fn reading(waiting: u64, running: u64, kv_use: u64) -> Reading {
        Reading { waiting: Some(waiting), running: Some(running), kv_use: Some(kv_use) }
    }

    const VLLM: &str =
        "# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine=\"0\",model_name=\"a \\\"}{ b\\\\\"} 5.0
vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 3.0
vllm:num_requests_waiting{engine=\"0\"} 1e+01
vllm:num_requests_waiting{engine=\"1\"} NaN
vllm:num_requests_waiting_by_reason{reason=\"capacity\"} 77.0
vllm:kv_cache_usage_perc{engine=\"0\"} 0.25 1700000000000
vllm:kv_cache_usage_perc{engine=\"1\"} 0.5\r
vllm:prompt_tokens_total{engine=\"0\"} 1234.0
vllm:e2e_request_latency_seconds_bucket{le=\"+Inf\",engine=\"0\"} 9.0
";

    #[test]
    fn what_engines_say_is_read() {
        assert_eq!(read(&[VLLM.as_bytes()]), Some(reading(10_000, 8000, 375)));
        let sglang =
            b"sglang:num_queue_reqs 0\nsglang:num_running_reqs\t2\nsglang:token_usage{a=\"b\"}0.28";
        assert_eq!(read(&[sglang]), Some(reading(0, 2000, 280)));
        let old = read(&[b"vllm:gpu_cache_usage_perc 0.9996"]).unwrap();
        assert_eq!(old, Reading { kv_use: Some(1000), ..Reading::default() });
    }

    #[test]
    fn what_is_no_amount_is_not_read() {
        for text in [
            "",
            "\n\n",
            "#",
            "vllm:num_requests_waiting",
            "vllm:num_requests_waiting ",
            "vllm:num_requests_waiting +Inf",
            "vllm:num_requests_waiting -1",
            "vllm:num_requests_waiting 1e300",
            "vllm:num_requests_waiting{a=\"} 1\n 2",
            "vllm:num_requests_waiting 0000000000000000000000000000000000000000000",
            " vllm:num_requests_waiting 1",
            "xvllm:num_requests_waiting 1",
            "{\"json\": 1}",
        ] {
            assert_eq!(read(&[text.as_bytes()]), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_cut_matters(cuts in prop::collection::vec(0..VLLM.len(), 0..6)) {
            let mut cuts = cuts;
            cuts.extend([0, VLLM.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> =
                cuts.windows(2).map(|pair| &VLLM.as_bytes()[pair[0]..pair[1]]).collect();
            prop_assert_eq!(read(&pieces), Some(reading(10_000, 8000, 375)));
        }

        #[test]
        fn no_bytes_make_it_panic(
            start in prop::sample::select(&["", "vllm:num_requests_waiting{", "sglang:token_usage "][..]),
            bytes in any::<Vec<u8>>(),
        ) {
            read(&[start.as_bytes(), &bytes]);
        }
    }
}
