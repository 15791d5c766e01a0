//! A recorded run as a page.

use super::record::{PoolMoment, Record, TextRecord, length_edge};
use super::report::Report;
use crate::report::{Axis, Block, Page, Plot, Point, Rule, Section, Series, Shape};

/// Kinds of text in one plot, at most: the most frequent ones.
const KINDS: usize = 5;
/// Counts of a time.
type Count = fn(&PoolMoment) -> u64;

/// Up to so many pools each have a second line for the median.
const MEDIANS: usize = 3;

impl Record {
    /// The page: the report's tables, and the run over time.
    pub fn page(&self, report: &Report, name: &str, seed: u64) -> Page {
        let (gateways, workers) = report.gateways;
        let (count, mean, p50, p95) = report.errors;
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let lead = format!(
            "{} requests in {:.1} s, the last one ended after {:.1} s. Gateways: {gateways}, workers \
             of each: {workers}. Seed {seed}. In virtual time, by tidegate-sim run.",
            report.asked(),
            report.seconds,
            report.ended,
        );
        let errors = format!(
            "Error of the estimate after {:.0} s, {count} prompts: mean {}, p50 {}, p95 {}.",
            report.warm_up,
            percent(mean),
            percent(p50),
            percent(p95),
        );
        let section =
            |heading: &str, blocks: Vec<Block>| Section { heading: heading.into(), blocks };
        let tables = report.tables().into_iter().map(Block::Table);
        let plots = |plots: Vec<Plot>| plots.into_iter().map(Block::Plot).collect();
        let mut estimate = vec![Block::Words(errors)];
        estimate.extend([self.ratios(), self.error()].map(Block::Plot));
        Page {
            title: format!("Simulated fleet: {name}"),
            lead,
            sections: vec![
                section("Results", tables.collect()),
                section(
                    "Lengths and latencies",
                    plots(vec![self.lengths(), self.ttft(), self.tpot(), self.e2e()]),
                ),
                section(
                    "Over time",
                    plots(vec![self.ttft_time(), self.queue(), self.kv(), self.load()]),
                ),
                section("Misroutes", plots(vec![self.misroutes(), self.misroutes_time()])),
                section("Estimate", estimate),
            ],
        }
    }

    /// A series for each pool.
    fn by_pool(
        &self,
        shape: Shape,
        points: impl Fn(&super::PoolRecord) -> Vec<Point>,
    ) -> Vec<Series> {
        let series = |(style, pool): (usize, &super::PoolRecord)| Series {
            name: pool.name.clone(),
            style,
            shape,
            points: points(pool),
        };
        self.pools.iter().enumerate().map(series).collect()
    }

    /// A value of each time, at its middle.
    fn over_time<T>(&self, all: &[T], value: impl Fn(&T) -> Option<f64>) -> Vec<Point> {
        let at = |nth: usize| (nth as f64 + 0.5) * self.width;
        all.iter().enumerate().map(|(nth, one)| Point::new(at(nth), value(one))).collect()
    }

    fn lengths(&self) -> Plot {
        let all: u64 = self.pools.iter().flat_map(|pool| &pool.lengths).sum();
        let share = |count: u64| count as f64 / all.max(1) as f64 * 100.0;
        let rule = |pool: &super::PoolRecord| {
            let x = pool.threshold? as f64;
            Some(Rule { x, label: format!("{} to {x}", pool.name) })
        };
        Plot {
            id: "lengths",
            title: "Lengths of requests, and thresholds".into(),
            about: "Prompt and output tokens, the output up to the client's cap, of requests that \
                    the gate sent to each pool. The gate compares a careful estimate of the prompt \
                    plus the cap with the threshold, so some short ones go to the larger pool."
                .into(),
            x: Axis::log("tokens"),
            y: Axis::zero("% of requests"),
            series: self.by_pool(Shape::Steps, |pool| {
                let first = pool.lengths.iter().position(|count| *count > 0).unwrap_or(0);
                let counts = pool.lengths.iter().chain([&0]).enumerate().skip(first);
                counts.map(|(nth, count)| Point::new(length_edge(nth), share(*count))).collect()
            }),
            rules: self.pools.iter().filter_map(rule).collect(),
        }
    }

