//! Fleet sizes without a simulation: three formulas, each with one effect more.

use super::question::{PlanError, Question, Shape};
use super::trial::{Layout, StepTimes};
use crate::engine::{Chunk, StepTime, Work};
use crate::rng::Pcg;

/// Requests drawn for the formulas.
const SAMPLE: usize = 8_000;
/// Streams of the seed.
const LENGTHS: u64 = 7;
const CAPS: u64 = 8;
/// Thresholds are multiples of so many tokens.
pub(super) const STEP: u32 = 128;

/// One request of the sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drawn {
    pub(super) input: u32,
    pub(super) output: u32,
    cap: Option<u32>,
}

/// The sample.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) all: Vec<Drawn>,
    /// The output that 99 of 100 requests stay within, rounded up: stands in for
    /// caps that clients do not name.
    pub(super) reserve: u32,
    /// The output that 95 of 100 stay within: what a gate learns.
    learned: u32,
}

/// The value at a share of sorted numbers.
fn quantile(sorted: &[u32], share: f64) -> u32 {
    let at = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(at.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(1)
}

/// Shares of the requests that thresholds are tried for, the likeliest first.
const SHARES: [f64; 9] = [0.95, 0.80, 0.99, 0.60, 0.90, 0.998, 0.40, 0.70, 0.98];

impl Sample {
    pub(super) fn new(question: &Question) -> Self {
        let drawn = question.lengths.sample(SAMPLE, &mut Pcg::new(question.seed, LENGTHS));
        let mut rng = Pcg::new(question.seed, CAPS);
        let one = |(input, output): (u32, u32)| Drawn {
            input,
            output,
            cap: question.caps.draw(output, &mut rng),
        };
        let all: Vec<Drawn> = drawn.into_iter().map(one).collect();
        let mut outputs: Vec<u32> = all.iter().map(|one| one.output).collect();
        outputs.sort_unstable();
        let reserve = quantile(&outputs, 0.99).next_multiple_of(64);
        let learned = quantile(&outputs, 0.95);
        Self { all, reserve: reserve.min(question.window / 2), learned }
    }

    /// What thresholds go by: what a gate expects, or the truth.
    fn need(&self, one: &Drawn, oracle: bool) -> u32 {
        let expected = one.cap.unwrap_or(self.reserve).min(self.learned);
        one.input.saturating_add(if oracle { one.output } else { expected })
    }

    /// Thresholds to try: quantiles of what requests need, and the papers' 8,192.
    /// Rising, multiples of 128, below the window.
    pub(super) fn thresholds(&self, window: u32, count: usize, oracle: bool) -> Vec<u32> {
        let mut needs: Vec<u32> = self.all.iter().map(|one| self.need(one, oracle)).collect();
        needs.sort_unstable();
        let mut found: Vec<u32> = Vec::new();
        let most = needs.last().copied().unwrap_or(1);
        for threshold in SHARES.iter().map(|share| quantile(&needs, *share)).chain([8_192]) {
            let threshold = threshold.next_multiple_of(STEP);
            // Above the longest request nobody would be left for the large pool.
            let useful = threshold < window && threshold < most;
            if useful && !found.contains(&threshold) && found.len() < count {
                found.push(threshold);
            }
        }
        found.sort_unstable();
        found
    }

    /// Mean and 95th percentile of outputs.
    pub(super) fn outputs(&self) -> (f64, f64) {
        let mut outputs: Vec<u32> = self.all.iter().map(|need| need.output).collect();
        outputs.sort_unstable();
        let mean = outputs.iter().map(|o| f64::from(*o)).sum::<f64>() / outputs.len() as f64;
        (mean, f64::from(quantile(&outputs, 0.95)))
    }

    /// The requests of each of these pools.
    fn split(&self, thresholds: &[u32], oracle: bool) -> Vec<Traffic> {
        let last = thresholds.len() - 1;
        let mut parts = vec![Vec::new(); thresholds.len()];
        for one in &self.all {
            let need = self.need(one, oracle);
            let place = thresholds.iter().position(|most| need <= *most).unwrap_or(last);
            if let Some(part) = parts.get_mut(place) {
                part.push(*one);
            }
        }
        parts.iter().map(|part| Traffic::new(part, self.all.len())).collect()
    }
}

/// What one pool gets.
#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    share: f64,
    /// Mean prompt and output, and the mean context while decoding.
    prompt: f64,
    output: f64,
    context: f64,
    /// Squared coefficient of variation of outputs.
    cv2: f64,
}

