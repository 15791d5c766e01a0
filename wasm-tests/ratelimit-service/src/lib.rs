//! A Rate Limit Service for tests: Envoy's protocol over Limitador's counters
//! in Redis.
//!
//! It does as envoyproxy/ratelimit does, the protocol's reference: the addend of
//! a descriptor counts before that of the request, everything is counted first
//! and compared with the limit then, so that a charge which does not fit counts
//! too. Limitador's own server does neither; see `envoy/ratelimit/README.md`.

mod messages;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use limitador::AsyncRateLimiter;
use limitador::limit::Limit;
use limitador::storage::redis::AsyncRedisStorage;
use messages::{OK, OVER_LIMIT, RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use prost::Message as _;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// What Envoy asks for.
const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// gRPC's `INTERNAL` and `UNIMPLEMENTED`.
const INTERNAL: u16 = 13;
const UNIMPLEMENTED: u16 = 12;

/// A running service.
#[derive(Debug)]
pub struct RateLimitService {
    port: u16,
    calls: Arc<Mutex<Vec<Call>>>,
    runtime: Option<Runtime>,
}

/// One descriptor of one call that was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The value of its first entry.
    pub value: String,
    /// What was added.
    pub addend: u64,
    /// Whether the limit is exceeded with it.
    pub over_limit: bool,
}

impl RateLimitService {
    /// Starts one on this port, or on a free one if it is 0. `limits` is a limits
    /// file of Limitador that is JSON but for lines of comments.
    pub fn start(redis: &str, limits: &str, port: u16) -> Result<Self, String> {
        let json: String = limits.lines().filter(|line| !line.starts_with('#')).collect();
        let limits: Vec<Limit> =
            serde_json::from_str(&json).map_err(|e| format!("the limits: {e}"))?;
        // One thread: the calls of one Envoy are counted in the order of their coming.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|e| format!("no runtime: {e}"))?;
        let calls = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&calls);
        let listener = runtime.block_on(async {
            let storage = AsyncRedisStorage::new(redis).await.map_err(|e| format!("Redis: {e}"))?;
            let limiter = AsyncRateLimiter::new_with_storage(Box::new(storage));
            for limit in limits {
                limiter.add_limit(limit);
            }
            let listener = TcpListener::bind(("127.0.0.1", port))
                .await
                .map_err(|e| format!("no port: {e}"))?;
            Ok::<_, String>((Counter { limiter, calls: shared }, listener))
        });
        let (counter, listener) = listener?;
        let port = listener.local_addr().map_err(|e| format!("no port: {e}"))?.port();
        runtime.spawn(accept(listener, Arc::new(counter)));
        Ok(Self { port, calls, runtime: Some(runtime) })
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What it was asked so far, in the order in which it answered.
    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Closes its port and its connections, as its death does.
    pub fn stop(&mut self) {
        // With the runtime end its tasks, and with them their sockets.
        drop(self.runtime.take());
    }
}

async fn accept(listener: TcpListener, counter: Arc<Counter>) {
    while let Ok((stream, _)) = listener.accept().await {
        let counter = Arc::clone(&counter);
        let service = service_fn(move |request| {
            let counter = Arc::clone(&counter);
            async move { Ok::<_, Infallible>(answer(counter, request).await) }
        });
        let http2 = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        tokio::spawn(http2.serve_connection(TokioIo::new(stream), service));
    }
}

/// One call of gRPC: a message of a flag, its length and its bytes each way, and
/// the status in a trailer.
async fn answer(
    counter: Arc<Counter>,
    request: Request<Incoming>,
) -> Response<impl Body<Data = Bytes, Error = Infallible>> {
    let (mut message, mut status) = (Vec::new(), UNIMPLEMENTED);
    if request.uri().path() == METHOD {
        match should_rate_limit(&counter, request.into_body()).await {
            Ok(response) => {
                let bytes = response.encode_to_vec();
                message.push(0);
                message.extend(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
                message.extend(bytes);
                status = 0;
            }
            Err(error) => {
                eprintln!("rate limit service: {error}");
                status = INTERNAL;
            }
        }
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(status));
    let body =
        Full::new(Bytes::from(message)).with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

async fn should_rate_limit(counter: &Counter, body: Incoming) -> Result<RateLimitResponse, String> {
    let bytes = body.collect().await.map_err(|e| format!("reading: {e}"))?.to_bytes();
    let message = bytes.get(5..).ok_or("no message")?;
    let request = RateLimitRequest::decode(message).map_err(|e| format!("decoding: {e}"))?;
    let mut over = false;
    for descriptor in &request.descriptors {
        let addend = descriptor.hits_addend.unwrap_or(u64::from(request.hits_addend.max(1)));
        over |= counter.count(&request.domain, descriptor, addend).await?;
    }
    Ok(RateLimitResponse { overall_code: if over { OVER_LIMIT } else { OK } })
}

struct Counter {
    limiter: AsyncRateLimiter,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Counter {
    /// Counts; whether that exceeds a limit.
    async fn count(
        &self,
        domain: &str,
        descriptor: &RateLimitDescriptor,
        addend: u64,
    ) -> Result<bool, String> {
        // The file is in today's form, where a variable is an expression; this
        // version takes it for a name.
        let entries = descriptor.entries.iter();
        let values =
            entries.map(|e| (format!("descriptors[0].{}", e.key), e.value.clone())).collect();
        let domain = domain.into();
        let delta = i64::try_from(addend).map_err(|_| format!("too much: {addend}"))?;
        let text = |e| format!("{e:?}");
        self.limiter.update_counters(&domain, &values, delta).await.map_err(text)?;
        let over_limit = self.limiter.is_rate_limited(&domain, &values, 0).await.map_err(text)?;
        let value = descriptor.entries.first().map(|e| e.value.clone()).unwrap_or_default();
        let call = Call { value, addend, over_limit };
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
        Ok(over_limit)
    }
}