    fn cdf(
        &self,
        id: &'static str,
        (title, about, x): (&str, &str, &str),
        curve: impl Fn(&super::PoolRecord) -> &[(f64, f64)],
    ) -> Plot {
        Plot {
            id,
            title: title.into(),
            about: about.into(),
            x: Axis::log(x),
            y: Axis::zero("% of requests"),
            series: self.by_pool(Shape::Line, |pool| {
                let point = |&(share, value): &(f64, f64)| Point::new(value, share * 100.0);
                curve(pool).iter().map(point).collect()
            }),
            rules: Vec::new(),
        }
    }

    fn ttft(&self) -> Plot {
        let about = "So many of all requests that came to a replica had their first token within \
                     this time. A line that ends below 100 %: the rest never got one.";
        self.cdf("ttft", ("Time to first token", about, "seconds"), |pool| &pool.ttft)
    }

    fn tpot(&self) -> Plot {
        let about = "Time between the tokens of an answer, on average over the answer, of answers \
                     with at least two tokens.";
        self.cdf("tpot", ("Time per output token", about, "seconds"), |pool| &pool.tpot)
    }

    fn e2e(&self) -> Plot {
        let about = "From the arrival at a replica to the last token.";
        self.cdf("e2e", ("Time to the answer's end", about, "seconds"), |pool| &pool.e2e)
    }

    fn ttft_time(&self) -> Plot {
        let of = |value: fn(&PoolMoment) -> Option<f64>| {
            move |pool: &super::PoolRecord| self.over_time(&pool.moments, value)
        };
        let mut series = self.by_pool(Shape::Line, of(|moment| moment.ttft_p99));
        if self.pools.len() <= MEDIANS {
            series.extend(self.by_pool(Shape::Thin, of(|moment| moment.ttft_p50)));
        }
        for one in &mut series {
            one.name += if one.shape == Shape::Line { ", p99" } else { ", p50" };
        }
        self.timed(
            "ttft-time",
            "Time to first token",
            "By when a request came to its replica. A gap: none came that was answered.",
            Axis::log("TTFT, seconds"),
            series,
        )
    }

    fn timed(
        &self,
        id: &'static str,
        title: &str,
        about: &str,
        y: Axis,
        series: Vec<Series>,
    ) -> Plot {
        let about = format!("{about} Each point stands for {} s.", self.width);
        let x = Axis::zero("seconds since the start");
        Plot { id, title: title.into(), about, x, y, series, rules: Vec::new() }
    }

    fn queue(&self) -> Plot {
        let series = self.by_pool(Shape::Line, |pool| {
            self.over_time(&pool.moments, |moment| Some(moment.waiting))
        });
        self.timed(
            "queue",
            "Queue",
            "Requests that wait in replicas to enter a batch, on average; all replicas of a pool \
             together.",
            Axis::zero("requests waiting"),
            series,
        )
    }

    fn kv(&self) -> Plot {
        let series = self.by_pool(Shape::Line, |pool| {
            self.over_time(&pool.moments, |moment| Some(moment.kv * 100.0))
        });
        self.timed(
            "kv",
            "KV cache",
            "Share of the blocks in use, on average over the time and over a pool's replicas.",
            Axis::zero("% in use"),
            series,
        )
    }

    fn load(&self) -> Plot {
        let mut series = self.by_pool(Shape::Line, |pool| {
            self.over_time(&pool.moments, |moment| Some(moment.running + moment.waiting))
        });
        series.extend(self.by_pool(Shape::Thin, |pool| {
            self.over_time(&pool.moments, |moment| Some(moment.sent as f64 / self.width))
        }));
        for one in &mut series {
            one.name += if one.shape == Shape::Line { ", open" } else { ", sent/s" };
        }
        self.timed(
            "load",
            "Load",
            "Requests open in replicas, on average, and requests a second that the gate sent to the \
             pool.",
            Axis::zero("requests; requests a second"),
            series,
        )
    }