impl Traffic {
    fn new(part: &[Drawn], all: usize) -> Self {
        if part.is_empty() {
            return Self::default();
        }
        let count = part.len() as f64;
        let mean = |of: &dyn Fn(f64, f64) -> f64| {
            part.iter().map(|n| of(f64::from(n.input), f64::from(n.output))).sum::<f64>() / count
        };
        let output = mean(&|_, o| o);
        Self {
            share: count / all as f64,
            prompt: mean(&|p, _| p),
            output,
            // Long answers are seen longer.
            context: mean(&|p, o| o * (p + o / 2.0)) / output,
            cv2: mean(&|_, o| o * o) / (output * output) - 1.0,
        }
    }
}

/// One pool by the formulas. Rates are of one replica, requests a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolGuess {
    /// Share of all requests.
    pub share: f64,
    /// Sequences that the papers' table gives a window.
    pub table_slots: u32,
    /// Service rate with so many sequences, whatever their memory and pace.
    pub table_rate: f64,
    /// Sequences that KV cache, seats and the pace allow.
    pub slots: f64,
    /// Service rate with so many.
    pub fluid_rate: f64,
    /// Replicas that the fluid needs: a fraction.
    pub fluid: f64,
    /// Replicas with room for chance.
    pub queueing: u32,
    /// Seconds between tokens at that.
    pub tpot: f64,
}

/// One layout by the formulas.
#[derive(Clone, Debug, PartialEq)]
pub struct Guess {
    /// One for each pool.
    pub pools: Vec<PoolGuess>,
    /// Replicas by the papers' formula with ceilings: a long pool is taken to be
    /// as fast as a pool of all requests.
    pub closed: u32,
}

impl Guess {
    /// Replicas by the fluid, whole ones for each pool.
    pub fn fluid(&self) -> u32 {
        self.pools.iter().map(|pool| (pool.fluid.ceil() as u32).max(1)).sum()
    }

    /// Replicas with room for chance.
    pub fn queueing(&self) -> u32 {
        self.pools.iter().map(|pool| pool.queueing).sum()
    }
}

/// Sequences of the papers' table for a window: 16 at 65,536, 128 at 8,192.
pub(super) fn table_slots(window: u32) -> u32 {
    ((128 * 8_192) / window.max(1)).clamp(1, 512)
}

/// A replica that serves one kind of traffic.
struct Server<'a> {
    time: &'a dyn StepTime,
    batched: u32,
    traffic: Traffic,
}

impl Server<'_> {
    fn step(&self, decode: u32, prompt: u32) -> f64 {
        let chunk = [Chunk { new: prompt, context: 0 }];
        let prefill = if prompt > 0 { &chunk[..] } else { &[] };
        let context = self.traffic.context;
        let work = Work {
            prefill,
            decode,
            decode_context: (f64::from(decode) * context) as u64,
            decode_context_max: context as u32,
            sampled: decode + prefill.len() as u32,
            admitted: prefill.len() as u32,
        };
        self.time.step(&work) as f64 / 1e9
    }

    /// Requests a second with so many sequences in the batch, and seconds between
    /// their tokens: a request takes its share of its decoding steps, and what
    /// its prompt adds to a step, for all.
    fn rate(&self, slots: u32) -> (f64, f64) {
        let Traffic { prompt, output, .. } = self.traffic;
        let decode = self.step(slots, 0);
        let chunk = (prompt as u32).clamp(1, self.batched);
        let added = (self.step(slots, chunk) - decode).max(0.0) * prompt / f64::from(chunk);
        let rate = 1.0 / (output * decode / f64::from(slots) + added);
        (rate, f64::from(slots) / (rate * output))
    }

    /// The most sequences whose pace is within `slo`, of at most `most`.
    fn fastest(&self, most: u32, slo: f64) -> u32 {
        let (mut low, mut high) = (1, most.max(1) + 1);
        while high - low > 1 {
            let middle = u32::midpoint(low, high);
            if self.rate(middle).1 <= slo { low = middle } else { high = middle }
        }
        low
    }
}

/// Probability that who comes waits, with so many servers and so much load.
fn erlang_c(servers: u32, load: f64) -> f64 {
    // Erlang B by its recursion, which neither over- nor underflows.
    let mut blocked = 1.0;
    for n in 1..=servers {
        blocked = load * blocked / (f64::from(n) + load * blocked);
    }
    let busy = load / f64::from(servers.max(1));
    if busy >= 1.0 { 1.0 } else { blocked / (1.0 - busy * (1.0 - blocked)) }
}

