//! A plan as a page.

use serde_json::{Value, json};

use super::answer::{Alternative, Plan, Sized};
use super::load::{LoadCurve, LoadPoint};
use super::price::Price;
use super::print::HOURS;
use crate::fleet::{length_bucket, length_edge};
use crate::report::{Axis, Block, Page, Plot, Point, Rule, Section, Series, Shape, Table};
use crate::rng::Pcg;

/// Requests that are drawn for the plot of lengths, and the stream of the seed.
const DRAWN: usize = 20_000;
const DRAWS: u64 = 6;

impl Plan {
    /// The page. `load` has the curves of [`super::load_curves`].
    pub fn page(&self, prices: &[Price], load: &[LoadCurve]) -> Page {
        let question = &self.question;
        let deployment = &question.deployment;
        let lead = format!(
            "{} requests a second of {} on {} x {}. Promise: 99 of 100 of all requests have their \
             first token within {} s and {} s between tokens or less. Simulated at {:.1} requests \
             a second and scaled up; {} runs, {} requests. By tidegate-sim plan.",
            question.rate,
            deployment.model.name,
            deployment.tp * deployment.dp,
            question.gpu.name,
            question.slo.ttft_p99,
            question.slo.tpot_p99,
            self.scale.rate,
            self.runs.0,
            self.runs.1,
        );
        let mut verdict = String::new();
        self.verdict(&mut verdict);
        let mut results: Vec<Block> =
            verdict.lines().map(|line| Block::Words(line.to_owned())).collect();
        results.extend([self.sizes_table(prices), self.formulas_table()].map(Block::Table));
        results.extend([self.gpus_plot(), self.savings_plot()].map(Block::Plot));
        let mut layout = vec![Block::Plot(self.lengths_plot())];
        layout.extend(self.candidates_plots().into_iter().map(Block::Plot));
        let mut rates: Vec<Block> = self.rate_plot().into_iter().map(Block::Plot).collect();
        rates.extend(self.load_plots(load).map(Block::Plot));
        let section = |heading: &str, blocks| Section { heading: heading.into(), blocks };
        Page {
            title: format!("GPUs for {} requests a second", question.rate),
            lead,
            sections: vec![
                section("How many GPUs", results),
                section("Lengths and thresholds", layout),
                section("At other rates", rates),
                section("To copy", self.copies(prices)),
            ],
        }
    }

    /// The plan's numbers with those that only the page has.
    pub fn page_json(&self, prices: &[Price], load: &[LoadCurve]) -> Value {
        let point = |point: &LoadPoint| json!({"load": point.load, "ttft_p99_s": point.ttft_p99, "tpot_p99_s": point.tpot_p99});
        let curve = |curve: &LoadCurve| {
            let points: Vec<Value> = curve.points.iter().map(point).collect();
            json!({"name": curve.name, "points": points})
        };
        let mut plan = self.json(prices);
        if let Some(plan) = plan.as_object_mut() {
            plan.insert("load".into(), load.iter().map(curve).collect());
        }
        plan
    }

    fn sizes_table(&self, prices: &[Price]) -> Table {
        let price = Price::of(&self.question.gpu.name, prices);
        let row = |(name, one): (&str, &Alternative)| {
            let join = |of: &dyn Fn(&super::Shape) -> String| {
                one.layout.shapes.iter().map(of).collect::<Vec<_>>().join(" + ")
            };
            let mut row = vec![
                name.to_owned(),
                join(&|shape| shape.window.to_string()),
                join(&|shape| shape.seats.to_string()),
                join(&|shape| shape.batched.to_string()),
            ];
            let Ok(size) = &one.size else {
                row.extend(["-".into(), "never".into()]);
                return row;
            };
            let counts: Vec<String> = size.replicas.iter().map(u32::to_string).collect();
            let seconds = |figure: Option<f64>| {
                figure.map_or_else(|| "never".to_owned(), |seconds| format!("{seconds:.3}"))
            };
            let year = price.as_ref().map(|price| f64::from(size.gpus) * HOURS * price.per_hour);
            row.extend([
                counts.join(" + "),
                size.gpus.to_string(),
                format!("{}-{}", size.spread.0, size.spread.1),
                seconds(size.ttft_p99),
                seconds(size.tpot_p99),
                format!("{:.3} %", size.truncated * 100.0),
                format!("{:.3} %", size.lost * 100.0),
                year.map_or_else(|| "-".into(), |year| format!("{year:.0}")),
            ]);
            row
        };
        let heads = [
            "fleet",
            "window",
            "max_num_seqs",
            "batched tokens",
            "replicas",
            "GPUs",
            "by seed",
            "TTFT p99, s",
            "TPOT p99, s",
            "cut short",
            "refused",
            "$ a year",
        ];
        let rows = self.alternatives().into_iter().map(row).collect();
        Table::new("fleets", "Smallest fleets that hold the promise, simulated", &heads, rows)
    }

