//! Serves the admission over HTTPS, and says whether the operator is ready.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::RwLock;
use rustls::ServerConfig;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::error::OperatorError;

/// The certificate of the moment.
pub type Serving = Arc<RwLock<Arc<ServerConfig>>>;

/// Answers reviews of pods until the process ends.
pub async fn serve(
    address: SocketAddr,
    serving: Serving,
    review: impl Fn(&Value) -> Value + Clone + Send + Sync + 'static,
) -> Result<impl Future<Output = ()>, OperatorError> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|source| OperatorError::Listen { address, source })?;
    Ok(accept(listener, serving, review))
}

async fn accept(
    listener: TcpListener,
    serving: Serving,
    review: impl Fn(&Value) -> Value + Clone + Send + Sync + 'static,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let place = places.clone().acquire_owned().await;
        match listener.accept().await {
            Ok((stream, _)) => {
                let (serving, review) = (serving.read().clone(), review.clone());
                tokio::spawn(async move {
                    drop(timeout(CONNECTION_MAX, converse(stream, serving, review)).await);
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the API server could not connect");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn converse(
    stream: TcpStream,
    serving: Arc<ServerConfig>,
    review: impl Fn(&Value) -> Value + Clone + Send + Sync + 'static,
) {
    let handshake = timeout(HEADERS, TlsAcceptor::from(serving).accept(stream)).await;
    let Ok(Ok(stream)) = handshake else { return };
    let service = service_fn(move |request| {
        let review = review.clone();
        async move { Ok::<_, Infallible>(answer(request, &review).await) }
    });
    let mut server = http1::Builder::new();
    let server = server.timer(TokioTimer::new()).header_read_timeout(HEADERS);
    // A broken connection is the API server's to mend.
    drop(server.serve_connection(TokioIo::new(stream), service).await);
}

async fn answer(
    request: Request<Incoming>,
    review: &impl Fn(&Value) -> Value,
) -> Response<Full<Bytes>> {
    let reply = |status, body: String| {
        let mut response = Response::new(Full::new(Bytes::from(body)));
        *response.status_mut() = status;
        response
    };
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/healthz") => reply(StatusCode::OK, "ok\n".to_owned()),
        (&Method::POST, "/mutate") => {
            let body = Limited::new(request.into_body(), REVIEW_MAX);
            let Ok(Ok(body)) = timeout(BODY, body.collect()).await else {
                return reply(StatusCode::BAD_REQUEST, "the request is too long\n".to_owned());
            };
            match serde_json::from_slice(&body.to_bytes()) {
                Ok(asked) => {
                    let mut response = reply(StatusCode::OK, review(&asked).to_string());
                    let json = hyper::header::HeaderValue::from_static("application/json");
                    response.headers_mut().insert(hyper::header::CONTENT_TYPE, json);
                    response
                }
                Err(error) => reply(StatusCode::BAD_REQUEST, format!("{error}\n")),
            }
        }
        _ => reply(StatusCode::NOT_FOUND, "only /mutate and /healthz are here\n".to_owned()),
    }
}

/// Connections at a time; API servers and kubelets are few.
const CONNECTIONS: usize = 128;
const HEADERS: Duration = Duration::from_secs(5);
const BODY: Duration = Duration::from_secs(10);
/// A connection is closed after this time, and the API server opens another one with the certificate of then.
const CONNECTION_MAX: Duration = Duration::from_secs(600);
/// A pod has at most 1.5 MiB in etcd; a review has it once, or twice.
const REVIEW_MAX: usize = 4 << 20;
