//! Measured runs of single requests on vLLM.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use crate::kernels::CsvError;
use crate::kernels::csv::Table;

/// What is told of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Meta {
    /// Its name.
    pub run: String,
    /// The GPU.
    pub hardware: String,
    /// The model, with its publisher.
    pub model: String,
    /// vLLM's version; empty when not told.
    pub version: String,
    /// GPUs that split every layer.
    pub tp: u32,
    /// Engines with their own requests.
    pub dp: u32,
    /// Experts are shared out over all GPUs.
    pub ep: bool,
    /// Sequences in a batch of one engine.
    pub max_num_seqs: u32,
    /// Tokens in a step of one engine.
    pub max_num_batched_tokens: u32,
    /// KV blocks of one engine, where recorded.
    pub num_gpu_blocks: Option<u32>,
    /// Tokens of a block.
    pub block_size: u32,
    /// How weights are stored: `bfloat16` or `fp8`.
    pub dtype: String,
}

/// One request as it went.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Prompt tokens.
    pub input: u32,
    /// Produced tokens.
    pub output: u32,
    /// Sent by the client. Seconds from the run's start, as the others.
    pub arrival: f64,
    /// Entered the batch for the first time.
    pub scheduled: f64,
    /// Its first token came out.
    pub first_token: f64,
    /// Its last token came out.
    pub last_token: f64,
    /// Names of the prompt's leading blocks; empty when not recorded.
    pub blocks: Vec<u64>,
}

/// What the engine exported at one instant, summed over engines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Second {
    /// Seconds from the run's start.
    pub t: f64,
    /// Requests in batches.
    pub running: f64,
    /// Requests in queues.
    pub waiting: f64,
    /// KV cache in use, 0 to 100.
    pub kv_percent: f64,
}

/// One run, whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// What is told of it.
    pub meta: Meta,
    /// Its requests, in order of arrival.
    pub requests: Vec<Measured>,
    /// What was exported, in order; empty when not recorded.
    pub series: Vec<Second>,
}

/// A file that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunsError {
    /// A table.
    Csv(CsvError),
    /// A JSON document or line.
    Json {
        /// Where: the file, and a line or a field.
        at: String,
        /// What stands there.
        found: String,
        /// What is allowed.
        allowed: &'static str,
    },
}

impl fmt::Display for RunsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Csv(error) => error.fmt(f),
            Self::Json { at, found, allowed } => {
                write!(f, "{at}: found {found}; allowed: {allowed}")
            }
        }
    }
}

impl std::error::Error for RunsError {}