    fn formulas_table(&self) -> Table {
        let all = self.alternatives().into_iter().filter(|(name, _)| *name != "oracle");
        let row = |(name, one): (&str, &Alternative)| {
            let simulated = one.size.as_ref().ok().map(|size| size.replicas.iter().sum::<u32>());
            let never = || "never".to_owned();
            vec![
                name.to_owned(),
                one.guess.closed.to_string(),
                one.guess.fluid().to_string(),
                one.guess.queueing().to_string(),
                simulated.map_or_else(never, |count| count.to_string()),
            ]
        };
        let heads = ["fleet", "closed form", "fluid", "+ queueing", "simulated"];
        Table::new(
            "formulas",
            "Replicas by formula and by simulation",
            &heads,
            all.map(row).collect(),
        )
    }

    /// Alternatives that hold the promise.
    fn sized(&self) -> Vec<(&'static str, &Sized)> {
        let all = self.alternatives().into_iter();
        all.filter_map(|(name, one)| Some((name, one.size.as_ref().ok()?))).collect()
    }

    fn gpus_plot(&self) -> Plot {
        let sized = self.sized();
        let point = |(nth, (_, size)): (usize, &(&str, &Sized))| {
            let (low, high) = size.spread;
            let range = (f64::from(low.min(size.gpus)), f64::from(high.max(size.gpus)));
            Point { x: nth as f64, y: Some(size.gpus.into()), range: Some(range) }
        };
        Plot {
            id: "gpus",
            title: "GPUs".into(),
            about: "Smallest fleets that hold the promise: medians over the seeds, and the fewest \
                    and the most GPUs that one seed asked for. The oracle knows lengths: real \
                    gateways cannot."
                .into(),
            x: Axis::names("", sized.iter().map(|(name, _)| (*name).to_owned()).collect()),
            y: Axis::count("GPUs"),
            series: vec![Series {
                name: "GPUs".into(),
                style: 0,
                shape: Shape::Bars,
                points: sized.iter().enumerate().map(point).collect(),
            }],
            rules: Vec::new(),
        }
    }

    fn savings_plot(&self) -> Plot {
        let sized = self.sized();
        let base = |wanted: &str| sized.iter().find(|(name, _)| *name == wanted).map(|(_, s)| *s);
        let bases = [base("homogeneous"), base("tuned")];
        let saved = |gpus: u32, of: u32| (1.0 - f64::from(gpus) / f64::from(of.max(1))) * 100.0;
        let others = sized.iter().filter(|(name, _)| *name != "homogeneous");
        let series = others.enumerate().map(|(style, (name, size))| {
            let point = |(nth, base): (usize, Option<&Sized>)| {
                let base = base.filter(|_| nth == 0 || *name != "tuned")?;
                let y = saved(size.gpus, base.gpus);
                let (low, high) = (
                    saved(size.spread.1, base.spread.0).min(y),
                    saved(size.spread.0, base.spread.1).max(y),
                );
                Some(Point { x: nth as f64, y: Some(y), range: Some((low, high)) })
            };
            let points = bases.into_iter().enumerate().filter_map(point).collect();
            Series { name: (*name).into(), style, shape: Shape::Bars, points }
        });
        let names = ["against homogeneous", "against tuned"].map(String::from).to_vec();
        Plot {
            id: "savings",
            title: "Savings".into(),
            about:
                "GPUs saved against one pool with the papers' settings, and against a tuned one. \
                    Error bars: the worst and the best pair of seeds. Below 0: dearer."
                    .into(),
            x: Axis::names("", names),
            y: Axis::zero("% fewer GPUs"),
            series: series.collect(),
            rules: Vec::new(),
        }
    }

