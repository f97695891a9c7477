//! Secures accepted connections: handshakes run beside each other, each with a deadline.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use netsum_identity::peer_identity;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tonic::transport::server::Connected;

use super::actor::AUDIT;
use super::authorisation::{Certificate, Peer};
use super::connections::{Connection, Incoming};
use super::handshakes::{Handshake, Handshakes};
use super::revocations::{Guarded, Revocations};
use crate::connection::Secured;
use crate::log_rate::LogRate;
use crate::security::Security;

/// A connection whose peer has proved who it is, or need not.
pub(super) type Accepted = Result<Guarded, Infallible>;

/// Secures connections until their receiver is gone.
pub(super) async fn run(
    mut incoming: Incoming,
    security: Security,
    connections: mpsc::Sender<Accepted>,
) {
    let failures = Mutex::new(LogRate::with_burst(LOG_BURST));
    let revocations = Revocations::watch(&security);
    let acceptor = Arc::new(Acceptor { security, revocations, connections, failures });
    let handshakes = Handshakes::new(HANDSHAKES);
    loop {
        let accepted = tokio::select! {
            accepted = incoming.next() => accepted,
            () = acceptor.connections.closed() => return,
        };
        let Some(Ok(connection)) = accepted else { continue };
        match handshakes.begin(connection.peer().ip()) {
            Some(handshake) => drop(tokio::spawn(acceptor.clone().admit(connection, handshake))),
            None => acceptor.log(connection.peer(), "too many handshakes are in progress"),
        }
    }
}

struct Acceptor {
    security: Security,
    revocations: Revocations,
    connections: mpsc::Sender<Accepted>,
    failures: Mutex<LogRate>,
}

impl Acceptor {
    /// Secures a connection and hands it over.
    async fn admit(self: Arc<Acceptor>, connection: Connection, handshake: Handshake) {
        let address = connection.peer();
        let secured = tokio::select! {
            secured = tokio::time::timeout(HANDSHAKE_TIMEOUT, self.secure(connection)) => {
                secured.unwrap_or_else(|_| Err(format!("no handshake within {HANDSHAKE_TIMEOUT:?}")))
            }
            () = handshake.evicted() => {
                Err("too many handshakes are in progress, most of them from there".to_owned())
            }
        };
        drop(handshake);
        match secured {
            Ok(connection) => drop(self.connections.send(Ok(connection)).await),
            Err(reason) => self.log(address, &reason),
        }
    }

    async fn secure(&self, connection: Connection) -> Result<Guarded, String> {
        // Before the handshake: no list that comes during it is missed.
        let guard = self.revocations.guard();
        let secured = match &self.security {
            Security::Trusted => Secured::Plain(connection),
            Security::Tls(credentials) => Secured::accept(connection, credentials.server()).await?,
        };
        Ok(guard.over(secured))
    }

    fn log(&self, address: SocketAddr, reason: &str) {
        if let Some(unlogged) = lock(&self.failures).due(Instant::now()) {
            tracing::warn!(%address, reason, unlogged, "refused a connection");
            let (object, outcome) = (address.to_string(), format!("denied: {reason}"));
            tracing::info!(target: AUDIT, identity = "", action = "connect", object, outcome, unlogged);
        }
    }
}

impl Connected for Guarded {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        let certificate = match self.secured() {
            Secured::Plain(_) => Certificate::NotDemanded,
            Secured::Tls(stream) => {
                peer_identity(stream.get_ref().1).map_or(Certificate::Unknown, Certificate::Of)
            }
        };
        Peer { address: self.secured().beneath().peer(), certificate }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Some rejoining jobs at once; a handshake takes a millisecond or two, and some 40 KB.
const HANDSHAKES: usize = 1024;
/// From the first byte to the last, so that a slow peer cannot hold a place for longer.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// A fabric's hosts that all start with wrong credentials are each named.
const LOG_BURST: u32 = 64;
