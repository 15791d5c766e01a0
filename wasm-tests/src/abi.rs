//! The words of the proxy-wasm 0.2.1 ABI that host and tests share.

use crate::Headers;
use std::fmt;

/// What a host function tells the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// There is no such thing.
    NotFound = 1,
    /// The argument, or the moment of the call, is wrong.
    BadArgument = 2,
    /// A value could not be turned into bytes.
    SerializationFailure = 3,
    /// Bytes could not be read.
    ParseFailure = 4,
    /// A pointer of the guest leaves its memory.
    InvalidMemoryAccess = 6,
    /// The queue holds nothing.
    Empty = 7,
    /// Somebody else changed the value meanwhile.
    CasMismatch = 8,
    /// The host failed.
    InternalFailure = 10,
    /// The host does not do that.
    Unimplemented = 12,
}

/// What a callback decided about the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Let it pass.
    Continue,
    /// Hold it.
    Pause,
}

/// Severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Level {
    /// Every step.
    Trace = 0,
    /// For those who debug the filter.
    Debug = 1,
    /// For operators.
    Info = 2,
    /// Something is odd.
    Warn = 3,
    /// Something failed.
    Error = 4,
    /// The VM is about to die.
    Critical = 5,
}

impl Level {
    pub(crate) fn from_wire(level: u32) -> Option<Self> {
        [Self::Trace, Self::Debug, Self::Info, Self::Warn, Self::Error, Self::Critical]
            .into_iter()
            .find(|candidate| *candidate as u32 == level)
    }
}

/// Which way a message flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the client to the upstream.
    Request,
    /// From the upstream to the client.
    Response,
}

/// One entry into the guest, in the order of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Callback {
    /// `_initialize`, once for each VM.
    Initialize,
    /// A root context or a stream begins.
    ContextCreate,
    /// The VM has started.
    VmStart,
    /// The plugin's configuration is there.
    Configure,
    /// The root context's timer fired.
    Tick,
    /// A call to a cluster ended.
    HttpCallResponse,
    /// Request headers.
    RequestHeaders,
    /// A piece of the request's body.
    RequestBody,
    /// Request trailers.
    RequestTrailers,
    /// Response headers.
    ResponseHeaders,
    /// A piece of the response's body.
    ResponseBody,
    /// Response trailers.
    ResponseTrailers,
    /// The stream is complete: access-log time.
    Log,
    /// The context is about to go.
    Done,
    /// The context goes.
    Delete,
}

impl Callback {
    /// A short name, for traces and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Initialize => "initialize",
            Self::ContextCreate => "context_create",
            Self::VmStart => "vm_start",
            Self::Configure => "configure",
            Self::Tick => "tick",
            Self::HttpCallResponse => "http_call_response",
            Self::RequestHeaders => "request_headers",
            Self::RequestBody => "request_body",
            Self::RequestTrailers => "request_trailers",
            Self::ResponseHeaders => "response_headers",
            Self::ResponseBody => "response_body",
            Self::ResponseTrailers => "response_trailers",
            Self::Log => "log",
            Self::Done => "done",
            Self::Delete => "delete",
        }
    }
}

impl fmt::Display for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

macro_rules! host_calls {
    ($($name:ident $import:literal)*) => {
        /// A host function of the proxy-wasm ABI, for fault injection and call counts.
        ///
        /// These are all that version 0.2.5 of the Rust SDK imports.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum HostCall {
            $(#[doc = concat!("`", $import, "`")] $name,)*
        }

        impl HostCall {
            /// Every host function.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name that a module imports from `env`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $import,)* }
            }
        }
    };
}

host_calls! {
    Log "proxy_log"
    GetLogLevel "proxy_get_log_level"
    GetCurrentTime "proxy_get_current_time_nanoseconds"
    SetTickPeriod "proxy_set_tick_period_milliseconds"
    GetBuffer "proxy_get_buffer_bytes"
    SetBuffer "proxy_set_buffer_bytes"
    GetHeaderPairs "proxy_get_header_map_pairs"
    SetHeaderPairs "proxy_set_header_map_pairs"
    GetHeader "proxy_get_header_map_value"
    ReplaceHeader "proxy_replace_header_map_value"
    RemoveHeader "proxy_remove_header_map_value"
    AddHeader "proxy_add_header_map_value"
    GetProperty "proxy_get_property"
    SetProperty "proxy_set_property"
    GetSharedData "proxy_get_shared_data"
    SetSharedData "proxy_set_shared_data"
    RegisterQueue "proxy_register_shared_queue"
    ResolveQueue "proxy_resolve_shared_queue"
    Dequeue "proxy_dequeue_shared_queue"
    Enqueue "proxy_enqueue_shared_queue"
    ContinueStream "proxy_continue_stream"
    CloseStream "proxy_close_stream"
    SendLocalResponse "proxy_send_local_response"
    HttpCall "proxy_http_call"
    GrpcCall "proxy_grpc_call"
    GrpcStream "proxy_grpc_stream"
    GrpcSend "proxy_grpc_send"
    GrpcCancel "proxy_grpc_cancel"
    GrpcClose "proxy_grpc_close"
    GetStatus "proxy_get_status"
    SetEffectiveContext "proxy_set_effective_context"
    CallForeignFunction "proxy_call_foreign_function"
    Done "proxy_done"
    DefineMetric "proxy_define_metric"
    GetMetric "proxy_get_metric"
    RecordMetric "proxy_record_metric"
    IncrementMetric "proxy_increment_metric"
}

/// Writes a header map the way the ABI passes it: count, sizes, then
/// NUL-terminated names and values.
pub(crate) fn encode_pairs(headers: &Headers) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(
        4 + headers.iter().map(|(name, value)| name.len() + value.len() + 10).sum::<usize>(),
    );
    bytes.extend_from_slice(&(headers.len() as u32).to_le_bytes());
    for (name, value) in headers.iter() {
        bytes.extend_from_slice(&(name.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
    }
    for (name, value) in headers.iter() {
        bytes.extend_from_slice(name);
        bytes.push(0);
        bytes.extend_from_slice(value);
        bytes.push(0);
    }
    bytes
}

/// Reads what [`encode_pairs`] writes; `None` when the bytes are cut short.
pub(crate) fn decode_pairs(bytes: &[u8]) -> Option<Headers> {
    let mut headers = Headers::new();
    if bytes.is_empty() {
        return Some(headers);
    }
    let word = |at: usize| {
        let bytes = bytes.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize)
    };
    let count = word(0)?;
    let mut at = count.checked_mul(8)?.checked_add(4)?;
    for pair in 0..count {
        let (name, value) = (word(4 + pair * 8)?, word(8 + pair * 8)?);
        let name = bytes.get(at..at.checked_add(name)?)?;
        at += name.len() + 1;
        let value = bytes.get(at..at.checked_add(value)?)?;
        at += value.len() + 1;
        headers.add(name, value);
    }
    Some(headers)
}
