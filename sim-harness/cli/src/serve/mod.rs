//! Live pools: OpenAI-compatible backends that answer as vLLM does.
//!
//! Each replica listens on its own port and speaks HTTP/1.1 and HTTP/2 with
//! prior knowledge: `/v1/chat/completions` and `/v1/completions` (streamed or
//! not), `/v1/models`, `/health`, `/metrics`. Tokens are counted by a real
//! tokenizer; times come from [`tidegate_sim::engine`], and may be sped up.
//! Replicas can be made to fail ([`Fault`]), by code or over HTTP ([`Admin`]).
//!
//! ```no_run
//! # async fn example(bytes: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
//! let pools = tidegate_sim_cli::serve::parse_pools(bytes)?;
//! let mut handle = tidegate_sim_cli::serve::start(pools).await?;
//! for replica in handle.addresses() {
//!     println!("{} {}", replica.pool, replica.address);
//! }
//! handle.kill("short", 0).await?;
//! handle.restart("short", 0).await?;
//! handle.stop().await;
//! # Ok(())
//! # }
//! ```

mod admin;
mod answer;
mod ask;
mod clock;
mod fault;
mod http;
mod metrics;
mod offline;
mod pools;
mod refusal;
mod replica;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

pub use self::admin::Admin;
pub use self::fault::{FAULTS, Fault};
use self::http::Service;
pub use self::http::{OUTPUT_TOKENS_HEADER, POOL_HEADER, STATUS_HEADER};
pub use self::offline::{Offline, Refused, simulate};
pub(crate) use self::pools::SPEEDS;
pub use self::pools::{POOLS_EXAMPLE, Pool, PoolsError, parse_pools};
use self::replica::Replica;
use crate::text::Words;

/// Why backends did not start, or which replica there is not.
#[derive(Debug)]
pub enum ServeError {
    /// A port could not be taken.
    Listen(SocketAddr, io::Error),
    /// A pool's engine cannot be made; carries the pool and why.
    Engine(String, String),
    /// No such replica; carries what was asked for and what there is.
    NoReplica {
        /// What was asked for.
        asked: String,
        /// What there is.
        known: String,
    },
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(address, error) => write!(f, "cannot listen on {address}: {error}"),
            Self::Engine(pool, error) => write!(f, "pool {pool}: {error}"),
            Self::NoReplica { asked, known } => write!(f, "no replica {asked}; there are: {known}"),
        }
    }
}

impl std::error::Error for ServeError {}

/// Where a replica listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaAddress {
    /// Its pool's name.
    pub pool: String,
    /// Its place in the pool, from 0.
    pub index: usize,
    /// Its address. Stays the same across [`Handle::kill`] and
    /// [`Handle::restart`].
    pub address: SocketAddr,
}

/// Running backends. Dropping it stops them.
#[derive(Debug)]
pub struct Handle {
    addresses: Vec<ReplicaAddress>,
    pools: BTreeMap<String, (Arc<Pool>, Arc<Words>)>,
    /// By replica, as in `addresses`.
    tasks: Vec<Option<Task>>,
    faults: Vec<Injected>,
}

/// What was injected into one replica.
#[derive(Clone, Copy, Debug, Default)]
struct Injected {
    fault: Option<Fault>,
    /// How often it was set.
    turn: u64,
}

/// Starts every replica of every pool. Runs on the current tokio runtime, which
/// must have the time and I/O drivers.
pub async fn start(pools: Vec<Pool>) -> Result<Handle, ServeError> {
    let mut handle = Handle {
        addresses: Vec::new(),
        pools: BTreeMap::new(),
        tasks: Vec::new(),
        faults: Vec::new(),
    };
    for pool in pools {
        let (pool, words) = (Arc::new(pool.clone()), Arc::new(Words::new(pool.tokenizer)));
        for (index, &port) in pool.ports.iter().enumerate() {
            let wanted = SocketAddr::new(pool.host, port);
            let (address, task) = launch(wanted, &pool, &words).await?;
            handle.addresses.push(ReplicaAddress { pool: pool.name.clone(), index, address });
            handle.tasks.push(Some(task));
            handle.faults.push(Injected::default());
        }
        handle.pools.insert(pool.name.clone(), (pool, words));
    }
    Ok(handle)
}

impl Handle {
    /// Every replica, pool by pool, running or not.
    pub fn addresses(&self) -> &[ReplicaAddress] {
        &self.addresses
    }

    /// The addresses of one pool's replicas.
    pub fn pool(&self, name: &str) -> Vec<SocketAddr> {
        self.addresses.iter().filter(|r| r.pool == name).map(|r| r.address).collect()
    }

    fn find(&self, pool: &str, index: usize) -> Result<usize, ServeError> {
        let place = self.addresses.iter().position(|r| r.pool == pool && r.index == index);
        place.ok_or_else(|| ServeError::NoReplica {
            asked: format!("{pool}/{index}"),
            known: self
                .addresses
                .iter()
                .map(|r| format!("{}/{}", r.pool, r.index))
                .collect::<Vec<_>>()
                .join(", "),
        })
    }

