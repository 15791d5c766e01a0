//! The only file that calls the host.
//!
//! All values are bytes: the SDK's string getters panic on bytes that are not
//! UTF-8. The SDK also turns every status that it does not expect into a panic,
//! and a panic costs the worker its VM. So each call here may be made only in
//! the phases where the host cannot refuse it, and the types say which:
//! [`RequestHead`] exists only while the request's headers can be changed.

#![allow(clippy::disallowed_methods)] // this is the one place for them
#![allow(clippy::unused_self)] // holding the value is the permission to call

use proxy_wasm::hostcalls;
use proxy_wasm::types::{BufferType, MapType, MetricType, Status};
use std::cell::Cell;
use std::time::{Duration, Instant};
use tidegate::share::{Change, Slots, Updated};

/// Bytes copied into the VM at a time. VM memory never shrinks, so bodies are
/// read in slices.
const SLICE: usize = 64 << 10;
/// Attempts at one compare-and-set.
const ATTEMPTS: usize = 8;

/// The request's headers, from the headers callback until they go upstream.
pub(crate) struct RequestHead(());

impl RequestHead {
    /// To be called in `on_http_request_headers` only; dropped when any
    /// request callback returns `Continue`.
    pub(crate) fn held() -> Self {
        Self(())
    }

    pub(crate) fn get(&self, name: &str) -> Option<Vec<u8>> {
        header(MapType::HttpRequestHeaders, name)
    }

    /// Sets the header, in place of every value it has.
    pub(crate) fn set(&self, name: &str, value: &[u8]) {
        let _ = hostcalls::set_map_value_bytes(MapType::HttpRequestHeaders, name, Some(value));
    }

    pub(crate) fn remove(&self, name: &str) {
        let _ = hostcalls::remove_map_value(MapType::HttpRequestHeaders, name);
    }

    /// Makes Envoy choose the route anew. Hosts that lack the function choose
    /// it after our callback anyway.
    pub(crate) fn clear_route_cache(&self) {
        let _ = hostcalls::call_foreign_function("clear_route_cache", None);
    }
}

/// The first `size` bytes of the request body; in `on_http_request_body` only.
pub(crate) fn request_body(size: usize) -> Vec<u8> {
    hostcalls::get_buffer(BufferType::HttpRequestBody, 0, size).ok().flatten().unwrap_or_default()
}

/// Puts `bytes` in the place of all `size` bytes of the request body; in
/// `on_http_request_body` only. Envoy replaces a buffer as a whole or not at all.
pub(crate) fn replace_request_body(size: usize, bytes: &[u8]) {
    let _ = hostcalls::set_buffer(BufferType::HttpRequestBody, 0, size, bytes);
}

/// Puts `bytes` in the place of all `size` bytes of this piece of the answer's
/// body; in `on_http_response_body` only.
pub(crate) fn replace_response_body(size: usize, bytes: &[u8]) {
    let _ = hostcalls::set_buffer(BufferType::HttpResponseBody, 0, size, bytes);
}

/// Sets a header of the answer; in `on_http_response_headers` only.
pub(crate) fn set_response_header(name: &str, value: &[u8]) {
    let _ = hostcalls::set_map_value_bytes(MapType::HttpResponseHeaders, name, Some(value));
}

/// Answers the request in place of an upstream; before it goes up only.
pub(crate) fn answer(status: u16, headers: &[(&str, String)], body: &[u8]) {
    let headers = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let _ = hostcalls::send_http_response(u32::from(status), headers, Some(body));
}

/// Makes the calls that follow be about another stream of this VM, or about the
/// callback's own again. Says whether there is such a context.
pub(crate) fn act_for(context: u32) -> bool {
    hostcalls::set_effective_context(context).is_ok()
}

/// Lets a request go up that a callback paused; in a later one, while it acts
/// for that request's stream.
pub(crate) fn resume_request() {
    let _ = hostcalls::resume_http_request();
}

/// Removes a header of the answer; in `on_http_response_headers` only.
pub(crate) fn remove_response_header(name: &str) {
    let _ = hostcalls::remove_map_value(MapType::HttpResponseHeaders, name);
}

/// A header of the answer; in `on_http_response_headers` only.
pub(crate) fn response_header(name: &str) -> Option<Vec<u8>> {
    header(MapType::HttpResponseHeaders, name)
}

fn header(map: MapType, name: &str) -> Option<Vec<u8>> {
    hostcalls::get_map_value_bytes(map, name).ok().flatten()
}

/// Feeds bytes `from..to` of the request body to `read`; in
/// `on_http_request_body` only.
pub(crate) fn read_request_body(from: usize, to: usize, read: impl FnMut(&[u8])) {
    read_body(BufferType::HttpRequestBody, from, to, read);
}

/// Feeds bytes `from..to` of the answer's body to `read`; in
/// `on_http_response_body` only.
pub(crate) fn read_response_body(from: usize, to: usize, read: impl FnMut(&[u8])) {
    read_body(BufferType::HttpResponseBody, from, to, read);
}

fn read_body(buffer: BufferType, from: usize, to: usize, mut read: impl FnMut(&[u8])) {
    let mut at = from;
    while at < to {
        let slice = hostcalls::get_buffer(buffer, at, SLICE.min(to - at)).ok().flatten();
        let Some(bytes) = slice.filter(|bytes| !bytes.is_empty()) else { return };
        at += bytes.len();
        read(&bytes);
    }
}

/// The plugin's configuration; in `on_configure` only.
pub(crate) fn configuration(size: usize) -> Vec<u8> {
    hostcalls::get_buffer(BufferType::PluginConfiguration, 0, size)
        .ok()
        .flatten()
        .unwrap_or_default()
}

