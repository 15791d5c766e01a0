//! What a pool's engines say of themselves, and what that is as a pressure.
//!
//! The rule: a pool's pressure is the larger one of what its own ledger says and
//! what its engines reported, while that report is young; an old one is as none.
//! The ledger is exact and never late, but knows only what passed this gateway;
//! engines know of all, but late, and may fall silent.

use crate::time::{Instant, Span};

/// A report by scrapes is young for so many intervals …
const INTERVALS: u64 = 3;
/// … and one by answers for so long.
const ANSWERS: Span = Span::from_secs(10);
/// Scrapes of one round at the most.
const SCRAPES_MAX: u64 = 16;
/// Of so many reports in answers the newest weighs one part.
const WEIGHT: u64 = 8;
/// One, in thousandths.
const ONE: u64 = 1000;

/// Where a pool's engines say how busy they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadSources {
    /// Like replicas.
    pub replicas: u64,
    /// From their metrics.
    pub scrape: Option<Scrape>,
    /// From a header of their answers (`endpoint-load-metrics`).
    pub orca: bool,
}

/// Metrics to fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scrape {
    /// The Envoy cluster to ask.
    pub cluster: String,
    /// The path.
    pub path: String,
    /// How often.
    pub interval: Span,
    /// One answer tells of the whole pool, not of one replica.
    pub whole_pool: bool,
}

impl Scrape {
    /// Whether it is time for the round after the one that began then.
    pub fn is_due(&self, begun: Option<Instant>, now: Instant) -> bool {
        begun.is_none_or(|begun| now.since(begun) >= self.interval)
    }
}

impl LoadSources {
    /// Calls of one round. Each reaches one replica of the cluster, and its
    /// answer does not tell which: in turn, as many calls as replicas reach all.
    pub fn calls(&self) -> u64 {
        let whole = self.scrape.as_ref().is_none_or(|scrape| scrape.whole_pool);
        if whole { 1 } else { self.replicas.clamp(1, SCRAPES_MAX) }
    }
}

/// What an engine says. In thousandths: of requests, and of the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Requests that wait.
    pub waiting: Option<u64>,
    /// Requests in the batch.
    pub running: Option<u64>,
    /// What of the KV cache is in use.
    pub kv_use: Option<u64>,
}

impl Reading {
    fn each(
        one: Self,
        other: Self,
        join: impl Fn(Option<u64>, Option<u64>) -> Option<u64>,
    ) -> Self {
        Self {
            waiting: join(one.waiting, other.waiting),
            running: join(one.running, other.running),
            kv_use: join(one.kv_use, other.kv_use),
        }
    }

    /// Of each of so many replicas, where it was of all of them.
    #[must_use]
    pub fn per_replica(self, replicas: u64) -> Self {
        let part = |all: Option<u64>| all.map(|all| all / replicas.max(1));
        Self { waiting: part(self.waiting), running: part(self.running), ..self }
    }

    /// The pressure that it stands for, in thousandths. `requests` is what one
    /// replica takes, in thousandths, if that is known. The largest of: the KV
    /// cache's use; all requests against those that it takes; and, if more wait
    /// than come between two steps (one, and a tenth of those that run), all
    /// against those that run.
    fn pressure(&self, requests: Option<u64>) -> u64 {
        let (waiting, running) = (self.waiting.unwrap_or(0), self.running.unwrap_or(0));
        let of = |all: u64, most: u64| all.saturating_mul(ONE).checked_div(most).unwrap_or(0);
        let taken = of(waiting.saturating_add(running), requests.unwrap_or(0));
        let runs = self.running.or(requests).unwrap_or(0);
        let queue =
            if waiting > ONE.max(runs / 10) { ONE.saturating_add(of(waiting, runs)) } else { 0 };
        self.kv_use.unwrap_or(0).max(taken).max(queue)
    }
}

/// A value that an engine stated, in thousandths; `None` for what is no amount.
pub(super) fn thousandths(value: f64) -> Option<u64> {
    (0.0..1e12).contains(&value).then_some((value * 1000.0 + 0.5) as u64)
}

