//! The planner for a browser, or for Node: JSON in, JSON out.
//!
//! Nothing is decided here: documents are read and answers written by
//! [`tidegate_sim`], whose numbers are the command's to the byte. A call does
//! not return until its answer is there, so a page makes it in a worker, and
//! ends the worker to cancel.

use serde_json::{Value, json};
use tidegate_sim::fields::Fields;
use tidegate_sim::fleet::{DocumentError, Fate, Loaded, Watch};
use tidegate_sim::kernels::{Gpu, MODELS, Precision};
use tidegate_sim::plan::{
    Ask, Effort, Outcome, POOLS, PlanError, Price, Runner, Source, Stage, StepTimes, Trial,
    UTILIZATION, WINDOW,
};
use tidegate_sim::workload::NAMED;
use wasm_bindgen::prelude::wasm_bindgen;

#[wasm_bindgen]
extern "C" {
    /// A JavaScript function `(text, number) => void`.
    pub type Progress;

    /// Calls it.
    #[wasm_bindgen(method)]
    fn call(this: &Progress, receiver: Option<bool>, what: &str, done: f64);

    /// What is thrown: a JavaScript `Error` that also has a `field`.
    #[wasm_bindgen(js_name = Error)]
    pub type Refusal;

    #[wasm_bindgen(constructor, js_class = "Error")]
    fn new(message: &str) -> Refusal;

    #[wasm_bindgen(method, setter)]
    fn set_field(this: &Refusal, field: &str);
}

impl Refusal {
    fn of(field: &str, why: &str) -> Self {
        let refusal = Self::new(why);
        refusal.set_field(field);
        refusal
    }
}

impl From<PlanError> for Refusal {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Question(field, why) => Self::of(field, &why),
            other => Self::of("", &other.to_string()),
        }
    }
}

fn document(json: &str) -> Result<Value, PlanError> {
    serde_json::from_str(json).map_err(|error| PlanError::Question("question", error.to_string()))
}

/// What there is to choose from, and what is taken where nothing is chosen.
#[wasm_bindgen]
pub fn choices() -> String {
    let effort = |effort: Effort| {
        json!({"requests": effort.requests, "seeds": effort.seeds,
               "thresholds": effort.thresholds, "verify": effort.verify})
    };
    let gpus = Gpu::all().into_iter().map(|gpu| {
        let price = Price::of(&gpu.name, &[]).map(|price| price.per_hour);
        json!({"name": gpu.name, "memory": gpu.memory, "usd_per_hour": price})
    });
    json!({
        "lengths": NAMED.each_ref().map(|(name, _)| *name),
        "models": MODELS.each_ref().map(|model| model.name),
        "gpus": gpus.collect::<Vec<_>>(),
        "caps": ["ladder", "actual", "none"],
        "precisions": Precision::NAMED.map(|(name, _)| name),
        "efforts": {"quick": effort(Effort::quick()), "full": effort(Effort::default())},
        "defaults": {"gpu_memory_utilization": UTILIZATION, "max_model_len": WINDOW,
                     "pools": POOLS},
    })
    .to_string()
}

/// How prompt and answer together are distributed: of a document with `lengths`
/// or `trace`, as for [`plan`].
///
/// `{"requests": N or null, "within": [[tokens, share], ...]}`, from 16 tokens on
/// in steps of half an octave, to the first that has all.
#[wasm_bindgen]
pub fn lengths(json: &str) -> Result<String, Refusal> {
    let document = document(json)?;
    let read = || -> Result<Source, PlanError> {
        Source::read(&Fields::new("", &document, &["lengths", "trace"])?)
    };
    let source = read()?;
    let requests = match &source {
        Source::Trace(rows) => Some(rows.len()),
        Source::Drawn(_) => None,
    };
    let mut within = Vec::new();
    // 2^(n/2), whole: powers of two, and 1.5 times them.
    for edge in (4..31).flat_map(|bits| [1u32 << bits, 3 << (bits - 1)]) {
        let share = source.share_within(edge);
        within.push((edge, share));
        if share >= 1.0 {
            break;
        }
    }
    Ok(json!({"requests": requests, "within": within}).to_string())
}

/// Runs trials one after the other, and says how many it has run.
struct Told<'a> {
    times: StepTimes,
    what: std::rc::Rc<std::cell::RefCell<String>>,
    runs: u64,
    progress: &'a Progress,
}

impl Runner for Told<'_> {
    fn run(&mut self, trials: &[Trial]) -> Result<Vec<Outcome>, PlanError> {
        let one = |trial: &Trial| {
            let outcome = trial.run(&mut self.times);
            self.runs += 1;
            self.progress.call(None, &self.what.borrow(), self.runs as f64);
            outcome
        };
        trials.iter().map(one).collect()
    }
}

/// Makes a plan: what `tidegate-sim plan --json` prints for a document whose
/// fields are that command's flags, with `_` for `-` (`Ask::parse`).
///
/// `progress` hears what is done, and how many simulations were run so far.
///
/// # Errors
///
/// An `Error` with `field`, the part of the document that is wrong; `""` where
/// there is no plan for another reason.
#[wasm_bindgen]
pub fn plan(json: &str, progress: &Progress) -> Result<String, Refusal> {
    let Ask { question, prices } = Ask::parse(&document(json)?)?;
    let what = std::rc::Rc::default();
    let mut runner =
        Told { times: StepTimes::default(), what: std::rc::Rc::clone(&what), runs: 0, progress };
    let mut next = |stage: &Stage<'_>| {
        *what.borrow_mut() = format!("{} of {}: {}", stage.done + 1, stage.of, stage.what);
    };
    let plan = tidegate_sim::plan::plan(question, &mut runner, &mut next)?;
    Ok(format!("{:#}", plan.json(&prices)))
}

/// Says how many requests have ended, once in a while.
struct RecordingSink<'a> {
    ended: u64,
    progress: &'a Progress,
}

impl Watch for RecordingSink<'_> {
    fn ended(&mut self, _: &Fate) -> bool {
        self.ended += 1;
        if self.ended.is_multiple_of(1_000) {
            self.progress.call(None, "requests ended", self.ended as f64);
        }
        true
    }
}

/// Simulates a fleet: what `tidegate-sim run --json` prints for the same scenario
/// as JSON. Files cannot be named: `config` is the document itself, and lengths
/// of one's own are `{"trace": text}`.
///
/// `progress` hears how many requests have ended, each thousand.
///
/// # Errors
///
/// As those of [`plan`].
#[wasm_bindgen]
pub fn simulate(json: &str, progress: &Progress) -> Result<String, Refusal> {
    let none = |name: &str| Err(format!("{name}: found a file; allowed here: its content"));
    let loaded = Loaded::parse(&document(json)?, &none).map_err(|error| match error {
        DocumentError::Field(error) => {
            Refusal::of(&error.path, &format!("found {}; allowed: {}", error.found, error.allowed))
        }
        other => Refusal::of("", &other.to_string()),
    })?;
    let mut heard = RecordingSink { ended: 0, progress };
    let report = tidegate_sim::fleet::watch(&loaded.scenario, loaded.seed, &mut heard)
        .map_err(PlanError::Fleet)?;
    progress.call(None, "requests ended", heard.ended as f64);
    Ok(report.json().to_string())
}