impl From<CsvError> for RunsError {
    fn from(error: CsvError) -> Self {
        Self::Csv(error)
    }
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

fn wrong(at: String, found: Option<&Value>, allowed: &'static str) -> RunsError {
    RunsError::Json { at, found: found.map_or("absent".into(), short), allowed }
}

/// Reads the document that tells of each run: a list of objects.
pub fn parse_meta(file: &str, text: &str) -> Result<Vec<Meta>, RunsError> {
    let document: Value = serde_json::from_str(text)
        .map_err(|error| wrong(format!("{file}: {error}"), None, "a JSON document"))?;
    let list = document.as_array().ok_or_else(|| wrong(file.into(), Some(&document), "a list"))?;
    let each = list.iter().enumerate().map(|(index, value)| {
        let at = |field: &str| format!("{file}: [{index}].{field}");
        let text = |field: &str, default: Option<&str>| match (value.get(field), default) {
            (Some(Value::String(text)), _) if !text.is_empty() => Ok(text.clone()),
            (None | Some(Value::Null), Some(default)) => Ok(default.into()),
            (other, _) => Err(wrong(at(field), other, "a string that is not empty")),
        };
        let whole = |field: &str, default: Option<u32>| match (value.get(field), default) {
            (None | Some(Value::Null), Some(default)) => Ok(default),
            (found, _) => found
                .and_then(Value::as_u64)
                .and_then(|n| u32::try_from(n).ok())
                .filter(|n| *n >= 1)
                .ok_or_else(|| wrong(at(field), found, "a whole number, 1 to 4294967295")),
        };
        let blocks = whole("num_gpu_blocks", Some(0))?;
        Ok(Meta {
            run: text("run", None)?,
            hardware: text("hardware", None)?,
            model: text("model", None)?,
            version: text("vllm", Some(""))?,
            tp: whole("tp", Some(1))?,
            dp: whole("dp", Some(1))?,
            ep: value.get("ep").and_then(Value::as_bool).unwrap_or(false),
            max_num_seqs: whole("max_num_seqs", Some(256))?,
            max_num_batched_tokens: whole("max_num_batched_tokens", Some(2_048))?,
            num_gpu_blocks: (blocks > 0).then_some(blocks),
            block_size: whole("block_size", Some(16))?,
            dtype: text("dtype", Some("bfloat16"))?,
        })
    });
    each.collect()
}

/// Reads the requests, by run, in order of arrival.
pub fn parse_requests(
    file: &str,
    text: &str,
) -> Result<BTreeMap<String, Vec<Measured>>, RunsError> {
    let columns = [
        "run",
        "input_tokens",
        "output_tokens",
        "arrival_s",
        "scheduled_s",
        "first_token_s",
        "last_token_s",
    ];
    let mut table = Table::new(file, text, &columns)?;
    let mut runs = BTreeMap::<String, Vec<Measured>>::new();
    while let Some(row) = table.next()? {
        let run = row.text("run").unwrap_or_default().to_string();
        let measured = Measured {
            input: row.count("input_tokens")?,
            output: row.count("output_tokens")?,
            arrival: row.seconds("arrival_s")?,
            scheduled: row.seconds("scheduled_s")?,
            first_token: row.seconds("first_token_s")?,
            last_token: row.seconds("last_token_s")?,
            blocks: Vec::new(),
        };
        runs.entry(run).or_default().push(measured);
    }
    for requests in runs.values_mut() {
        requests.sort_by(|a, b| a.arrival.total_cmp(&b.arrival));
    }
    Ok(runs)
}

/// Reads what was exported, by run.
pub fn parse_series(file: &str, text: &str) -> Result<BTreeMap<String, Vec<Second>>, RunsError> {
    let columns = ["run", "t", "running", "waiting", "kv_cache_pct"];
    let mut table = Table::new(file, text, &columns)?;
    let mut runs = BTreeMap::<String, Vec<Second>>::new();
    while let Some(row) = table.next()? {
        let run = row.text("run").unwrap_or_default().to_string();
        runs.entry(run).or_default().push(Second {
            t: row.seconds("t")?,
            running: row.seconds("running")?,
            waiting: row.seconds("waiting")?,
            kv_percent: row.seconds("kv_cache_pct")?,
        });
    }
    Ok(runs)
}

/// One prompt of a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    input: u32,
    output: u32,
    blocks: Vec<u64>,
}

/// Reads prompts' block names, by data set, in the order of their `idx`.
pub fn parse_prompts(file: &str, text: &str) -> Result<BTreeMap<String, Vec<Prompt>>, RunsError> {
    let mut sets = BTreeMap::<String, Vec<(u64, Prompt)>>::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let at = |field: &str| format!("{file}: line {}, {field}", index + 1);
        let value: Value = serde_json::from_str(line)
            .map_err(|error| wrong(at(&error.to_string()), None, "a JSON object"))?;
        let whole = |field: &str| {
            let found = value.get(field);
            let number = found.and_then(Value::as_u64).filter(|n| u32::try_from(*n).is_ok());
            number.ok_or_else(|| wrong(at(field), found, "a whole number, 0 to 4294967295"))
        };
        let ids = value.get("hash_ids").and_then(Value::as_array);
        let ids = ids.map(|ids| ids.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>());
        let Some(Some(blocks)) = ids else {
            return Err(wrong(at("hash_ids"), value.get("hash_ids"), "a list of whole numbers"));
        };
        let set = value.get("dataset").and_then(Value::as_str).unwrap_or_default().to_string();
        let (input, output) = (whole("input_length")? as u32, whole("output_length")? as u32);
        sets.entry(set).or_default().push((whole("idx")?, Prompt { input, output, blocks }));
    }
    Ok(sets
        .into_iter()
        .map(|(set, mut prompts)| {
            prompts.sort_by_key(|(idx, _)| *idx);
            (set, prompts.into_iter().map(|(_, prompt)| prompt).collect())
        })
        .collect())
}

