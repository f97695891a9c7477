//! The connections of a group's peer links: shared memory on one host, TCP elsewhere, or TLS if ranks have credentials.
//!
//! The higher rank of a pair connects ([`reach`]) and sends a hello with its identity and the callee's secret
//! ([`hello`]); the lower one ([`accept`]) answers with the caller's secret. Other connections are refused. With TLS,
//! each proves its seat besides ([`netsum_net::mesh::Streams`]).

mod accept;
mod hello;
mod ports;
mod reach;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use netsum_net::stream::Connection;
use socket2::{SockRef, TcpKeepalive};

use super::PlannedError;
use super::measure::{Measured, measure};
use super::routes::LinkKey;
pub use ports::{PortAddress, Ports};

/// Parameters of connecting.
pub(super) struct Connecting<'a> {
    pub(super) rank: usize,
    pub(super) peer_links: &'a [LinkKey],
    /// By peer link, the traffic that the plan puts on it.
    pub(super) bytes_per_s: &'a [f64],
    /// Names of the plan's vertices.
    pub(super) names: &'a [String],
    /// Vertices by rank.
    pub(super) gpus: &'a [usize],
    pub(super) ports: &'a Ports,
    /// Ports by rank.
    pub(super) peers: &'a BTreeMap<usize, PortAddress>,
    /// Epoch; neighbours of another epoch are refused.
    pub(super) epoch: u64,
    pub(super) timeout: Duration,
    /// A link that accepts no data for this long counts as lost.
    pub(super) silence: Duration,
    /// Maximum bytes that wait in the kernel, where they cannot be overtaken.
    pub(super) unsent_bytes: u32,
}

impl Connecting<'_> {
    /// Connections for all peer links, in their order. Errors name the first peer link that has none.
    pub(super) fn run(&self) -> Result<Vec<Arc<dyn Connection>>, PlannedError> {
        let deadline = Instant::now() + self.timeout;
        let mut found: Vec<Option<Arc<dyn Connection>>> =
            self.peer_links.iter().map(|_| None).collect();
        // Connects all at once: an unreachable neighbour must not delay the others until they time out.
        thread::scope(|scope| {
            let lower = self
                .peer_links
                .iter()
                .enumerate()
                .filter(|(_, peer_link)| peer_link.peer < self.rank);
            let reaching: Vec<_> = lower
                .map(|(place, peer_link)| {
                    (place, scope.spawn(move || self.reach(peer_link, deadline)))
                })
                .collect();
            let accepted = self.accept(&mut found, deadline);
            let mut outcome = Ok(());
            for (place, reached) in reaching {
                match reached.join() {
                    Ok(Ok(connection)) => found[place] = Some(connection),
                    Ok(Err(error)) => outcome = Err(error),
                    Err(_) => outcome = Err(PlannedError::Thread("one panicked".to_owned())),
                }
            }
            outcome.and(accepted)
        })?;
        Ok(found.into_iter().map(|connection| connection.expect("all were awaited")).collect())
    }

    /// Measures all peer links; the higher rank of a pair sends first.
    pub(super) fn measure(
        &self,
        connections: &[Arc<dyn Connection>],
    ) -> Result<Vec<Measured>, PlannedError> {
        let peer_links = self.peer_links.iter().zip(connections);
        let peer_links: Vec<_> = peer_links
            .map(|(peer_link, connection)| (connection.clone(), peer_link.peer < self.rank))
            .collect();
        let found = measure(&peer_links).into_iter().zip(self.peer_links);
        let lost = |(found, peer_link): (io::Result<Measured>, &LinkKey)| {
            found.map_err(|error| PlannedError::PeerLost {
                rank: peer_link.peer,
                link: self.link(peer_link),
                reason: error.to_string(),
            })
        };
        found.map(lost).collect()
    }

    /// The vertex next to `rank` on the path to its neighbour.
    fn beside(&self, peer_link: &LinkKey, rank: usize) -> &str {
        let other = if rank == self.rank { peer_link.peer } else { self.rank };
        let (first, last) = (peer_link.via.first(), peer_link.via.last());
        let via = if rank < other { first } else { last };
        &self.names[*via.unwrap_or(&self.gpus[other])]
    }

    fn own_ip(&self, peer_link: &LinkKey) -> Option<IpAddr> {
        self.ports.address().ways.get(self.beside(peer_link, self.rank)).copied()
    }

    /// Settings of a peer link's TCP connection.
    fn prepare(&self, stream: &TcpStream, peer_link: &LinkKey) -> io::Result<()> {
        stream.set_read_timeout(None)?;
        stream.set_nodelay(true)?;
        // Detects a link that accepts no data, both while there is something to send and while idle.
        let socket = SockRef::from(stream);
        socket.set_tcp_user_timeout(Some(self.silence))?;
        // Waiting messages stay in the peer link, where urgent chunks overtake.
        socket.set_tcp_notsent_lowat(self.unsent_bytes)?;
        let place = self.peer_links.iter().position(|other| other == peer_link);
        let rate = place.map_or(f64::INFINITY, |place| self.bytes_per_s[place]);
        let window = (rate * IN_FLIGHT_S).max(IN_FLIGHT_LEAST);
        if window < IN_FLIGHT_FREE {
            socket.set_recv_buffer_size(window as usize)?;
        }
        let interval = (self.silence / 3).max(Duration::from_secs(1));
        let keepalive = TcpKeepalive::new().with_time(interval).with_interval(interval);
        socket.set_tcp_keepalive(&keepalive.with_retries(2))
    }

    fn failed(
        &self,
        peer_link: &LinkKey,
        address: &str,
        reason: String,
        dead: bool,
    ) -> PlannedError {
        PlannedError::Unreachable {
            rank: peer_link.peer,
            link: self.link(peer_link),
            address: address.to_owned(),
            within_s: self.timeout.as_secs_f64(),
            reason,
            dead,
        }
    }

    /// Names of the vertices of a peer link, from the own GPU to the neighbour's.
    pub(super) fn link(&self, peer_link: &LinkKey) -> Vec<String> {
        link_names(self.names, self.gpus, self.rank, peer_link)
    }
}

/// Names of the vertices of a peer link, from the own GPU to the neighbour's.
pub(super) fn link_names(
    names: &[String],
    gpus: &[usize],
    rank: usize,
    peer_link: &LinkKey,
) -> Vec<String> {
    let mut via = peer_link.via.clone();
    if rank > peer_link.peer {
        via.reverse();
    }
    let ends = [vec![gpus[rank]], via, vec![gpus[peer_link.peer]]].concat();
    ends.into_iter().map(|vertex| names[vertex].clone()).collect()
}

/// How long the accepting rank waits for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// How long the connecting rank waits for it. Longer: a rank that gave up first would connect again, while the other
/// takes the first connection for complete.
const ANSWER: Duration = Duration::from_secs(2 * HANDSHAKE.as_secs());

/// Maximum bytes in flight on a slow link: its traffic in this time. More would wait in its queue, in front of the
/// messages that open the window of the opposite direction: the direction with less in flight would starve.
const IN_FLIGHT_S: f64 = 20e-3;
const IN_FLIGHT_LEAST: f64 = 32e3;
/// On faster links the system's limits apply.
const IN_FLIGHT_FREE: f64 = 4e6;
