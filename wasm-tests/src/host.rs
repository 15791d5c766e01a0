//! One Envoy process: what its VMs share, and the switches that tests turn.

use crate::faults::{Faults, Instead};
use crate::metrics::Metrics;
use crate::shared::{Queues, SharedData};
use crate::{Callback, HostCall, Level, Metric, MetricKind, Module, Result, Status, Vm, VmOptions};
use std::cell::{RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

/// Envoy's default `per_connection_buffer_limit_bytes`.
pub const DEFAULT_BUFFER_LIMIT: usize = 1 << 20;

/// One line that a guest logged, by `proxy_log` or by writing to stdout or stderr.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Name of the VM.
    pub vm: Rc<str>,
    /// Its severity. Stdout counts as `Info` and stderr as `Error`, as in Envoy.
    pub level: Level,
    /// The text, with bytes that are not UTF-8 replaced.
    pub text: String,
}

impl fmt::Display for LogLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {:?}: {}", self.vm, self.level, self.text)
    }
}

/// What all VMs of the process see.
#[derive(Debug)]
pub(crate) struct Process {
    /// Nanoseconds since 1970; may be set back.
    pub(crate) wall: u64,
    /// Nanoseconds since some moment.
    pub(crate) monotonic: u64,
    pub(crate) level: Level,
    pub(crate) log: Vec<LogLine>,
    pub(crate) data: SharedData,
    pub(crate) queues: Queues,
    pub(crate) metrics: Metrics,
    pub(crate) faults: Faults,
    pub(crate) has_clear_route_cache: bool,
    pub(crate) route_clears: u64,
    pub(crate) buffer_limit: usize,
    /// The clusters that can be called.
    pub(crate) clusters: BTreeSet<String>,
}

/// One Envoy process. Clones are handles to the same process.
#[derive(Clone, Debug)]
pub struct Host(Rc<RefCell<Process>>);

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

impl Host {
    /// A process in which nothing has happened yet.
    pub fn new() -> Self {
        Self(Rc::new(RefCell::new(Process {
            // Two unlike numbers, so that a mix-up of the clocks shows.
            wall: 1_700_000_000_000_000_000,
            monotonic: 5_000_000_000_000,
            level: Level::Info,
            log: Vec::new(),
            data: SharedData::default(),
            queues: Queues::default(),
            metrics: Metrics::default(),
            faults: Faults::default(),
            has_clear_route_cache: true,
            route_clears: 0,
            buffer_limit: DEFAULT_BUFFER_LIMIT,
            clusters: BTreeSet::new(),
        })))
    }

    pub(crate) fn process(&self) -> RefMut<'_, Process> {
        self.0.borrow_mut()
    }

    /// Starts a VM, such as one worker has, with default options.
    pub fn start(&self, module: &Module, name: &str) -> Result<Vm> {
        Vm::start(self, module, name, VmOptions::default())
    }

    /// Starts a VM.
    pub fn start_with(&self, module: &Module, name: &str, options: VmOptions) -> Result<Vm> {
        Vm::start(self, module, name, options)
    }
}

/// The clocks. They move only when a test moves them.
impl Host {
    /// Time goes by, on both clocks.
    pub fn advance(&self, span: Duration) {
        self.jump_wall(span.as_nanos() as i64);
        self.jump_monotonic(span.as_nanos() as i64);
    }

    /// Somebody sets the wall clock: forwards or, with a negative number, backwards.
    pub fn jump_wall(&self, nanoseconds: i64) {
        let mut process = self.process();
        process.wall = process.wall.saturating_add_signed(nanoseconds);
    }

    /// The monotonic clock jumps, which it should never do backwards.
    pub fn jump_monotonic(&self, nanoseconds: i64) {
        let mut process = self.process();
        process.monotonic = process.monotonic.saturating_add_signed(nanoseconds);
    }

    /// The wall clock, in nanoseconds since 1970.
    pub fn wall(&self) -> u64 {
        self.process().wall
    }

    /// The monotonic clock, in nanoseconds.
    pub fn monotonic(&self) -> u64 {
        self.process().monotonic
    }
}

/// The log.
impl Host {
    /// Lines below this level are dropped, as Envoy does. The default is `Info`.
    pub fn set_log_level(&self, level: Level) {
        self.process().level = level;
    }

    /// All lines since the start, or since [`clear_log`](Self::clear_log).
    pub fn log(&self) -> Vec<LogLine> {
        self.process().log.clone()
    }