/// An attribute of the stream; while the stream lives.
pub(crate) fn property(path: &[&str]) -> Option<Vec<u8>> {
    hostcalls::get_property(path.to_vec()).ok().flatten()
}

/// Publishes filter state `wasm.<name>`; from the headers callback to `on_log`.
pub(crate) fn publish(name: &str, value: &[u8]) {
    let _ = hostcalls::set_property(vec![name], Some(value));
}

/// Asks a cluster for a path, in the root context's callbacks only; the token of
/// the call. `None` if there is no such cluster, or it cannot answer now.
pub(crate) fn fetch(cluster: &str, path: &str, timeout: Duration) -> Option<u32> {
    // In Istio a cluster is `outbound|8000||host`.
    let host = cluster.rsplit('|').next().unwrap_or(cluster);
    let headers = vec![(":method", "GET"), (":path", path), (":authority", host)];
    hostcalls::dispatch_http_call(cluster, headers, None, Vec::new(), timeout).ok()
}

/// The status of what was fetched; in `on_http_call_response` only, of an answer
/// that has headers.
pub(crate) fn fetched_status() -> Option<Vec<u8>> {
    header(MapType::HttpCallResponseHeaders, ":status")
}

/// Feeds the `size` bytes of what was fetched to `read`; in
/// `on_http_call_response` only.
pub(crate) fn read_fetched(size: usize, read: impl FnMut(&[u8])) {
    read_body(BufferType::HttpCallResponseBody, 0, size, read);
}

/// Asks for a tick every `period`.
pub(crate) fn tick_every(period: Duration) {
    let _ = hostcalls::set_tick_period(period);
}

/// Takes over the host's log level; in `on_configure` only.
pub(crate) fn follow_log_level() {
    if let Ok(level) = hostcalls::get_log_level() {
        proxy_wasm::set_log_level(level);
    }
}

/// A counter of the host.
#[derive(Clone, Copy)]
pub(crate) struct Counter(u32);

impl Counter {
    /// In `on_configure` only: a name costs the host memory for ever.
    pub(crate) fn define(name: &str) -> Option<Self> {
        hostcalls::define_metric(MetricType::Counter, name).ok().map(Self)
    }

    /// The host refuses to count nothing.
    pub(crate) fn raise(self, count: u64) {
        if let Ok(count @ 1..) = i64::try_from(count) {
            let _ = hostcalls::increment_metric(self.0, count);
        }
    }
}

/// A gauge of the host.
#[derive(Clone, Copy)]
pub(crate) struct Gauge(u32);

impl Gauge {
    /// In `on_configure` only.
    pub(crate) fn define(name: &str) -> Option<Self> {
        hostcalls::define_metric(MetricType::Gauge, name).ok().map(Self)
    }

    pub(crate) fn set(self, value: u64) {
        let _ = hostcalls::record_metric(self.0, value);
    }
}

/// A histogram of the host.
#[derive(Clone, Copy)]
pub(crate) struct Histogram(u32);

impl Histogram {
    /// In `on_configure` only.
    pub(crate) fn define(name: &str) -> Option<Self> {
        hostcalls::define_metric(MetricType::Histogram, name).ok().map(Self)
    }

    pub(crate) fn record(self, value: u64) {
        let _ = hostcalls::record_metric(self.0, value);
    }
}

thread_local! {
    static CONFLICTS: Cell<u64> = const { Cell::new(0) };
}

/// How often another worker was faster, since the last call.
pub(crate) fn conflicts() -> u64 {
    CONFLICTS.take()
}

/// Envoy's shared data: one process-wide map for all VMs of a `vm_id`.
pub(crate) struct SharedData;

impl Slots for SharedData {
    fn update(&mut self, name: &str, change: &mut Change<'_>) -> Updated {
        for _ in 0..ATTEMPTS {
            let Ok((content, cas)) = hostcalls::get_shared_data(name) else {
                return Updated::Failed;
            };
            // On a missing slot there is nothing to compare with: the first
            // write of two wins for a moment only. Users of slots allow that.
            let Some(new) = change(content.as_deref()) else { return Updated::Done };
            match hostcalls::set_shared_data(name, Some(&new), cas) {
                Ok(()) => return Updated::Done,
                Err(Status::CasMismatch) => CONFLICTS.set(CONFLICTS.get() + 1),
                Err(_) => return Updated::Failed,
            }
        }
        Updated::Busy
    }
}

/// The time since the monotonic clock's own zero, which is the same for all
/// VMs of a process, whenever they started.
///
/// `Instant` does not show its value, so each VM finds the earliest instant there
/// is, bit by bit. That is the clock's zero, or 2^63 seconds before it: it depends
/// on the standard library whether instants are signed.
pub(crate) fn now() -> tidegate::time::Instant {
    thread_local! {
        static EARLIEST: Instant = earliest();
    }
    let since = EARLIEST.with(|earliest| Instant::now().saturating_duration_since(*earliest));
    let seconds = since.as_secs() & (u64::MAX >> 1);
    let nanos = seconds.saturating_mul(1_000_000_000).saturating_add(since.subsec_nanos().into());
    tidegate::time::Instant::from_nanos(nanos)
}

fn earliest() -> Instant {
    let mut earliest = Instant::now();
    let seconds = (0..64).rev().map(|bit| Duration::from_secs(1 << bit));
    for step in seconds.chain((0..30).rev().map(|bit| Duration::from_nanos(1 << bit))) {
        earliest = earliest.checked_sub(step).unwrap_or(earliest);
    }
    earliest
}