    /// Names of misroutes, and how many of a pool's there were in a time.
    fn kinds() -> [(&'static str, Count); 4] {
        [
            ("refused", |moment| moment.refused),
            ("under", |moment| moment.under),
            ("over", |moment| moment.over),
            ("truncated", |moment| moment.truncated),
        ]
    }

    fn misroutes(&self) -> Plot {
        let kinds = Self::kinds();
        Plot {
            id: "misroutes",
            title: "Misroutes by pool".into(),
            about: "Requests that a pool refused for their length; sent to a pool that was too \
                    small, or larger than needed; answers that its window cut short. As the filter \
                    itself counts them."
                .into(),
            x: Axis::names("", kinds.map(|(name, _)| name.to_owned()).to_vec()),
            y: Axis::count("requests"),
            series: self.by_pool(Shape::Bars, |pool| {
                let sum = |of: Count| pool.moments.iter().map(of).sum::<u64>() as f64;
                let sums = kinds.iter().enumerate();
                sums.map(|(nth, (_, of))| Point::new(nth as f64, sum(*of))).collect()
            }),
            rules: Vec::new(),
        }
    }

    fn misroutes_time(&self) -> Plot {
        let longest = self.pools.iter().map(|pool| pool.moments.len()).max().unwrap_or(0);
        let series = Self::kinds().into_iter().enumerate().map(|(style, (name, of))| {
            let sum = |nth: usize| -> u64 {
                self.pools.iter().filter_map(|pool| pool.moments.get(nth)).map(of).sum()
            };
            let sums: Vec<u64> = (0..longest).map(sum).collect();
            let mut so_far = 0;
            let points = sums.iter().enumerate().map(|(nth, sum)| {
                so_far += sum;
                Point::new((nth + 1) as f64 * self.width, so_far as f64)
            });
            let points = points.collect();
            Series { name: name.into(), style, shape: Shape::Line, points }
        });
        self.timed(
            "misroutes-time",
            "Misroutes over time",
            "Of all pools together: so many had come to light by then.",
            Axis::count("requests so far"),
            series.collect(),
        )
    }

    fn error(&self) -> Plot {
        let points = self.over_time(&self.errors, |error| error.map(|error| error * 100.0));
        let name = "mean error".into();
        self.timed(
            "error-time",
            "Error of the estimate",
            "Mean of |estimated − true| prompt tokens over the true ones, of answers that came \
             then.",
            Axis::zero("% of the prompt"),
            vec![Series { name, style: 0, shape: Shape::Line, points }],
        )
    }

    fn ratios(&self) -> Plot {
        let mut texts: Vec<&TextRecord> = self.texts.iter().collect();
        texts.sort_by_key(|text| std::cmp::Reverse(text.requests));
        texts.truncate(KINDS);
        let mut series = Vec::new();
        for (style, text) in texts.into_iter().enumerate() {
            let name = text.kind.name();
            let of = |value: fn(&(f64, f64, f64)) -> f64| {
                text.steps.iter().map(|step| Point::new(step.0, value(step))).collect()
            };
            let (estimated, actual) = (of(|step| step.1), of(|step| step.2));
            let name = |what: &str| format!("{name}, {what}");
            let line = Shape::Line;
            series.push(Series { name: name("estimated"), style, shape: line, points: estimated });
            let thin = Shape::Thin;
            series.push(Series { name: name("true"), style, shape: thin, points: actual });
        }
        Plot {
            id: "ratio",
            title: "Convergence of bytes per token".into(),
            about: "The estimator has no single ratio: tokens are a linear function of what is \
                    counted in a text. This is what it comes to: text bytes for each prompt token, \
                    the template's included, as the gates estimated it when the request came, and \
                    as it was; by the how-manieth request with such a text it was. All gateways \
                    together, the most frequent kinds of text."
                .into(),
            x: Axis::log("requests with such a text"),
            y: Axis::new("bytes per token"),
            series,
            rules: Vec::new(),
        }
    }
}