    /// Whether any line contains the text.
    pub fn logged(&self, text: &str) -> bool {
        self.process().log.iter().any(|line| line.text.contains(text))
    }

    /// Forgets the lines.
    pub fn clear_log(&self) {
        self.process().log.clear();
    }
}

/// Shared data.
impl Host {
    /// A value and its compare-and-set number.
    pub fn shared_data(&self, vm_id: &str, key: impl AsRef<[u8]>) -> Option<(Vec<u8>, u32)> {
        let process = self.process();
        process.data.get(vm_id, key.as_ref()).map(|(value, cas)| (value.to_vec(), cas))
    }

    /// All keys of a name space, sorted.
    pub fn shared_keys(&self, vm_id: &str) -> Vec<Vec<u8>> {
        self.process().data.keys(vm_id)
    }

    /// Writes a value as another VM would.
    pub fn set_shared_data(
        &self,
        vm_id: &str,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        cas: u32,
    ) -> Result<(), Status> {
        self.process().data.set(vm_id, key.as_ref(), value.as_ref(), cas)
    }

    /// Puts the compare-and-set counter somewhere, for instance at `u32::MAX`, where it wraps.
    pub fn set_last_cas(&self, last: u32) {
        self.process().data.set_last_cas(last);
    }
}

/// Metrics.
impl Host {
    /// Value of a counter; `None` when nobody defined it.
    pub fn counter(&self, name: &str) -> Option<u64> {
        self.process().metrics.find(MetricKind::Counter, name).map(|metric| metric.value)
    }

    /// Value of a gauge; `None` when nobody defined it.
    pub fn gauge(&self, name: &str) -> Option<u64> {
        self.process().metrics.find(MetricKind::Gauge, name).map(|metric| metric.value)
    }

    /// Samples of a histogram; `None` when nobody defined it.
    pub fn histogram(&self, name: &str) -> Option<Vec<u64>> {
        let process = self.process();
        process.metrics.find(MetricKind::Histogram, name).map(|metric| metric.samples.clone())
    }

    /// Every metric, in order of definition.
    pub fn metrics(&self) -> Vec<Metric> {
        self.process().metrics.0.clone()
    }
}

/// Faults and switches.
impl Host {
    /// The next `times` calls return `status` and do nothing else.
    pub fn fail(&self, call: HostCall, status: Status, times: u64) {
        self.fail_after(call, 0, status, times);
    }

    /// The same after `skip` calls that work.
    pub fn fail_after(&self, call: HostCall, skip: u64, status: Status, times: u64) {
        self.process().faults.add(call, skip, times, Instead::Return(status));
    }

    /// After `skip` calls that work, one call traps: the VM dies inside its callback.
    pub fn trap_in(&self, call: HostCall, skip: u64) {
        self.process().faults.add(call, skip, 1, Instead::Trap);
    }

    /// How many calls still have to fail. A test that injects faults should see this reach 0,
    /// or it tested nothing.
    pub fn faults_left(&self, call: HostCall) -> u64 {
        self.process().faults.left(call)
    }

    /// Drops all pending faults.
    pub fn clear_faults(&self) {
        self.process().faults.clear();
    }

    /// How often the guests made this call, failed calls included.
    pub fn calls(&self, call: HostCall) -> u64 {
        self.calls_by_callback()
            .iter()
            .filter(|((_, name), _)| *name == call.name())
            .map(|(_, n)| n)
            .sum()
    }

    /// How often the guests made each call of the host or of WASI, by the callback in which they
    /// did, failed calls included.
    pub fn calls_by_callback(&self) -> BTreeMap<(Callback, &'static str), u64> {
        self.process().faults.calls().clone()
    }

    /// Whether the foreign function `clear_route_cache` exists. It does by default.
    pub fn set_clear_route_cache(&self, exists: bool) {
        self.process().has_clear_route_cache = exists;
    }

    /// How often the route cache was cleared, by all streams.
    pub fn route_clears(&self) -> u64 {
        self.process().route_clears
    }

    /// There is a cluster of this name, which calls can go to. At first there is none.
    pub fn add_cluster(&self, name: &str) {
        self.process().clusters.insert(name.to_string());
    }

    /// How many bytes of a body may wait while a filter holds it. Above it Envoy itself answers
    /// 413 to a request, 500 to a response.
    pub fn set_buffer_limit(&self, bytes: usize) {
        self.process().buffer_limit = bytes;
    }
}
