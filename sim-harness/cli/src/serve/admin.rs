//! The admin listener: which replicas there are, and what is wrong with them.
//!
//! ```text
//! GET    /replicas                       who listens where, and its fault
//! PUT    /replicas/<pool>/<index>/fault  a fault, such as {"kind": "crash"}
//! DELETE /replicas/<pool>/<index>/fault  no fault; a crashed replica starts afresh
//! ```
//!
//! It is not on the replicas' own ports: a gateway cannot reach it, and it is
//! there when a replica has crashed. A fault may say for how many `seconds` it
//! lasts.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::{Fault, Handle, ServeError};

/// Bytes of a fault's document, at most.
const LONGEST_BODY: usize = 4096;

/// A listener that is not served yet.
#[derive(Debug)]
pub struct Admin(TcpListener);

/// What was said in answer to a request.
type Said = Result<Value, (StatusCode, String)>;

impl Admin {
    /// Takes the port; 0 lets the system choose.
    pub async fn bind(address: SocketAddr) -> Result<Self, ServeError> {
        let failed = |error| ServeError::Listen(address, error);
        Ok(Self(TcpListener::bind(address).await.map_err(failed)?))
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Serves until `end` is there, and gives the replicas back.
    pub async fn serve(self, handle: Handle, end: impl Future<Output = ()>) -> Option<Handle> {
        let handle = Arc::new(Mutex::new(handle));
        let mut tasks = JoinSet::new();
        let mut end = std::pin::pin!(end);
        loop {
            let stream = tokio::select! {
                () = &mut end => break,
                Some(_) = tasks.join_next() => continue,
                accepted = self.0.accept() => accepted,
            };
            let Ok((stream, _)) = stream else {
                // The peer gave up, or we are out of file descriptors.
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            };
            let handle = Arc::clone(&handle);
            tasks.spawn(async move {
                let each = service_fn(move |request| answer(Arc::clone(&handle), request));
                // A peer that breaks off is no fault of ours.
                let _ = auto::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), each)
                    .await;
            });
        }
        tasks.shutdown().await;
        Arc::into_inner(handle).map(Mutex::into_inner)
    }
}

async fn answer(
    handle: Arc<Mutex<Handle>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, document) = match say(&handle, request).await {
        Ok(document) => (StatusCode::OK, document),
        Err((status, error)) => (status, json!({"error": error})),
    };
    let mut response = Response::new(Full::new(format!("{document}\n").into()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("application/json"));
    Ok(response)
}

async fn say(handle: &Arc<Mutex<Handle>>, request: Request<Incoming>) -> Said {
    let (parts, body) = request.into_parts();
    let path: Vec<&str> = parts.uri.path().split('/').skip(1).collect();
    let (pool, index) = match (&parts.method, path.as_slice()) {
        (&Method::GET, ["replicas"]) => return Ok(list(&*handle.lock().await)),
        (&Method::PUT | &Method::DELETE, ["replicas", pool, index, "fault"]) => (*pool, *index),
        (_, ["replicas"]) => return Err((StatusCode::METHOD_NOT_ALLOWED, "only GET".into())),
        (_, ["replicas", _, _, "fault"]) => {
            return Err((StatusCode::METHOD_NOT_ALLOWED, "only PUT and DELETE".into()));
        }
        _ => {
            let known = "GET /replicas, PUT or DELETE /replicas/<pool>/<index>/fault";
            return Err((StatusCode::NOT_FOUND, format!("there is only {known}")));
        }
    };
    let missing = |error: ServeError| (StatusCode::NOT_FOUND, error.to_string());
    let failed = |error: ServeError| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
    let wrong = |error: String| (StatusCode::BAD_REQUEST, error);
    // An index that is no number is no replica's either.
    let number = index.parse().unwrap_or(usize::MAX);
    handle.lock().await.find(pool, number).map_err(missing)?;
    let (fault, seconds) = if parts.method == Method::DELETE {
        (None, None)
    } else {
        let body = Limited::new(body, LONGEST_BODY).collect().await;
        let body = body.map_err(|e| wrong(format!("the fault cannot be read: {e}")))?.to_bytes();
        let document: Value = serde_json::from_slice(&body)
            .map_err(|e| wrong(format!("the fault is not JSON: {e}")))?;
        let (fault, seconds) = Fault::parse(&document).map_err(|e| wrong(e.to_string()))?;
        (Some(fault), seconds)
    };
    let mut locked = handle.lock().await;
    let turn = locked.set_fault(pool, number, fault).await.map_err(failed)?;
    if let Some(seconds) = seconds {
        // It must not keep the replicas from being given back at the end.
        let (handle, pool) = (Arc::downgrade(handle), pool.to_owned());
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
            let Some(handle) = handle.upgrade() else { return };
            let mut locked = handle.lock().await;
            // Another fault was set meanwhile: leave it.
            if locked.turn(&pool, number) == Some(turn) {
                let _ = locked.set_fault(&pool, number, None).await;
            }
        });
    }
    Ok(list(&locked))
}

fn list(handle: &Handle) -> Value {
    let rows = handle.addresses().iter().map(|replica| {
        let fault = handle.fault(&replica.pool, replica.index);
        json!({"pool": replica.pool, "index": replica.index,
               "address": replica.address.to_string(), "fault": fault.map(Fault::document)})
    });
    json!({"replicas": rows.collect::<Vec<_>>()})
}
