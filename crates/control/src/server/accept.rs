//! Secures accepted connections: handshakes run beside each other, each with a deadline.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use netsum_identity::peer_identity;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::StreamExt;
use tonic::transport::server::Connected;

use super::authorisation::{Certificate, Peer};
use super::connections::{Connection, Incoming};
use crate::connection::Secured;
use crate::security::Security;

/// A connection whose peer has proved who it is, or need not.
pub(super) type Accepted = Result<Secured<Connection>, Infallible>;

/// Secures connections until their receiver is gone.
pub(super) async fn run(
    mut incoming: Incoming,
    security: Security,
    connections: mpsc::Sender<Accepted>,
) {
    let acceptor = Arc::new(Acceptor { security, connections, failures: Mutex::default() });
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
    while let Ok(permit) = handshakes.clone().acquire_owned().await {
        let accepted = tokio::select! {
            accepted = incoming.next() => accepted,
            () = acceptor.connections.closed() => return,
        };
        if let Some(Ok(connection)) = accepted {
            tokio::spawn(acceptor.clone().admit(connection, permit));
        }
    }
}

struct Acceptor {
    security: Security,
    connections: mpsc::Sender<Accepted>,
    failures: Mutex<LogRate>,
}

impl Acceptor {
    /// Secures a connection and hands it over. The permit bounds the number of connections on this way.
    async fn admit(self: Arc<Acceptor>, connection: Connection, permit: OwnedSemaphorePermit) {
        let address = connection.peer();
        let secured = tokio::time::timeout(HANDSHAKE_TIMEOUT, self.secure(connection)).await;
        match secured.unwrap_or_else(|_| Err(format!("no handshake within {HANDSHAKE_TIMEOUT:?}")))
        {
            Ok(connection) => drop(self.connections.send(Ok(connection)).await),
            Err(reason) => self.log(address, &reason),
        }
        drop(permit);
    }

    async fn secure(&self, connection: Connection) -> Result<Secured<Connection>, String> {
        match &self.security {
            Security::Trusted => Ok(Secured::Plain(connection)),
            Security::Tls(credentials) => Secured::accept(connection, credentials).await,
        }
    }

    fn log(&self, address: SocketAddr, reason: &str) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(unlogged) = failures.due(Instant::now()) {
            tracing::warn!(%address, reason, unlogged, "refused a connection");
        }
    }
}

/// Bounds the rate at which peers can write to the log.
#[derive(Debug, Default)]
struct LogRate {
    last: Option<Instant>,
    unlogged: u64,
}

impl LogRate {
    /// Whether to log now; if so, the number of events that were not logged before.
    fn due(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.duration_since(last) < LOG_INTERVAL) {
            self.unlogged += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

impl Connected for Secured<Connection> {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        let certificate = match self {
            Secured::Plain(_) => Certificate::NotDemanded,
            Secured::Tls(stream) => {
                peer_identity(stream.get_ref().1).map_or(Certificate::Unknown, Certificate::Of)
            }
        };
        Peer { address: self.beneath().peer(), certificate }
    }
}

/// Some rejoining jobs at once; a handshake takes a millisecond or two, and some 40 KB.
const HANDSHAKES: usize = 512;
/// From the first byte to the last, so that a slow peer cannot hold a place for longer.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
const LOG_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_rate_is_bounded_and_nothing_is_forgotten() {
        let (mut rate, start) = (LogRate::default(), Instant::now());
        assert_eq!(rate.due(start), Some(0));
        for _ in 0..1000 {
            assert_eq!(rate.due(start + LOG_INTERVAL / 2), None);
        }
        assert_eq!(rate.due(start + LOG_INTERVAL), Some(1000));
        assert_eq!(rate.due(start + LOG_INTERVAL * 2), Some(0));
    }
}