    fn lengths_plot(&self) -> Plot {
        let mut rng = Pcg::new(self.question.seed, DRAWS);
        let mut counts: Vec<u32> = Vec::new();
        for (input, output) in self.question.lengths.sample(DRAWN, &mut rng) {
            let place = length_bucket(u64::from(input) + u64::from(output));
            if place >= counts.len() {
                counts.resize(place + 1, 0);
            }
            if let Some(count) = counts.get_mut(place) {
                *count += 1;
            }
        }
        let first = counts.iter().position(|count| *count > 0).unwrap_or(0);
        let share = |count: u32| f64::from(count) / DRAWN as f64 * 100.0;
        let points = counts.iter().chain([&0]).enumerate().skip(first);
        let points = points.map(|(nth, count)| Point::new(length_edge(nth), share(*count)));
        let answer = self.answer().thresholds();
        let rule = |threshold: &u32| Rule {
            x: f64::from(*threshold),
            label: format!("threshold {threshold}"),
        };
        Plot {
            id: "lengths",
            title: "Lengths of requests, and thresholds".into(),
            about: "Prompt and output tokens of requests as they are drawn, and where the answer \
                    splits them, if it does."
                .into(),
            x: Axis::log("tokens"),
            y: Axis::zero("% of requests"),
            series: vec![Series {
                name: "requests".into(),
                style: 0,
                shape: Shape::Steps,
                points: points.collect(),
            }],
            rules: answer.iter().map(rule).collect(),
        }
    }

    fn candidates_plots(&self) -> Vec<Plot> {
        let gpus = |gpus: Option<u32>| gpus.map(f64::from);
        let one = self.candidates.iter().filter_map(|one| match one.thresholds[..] {
            [threshold] => Some((f64::from(threshold), gpus(one.gpus))),
            _ => None,
        });
        let pairs = self.candidates.iter().filter(|one| one.thresholds.len() > 1).map(|one| {
            let names: Vec<String> = one.thresholds.iter().map(u32::to_string).collect();
            (names.join("/"), gpus(one.gpus))
        });
        let chosen = self.pools.first().map(Alternative::thresholds).unwrap_or_default();
        let chosen = chosen.first().map(|threshold| f64::from(*threshold));
        let mut plots = Vec::new();
        let one: Vec<(f64, Option<f64>)> = one.collect();
        if !one.is_empty() {
            plots.push(by_threshold(one, chosen, gpus(self.tuned.gpus())));
        }
        let pairs: Vec<(String, Option<f64>)> = pairs.collect();
        if !pairs.is_empty() {
            plots.push(by_pair(pairs));
        }
        plots
    }

    fn rate_plot(&self) -> Option<Plot> {
        if self.sensitivity.is_empty() {
            return None;
        }
        let line = |at_rate: &dyn Fn(&super::AtRate) -> Option<u32>, asked: Option<u32>| {
            let mut points: Vec<(f64, Option<u32>)> =
                self.sensitivity.iter().map(|one| (one.factor, at_rate(one))).collect();
            points.push((1.0, asked));
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            points
        };
        let answer = self.answer();
        let mut lines = vec![
            ("homogeneous", line(&|one| one.homogeneous, self.homogeneous.gpus())),
            ("tuned", line(&|one| one.tuned, self.tuned.gpus())),
        ];
        if self.splits {
            lines.push(("plan", line(&|one| one.plan, answer.gpus())));
        }
        Some(by_rate(lines))
    }

    fn load_plots(&self, load: &[LoadCurve]) -> impl Iterator<Item = Plot> {
        let slo = self.question.slo;
        let wait = latency(
            "load-ttft",
            ("Load and time to first token", "TTFT p99, seconds"),
            load,
            |point| point.ttft_p99,
            slo.ttft_p99,
        );
        let pace = latency(
            "load-tpot",
            ("Load and time per output token", "TPOT p99, seconds"),
            load,
            |point| point.tpot_p99,
            slo.tpot_p99,
        );
        [wait, pace].into_iter().filter(|_| !load.is_empty())
    }

    fn copies(&self, prices: &[Price]) -> Vec<Block> {
        let answer = self.answer();
        let mut blocks = Vec::new();
        let pools = self.pools(answer);
        if !pools.is_empty() {
            let line = |pool: &super::PoolPlan| {
                format!("{} x {}: {}\n", pool.replicas, pool.name, pool.command)
            };
            let code = |what: &str, text: String| Block::Code(what.into(), text);
            blocks.push(code("The engines' commands", pools.iter().map(line).collect()));
            blocks.push(code("The filter's configuration", format!("{:#}", self.config(answer))));
            blocks.push(code("Envoy, into static_resources", self.clusters(answer)));
        }
        blocks.push(Block::Code("All of it as text".into(), self.text(prices)));
        blocks
    }
}

