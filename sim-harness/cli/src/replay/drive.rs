//! Many tenants at once, each with its own clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tidegate_sim::rng::Pcg;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use super::plan::{Prepared, prepare};
use super::send::{Origin, Outcome, send};
use super::senders::{Arrivals, Sender, Senders};
use super::{AHEAD, Options, ReplayError, Run, Style, hopeless};
use crate::client::Client;
use crate::text::Library;
use crate::tokenizer::Tokenizer;

/// Requests whose lengths are drawn at a time.
const DRAWN: usize = 256;
/// Of a sender's random numbers: those of its arrivals.
const STREAM_GAPS: u64 = 1;

/// What all clients use.
struct Load {
    client: Client,
    timeout: Duration,
    start: Instant,
    sent: AtomicUsize,
    ended: mpsc::UnboundedSender<Outcome>,
}

/// One sender's clients.
#[derive(Clone)]
struct Clients {
    load: Arc<Load>,
    sender: Arc<Sender>,
    /// The sender's place in the document.
    place: usize,
}

impl Clients {
    async fn wait_until(&self, at: Duration) {
        sleep_until((self.load.start + at).into()).await;
    }

    /// Sends a request, and again where it is refused and its client obeys.
    /// Returns whether its client has still time.
    async fn ask(&self, mut prepared: Prepared) -> bool {
        for retries in 0.. {
            let index = self.load.sent.fetch_add(1, Ordering::Relaxed);
            prepared.request.arrival = self.load.start.elapsed().as_nanos() as u64;
            let (tenant, headers) = (self.place, self.sender.headers.as_slice());
            let origin = Origin { index, tenant, retries, headers };
            let outcome =
                send(&self.load.client, origin, prepared.clone(), self.load.timeout).await;
            let wait = outcome
                .decision
                .retry_after
                .filter(|_| self.sender.obeys && outcome.result.is_err());
            // Nobody listens any more when the run is being stopped.
            let _ = self.load.ended.send(outcome);
            let Some(seconds) = wait else { break };
            let again = self.load.start.elapsed().saturating_add(Duration::from_secs(seconds));
            if again >= self.sender.to {
                return false;
            }
            self.wait_until(again).await;
        }
        self.load.start.elapsed() < self.sender.to
    }

    /// Requests come whether others were answered or not. Returns how late one
    /// was sent, at most.
    async fn poisson(self, rate: f64, seed: u64, mut texts: mpsc::Receiver<Prepared>) -> Duration {
        let mut rng = Pcg::new(seed, STREAM_GAPS);
        let (mut active, mut latest, mut open) = (0.0, Duration::ZERO, JoinSet::new());
        loop {
            active += rng.exponential(1.0 / rate);
            let active = Duration::from_secs_f64(active);
            let since = self.sender.bursts.map_or(active, |bursts| bursts.time_of(active));
            let at = self.sender.from.saturating_add(since);
            if at >= self.sender.to {
                break;
            }
            let Some(prepared) = texts.recv().await else { break };
            self.wait_until(at).await;
            latest = latest.max(self.load.start.elapsed().saturating_sub(at));
            let clients = self.clone();
            open.spawn(async move { clients.ask(prepared).await });
            // What has ended is forgotten.
            while open.try_join_next().is_some() {}
        }
        drop(texts);
        open.join_all().await;
        latest
    }

    /// Each client waits for its answer before it asks again.
    async fn closed_loop(
        self,
        clients: usize,
        pause: Duration,
        texts: mpsc::Receiver<Prepared>,
    ) -> Duration {
        let texts = Arc::new(Mutex::new(texts));
        let mut open = JoinSet::new();
        for _ in 0..clients {
            let (clients, texts) = (self.clone(), Arc::clone(&texts));
            open.spawn(async move {
                loop {
                    let Sender { from, to, bursts, .. } = *clients.sender;
                    let since = clients.load.start.elapsed().saturating_sub(from);
                    let at = from + bursts.map_or(since, |bursts| bursts.next_on(since));
                    if at >= to {
                        return;
                    }
                    clients.wait_until(at).await;
                    let Some(prepared) = texts.lock().await.recv().await else { return };
                    // Others were waiting for theirs too.
                    if clients.load.start.elapsed() >= to || !clients.ask(prepared).await {
                        return;
                    }
                    tokio::time::sleep(pause).await;
                }
            });
        }
        open.join_all().await;
        Duration::ZERO
    }
}