/// Gives each run the block names of the data set whose lengths are its own.
pub fn join_prompts(requests: &mut [Measured], sets: &BTreeMap<String, Vec<Prompt>>) -> bool {
    let fits = |prompts: &&Vec<Prompt>| {
        prompts.len() >= requests.len()
            && requests
                .iter()
                .zip(prompts.iter())
                .all(|(r, p)| (r.input, r.output) == (p.input, p.output))
    };
    let Some(prompts) = sets.values().find(fits) else { return false };
    for (request, prompt) in requests.iter_mut().zip(prompts) {
        request.blocks.clone_from(&prompt.blocks);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_read_whole() {
        let meta = r#"[{"run": "r", "hardware": "G", "model": "m", "tp": 2, "dp": 1, "ep": false,
            "max_num_seqs": 4, "max_num_batched_tokens": 64, "num_gpu_blocks": null}]"#;
        let meta = parse_meta("m.json", meta).unwrap();
        assert_eq!((meta[0].tp, meta[0].num_gpu_blocks, meta[0].block_size), (2, None, 16));
        let rows = "run,idx,input_tokens,output_tokens,arrival_s,queued_s,scheduled_s,first_token_s,last_token_s
r,1,17,3,0.5,0.5,0.6,0.7,0.9
r,0,32,2,0.0,0.0,0.0,0.1,0.2
";
        let mut runs = parse_requests("r.csv", rows).unwrap();
        let requests = runs.get_mut("r").unwrap();
        assert_eq!((requests[0].input, requests[1].scheduled), (32, 0.6));
        let prompts = r#"{"dataset":"other","idx":0,"input_length":31,"output_length":2,"hash_ids":[1]}
{"dataset":"d","idx":1,"input_length":17,"output_length":3,"hash_ids":[7]}
{"dataset":"d","idx":0,"input_length":32,"output_length":2,"hash_ids":[7,9]}"#;
        let sets = parse_prompts("p.jsonl", prompts).unwrap();
        assert!(join_prompts(requests, &sets));
        assert_eq!(requests[0].blocks, [7, 9]);
        requests[0].input = 33;
        assert!(!join_prompts(requests, &sets));
        let series = parse_series("s.csv", "run,t,running,waiting,kv_cache_pct\nr,1.0,3,0,12.5\n");
        assert_eq!(series.unwrap()["r"][0].kv_percent, 12.5);
    }

    #[test]
    fn errors_name_the_place_the_value_and_what_is_allowed() {
        let error = |text: &str| parse_meta("m.json", text).unwrap_err().to_string();
        assert!(error(r#"{"run": 1}"#).contains("a list"));
        let missing = error(r#"[{"run": "r", "hardware": "G", "model": "m", "tp": 0}]"#);
        assert_eq!(missing, "m.json: [0].tp: found 0; allowed: a whole number, 1 to 4294967295");
        assert!(error(r#"[{"run": "r", "hardware": "G"}]"#).contains("[0].model: found absent"));
        let prompts = parse_prompts("p", r#"{"idx":0,"input_length":1,"output_length":1}"#);
        let prompts = prompts.unwrap_err().to_string();
        assert!(prompts.contains("line 1, hash_ids: found absent"), "{prompts}");
        let rows = "run,input_tokens,output_tokens,arrival_s,scheduled_s,first_token_s,last_token_s\nr,1,1,x,0,0,0\n";
        let rows = parse_requests("r.csv", rows).unwrap_err().to_string();
        assert!(rows.contains("r.csv: line 2, column arrival_s: found \"x\""), "{rows}");
    }
}
