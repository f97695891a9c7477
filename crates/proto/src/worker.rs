//! What a driver knows of every protocol's worker.

use std::fmt;
use std::ops::Range;

use netsum_wire::{Format, PacketHeader, TreeId};

use crate::flow::TreeStats;
use crate::handover::{Finished, Progress};
use crate::operations::Submission;
use crate::{DropReason, Time};

/// A protocol's worker as a state machine, for one epoch. It holds no payload: the driver copies elements between packets
/// and buffers as it says.
///
/// Drive it so: `submit` operations; `handle` a packet, and `read` what it accepts; drain `poll_transmit`, and `write` each
/// packet's payload; drain `poll_event`; call `handle_timeout` when `poll_timeout` says so.
pub trait WorkerMachine: Sized {
    /// What a worker must know of its job's plan.
    type Config: Clone + fmt::Debug;
    /// Header of its packets.
    type Header: PacketHeader;
    /// Where a result belongs.
    type Accepted: AcceptedResult;
    /// A packet to be sent.
    type Outgoing: OutgoingPacket<Header = Self::Header>;

    /// Whether payloads are elements as they lie in the buffer; if not, `write` makes them.
    const IN_PLACE: bool = false;

    /// Whether the protocol can do a format; the rest goes over the hosts.
    fn supports(format: Format) -> bool;

    /// What drivers must know of a plan.
    fn settings(config: &Self::Config) -> Settings;

    /// A worker at the start of an epoch. Panics if the plan has no tree.
    fn new(now: Time, config: Self::Config) -> Self {
        Self::starting_at(now, config, 0)
    }

    /// A worker that has the first `first` numbers of every tree (or slot) behind it: numbers that wrap are tested so.
    fn starting_at(now: Time, config: Self::Config, first: u64) -> Self;

    /// Plan at work.
    fn config(&self) -> &Self::Config;

    /// Adds an operation. Every worker must submit the same ones in the same order. Panics for a format that the protocol
    /// does not support.
    fn submit(&mut self, submission: Submission);

    /// Takes a packet that came down a tree; says where its payload belongs. `ce`: its IP header says congestion
    /// experienced. Errors are reasons to drop it.
    fn handle(
        &mut self,
        now: Time,
        ce: bool,
        header: &Self::Header,
    ) -> Result<Option<Self::Accepted>, DropReason>;

    /// Takes in the payload of a result that `handle` accepted. `out`: bytes of the operation's buffer that hold the
    /// elements of the result; empty if it has none.
    fn read(&mut self, accepted: &Self::Accepted, payload: &[u8], out: &mut [u8]);

    /// The next packet to send, the trees in turn.
    fn poll_transmit(&mut self, now: Time) -> Option<Self::Outgoing>;

    /// Writes the payload of a packet of `poll_transmit`, and what the header says of it; `out` has the payload's length.
    /// `elements`: bytes of the operation's buffer that hold a range of its elements.
    fn write<'a>(
        &self,
        outgoing: &mut Self::Outgoing,
        elements: impl Fn(Range<u64>) -> &'a [u8],
        out: &mut [u8],
    );

    /// When `handle_timeout` must be called.
    fn poll_timeout(&self) -> Option<Time>;

    /// Deadlines up to `now` have passed.
    fn handle_timeout(&mut self, now: Time);

    /// What the caller must know.
    fn poll_event(&mut self) -> Option<Event>;

    /// Says to every tree that nothing more will come; to be sent once all operations are done.
    fn finish(&mut self);

    /// Operations that are not done.
    fn outstanding(&self) -> impl Iterator<Item = &Submission>;

    /// Each tree's figures.
    fn tree_stats(&self) -> impl Iterator<Item = TreeStats>;

    /// Which results have come: what a worker tells the others when an epoch ends early.
    fn progress(&self) -> Progress;

    /// Fragments that have a number in this epoch.
    fn submitted(&self) -> u64;

    /// Operation and elements of fragment `g` if its result has not come: for results that a peer serves. `None` for a
    /// packet without elements too.
    fn place_of(&self, g: u64) -> Option<(u64, Range<u64>)>;

    /// Ends the epoch: what is left of each operation once `finished` holds, in order. Operations of which nothing is left
    /// are not among them.
    fn remaining(self, finished: &Finished) -> Vec<Submission>;
}

/// Where a result belongs.
pub trait AcceptedResult {
    /// Number of the fragment in this epoch, over all operations.
    fn g(&self) -> u64;
    /// Operation.
    fn id(&self) -> u64;
    /// Elements of its buffer that the result replaces, if any.
    fn elements(&self) -> Option<Range<u64>>;
}

/// A packet to be sent up a tree.
pub trait OutgoingPacket {
    /// Header.
    type Header: PacketHeader;

    /// Header, as far as it is known before the payload is written.
    fn header(&self) -> &Self::Header;
    /// Operation, if the packet belongs to one.
    fn operation(&self) -> Option<u64>;
    /// Elements of the operation's buffer that the payload stands for, if any.
    fn elements(&self) -> Option<Range<u64>>;
}

/// What drivers must know of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Trees, servers, or the one switch.
    pub trees: usize,
    /// The last results of which another worker may lack some.
    pub retained: usize,
    /// Largest payload.
    pub fragment_bytes: u16,
}

/// What the caller of a worker must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Every fragment of the operation is summed.
    Done {
        /// Operation.
        id: u64,
        /// Ranks (mod 64) that some fragment lacks (partial synchronisation).
        missing: u64,
    },
    /// The workers do not agree on what they reduce; the operation will not end.
    Mismatch {
        /// Operation.
        id: u64,
    },
    /// Something is in flight and the tree has not answered for this long. Repeated.
    Silent {
        /// Tree.
        tree: TreeId,
        /// How long.
        for_ns: u64,
    },
}
