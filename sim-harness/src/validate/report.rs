//! All runs, as text and as JSON.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::judge::Judged;
use super::loads::{NotReplayed, Part};
use super::score::{Errors, Scores, fraction, round};
use crate::kernels::Pricing;

/// Everything that was replayed, and what could not be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The runs.
    pub runs: Vec<Judged>,
    /// What was not replayed, and why.
    pub not_replayed: NotReplayed,
}

fn pair((simulated, measured): (f64, f64)) -> Value {
    json!({"simulated": round(simulated), "measured": round(measured)})
}

fn part(part: &Part) -> Value {
    json!({
        "name": part.name,
        "ttft_ms": pair(part.ttft),
        "tpot_ms": pair(part.tpot),
        "e2e_ms": pair(part.e2e),
        "requests_per_s": pair(part.throughput),
    })
}

fn run_json(run: &Judged) -> Value {
    let mut object = Map::new();
    object.insert("name".into(), json!(run.name));
    object.insert("kernels".into(), json!(run.source));
    for (pricing, scores) in &run.scores {
        if *pricing == Pricing::Model {
            for (name, errors) in scores.parts() {
                object.insert(name.into(), errors.json());
            }
        }
    }
    let baselines: Map<String, Value> = run
        .scores
        .iter()
        .filter(|(pricing, _)| *pricing != Pricing::Model)
        .map(|(pricing, scores)| (pricing.name().into(), scores.json()))
        .chain(
            run.without
                .iter()
                .map(|(pricing, why)| (pricing.name().into(), json!({"not_applicable": why}))),
        )
        .collect();
    object.insert("baselines".into(), Value::Object(baselines));
    if let Some(schedule) = &run.schedule {
        let differ = |value: Option<f64>| value.map_or(Value::Null, |v| json!(fraction(v)));
        let value = json!({
            "running_difference": differ(schedule.running),
            "waiting_difference": differ(schedule.waiting),
            "kv_difference": differ(schedule.kv),
            "equal_order": round(schedule.order),
        });
        object.insert("schedule".into(), value);
    }
    if let Some((simulated, measured)) = run.knee {
        let error = simulated.zip(measured).map(|(s, m)| fraction((s / m - 1.0) * 100.0));
        let value = json!({
            "simulated": simulated.map(round),
            "measured": measured.map(round),
            "error": error,
        });
        object.insert("knee".into(), value);
    }
    if !run.parts.is_empty() {
        object.insert("points".into(), run.parts.iter().map(part).collect());
    }
    let blocks = run.blocks.iter().map(|(part, blocks, computed)| {
        json!({"part": part, "num_gpu_blocks": blocks, "computed": computed})
    });
    object.insert("kv".into(), blocks.collect());
    Value::Object(object)
}

impl Report {
    fn scores(&self, wanted: Pricing) -> Vec<&Scores> {
        let all = self.runs.iter().flat_map(|run| &run.scores);
        all.filter(|(pricing, _)| *pricing == wanted).map(|(_, scores)| scores).collect()
    }

    /// One document. Errors are fractions; a bias is signed.
    pub fn json(&self) -> Value {
        let baselines: Map<String, Value> = Pricing::ALL
            .into_iter()
            .filter(|pricing| *pricing != Pricing::Model)
            .map(|pricing| (pricing.name().into(), Scores::overall(self.scores(pricing))))
            .collect();
        let not = self.not_replayed.iter().map(|(name, why)| json!({"name": name, "reason": why}));
        json!({
            "runs": self.runs.iter().map(run_json).collect::<Vec<Value>>(),
            "overall": Scores::overall(self.scores(Pricing::Model)),
            "baselines": baselines,
            "not_replayed": not.collect::<Vec<Value>>(),
        })
    }

    /// Tables.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let cells = |errors: &Errors| {
            if errors.is_empty() {
                return format!("{:>22}", "-");
            }
            let (median, mean, bias) = (errors.median_ape(), errors.mean_ape(), errors.bias());
            format!("{median:>7.1}{mean:>7.1}{bias:>+8.1}")
        };
        writeln!(out, "Errors in percent: median, mean of absolute, signed bias of the mean.\n")?;
        writeln!(out, "{:<18}{:>22}{:>22}{:>22}{:>22}", "", "TTFT", "TPOT", "E2E", "throughput")?;
        for run in &self.runs {
            writeln!(out, "{} (kernels: {})", run.name, run.source)?;
            for (pricing, scores) in &run.scores {
                let all: String = scores.parts().iter().map(|(_, errors)| cells(errors)).collect();
                writeln!(out, "  {:<16}{all}", pricing.name())?;
            }
            for (pricing, why) in &run.without {
                writeln!(out, "  {:<16}  not applicable: {why}", pricing.name())?;
            }
            if let Some(s) = &run.schedule {
                let percent = |value: Option<f64>| {
                    value.map_or("not recorded".into(), |value| format!("{value:.1} %"))
                };
                writeln!(
                    out,
                    "  schedule          running {}, waiting {}, KV {} of peak; order {:.1} %",
                    percent(s.running),
                    percent(s.waiting),
                    percent(s.kv),
                    s.order * 100.0
                )?;
            }
            if let Some((simulated, measured)) = run.knee {
                let rate = |knee: Option<f64>| knee.map_or("none".into(), |k| format!("{k:.1}"));
                let (simulated, measured) = (rate(simulated), rate(measured));
                writeln!(out, "  knee              {simulated} requests/s, measured {measured}")?;
            }
            for part in &run.parts {
                let show = |(s, m): (f64, f64)| format!("{s:>10.1}{m:>10.1}  ");
                let all = [part.ttft, part.tpot, part.e2e, part.throughput].map(show).concat();
                writeln!(out, "    {:<14}{all}", part.name)?;
            }
        }
        if !self.not_replayed.is_empty() {
            writeln!(out, "\nNot replayed:")?;
        }
        for (name, why) in &self.not_replayed {
            writeln!(out, "  {name}: {why}")?;
        }
        writeln!(out, "\nOver all runs: median of medians, mean of means, mean bias.")?;
        for pricing in Pricing::ALL {
            let overall = Scores::overall(self.scores(pricing));
            let row = ["ttft", "tpot", "e2e", "throughput"].map(|name| {
                let cell = |field: &str| {
                    overall.get(name).and_then(|value| value.get(field)).and_then(Value::as_f64)
                };
                match (cell("median_ape"), cell("mean_ape"), cell("bias")) {
                    (Some(median), Some(mean), Some(bias)) => {
                        format!("{median:>7.1}{mean:>7.1}{bias:>+8.1}")
                    }
                    _ => format!("{:>22}", "-"),
                }
            });
            writeln!(out, "  {:<16}{}", pricing.name(), row.concat())?;
        }
        Ok(())
    }
}
