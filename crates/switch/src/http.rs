//! A minimal HTTP server for metric scrapers, over TLS if the switch has credentials.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use netsum_control::{LogRate, Security};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use crate::exposition::{self, OPENMETRICS, TEXT};

/// Maximum size of a request line and headers; those of scrapers are shorter.
const REQUEST_BYTES: usize = 8192;
/// Time-out of a whole exchange; a scraper is on the same network.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of connections. A new one takes the place of the oldest: a scraper sends its request at once, so the
/// oldest is most likely one that never will.
const CONNECTIONS: usize = 64;

/// Answers `GET /metrics` with `page` until the task is dropped. `patience`: for a whole exchange, handshake included.
pub(crate) async fn serve(
    listener: TcpListener,
    security: Security,
    page: impl Fn() -> Option<String> + Clone + Send + Sync + 'static,
    patience: Duration,
) {
    let door = Arc::new(Door { security, refusals: Mutex::default() });
    let mut exchanges = JoinSet::new();
    let mut oldest_first: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                while exchanges.try_join_next().is_some() {}
                oldest_first.retain(|exchange| !exchange.is_finished());
                if oldest_first.len() >= CONNECTIONS
                    && let Some(oldest) = oldest_first.pop_front()
                {
                    oldest.abort();
                }
                let (door, page) = (door.clone(), page.clone());
                // A slow or disconnected client affects no other.
                let exchange = async move {
                    drop(timeout(patience, door.exchange(stream, from, &page)).await);
                };
                oldest_first.push_back(exchanges.spawn(exchange));
            }
            Err(error) => {
                tracing::warn!(%error, "a scraper could not connect");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Who may read the page.
struct Door {
    security: Security,
    refusals: Mutex<LogRate>,
}

impl Door {
    async fn exchange(
        &self,
        stream: TcpStream,
        from: SocketAddr,
        page: &impl Fn() -> Option<String>,
    ) -> io::Result<()> {
        match self.security.accept_reader(stream).await {
            Ok(secured) => answer(secured, page).await,
            Err(reason) => {
                self.log(from, &reason);
                Ok(())
            }
        }
    }

    fn log(&self, address: SocketAddr, reason: &str) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(unlogged) = refusals.due(Instant::now()) {
            tracing::warn!(%address, reason, unlogged, "refused a reader of the metrics");
        }
    }
}

async fn answer(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    page: &impl Fn() -> Option<String>,
) -> io::Result<()> {
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
        b"GET /metrics HTTP/1.1" | b"GET /metrics HTTP/1.0" => match page() {
            Some(text) if exposition::takes_openmetrics(&String::from_utf8_lossy(&request)) => {
                ("200 OK", OPENMETRICS, text)
            }
            Some(text) => ("200 OK", TEXT, exposition::as_text(&text)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn silent_connections_do_not_delay_a_scraper() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let never = Duration::from_secs(86_400);
        let server =
            tokio::spawn(serve(listener, Security::Trusted, || Some("page".to_owned()), never));
        let mut silent = Vec::new();
        for _ in 0..2 * CONNECTIONS {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut scraper = TcpStream::connect(address).await.unwrap();
        scraper.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").await.unwrap();
        let mut text = String::new();
        scraper.read_to_string(&mut text).await.unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK") && text.ends_with("page"), "{text}");
        // The oldest made room.
        assert_eq!(silent[0].read(&mut [0]).await.unwrap_or(0), 0);
        server.abort();
    }

    #[tokio::test]
    async fn an_exchange_has_a_time_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let page = || Some("page".to_owned());
        let server =
            tokio::spawn(serve(listener, Security::Trusted, page, Duration::from_millis(10)));
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET /metrics").await.unwrap();
        assert_eq!(slow.read(&mut [0]).await.unwrap_or(0), 0);
        server.abort();
    }
}