/// GPUs by threshold of two pools; where the best is, and what one pool needs.
fn by_threshold(
    mut points: Vec<(f64, Option<f64>)>,
    best: Option<f64>,
    one_pool: Option<f64>,
) -> Plot {
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let line = |points: &[(f64, Option<f64>)], name: &str, style, shape| Series {
        name: name.into(),
        style,
        shape,
        points: points.iter().map(|(x, y)| Point::new(*x, *y)).collect(),
    };
    let mut series = vec![line(&points, "two pools", 0, Shape::Dots)];
    if let (Some((first, _)), Some((last, _)), Some(_)) = (points.first(), points.last(), one_pool)
    {
        series.push(line(
            &[(*first, one_pool), (*last, one_pool)],
            "tuned single pool",
            1,
            Shape::Line,
        ));
    }
    Plot {
        id: "thresholds",
        title: "GPUs by threshold".into(),
        about: "The candidates for two pools: coarse, with one seed; the three best with settings \
                of their own. The line marks the one that was taken."
            .into(),
        x: Axis::log("threshold, tokens"),
        y: Axis { whole: true, ..Axis::new("GPUs") },
        series,
        rules: best.into_iter().map(|x| Rule { x, label: x.to_string() }).collect(),
    }
}

/// GPUs by pair of thresholds.
fn by_pair(pairs: Vec<(String, Option<f64>)>) -> Plot {
    let points = pairs.iter().enumerate().map(|(nth, (_, gpus))| Point::new(nth as f64, *gpus));
    let points = points.collect();
    Plot {
        id: "pairs",
        title: "GPUs by two thresholds".into(),
        about: "The candidates for three pools and more: coarse, with one seed.".into(),
        series: vec![Series { name: "thresholds".into(), style: 0, shape: Shape::Bars, points }],
        x: Axis::names("thresholds, tokens", pairs.into_iter().map(|(name, _)| name).collect()),
        y: Axis::count("GPUs"),
        rules: Vec::new(),
    }
}

/// A name; rates and GPUs.
type Line<'a> = (&'a str, Vec<(f64, Option<u32>)>);

/// GPUs by rate, as a share of the asked one.
fn by_rate(lines: Vec<Line<'_>>) -> Plot {
    let series = lines.into_iter().enumerate().map(|(style, (name, points))| {
        let point =
            |(rate, gpus): (f64, Option<u32>)| Point::new(rate * 100.0, gpus.map(f64::from));
        let points = points.into_iter().map(point).collect();
        Series { name: name.into(), style, shape: Shape::Dots, points }
    });
    Plot {
        id: "rates",
        title: "GPUs by rate".into(),
        about:
            "The same pools and settings, sized anew at other rates: coarse, with one seed, but \
                for the asked rate."
                .into(),
        x: Axis::new("% of the asked rate"),
        y: Axis::count("GPUs"),
        series: series.collect(),
        rules: Vec::new(),
    }
}

/// A latency by load, and the promise.
fn latency(
    id: &'static str,
    (title, label): (&str, &str),
    curves: &[LoadCurve],
    of: fn(&LoadPoint) -> Option<f64>,
    promise: f64,
) -> Plot {
    let line = |(style, curve): (usize, &LoadCurve)| Series {
        name: curve.name.into(),
        style,
        shape: Shape::Dots,
        points: curve.points.iter().map(|p| Point::new(p.load * 100.0, of(p))).collect(),
    };
    let mut series: Vec<Series> = curves.iter().enumerate().map(line).collect();
    let loads = || curves.iter().flat_map(|curve| &curve.points).map(|point| point.load * 100.0);
    let ends = [loads().fold(f64::MAX, f64::min), loads().fold(0.0, f64::max)];
    series.push(Series {
        name: "promise".into(),
        style: 6,
        shape: Shape::Thin,
        points: ends.map(|x| Point::new(x, promise)).to_vec(),
    });
    Plot {
        id,
        title: title.into(),
        about: "The planned fleets at other rates, with the replicas that they have: simulated \
                with one seed at the plan's scale, where counts are rounded. A line that ends: so \
                many were refused that the percentile does not exist."
            .into(),
        x: Axis::new("% of the asked rate"),
        y: Axis::log(label),
        series,
        rules: Vec::new(),
    }
}