/// Writes a sender's texts ahead of their time, on a thread of its own, until
/// nobody wants more.
fn write(library: &Arc<Library>, style: Style, sender: &Arc<Sender>) -> mpsc::Receiver<Prepared> {
    let (writer, texts) = mpsc::channel(AHEAD);
    let (library, sender) = (Arc::clone(library), Arc::clone(sender));
    tokio::task::spawn_blocking(move || {
        let chunks = (0_u64..).map(|chunk| sender.draw(DRAWN, style.seed.wrapping_add(chunk)));
        for (index, request) in chunks.flatten().enumerate() {
            if writer.blocking_send(prepare(&library, &style, index, request)).is_err() {
                return;
            }
        }
    });
    texts
}

/// Lets all tenants send until the document's end, and waits for the answers;
/// breaks off at `stop`. `progress` hears how much time has passed.
pub async fn run_tenants(
    options: &Options,
    senders: &Senders,
    stop: impl Future<Output = ()>,
    mut progress: impl FnMut(Duration),
) -> Result<Run, ReplayError> {
    let client = Client::new(&options.gateway).map_err(ReplayError::Gateway)?;
    let tokenizer: Tokenizer = options.tokenizer.parse().map_err(ReplayError::Tokenizer)?;
    let task = |error: tokio::task::JoinError| ReplayError::Task(error.to_string());
    let library = tokio::task::spawn_blocking(move || Arc::new(Library::new(tokenizer)));
    let library = library.await.map_err(task)?;
    let (ended, mut outcomes_of) = mpsc::unbounded_channel();
    let start = Instant::now();
    let (timeout, sent) = (options.timeout, AtomicUsize::new(0));
    let load = Arc::new(Load { client, timeout, start, sent, ended });
    let mut driving = JoinSet::new();
    for (place, sender) in senders.tenants.iter().enumerate() {
        let sender = Arc::new(sender.clone());
        // No two senders draw the same.
        let seed = options.style.seed.wrapping_add((place as u64) << 32);
        let texts = write(&library, Style { seed, ..options.style.clone() }, &sender);
        let clients = Clients { load: Arc::clone(&load), sender, place };
        match clients.sender.arrivals {
            Arrivals::Poisson(rate) => driving.spawn(clients.poisson(rate, seed, texts)),
            Arrivals::Clients(count, pause) => {
                driving.spawn(clients.closed_loop(count, pause, texts))
            }
        };
    }
    drop(load);
    let mut run = Run::default();
    let (outcomes, latest) = (&mut run.outcomes, &mut run.latest);
    let collect = async {
        // All clients have gone when the last end of the channel is dropped.
        while let Some(outcome) = outcomes_of.recv().await {
            progress(start.elapsed());
            outcomes.push(outcome);
            hopeless(outcomes)?;
        }
        while let Some(late) = driving.join_next().await {
            *latest = (*latest).max(late.map_err(task)?);
        }
        Ok(())
    };
    let busy = &mut run.busy;
    let measure = async {
        sleep_until((start + senders.warmup).into()).await;
        let before = processor_time();
        sleep_until((start + senders.length).into()).await;
        *busy = before.zip(processor_time()).and_then(|(before, after)| after.share_since(before));
        Ok(())
    };
    tokio::select! {
        both = async { tokio::try_join!(collect, measure) } => { both?; }
        () = stop => {}
    }
    run.outcomes.sort_by_key(|outcome| outcome.index);
    run.duration = start.elapsed();
    Ok(run)
}

/// Processor time of the whole machine since it started, in ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ProcessorTime {
    all: u64,
    idle: u64,
}

impl ProcessorTime {
    /// From what Linux says in `/proc/stat`.
    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        // user nice system idle iowait irq softirq steal; guests are in user.
        let ticks: Vec<u64> =
            line.split_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some(Self { all: ticks.iter().sum(), idle })
    }

    /// The share that was in use since then.
    fn share_since(self, before: Self) -> Option<f64> {
        let all = self.all.checked_sub(before.all).filter(|all| *all > 0)?;
        Some(1.0 - self.idle.saturating_sub(before.idle) as f64 / all as f64)
    }
}

/// Nothing where there is no `/proc/stat`.
fn processor_time() -> Option<ProcessorTime> {
    ProcessorTime::parse(&std::fs::read_to_string("/proc/stat").ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_all_but_idle_and_waiting() {
        let parse = |stat| ProcessorTime::parse(stat).unwrap();
        let before = parse("cpu  100 0 50 800 50 0 0 0 7 7\ncpu0 1 2 3\n");
        assert_eq!(before, ProcessorTime { all: 1000, idle: 850 });
        let after = parse("cpu  150 0 60 820 70 0 0 0 9 9\n");
        assert_eq!(after.share_since(before), Some(0.6));
        assert_eq!(before.share_since(before), None);
        assert_eq!(ProcessorTime::parse("intr 1"), None);
    }
}
