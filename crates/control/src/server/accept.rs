//! Secures accepted connections: handshakes run beside each other, each with a deadline.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use netsum_identity::peer_identity;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tonic::transport::server::Connected;

use super::actor::AUDIT;
use super::authorisation::{Certificate, Peer};
use super::connections::{Connection, Incoming};
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

/// The handshakes in progress. One address gets half of the places, so that no address can shut out the others.
#[derive(Debug, Clone)]
pub(super) struct Handshakes {
    most: usize,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// A handshake in progress.
#[derive(Debug)]
pub(super) struct Handshake {
    address: IpAddr,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Handshakes {
    pub fn new(most: usize) -> Handshakes {
        Handshakes { most, open: Arc::default() }
    }

    /// A place, if there is one, until the result is dropped.
    pub fn begin(&self, address: IpAddr) -> Option<Handshake> {
        let mut open = lock(&self.open);
        let (all, own) = (open.values().sum::<usize>(), open.get(&address).copied().unwrap_or(0));
        if all >= self.most || own >= self.most / 2 {
            return None;
        }
        open.insert(address, own + 1);
        Some(Handshake { address, open: self.open.clone() })
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        let mut open = lock(&self.open);
        let others = open.get(&self.address).map_or(0, |own| own - 1);
        if others == 0 {
            open.remove(&self.address);
        } else {
            open.insert(self.address, others);
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
        let secured = tokio::time::timeout(HANDSHAKE_TIMEOUT, self.secure(connection)).await;
        drop(handshake);
        match secured.unwrap_or_else(|_| Err(format!("no handshake within {HANDSHAKE_TIMEOUT:?}")))
        {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_does_not_take_all_places() {
        let handshakes = Handshakes::new(4);
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|address| address.parse().unwrap());
        let mut held: Vec<_> = (0..2).map(|_| handshakes.begin(one).unwrap()).collect();
        assert!(handshakes.begin(one).is_none());
        held.extend((0..2).map(|_| handshakes.begin(other).unwrap()));
        assert!(handshakes.begin("192.0.2.3".parse().unwrap()).is_none());
        held.remove(0);
        assert!(handshakes.begin(one).is_some());
        held.clear();
        assert!(lock(&handshakes.open).is_empty());
    }
}
