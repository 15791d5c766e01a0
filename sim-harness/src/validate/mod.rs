//! Measured serving runs, replayed: how far is the model from real GPUs?

mod curve;
mod judge;
mod load;
mod loads;
mod points;
mod ranks;
mod replay;
mod report;
mod runs;
mod score;

pub use curve::{Curve, Stage, knee, parse_curves};
pub use judge::{Judged, Schedule, judge_run};
pub use loads::{NotReplayed, Part, judge_curve, judge_points};
pub use points::{Point, parse_points};
pub use replay::{Ask, Client, Outcome, Replayed, replay};
pub use report::Report;
pub use runs::{
    Measured, Meta, Prompt, Run, RunsError, Second, join_prompts, parse_meta, parse_prompts,
    parse_requests, parse_series,
};
pub use score::{Errors, Scores, equal_order, median, round, series_difference};
