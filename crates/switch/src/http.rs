//! A minimal HTTP server for metric scrapers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::metrics::Metrics;

/// Maximum size of a request line and headers; those of scrapers are shorter.
const REQUEST_BYTES: usize = 8192;
/// Time-out of a whole exchange; a scraper is on the same network.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of concurrent scrapers; more wait.
const CONNECTIONS: usize = 16;
/// Content type of the registry's format.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers `GET /metrics` until the task is dropped.
pub(crate) async fn serve(listener: TcpListener, metrics: Arc<Metrics>) {
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = free.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let metrics = metrics.clone();
                tokio::spawn(async move {
                    // A slow or disconnected client affects no other.
                    let _ = timeout(PATIENCE, answer(stream, &metrics)).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a scraper could not connect");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer(mut stream: TcpStream, metrics: &Metrics) -> io::Result<()> {
    let mut request = Vec::new();
    let mut chunk = [0; 1024];
    while !request.windows(4).any(|w| w == b"\r\n\r\n") && request.len() < REQUEST_BYTES {
        let got = stream.read(&mut chunk).await?;
        if got == 0 {
            break;
        }
        request.extend_from_slice(&chunk[..got]);
    }
    let line = request.split(|&b| b == b'\r').next().unwrap_or_default();
    let (status, kind, body) = match line {
        b"GET /metrics HTTP/1.1" | b"GET /metrics HTTP/1.0" => match metrics.text() {
            Some(text) => ("200 OK", OPENMETRICS, text),
            None => {
                ("503 Service Unavailable", "text/plain", "the data thread has stopped\n".into())
            }
        },
        _ => ("404 Not Found", "text/plain", "only GET /metrics is served here\n".into()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}
