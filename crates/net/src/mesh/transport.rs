//! What the mesh needs of a transport: a [`Transport`] for all pairs that it carries, with a [`MeshLink`] for each, which
//! sends.
//!
//! A transport hands what it receives to [`super::inbound`], and tells [`Core::lost`] of a peer that cannot be reached.
//! It never decides what a frame means, in which order messages match, or when an operation ends.

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

/// A transport between hosts before the ranks know each other.
pub(super) trait Endpoint: Send {
    /// Where this rank is reached, to be told to the others; `None` if the TCP connections are enough.
    fn address(&self) -> Option<&[u8]>;

    /// Connects to the ranks of `roster`, which have TCP connections already.
    fn connect(self: Box<Self>, roster: &Roster) -> Result<Arc<dyn Transport>, NetError>;
}

/// Carries the frames of some pairs of ranks.
pub(super) trait Transport: Any + Send + Sync {
    fn limits(&self) -> Limits;

    /// Whether it carries the frames between us and that rank.
    fn reaches(&self, rank: u32) -> bool;

    /// The sending half for a rank that it reaches; called once for each.
    fn link(self: Arc<Self>, rank: u32) -> Box<dyn MeshLink>;

    /// Whether frames go through the pair's TCP connection, which carries keep-alives alone otherwise.
    fn uses_connection(&self) -> bool {
        false
    }

    /// Whether a caller that waits for a message has to move messages on itself ([`Transport::help`]).
    fn is_polled(&self) -> bool {
        false
    }

    /// Takes what has come, within a bound.
    fn progress(&self, _core: &Core) {}

    /// Moves messages on for a caller that waits for one `from` that rank (`None`: any), until `done`, at most `until`
    /// then; gives up after a short time in which nothing comes.
    fn help(
        &self,
        _core: &Core,
        _from: Option<u32>,
        _until: Option<Instant>,
        _done: &dyn Fn() -> bool,
    ) {
    }

    /// Takes a message that is just as long as `into`, if it is the next of its sender and here, or comes while we look
    /// so often; its sender. `None`: nothing has happened.
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

    /// Whether messages in flight keep their memory, even after the mesh has failed, until the transport says that they
    /// have ended ([`Outbox::completed`]).
    fn keeps_memory(&self) -> bool {
        false
    }

    /// The mesh's thread is about to sleep: does what there is to do, and says for how long it may sleep.
    /// [`Transport::after_sleep`] follows.
    fn before_sleep(&self, _core: &Core) -> Sleep {
        Sleep { at_most: TICK, readable: None }
    }

    fn after_sleep(&self) {}

    /// Whether the thread is to wait until the connection to that rank takes more bytes.
    fn is_blocked(&self, _rank: u32) -> bool {
        false
    }

    /// The connection takes more bytes.
    fn unblock(&self, _rank: u32) {}

    /// The connection to that rank has ended: takes what it sent before, then no more of it.
    fn peer_ended(&self, _core: &Core, _rank: u32) {}

    /// Ends receives that only the transport knows of when their deadlines pass or the mesh has failed, and gives up
    /// peers that have kept memory for longer than [`super::limits::GRACE`].
    fn expire(&self, _core: &Core, _now: Instant) {}

    /// The mesh has failed: from here on the memory of messages in flight may change.
    fn revoke(&self) {}

    /// The mesh ends.
    fn close(&self, _core: &Core) {}

    /// Bytes received, with headers, besides those of the connections.
    fn bytes_received(&self) -> u64 {
        0
    }

    /// Messages that came from no rank of the group.
    fn unknown_senders(&self) -> u64 {
        0
    }
}

/// How the mesh's thread may sleep.
pub(super) struct Sleep {
    pub(super) at_most: Duration,
    /// And until that descriptor is readable.
    pub(super) readable: Option<RawFd>,
}

/// Sends to one rank. Used with the lock of that rank's outbox held.
pub(super) trait MeshLink: Any + Send {
    /// Sends what is queued, as far as it can without waiting; a transport that had to stop goes on by itself later.
    /// `Err`: why the peer cannot be reached.
    fn flush(
        &mut self,
        core: &Core,
        outbox: &mut Outbox,
        reports: &mut Reports,
    ) -> Result<(), String>;

    /// Sends a frame with its whole payload now, while nothing is queued, or does nothing: whether it did.
    #[inline]
    fn send_now(&mut self, _core: &Core, _frame: Frame, _bytes: &[u8]) -> bool {
        false
    }

    /// Whether there is room now for what had none when [`MeshLink::flush`] stopped.
    fn can_go_on(&mut self) -> bool {
        false
    }
}