/// The fewest replicas of `slots` sequences each with which 99 of 100 wait at
/// most `wait` seconds: Erlang C, and Kimura's approximation for service times
/// that are not exponential.
fn staffed(load: f64, slots: f64, service: f64, cv2: f64, wait: f64) -> u32 {
    let mut replicas = (load / slots).ceil().max(1.0) as u32;
    for _ in 0..1_000 {
        let servers = (f64::from(replicas) * slots) as u32;
        let chance = erlang_c(servers, load);
        let spare = (f64::from(servers) - load) / service;
        let p99 = match chance {
            c if c <= 0.01 => 0.0,
            _ if spare <= 0.0 => f64::INFINITY,
            c => libm::log(c / 0.01) * (1.0 + cv2) / 2.0 / spare,
        };
        if p99 <= wait {
            break;
        }
        replicas += 1 + replicas / 200;
    }
    replicas
}

/// Guesses a layout's sizes at a rate.
pub(super) fn guess(
    question: &Question,
    sample: &Sample,
    layout: &Layout,
    rate: f64,
    bench: &mut StepTimes,
) -> Result<Guess, PlanError> {
    let shapes = &layout.shapes;
    let thresholds: Vec<u32> = shapes.iter().map(|shape| shape.threshold).collect();
    let everything = sample.split(&[u32::MAX], layout.oracle).first().copied().unwrap_or_default();
    let mut pools = Vec::new();
    let mut closed = 0;
    for (shape, traffic) in shapes.iter().zip(sample.split(&thresholds, layout.oracle)) {
        // Their short pools have a window as long as their threshold.
        let table = table_slots(shape.threshold);
        let batched = shape.batched;
        let seats = Shape { seats: table, ..*shape };
        let time = bench.time(question, seats)?;
        // The papers take a long pool to be as fast as a pool of all requests.
        let assumed = if shape.window == question.window { everything } else { traffic };
        let server = Server { time: &*time, batched, traffic: assumed };
        let table_rate = server.rate(table).0;
        closed += ((traffic.share * rate / table_rate).ceil() as u32).max(1);
        let time = bench.time(question, *shape)?;
        let server = Server { time: &*time, batched, traffic };
        let check = question.kv_tokens(*shape).1 as f64 / traffic.context.max(1.0);
        let most = (check as u32).clamp(1, shape.seats);
        let slots = server.fastest(most, question.slo.tpot_p99);
        let (fluid_rate, tpot) = server.rate(slots);
        let offered = traffic.share * rate;
        let fluid = if offered > 0.0 { offered / fluid_rate } else { 0.0 };
        let wait = (question.slo.ttft_p99 - server.step(0, traffic.prompt as u32 + 1)).max(0.0);
        let service = f64::from(slots) / fluid_rate;
        let load = offered * service;
        let queueing = if offered > 0.0 {
            staffed(load, f64::from(slots), service, traffic.cv2, wait)
        } else {
            1
        };
        pools.push(PoolGuess {
            share: traffic.share,
            table_slots: table,
            table_rate,
            slots: f64::from(slots),
            fluid_rate,
            fluid,
            queueing,
            tpot,
        });
    }
    Ok(Guess { pools, closed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erlang_c_has_its_known_values() {
        // One server: the chance to wait is the load. Tables: 10 servers, 8
        // erlangs, 0.4092.
        assert!((erlang_c(1, 0.7) - 0.7).abs() < 1e-12);
        assert!((erlang_c(10, 8.0) - 0.4092).abs() < 5e-4);
        assert_eq!(erlang_c(5, 5.0), 1.0);
        assert!(erlang_c(40_000, 39_000.0) < 1e-3);
    }

    #[test]
    fn chance_needs_room_and_large_fleets_little_of_it() {
        let small = staffed(10.0, 10.0, 10.0, 0.0, 0.1);
        let large = staffed(10_000.0, 10.0, 10.0, 0.0, 0.1);
        assert!((2..=3).contains(&small), "{small}");
        assert!((1_000..1_030).contains(&large), "{large}");
        assert!(staffed(100.0, 10.0, 10.0, 4.0, 0.1) >= staffed(100.0, 10.0, 10.0, 0.0, 5.0));
    }

    #[test]
    fn the_papers_slots_come_out() {
        assert_eq!([65_536, 8_192, 16_384].map(table_slots), [16, 128, 64]);
    }
}
