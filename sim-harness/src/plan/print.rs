//! A plan as text and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::answer::{Alternative, Plan};
use super::price::Price;
use crate::table::{percent, with_heads};

/// The hours of a year that prices are multiplied by.
pub(super) const HOURS: f64 = 8_760.0;

fn saving(share: Option<f64>) -> String {
    share.map_or_else(|| "-".into(), percent)
}

fn number(count: Option<u32>) -> String {
    count.map_or_else(|| "never".into(), |count| count.to_string())
}

fn seconds(figure: Option<f64>) -> String {
    figure.map_or_else(|| "never".into(), |seconds| format!("{seconds:.3}"))
}

impl Plan {
    /// What an alternative's formulas say: savings of a split by the papers' 4 : 1,
    /// by the fluid.
    fn promised(&self, split: &Alternative) -> (f64, f64) {
        let large: f64 = split.guess.pools.last().map_or(1.0, |pool| pool.share);
        let one: f64 = self.homogeneous.guess.pools.iter().map(|pool| pool.fluid).sum();
        let fluid: f64 = split.guess.pools.iter().map(|pool| pool.fluid).sum();
        ((1.0 - large) * 0.75, 1.0 - fluid / one)
    }

    /// The report.
    pub fn text(&self, prices: &[Price]) -> String {
        let mut out = String::new();
        self.head(&mut out);
        self.formulas(&mut out);
        self.sizes(&mut out);
        self.verdict(&mut out);
        self.money(&mut out, prices);
        self.paste(&mut out);
        out
    }