/// The readings of one round of scrapes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    sum: Reading,
    count: Reading,
}

impl Round {
    /// Takes one in.
    pub fn add(&mut self, reading: Reading) {
        let plus = |sum: Option<u64>, more: Option<u64>| {
            more.map_or(sum, |more| Some(sum.unwrap_or(0).saturating_add(more)))
        };
        let one = |told: Option<u64>| told.map(|_| 1);
        let Reading { waiting, running, kv_use } = reading;
        let told = Reading { waiting: one(waiting), running: one(running), kv_use: one(kv_use) };
        self.sum = Reading::each(self.sum, reading, plus);
        self.count = Reading::each(self.count, told, plus);
    }

    /// Their mean; `None` if there is none.
    pub fn mean(&self) -> Option<Reading> {
        let mean = Reading::each(self.sum, self.count, |sum, count| sum?.checked_div(count?));
        (mean != Reading::default()).then_some(mean)
    }
}

/// How a report came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// From a round of scrapes.
    Scrapes,
    /// In an answer, from the replica that gave it.
    Answer,
}

/// The last word of each source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reports {
    scraped: Report,
    answered: Report,
}

/// `at` is `None` if there never was one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Report {
    reading: Reading,
    at: Option<Instant>,
}

impl Report {
    fn young(&self, now: Instant, age: Span) -> Option<Reading> {
        self.at.filter(|at| now.since(*at) <= age).map(|_| self.reading)
    }
}

impl Reports {
    /// Takes one in. A round stands for itself; of the replicas that answer one
    /// at a time a moving average is kept.
    pub(crate) fn add(&mut self, now: Instant, source: Source, reading: Reading) {
        let at = Some(now);
        match source {
            Source::Scrapes => self.scraped = Report { reading, at },
            Source::Answer => {
                let known = self.answered.young(now, ANSWERS).unwrap_or(reading);
                let mix = |old: Option<u64>, new: Option<u64>| match (old, new) {
                    (Some(old), Some(new)) => {
                        Some(old.saturating_mul(WEIGHT - 1).saturating_add(new) / WEIGHT)
                    }
                    _ => new.or(old),
                };
                self.answered = Report { reading: Reading::each(known, reading, mix), at };
            }
        }
    }

    /// What each replica is said to do now; `None` if no report is young.
    pub(crate) fn told(&self, sources: &LoadSources, now: Instant) -> Option<Reading> {
        let scraped = sources.scrape.as_ref().and_then(|scrape| {
            let age = scrape.interval.as_nanos().saturating_mul(INTERVALS);
            self.scraped.young(now, Span::from_nanos(age))
        });
        let answered = self.answered.young(now, ANSWERS).filter(|_| sources.orca);
        match (scraped, answered) {
            (Some(one), Some(other)) => Some(Reading::each(one, other, Option::max)),
            (one, other) => one.or(other),
        }
    }

    /// The pressure that the engines report; 0 if they do not. The pool takes so
    /// many requests, if that is known.
    pub(crate) fn pressure(
        &self,
        sources: &LoadSources,
        now: Instant,
        requests: Option<u64>,
    ) -> u64 {
        let each = requests.map(|all| all.saturating_mul(ONE) / sources.replicas.max(1));
        self.told(sources, now).map_or(0, |reading| reading.pressure(each))
    }

    pub(crate) fn encode(&self) -> [[u64; 4]; 2] {
        [self.scraped, self.answered].map(|Report { reading, at }| {
            let Reading { waiting, running, kv_use } = reading;
            let at = at.map(Instant::as_nanos);
            [waiting, running, kv_use, at].map(|number| number.unwrap_or(u64::MAX))
        })
    }

