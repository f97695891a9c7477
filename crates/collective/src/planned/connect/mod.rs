//! The connections of a group's lanes: shared memory on one host, TCP elsewhere.
//!
//! The higher rank of two connects ([`reach`]) and says who it is and what it knows ([`hello`]); the lower one ([`accept`])
//! answers with the other's secret. What says anything else, or nothing, is turned away.

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
use super::routes::LaneKey;
pub use ports::{PortAddress, Ports};

/// What connecting needs to know.
pub(super) struct Connecting<'a> {
    pub(super) rank: usize,
    pub(super) lanes: &'a [LaneKey],
    /// By lane, what the plan puts on it.
    pub(super) bytes_per_s: &'a [f64],
    /// Of the plan's vertices.
    pub(super) names: &'a [String],
    /// By rank.
    pub(super) gpus: &'a [usize],
    pub(super) ports: &'a Ports,
    /// By rank.
    pub(super) peers: &'a BTreeMap<usize, PortAddress>,
    /// Neighbours of another epoch are turned away.
    pub(super) epoch: u64,
    pub(super) timeout: Duration,
    /// For so long a link may take nothing before it counts as lost.
    pub(super) silence: Duration,
    /// What may wait in the kernel, where nothing overtakes.
    pub(super) unsent_bytes: u32,
}

impl Connecting<'_> {
    /// Connections for all lanes, in their order. Errors name the first lane that has none.
    pub(super) fn run(&self) -> Result<Vec<Arc<dyn Connection>>, PlannedError> {
        let deadline = Instant::now() + self.timeout;
        let mut found: Vec<Option<Arc<dyn Connection>>> = self.lanes.iter().map(|_| None).collect();
        // All at once: one that cannot be reached must not keep others waiting until they give us up.
        thread::scope(|scope| {
            let lower = self.lanes.iter().enumerate().filter(|(_, lane)| lane.peer < self.rank);
            let reaching: Vec<_> = lower
                .map(|(place, lane)| (place, scope.spawn(move || self.reach(lane, deadline))))
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

    /// What all lanes give; the higher rank of two speaks first.
    pub(super) fn measure(
        &self,
        connections: &[Arc<dyn Connection>],
    ) -> Result<Vec<Measured>, PlannedError> {
        let lanes = self.lanes.iter().zip(connections);
        let lanes: Vec<_> =
            lanes.map(|(lane, connection)| (connection.clone(), lane.peer < self.rank)).collect();
        let found = measure(&lanes).into_iter().zip(self.lanes);
        let lost = |(found, lane): (io::Result<Measured>, &LaneKey)| {
            found.map_err(|error| PlannedError::PeerLost {
                rank: lane.peer,
                link: self.link(lane),
                reason: error.to_string(),
            })
        };
        found.map(lost).collect()
    }

    /// The vertex next to `rank` on the way to its neighbour.
    fn beside(&self, lane: &LaneKey, rank: usize) -> &str {
        let other = if rank == self.rank { lane.peer } else { self.rank };
        let (first, last) = (lane.via.first(), lane.via.last());
        let via = if rank < other { first } else { last };
        &self.names[*via.unwrap_or(&self.gpus[other])]
    }

    fn own_ip(&self, lane: &LaneKey) -> Option<IpAddr> {
        self.ports.address().ways.get(self.beside(lane, self.rank)).copied()
    }

    /// Settings of a lane's TCP connection.
    fn prepare(&self, stream: &TcpStream, lane: &LaneKey) -> io::Result<()> {
        stream.set_read_timeout(None)?;
        stream.set_nodelay(true)?;
        // A link that takes nothing: while there is something to send, and while there is not.
        let socket = SockRef::from(stream);
        socket.set_tcp_user_timeout(Some(self.silence))?;
        // What waits, waits in the lane, where urgent chunks overtake.
        socket.set_tcp_notsent_lowat(self.unsent_bytes)?;
        let place = self.lanes.iter().position(|other| other == lane);
        let rate = place.map_or(f64::INFINITY, |place| self.bytes_per_s[place]);
        let window = (rate * IN_FLIGHT_S).max(IN_FLIGHT_LEAST);
        if window < IN_FLIGHT_FREE {
            socket.set_recv_buffer_size(window as usize)?;
        }
        let interval = (self.silence / 3).max(Duration::from_secs(1));
        let keepalive = TcpKeepalive::new().with_time(interval).with_interval(interval);
        socket.set_tcp_keepalive(&keepalive.with_retries(2))
    }

    fn failed(&self, lane: &LaneKey, address: &str, reason: String, dead: bool) -> PlannedError {
        PlannedError::Unreachable {
            rank: lane.peer,
            link: self.link(lane),
            address: address.to_owned(),
            within_s: self.timeout.as_secs_f64(),
            reason,
            dead,
        }
    }

    /// Names of the vertices of a lane, from our own GPU to the neighbour's.
    pub(super) fn link(&self, lane: &LaneKey) -> Vec<String> {
        link_names(self.names, self.gpus, self.rank, lane)
    }
}

/// Names of the vertices of a lane, from our own GPU to the neighbour's.
pub(super) fn link_names(
    names: &[String],
    gpus: &[usize],
    rank: usize,
    lane: &LaneKey,
) -> Vec<String> {
    let mut via = lane.via.clone();
    if rank > lane.peer {
        via.reverse();
    }
    let ends = [vec![gpus[rank]], via, vec![gpus[lane.peer]]].concat();
    ends.into_iter().map(|vertex| names[vertex].clone()).collect()
}

/// Bytes under way on a slow link: what it carries in this time. Beyond, they only wait in its queue, and before them the
/// words that open the other direction's window: of two directions the one that has less under way would starve.
const IN_FLIGHT_S: f64 = 20e-3;
const IN_FLIGHT_LEAST: f64 = 32e3;
/// From here on the system knows better.
const IN_FLIGHT_FREE: f64 = 4e6;
