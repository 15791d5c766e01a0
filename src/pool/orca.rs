//! Reads the load report that an engine puts into its answer's headers.
//!
//! `endpoint-load-metrics: TEXT named_metrics.kv_cache_usage_perc=0.4, …` or
//! `JSON {"named_metrics": {…}}`, in the forms of Open Request Cost Aggregation
//! (cncf/xds, `data/orca/v3`). Names: vLLM's `orca_metrics.py`, which sends the
//! first two if the request asks for it, and only with answers that are not
//! streamed; Triton calls the use of the cache `kv_cache_utilization`.

use super::report::{Reading, thousandths};
use serde_json::Value;

/// The request header that asks for a report.
pub const ORCA_FORMAT: &str = "endpoint-load-metrics-format";
/// The answer's header with the report.
pub const ORCA_HEADER: &str = "endpoint-load-metrics";

/// A longer report is not read.
const LENGTH_MAX: usize = 4096;
const PREFIX: &[u8] = b"named_metrics.";

/// What the replica that answered says of itself; `None` if the header tells
/// nothing that is known, or is in another form.
pub fn read_orca(header: &[u8]) -> Option<Reading> {
    let header = header.get(..header.len().min(LENGTH_MAX + 1))?.trim_ascii();
    let form = |name: &[u8]| {
        let (word, rest) = header.split_at_checked(name.len())?;
        word.eq_ignore_ascii_case(name).then_some(rest)
    };
    if header.len() > LENGTH_MAX {
        return None;
    }
    let mut reading = Reading::default();
    let mut take = |name: &[u8], value: Option<f64>| {
        let slot = match name {
            b"num_requests_waiting" => &mut reading.waiting,
            b"num_requests_running" => &mut reading.running,
            b"kv_cache_usage_perc" | b"kv_cache_utilization" => &mut reading.kv_use,
            _ => return,
        };
        *slot = value.and_then(thousandths);
    };
    if let Some(text) = form(b"TEXT ") {
        for pair in text.split(|byte| *byte == b',') {
            let at = memchr::memchr(b'=', pair).unwrap_or(pair.len());
            let (name, value) = pair.split_at(at);
            if let Some(name) = name.trim_ascii().strip_prefix(PREFIX) {
                take(name, serde_json::from_slice(value.get(1..).unwrap_or_default()).ok());
            }
        }
    } else if let Some(json) = form(b"JSON ") {
        let report: Value = serde_json::from_slice(json).ok()?;
        for (name, value) in report.get("named_metrics")?.as_object()? {
            take(name.as_bytes(), value.as_f64());
        }
    }
    (reading != Reading::default()).then_some(reading)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_forms_are_read() {
        let told = Reading { waiting: Some(3000), running: None, kv_use: Some(400) };
        for header in [
            "TEXT named_metrics.num_requests_waiting=3.0, named_metrics.kv_cache_usage_perc=0.4",
            "text cpu_utilization=0.3,named_metrics.kv_cache_utilization=0.4 ,\
             named_metrics.other=1, named_metrics.num_requests_waiting= 3",
            r#"JSON {"named_metrics": {"kv_cache_usage_perc": 0.4, "num_requests_waiting": 3.0}}"#,
            r#"json {"cpu_utilization":0.3,"named_metrics":{"num_requests_waiting":3,"kv_cache_usage_perc":4e-1,"x":"y"}}"#,
        ] {
            assert_eq!(read_orca(header.as_bytes()), Some(told), "{header}");
        }
    }

    #[test]
    fn what_tells_nothing_is_none() {
        let long = format!("TEXT named_metrics.kv_cache_usage_perc=0.4,{}", "x".repeat(4096));
        for header in [
            "",
            "TEXT",
            "TEXT ",
            "TEXT cpu_utilization=0.4",
            "TEXT kv_cache_usage_perc=0.4",
            "TEXT named_metrics.kv_cache_usage_perc",
            "TEXT named_metrics.kv_cache_usage_perc=nan",
            "TEXT named_metrics.kv_cache_usage_perc=-0.4",
            "JSON {\"named_metrics\": 1}",
            "JSON {\"kv_cache_usage_perc\": 0.4}",
            "JSON {\"named_metrics\": {\"kv_cache_usage_perc\": \"0.4\"}}",
            "BIN CgAA",
            &long,
        ] {
            assert_eq!(read_orca(header.as_bytes()), None, "{header}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(
            start in prop::sample::select(&["", "TEXT named_metrics.", "JSON {"][..]),
            bytes in any::<Vec<u8>>(),
        ) {
            read_orca(&[start.as_bytes(), &bytes].concat());
        }
    }
}