    /// Ends a replica as a crash does: its port is closed and its connections
    /// are cut. Returns when that is done; nothing happens when it is dead.
    pub async fn kill(&mut self, pool: &str, index: usize) -> Result<(), ServeError> {
        let place = self.find(pool, index)?;
        if let Some(task) = self.tasks.get_mut(place).and_then(Option::take) {
            task.end().await;
        }
        Ok(())
    }

    /// Starts a dead replica afresh on the port that it had. Nothing happens
    /// when it runs.
    pub async fn restart(&mut self, pool: &str, index: usize) -> Result<(), ServeError> {
        let place = self.find(pool, index)?;
        let (Some(slot), Some(known), Some((pool, words))) =
            (self.tasks.get_mut(place), self.addresses.get(place), self.pools.get(pool))
        else {
            return Ok(());
        };
        if slot.is_none() {
            let (_, task) = launch(known.address, pool, words).await?;
            *slot = Some(task);
        }
        Ok(())
    }

    /// Sets what is wrong with a replica, or that nothing is. Answers that are
    /// under way are slowed, stalled and cut like new ones; a status and a reset
    /// concern only those that begin later. A crashed replica starts afresh with
    /// any other fault or none. Returns a number for [`Handle::turn`].
    pub async fn set_fault(
        &mut self,
        pool: &str,
        index: usize,
        fault: Option<Fault>,
    ) -> Result<u64, ServeError> {
        let place = self.find(pool, index)?;
        if fault == Some(Fault::Crash) {
            self.kill(pool, index).await?;
        } else {
            self.restart(pool, index).await?;
            if let Some(Some(task)) = self.tasks.get(place) {
                task.replica.set_fault(fault);
            }
        }
        let injected = self.faults.get_mut(place);
        Ok(injected.map_or(0, |injected| {
            *injected = Injected { fault, turn: injected.turn + 1 };
            injected.turn
        }))
    }

    /// What [`Handle::set_fault`] set last; nothing for an unknown replica.
    pub fn fault(&self, pool: &str, index: usize) -> Option<Fault> {
        self.faults.get(self.find(pool, index).ok()?)?.fault
    }

    /// What [`Handle::set_fault`] returned last, 0 before; nothing for an
    /// unknown replica.
    pub fn turn(&self, pool: &str, index: usize) -> Option<u64> {
        Some(self.faults.get(self.find(pool, index).ok()?)?.turn)
    }

    /// Stops every replica and cuts their connections.
    pub async fn stop(mut self) {
        for task in self.tasks.iter_mut().filter_map(Option::take) {
            task.end().await;
        }
    }
}

/// A replica's tasks: its engine, its listener and its connections.
#[derive(Debug)]
struct Task {
    replica: Arc<Replica>,
    engine: JoinHandle<()>,
    listener: JoinHandle<()>,
    connections: Connections,
}

/// The connection tasks; they end with the set.
type Connections = Arc<Mutex<JoinSet<()>>>;

impl Task {
    async fn end(mut self) {
        self.listener.abort();
        self.engine.abort();
        // Aborted tasks end with an error that says so.
        let _ = (&mut self.listener).await;
        let mut open = std::mem::take(&mut *lock(&self.connections));
        open.shutdown().await;
        let _ = (&mut self.engine).await;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.listener.abort();
        self.engine.abort();
    }
}

async fn launch(
    wanted: SocketAddr,
    pool: &Arc<Pool>,
    words: &Arc<Words>,
) -> Result<(SocketAddr, Task), ServeError> {
    let failed = |error| ServeError::Listen(wanted, error);
    let listener = TcpListener::bind(wanted).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let replica = Replica::new(Arc::clone(pool))
        .map_err(|error| ServeError::Engine(pool.name.clone(), error))?;
    let service = Arc::new(Service {
        replica: Arc::clone(&replica),
        words: Arc::clone(words),
        requests: AtomicU64::new(0),
    });
    let engine = tokio::spawn({
        let replica = Arc::clone(&replica);
        async move { replica.run().await }
    });
    let connections = Connections::default();
    let listener = tokio::spawn(accept(listener, service, Arc::clone(&connections)));
    Ok((address, Task { replica, engine, listener, connections }))
}

fn lock(connections: &Connections) -> MutexGuard<'_, JoinSet<()>> {
    connections.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes connections until dropped.
async fn accept(listener: TcpListener, service: Arc<Service>, connections: Connections) {
    loop {
        // The peer gave up, or we are out of file descriptors until others end.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        // Tokens are small and must not wait for each other.
        let _ = stream.set_nodelay(true);
        let service = Arc::clone(&service);
        let mut connections = lock(&connections);
        connections.spawn(async move {
            let each = service_fn(move |request| Arc::clone(&service).handle(request));
            // A peer that breaks off is no fault of ours.
            let _ = auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), each)
                .await;
        });
        while connections.try_join_next().is_some() {}
    }
}