    pub(crate) fn decode(numbers: [[u64; 4]; 2]) -> Self {
        let [scraped, answered] = numbers.map(|numbers| {
            let known = |number: u64| Some(number).filter(|number| *number != u64::MAX);
            let [waiting, running, kv_use, at] = numbers.map(known);
            let reading = Reading { waiting, running, kv_use };
            Report { reading, at: at.map(Instant::from_nanos) }
        });
        Self { scraped, answered }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn reading(waiting: u64, running: u64, kv_use: u64) -> Reading {
        Reading { waiting: Some(waiting), running: Some(running), kv_use: Some(kv_use) }
    }

    fn sources() -> LoadSources {
        let (cluster, path) = ("metrics".to_owned(), "/metrics".to_owned());
        let interval = Span::from_secs(1);
        let scrape = Some(Scrape { cluster, path, interval, whole_pool: false });
        LoadSources { replicas: 2, scrape, orca: true }
    }

    #[test]
    fn a_reading_s_pressure_is_that_of_its_fullest() {
        let pressure = |waiting, running, kv, requests: Option<u64>| {
            reading(waiting, running, kv).pressure(requests)
        };
        assert_eq!(pressure(0, 4000, 300, None), 300);
        assert_eq!(pressure(0, 4000, 300, Some(8000)), 500);
        // What waits for the next step is no queue; two beside two are.
        assert_eq!(pressure(1000, 4000, 300, None), 300);
        assert_eq!(pressure(3000, 40_000, 300, None), 300);
        assert_eq!(pressure(2000, 2000, 300, None), 2000);
        assert_eq!(pressure(5000, 40_000, 300, None), 1125);
        // Where an engine does not say how many run.
        let silent = Reading { waiting: Some(2000), ..Reading::default() };
        assert_eq!((silent.pressure(None), silent.pressure(Some(8000))), (1000, 1250));
        assert_eq!(Reading::default().pressure(Some(0)), 0);
        let most = reading(u64::MAX, u64::MAX, u64::MAX);
        assert_eq!(most.pressure(Some(1)), u64::MAX);
        assert_eq!(reading(7000, 3000, 500).per_replica(2), reading(3500, 1500, 500));
    }

    #[test]
    fn a_round_is_the_mean_of_those_that_answered() {
        let mut round = Round::default();
        assert_eq!(round.mean(), None);
        round.add(reading(0, 4000, 200));
        round.add(reading(6000, 8000, 900));
        round.add(Reading { waiting: Some(0), ..Reading::default() });
        assert_eq!(round.mean(), Some(reading(2000, 6000, 550)));
    }

    #[test]
    fn a_report_counts_while_it_is_young() {
        let (sources, mut reports) = (sources(), Reports::default());
        assert_eq!(reports.told(&sources, at(0)), None);
        reports.add(at(100), Source::Scrapes, reading(0, 3000, 400));
        assert_eq!(reports.pressure(&sources, at(3100), None), 400);
        assert_eq!(reports.pressure(&sources, at(3100), Some(8)), 750);
        assert_eq!(reports.pressure(&sources, at(3101), Some(8)), 0);
        // Of answers an average; the first after a silence stands for itself.
        let full = Reading { waiting: Some(8000), running: None, kv_use: Some(800) };
        reports.add(at(200), Source::Answer, Reading { kv_use: Some(0), ..full });
        reports.add(at(300), Source::Answer, full);
        let told = reports.told(&sources, at(5000)).unwrap();
        assert_eq!((told.waiting, told.running, told.kv_use), (Some(8000), None, Some(100)));
        assert_eq!(reports.told(&sources, at(400)).unwrap(), reading(8000, 3000, 400));
        assert_eq!(reports.told(&sources, at(10_301)), None);
        reports.add(at(10_301), Source::Answer, full);
        assert_eq!(reports.told(&sources, at(10_301)), Some(full));
        for state in [Reports::default(), reports] {
            assert_eq!(Reports::decode(state.encode()), state);
        }
        // What is not configured any more does not count.
        let none = LoadSources { scrape: None, orca: false, ..sources };
        assert_eq!(reports.told(&none, at(10_301)), None);
    }

    #[test]
    fn as_many_calls_as_replicas_to_a_limit() {
        let mut sources = sources();
        let mut calls = |replicas, whole_pool| {
            sources.replicas = replicas;
            sources.scrape.as_mut().unwrap().whole_pool = whole_pool;
            sources.calls()
        };
        assert_eq!((calls(2, false), calls(400, false), calls(400, true)), (2, 16, 1));
    }
}
