//! The mesh's interface to transports: a [`Transport`] for the pairs of ranks that it carries, with a [`MeshLink`] per
//! peer for sending.
//!
//! A transport passes received frames to [`super::inbound`], and reports an unreachable peer by [`Core::lost`]. It
//! decides neither the meaning of a frame, nor the order in which messages match, nor the end of an operation.

use std::any::Any;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::core::Core;
use super::frame::Frame;
use super::limits::{Limits, TICK};
use super::outbox::{Outbox, Reports};
use super::receive::Wanted;
use super::roster::Roster;
use crate::{Buffer, NetError};

/// A transport between hosts before the ranks are connected.
pub(super) trait Endpoint: Send {
    /// This rank's address, for the other ranks; `None` if the TCP connections suffice.
    fn address(&self) -> Option<&[u8]>;

    /// Connects to the ranks of `roster`, which have TCP connections already.
    fn connect(self: Box<Self>, roster: &Roster) -> Result<Arc<dyn Transport>, NetError>;
}

/// Carries the frames of some pairs of ranks.
pub(super) trait Transport: Any + Send + Sync {
    fn limits(&self) -> Limits;

    /// Whether the transport carries the frames between this rank and `rank`.
    fn reaches(&self, rank: u32) -> bool;

    /// The sending half for a reachable rank; called once per rank.
    fn link(self: Arc<Self>, rank: u32) -> Box<dyn MeshLink>;

    /// Whether frames use the pair's TCP connection, which otherwise carries only keep-alives.
    fn uses_connection(&self) -> bool {
        false
    }

    /// Whether a caller that waits for a message has to make progress itself ([`Transport::help`]).
    fn is_polled(&self) -> bool {
        false
    }

    /// Processes received data, within a bound.
    fn progress(&self, _core: &Core) {}

    /// Makes progress for a caller that waits for a message `from` a rank (`None`: any), until `done`, at most until
    /// `until`; returns after a short time without received data.
    fn help(
        &self,
        _core: &Core,
        _from: Option<u32>,
        _until: Option<Instant>,
        _done: &dyn Fn() -> bool,
    ) {
    }

    /// Receives a message of exactly the length of `into`, if it is the next of its sender and present, or arrives
    /// within the given number of polls; returns the sender. `None`: no effect.
    fn receive_now(
        &self,
        _core: &Core,
        _wanted: &Wanted,
        _into: &mut Buffer,
        _looks: u32,
    ) -> Option<u32> {
        None
    }

    /// Whether an announced message of `len` bytes is to be read in its sender's memory ([`Frame::Borrow`]).
    fn borrows(&self, _from: u32, _len: u64) -> bool {
        false
    }

    /// Whether messages in flight keep their memory, even after the mesh has failed, until the transport reports their
    /// end ([`Outbox::completed`]).
    fn keeps_memory(&self) -> bool {
        false
    }

    /// Called before the mesh's thread sleeps: completes pending work and returns how long the thread may sleep.
    /// [`Transport::after_sleep`] follows.
    fn before_sleep(&self, _core: &Core) -> Sleep {
        Sleep { at_most: TICK, readable: None }
    }

    fn after_sleep(&self) {}

    /// Whether the thread has to wait until the connection to that rank accepts more bytes.
    fn is_blocked(&self, _rank: u32) -> bool {
        false
    }

    /// Called when the connection accepts more bytes.
    fn unblock(&self, _rank: u32) {}

    /// Called when the connection to that rank has ended: processes the data sent before, then no more.
    fn peer_ended(&self, _core: &Core, _rank: u32) {}

    /// Ends receives that only the transport holds when their deadlines pass or the mesh has failed, and gives up peers
    /// that have kept memory for longer than [`super::limits::GRACE`].
    fn expire(&self, _core: &Core, _now: Instant) {}

    /// Called when the mesh has failed: from now on the memory of messages in flight may change.
    fn revoke(&self) {}

    /// Called when the mesh ends.
    fn close(&self, _core: &Core) {}

    /// Bytes received outside the connections, with headers.
    fn bytes_received(&self) -> u64 {
        0
    }

    /// Messages whose sender is not a rank of the group.
    fn unknown_senders(&self) -> u64 {
        0
    }
}

/// How long the mesh's thread may sleep.
pub(super) struct Sleep {
    pub(super) at_most: Duration,
    /// The sleep also ends when this descriptor is readable.
    pub(super) readable: Option<RawFd>,
}

/// Sends to one rank. Called with the lock of that rank's outbox held.
pub(super) trait MeshLink: Any + Send {
    /// Sends queued messages as far as possible without blocking; a transport that had to stop continues by itself
    /// later. `Err`: why the peer cannot be reached.
    fn flush(
        &mut self,
        core: &Core,
        outbox: &mut Outbox,
        reports: &mut Reports,
    ) -> Result<(), String>;

    /// Sends a frame with its whole payload now if nothing is queued; returns whether it did.
    #[inline]
    fn send_now(&mut self, _core: &Core, _frame: Frame, _bytes: &[u8]) -> bool {
        false
    }

    /// Whether there is room again after [`MeshLink::flush`] stopped.
    fn can_go_on(&mut self) -> bool {
        false
    }
}
