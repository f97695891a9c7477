//! The driver's interface to every protocol's worker.

use std::fmt;
use std::ops::Range;

use netsum_wire::{Format, PacketHeader, TreeId};

use crate::flow::TreeStats;
use crate::handover::{Finished, Progress};
use crate::operations::Submission;
use crate::{DropReason, Time};

/// A protocol's worker as a state machine, for one epoch. It holds no payload: the driver copies elements between
/// packets and buffers.
///
/// Usage: `submit` operations; `handle` a packet, and `read` what it accepts; drain `poll_transmit`, and `write` each
/// packet's payload; drain `poll_event`; call `handle_timeout` at `poll_timeout`.
pub trait WorkerMachine: Sized {
    /// A worker's configuration, by its job's plan.
    type Config: Clone + fmt::Debug;
    /// Header of its packets.
    type Header: PacketHeader;
    /// Destination of a result.
    type Accepted: AcceptedResult;
    /// A packet to be sent.
    type Outgoing: OutgoingPacket<Header = Self::Header>;

    /// Whether the protocol supports a format with so many ranks; others use the host path.
    fn supports(format: Format, ranks: u32) -> bool;

    /// Properties of a plan that drivers need.
    fn settings(config: &Self::Config) -> Settings;

    /// A worker at the start of an epoch. Panics if the plan has no tree.
    fn new(now: Time, config: Self::Config) -> Self {
        Self::starting_at(now, config, 0)
    }

    /// A worker that starts after the first `first` numbers of every tree (or slot), to test numbers that wrap.
    fn starting_at(now: Time, config: Self::Config, first: u64) -> Self;

    /// The configuration in use.
    fn config(&self) -> &Self::Config;

    /// Adds an operation. Every worker must submit the same ones in the same order. Panics for a format that the protocol
    /// does not support.
    fn submit(&mut self, submission: Submission);

    /// Handles a packet that came down a tree; returns where its payload belongs. `ce`: whether its IP header has the
    /// congestion-experienced mark. An error is the reason why it is dropped.
    fn handle(
        &mut self,
        now: Time,
        ce: bool,
        header: &Self::Header,
    ) -> Result<Option<Self::Accepted>, DropReason>;

    /// Reads the payload of a result that `handle` accepted. `out`: bytes of the operation's buffer that hold the
    /// elements of the result; empty if it has none.
    fn read(&mut self, accepted: &Self::Accepted, payload: &[u8], out: &mut [u8]);

    /// The next fragment that is complete without elements for this rank; to be drained after each `handle`, before
    /// events. If it contributed, it must retain what it contributed: another rank may lack the result.
    fn poll_settled(&mut self) -> Option<Self::Accepted> {
        None
    }

    /// The next packet to send; trees take turns.
    fn poll_transmit(&mut self, now: Time) -> Option<Self::Outgoing>;

    /// Whether a packet's payload is a copy of the buffer's elements; if not, `write` converts them.
    fn is_in_place(_: &Self::Outgoing) -> bool {
        false
    }

    /// Writes the payload of a packet of `poll_transmit`, and the header fields that depend on it; `out` has the
    /// payload's length. `elements`: bytes of the operation's buffer that hold a range of its elements.
    fn write<'a>(
        &self,
        outgoing: &mut Self::Outgoing,
        elements: impl Fn(Range<u64>) -> &'a [u8],
        out: &mut [u8],
    );

    /// When `handle_timeout` must be called next.
    fn poll_timeout(&self) -> Option<Time>;

    /// Handles deadlines up to `now`.
    fn handle_timeout(&mut self, now: Time);

    /// The next event for the caller.
    fn poll_event(&mut self) -> Option<Event>;

    /// Queues a fin for every tree; to be called once all operations are done.
    fn finish(&mut self);

    /// Operations that are not done.
    fn outstanding(&self) -> impl Iterator<Item = &Submission>;

    /// Statistics of each tree.
    fn tree_stats(&self) -> impl Iterator<Item = TreeStats>;

    /// Results that have arrived: a worker's report to the others when an epoch ends early.
    fn progress(&self) -> Progress;

    /// Number of fragments submitted in this epoch.
    fn submitted(&self) -> u64;

    /// Id of the operation and elements of fragment `g` if its result has not arrived: for results that a peer serves.
    /// `None` for a packet without elements too.
    fn place_of(&self, g: u64) -> Option<(u64, Range<u64>)>;

    /// Fragments of operations that are done here, which must be contributed again nevertheless, given `finished`: the
    /// driver takes their elements from what it has retained.
    fn to_repeat(&self, _finished: &Finished) -> Vec<Self::Accepted> {
        Vec::new()
    }

    /// Ends the epoch: the rest of each operation, given `finished`, in order; without the operations that are
    /// complete. An operation that is done here is among them if it must contribute again
    /// ([`WorkerMachine::to_repeat`]).
    fn remaining(self, finished: &Finished) -> Vec<Submission>;
}

/// Destination of a result.
pub trait AcceptedResult {
    /// Number of the fragment in this epoch, over all operations.
    fn g(&self) -> u64;
    /// Id of the operation.
    fn id(&self) -> u64;
    /// Elements of its buffer that the result replaces, if any.
    fn elements(&self) -> Option<Range<u64>>;
}

/// A packet to be sent up a tree.
pub trait OutgoingPacket {
    /// Header.
    type Header: PacketHeader;

    /// Header; the fields that depend on the payload are set by `write`.
    fn header(&self) -> &Self::Header;
    /// Id of the operation, if the packet belongs to one.
    fn operation(&self) -> Option<u64>;
    /// Elements of the operation's buffer that the payload contains, if any.
    fn elements(&self) -> Option<Range<u64>>;
}

/// Properties of a plan that drivers need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Number of trees, servers, or switches.
    pub trees: usize,
    /// Number of last results that another worker may lack.
    pub retained: usize,
    /// Largest payload.
    pub fragment_bytes: u16,
}

/// An event for the caller of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Every fragment of the operation is summed.
    Done {
        /// Id of the operation.
        id: u64,
        /// Ranks (mod 64) that are missing in some fragment (partial synchronisation).
        missing: u64,
    },
    /// The workers do not agree on what they reduce; the operation will not end.
    Mismatch {
        /// Id of the operation.
        id: u64,
        /// Whose contribution differs from the first one, if the switch says so: a rank; with static pools, the number
        /// of a worker.
        named: Option<u32>,
    },
    /// Follows [`Event::Mismatch`]: whose packets a switch has refused.
    Refused {
        /// Id of the operation.
        id: u64,
        /// These ranks (mod 64).
        ranks: u64,
        /// How their packets compare with this worker's.
        refusal: Refusal,
    },
    /// Something is in flight and the tree has not answered for this long. Repeated while it lasts.
    Silent {
        /// Tree.
        tree: TreeId,
        /// How long.
        for_ns: u64,
    },
}

/// How a packet that a switch has refused compares with this worker's own for the same fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// Chunk, format and length are the same, so some packet that came before it differs.
    LikeOurs,
    /// Chunk, format or length differ.
    Unlike,
    /// It is not the one that the same ranks sent before.
    Changed,
}