    fn head(&self, out: &mut String) {
        let question = &self.question;
        let deployment = &question.deployment;
        let [p50, p90, p99, most] = self.totals;
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{} on {} x {}, {} requests a second; p99 TTFT {} s, p99 TPOT {} s, of all requests\n\
             prompt + output tokens: p50 {p50}, p90 {p90}, p99 {p99}, most {most}; KV cache of a \
             replica: {} tokens\n\
             simulated: {:.1} requests a second ({} of the rate), {:.0} s after {:.0} s of warm-up; \
             {} runs, {} requests\n",
            deployment.model.name,
            deployment.tp * deployment.dp,
            question.gpu.name,
            question.rate,
            question.slo.ttft_p99,
            question.slo.tpot_p99,
            self.kv_tokens,
            self.scale.rate,
            percent(self.scale.rate / question.rate),
            self.scale.window,
            self.scale.warm_up,
            self.runs.0,
            self.runs.1,
        );
    }

    fn formulas(&self, out: &mut String) {
        let rows: Vec<Vec<String>> = self
            .alternatives()
            .into_iter()
            .filter(|(name, _)| *name != "oracle")
            .map(|(name, one)| {
                let guess = &one.guess;
                let list = |of: &dyn Fn(&super::PoolGuess) -> String| {
                    guess.pools.iter().map(of).collect::<Vec<_>>().join(" + ")
                };
                let simulated = one.size.as_ref().ok().map(|size| size.replicas.iter().sum());
                vec![
                    name.to_owned(),
                    list(&|pool| percent(pool.share)),
                    list(&|pool| pool.table_slots.to_string()),
                    guess.closed.to_string(),
                    list(&|pool| format!("{:.0}", pool.slots)),
                    list(&|pool| format!("{:.2}", pool.fluid_rate)),
                    guess.fluid().to_string(),
                    guess.queueing().to_string(),
                    number(simulated),
                ]
            })
            .collect();
        let heads = [
            "replicas by formula",
            "share",
            "table slots",
            "closed form",
            "slots",
            "req/s each",
            "fluid",
            "+ queueing",
            "simulated",
        ];
        out.push_str(&with_heads(&heads, &rows));
        if let Some(split) = self.pools.first() {
            let (papers, fluid) = self.promised(split);
            let _ = writeln!(
                out,
                "saving of two pools against homogeneous: {} by the papers' 4 : 1, {} by the fluid",
                percent(papers),
                percent(fluid)
            );
        }
        out.push('\n');
    }

    fn sizes(&self, out: &mut String) {
        let mut rows = Vec::new();
        for (name, one) in self.alternatives() {
            let settings: Vec<String> = one
                .layout
                .shapes
                .iter()
                .map(|shape| format!("{}/{}/{}", shape.threshold, shape.seats, shape.batched))
                .collect();
            let mut row = vec![name.to_owned(), settings.join(" + ")];
            if let Ok(size) = &one.size {
                let against = |other: &Alternative| {
                    let other = f64::from(other.gpus()?);
                    Some(1.0 - f64::from(size.gpus) / other)
                };
                let counts: Vec<String> = size.replicas.iter().map(u32::to_string).collect();
                row.extend([
                    counts.join(" + "),
                    size.gpus.to_string(),
                    format!("{}-{}", size.spread.0, size.spread.1),
                    saving(against(&self.homogeneous)),
                    saving(against(&self.tuned)),
                    seconds(size.ttft_p99),
                    seconds(size.tpot_p99),
                    format!("{:.3} %", size.truncated * 100.0),
                    format!("{:.3} %", size.lost * 100.0),
                ]);
            } else {
                row.extend(["-".into(), "never".into()]);
            }
            rows.push(row);
        }
        let heads = [
            "simulated",
            "threshold/seqs/batch",
            "replicas",
            "GPUs",
            "seeds",
            "vs homog.",
            "vs tuned",
            "TTFT p99",
            "TPOT p99",
            "cut short",
            "refused",
        ];
        out.push_str(&with_heads(&heads, &rows));
        for (name, one) in self.alternatives() {
            if let Err(why) = &one.size {
                let _ = writeln!(out, "{name}: {why}");
            }
        }
        let tried = self.candidates.iter().map(|one| {
            let thresholds: Vec<String> = one.thresholds.iter().map(u32::to_string).collect();
            format!("{}: {}", thresholds.join("/"), number(one.gpus))
        });
        let tried: Vec<String> = tried.collect();
        if !tried.is_empty() {
            let _ = writeln!(out, "GPUs by threshold, one seed, coarse: {}", tried.join(", "));
        }
        out.push('\n');
    }

    pub(super) fn verdict(&self, out: &mut String) {
        let answer = self.answer();
        let Some(gpus) = answer.gpus() else {
            out.push_str("No fleet of these kinds holds the promise: see above.\n");
            return;
        };
        if self.splits {
            let _ = writeln!(
                out,
                "Split at {}: {gpus} GPUs, {} less than homogeneous, {} less than the tuned single \
                 pool.",
                answer.thresholds().iter().map(u32::to_string).collect::<Vec<_>>().join(" and "),
                saving(self.saving(self.homogeneous.gpus())),
                saving(self.saving(self.tuned.gpus())),
            );
        } else {
            let _ = writeln!(
                out,
                "Do not split: one tuned pool needs {gpus} GPUs ({} less than homogeneous).",
                saving(self.saving(self.homogeneous.gpus()))
            );
            match self.pools.first().map(|two| (two, two.gpus())) {
                Some((two, Some(forced))) => {
                    let more = f64::from(forced) / f64::from(gpus) - 1.0;
                    let _ = writeln!(
                        out,
                        "The best forced split, at {}, needs {forced} GPUs: {} more.",
                        two.thresholds().iter().map(u32::to_string).collect::<String>(),
                        percent(more)
                    );
                }
                Some((_, None)) => out.push_str("No split holds the promise.\n"),
                None if self.question.pools < 2 => out.push_str("No split was asked for.\n"),
                None => out.push_str("No threshold divides these requests.\n"),
            }
        }
        if !self.clear() {
            out.push_str(
                "The seeds' ranges of the split and of the tuned single pool overlap: the difference \
                 is within chance.\n",
            );
        }
        for one in &self.verified {
            let seeds = one.seeds.iter().map(|(seed, ttft, tpot)| {
                format!("seed {seed}: {} / {} s", seconds(*ttft), seconds(*tpot))
            });
            let _ = writeln!(
                out,
                "At the full rate, {} requests each, p99 TTFT / TPOT of {}: {}; {} ({} replicas \
                 added).",
                one.requests_each(),
                one.name,
                seeds.collect::<Vec<_>>().join(", "),
                if one.held.is_some() { "holds" } else { "DOES NOT HOLD" },
                one.added
            );
        }
        for one in &self.sensitivity {
            let _ = writeln!(
                out,
                "At {:.0} % of the rate: {} GPUs (homogeneous {}, tuned {}).",
                one.factor * 100.0,
                number(one.plan),
                number(one.homogeneous),
                number(one.tuned)
            );
        }
        for one in &self.drift {
            let _ = writeln!(
                out,
                "With {}: {} GPUs (homogeneous {}, tuned {}).",
                one.what,
                number(one.plan),
                number(one.homogeneous),
                number(one.tuned)
            );
        }
    }

    fn money(&self, out: &mut String, prices: &[Price]) {
        let name = &self.question.gpu.name;
        let Some(price) = Price::of(name, prices) else {
            let _ = writeln!(out, "\nNo price of {name} is known: give one with --prices.");
            return;
        };
        let _ = writeln!(
            out,
            "\nmoney at {} $ a GPU-hour ({}, {})",
            price.per_hour, price.date, price.source
        );
        let rows: Vec<Vec<String>> = self
            .alternatives()
            .into_iter()
            .filter_map(|(name, one)| Some((name, f64::from(one.gpus()?))))
            .map(|(name, gpus)| {
                let year = gpus * HOURS;
                vec![
                    name.into(),
                    format!("{:.0}", gpus * 24.0),
                    format!("{year:.0}"),
                    format!("{:.0}", year * price.per_hour),
                ]
            })
            .collect();
        out.push_str(&with_heads(&["", "GPU-hours a day", "a year", "$ a year"], &rows));
    }

    fn paste(&self, out: &mut String) {
        let answer = self.answer();
        let pools = self.pools(answer);
        if pools.is_empty() {
            return;
        }
        out.push_str("\nengines\n");
        for pool in &pools {
            let _ = writeln!(out, "{} x {}: {}", pool.replicas, pool.name, pool.command);
        }
        let _ = writeln!(out, "\nthe filter's configuration\n{:#}", self.config(answer));
        let _ = write!(out, "\nEnvoy, into static_resources\n{}", self.clusters(answer));
    }

    /// The same numbers as one JSON document.
    pub fn json(&self, prices: &[Price]) -> Value {
        let answer = self.answer();
        let thresholds = answer.thresholds();
        let price = Price::of(&self.question.gpu.name, prices);
        let year = |gpus: Option<u32>| Some(f64::from(gpus?) * HOURS * price.as_ref()?.per_hour);
        let mut plan = self.alternative_json(answer, year(answer.gpus()));
        if let Some(plan) = plan.as_object_mut() {
            plan.insert("splits".into(), self.splits.into());
            plan.insert("clear".into(), self.clear().into());
            plan.insert("threshold".into(), thresholds.first().copied().into());
        }
        let with = |one: &Alternative| self.alternative_json(one, year(one.gpus()));
        let slo = self.slo();
        let guess = self.pools.first().map(|split| self.promised(split));
        json!({
            "plan": plan,
            "baselines": {
                "homogeneous": with(&self.homogeneous),
                "tuned_homogeneous": with(&self.tuned),
                "oracle": self.oracle.as_ref().map(with),
            },
            "slo": {"ttft_p99_s": slo.ttft_p99, "tpot_p99_s": slo.tpot_p99},
            "savings": {
                "homogeneous": self.saving(self.homogeneous.gpus()),
                "tuned_homogeneous": self.saving(self.tuned.gpus()),
                "two_pools_by_the_papers": guess.map(|(papers, _)| papers),
                "two_pools_by_the_fluid": guess.map(|(_, fluid)| fluid),
            },
            "splits": self.pools.iter().map(with).collect::<Vec<_>>(),
            "candidates": self.candidates.iter().map(|one| json!({
                "thresholds": one.thresholds,
                "gpus": one.gpus,
            })).collect::<Vec<_>>(),
            "verified": self.verified.iter().map(|one| json!({
                "name": one.name,
                "holds": one.held.is_some(),
                "replicas_added": one.added,
                "requests": one.requests_each(),
                "seeds": one.seeds.iter().map(|(seed, ttft, tpot)| json!({
                    "seed": seed, "ttft_p99_s": ttft, "tpot_p99_s": tpot,
                })).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
            "sensitivity": self.sensitivity.iter().map(|one| json!({
                "rate": one.factor * self.question.rate,
                "plan": one.plan,
                "homogeneous": one.homogeneous,
                "tuned_homogeneous": one.tuned,
            })).collect::<Vec<_>>(),
            "drift": self.drift.iter().map(|one| json!({
                "what": one.what,
                "plan": one.plan,
                "homogeneous": one.homogeneous,
                "tuned_homogeneous": one.tuned,
            })).collect::<Vec<_>>(),
            "price": price.as_ref().map(|price| json!({
                "usd_per_gpu_hour": price.per_hour,
                "date": price.date,
                "source": price.source,
            })),
            "scale": {
                "rate": self.scale.rate,
                "share": self.scale.rate / self.question.rate,
                "warm_up_s": self.scale.warm_up,
                "window_s": self.scale.window,
                "runs": self.runs.0,
                "requests": self.runs.1,
            },
            "rate": self.question.rate,
            "model": self.question.deployment.model.name,
            "gpu": self.question.gpu.name,
            "tokens": {"p50": self.totals[0], "p90": self.totals[1], "p99": self.totals[2],
                       "most": self.totals[3]},
            "kv_tokens": self.kv_tokens,
            "config": self.config(answer),
            "envoy": self.clusters(answer),
        })
    }

    fn alternative_json(&self, one: &Alternative, year: Option<f64>) -> Value {
        let pools: Vec<Value> = self
            .pools(one)
            .into_iter()
            .map(|pool| {
                json!({
                    "name": pool.name,
                    "replicas": pool.replicas,
                    "max_model_len": pool.max_model_len,
                    "max_num_seqs": pool.max_num_seqs,
                    "max_num_batched_tokens": pool.max_num_batched_tokens,
                    "share": pool.share,
                    "kv": pool.kv,
                    "command": pool.command,
                })
            })
            .collect();
        let formulas = json!({
            "closed_form": one.guess.closed,
            "fluid": one.guess.fluid(),
            "queueing": one.guess.queueing(),
        });
        match &one.size {
            Ok(size) => json!({
                "gpus": size.gpus,
                "pools": pools,
                "thresholds": one.thresholds(),
                "gpus_by_seed": [size.spread.0, size.spread.1],
                "ttft_p99_s": size.ttft_p99,
                "tpot_p99_s": size.tpot_p99,
                "truncated": size.truncated,
                "refused": size.lost,
                "refused_first": size.retried,
                "preemptions": size.preemptions,
                "usd_per_year": year,
                "replicas_by_formula": formulas,
            }),
            Err(why) => json!({
                "gpus": null, "pools": pools, "why": why, "replicas_by_formula": formulas,
            }),
        }
    }
}
