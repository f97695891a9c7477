//! Frames over the connection of a pair, TCP or TLS: the writing side. The mesh's thread reads all connections
//! ([`super::thread`]).

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::core::Core;
use super::limits::{self, Limits};
use super::outbox::{Drained, Outbox, Reports};
use super::roster::Roster;
use super::transport::{Endpoint, MeshLink, Transport};
use crate::NetError;

/// There is nothing to open before the ranks know each other: the listener is sufficient.
pub(super) struct TcpEndpoint;

impl Endpoint for TcpEndpoint {
    fn address(&self) -> Option<&[u8]> {
        None
    }

    fn connect(self: Box<Self>, roster: &Roster) -> Result<Arc<dyn Transport>, NetError> {
        Ok(Arc::new(Tcp { blocked: roster.seats.iter().map(|_| AtomicBool::new(false)).collect() }))
    }
}

struct Tcp {
    /// By rank: whether the socket is full; the thread waits until it is writable.
    blocked: Vec<AtomicBool>,
}

impl Transport for Tcp {
    fn limits(&self) -> Limits {
        limits::TCP
    }

    fn reaches(&self, _: u32) -> bool {
        true
    }

    fn link(self: Arc<Self>, rank: u32) -> Box<dyn MeshLink> {
        Box::new(TcpLink { tcp: self, rank })
    }

    fn uses_connection(&self) -> bool {
        true
    }

    fn is_blocked(&self, rank: u32) -> bool {
        self.blocked[rank as usize].load(Ordering::Relaxed)
    }

    fn unblock(&self, rank: u32) {
        self.blocked[rank as usize].store(false, Ordering::Relaxed);
    }
}

struct TcpLink {
    tcp: Arc<Tcp>,
    rank: u32,
}

impl MeshLink for TcpLink {
    fn flush(
        &mut self,
        core: &Core,
        outbox: &mut Outbox,
        reports: &mut Reports,
    ) -> Result<(), String> {
        let blocked = &self.tcp.blocked[self.rank as usize];
        if blocked.load(Ordering::Relaxed) {
            return Ok(());
        }
        let connection = &core.known_peer(self.rank).connection;
        let write = |parts: &[IoSlice<'_>]| connection.write(parts);
        let drained = outbox.drain(write, reports).map_err(|error| error.to_string())?;
        let flushed = connection.flush().map_err(|error| error.to_string())?;
        if drained == Drained::Blocked || !flushed {
            blocked.store(true, Ordering::Relaxed);
            core.wake();
        }
        Ok(())
    }
}
