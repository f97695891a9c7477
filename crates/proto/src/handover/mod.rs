//! Hand-over from one plan to the next without losing or repeating a sum: one sans-IO machine per rank.
//!
//! A *hand-over* has a number, its *generation*. In each, every rank stops its network path (*freeze*), reports which
//! results it has (*report*), computes the same conclusion as all others (*resolve*), sends others the results that
//! they lack (*serve*) and continues with the new plan (*resume*). There are two modes:
//!
//! - [`Mode::Leaderless`]: a controller makes the plans, and an operation consists of fragments. A rank begins a
//!   hand-over when a newer plan arrives or a tree has been silent for too long; the others join when they receive its
//!   report. Every rank sends its report to all others and decides independently.
//! - [`Mode::Led`]: rank 0 makes the plans, and progress is ranges of elements of one operation. A rank whose path does
//!   not work asks rank 0; rank 0 freezes all, collects the reports, asks its driver for a plan, and sends the plan with
//!   the progress of all ranks.
//!
//! [`Handover`] is driven as the other machines: call a `handle_*` method, then drain
//! [`poll_transmit`](Handover::poll_transmit) and [`poll_action`](Handover::poll_action), and call
//! [`handle_timeout`](Handover::handle_timeout) at [`poll_timeout`](Handover::poll_timeout). Messages between two ranks
//! must arrive once and in order; nothing is assumed of messages between different pairs. A plan is opaque: see [`Plan`].
//!
//! The format of messages is in `message.rs`. Bytes from other ranks never panic the machine: malformed messages cause
//! a [`MessageError`] that names the rank.

pub mod elements;
mod error;
mod leaderless;
mod led;
mod machine;
mod message;
mod progress;

use std::ops::Range;

use netsum_wire::{Epoch, Rank};

pub use elements::{Piece, Ranges};
pub use error::{Awaited, Cause, HandoverError, MessageError};
pub use machine::Handover;
pub use message::DecodeError;
pub use progress::{Finished, Progress, ProgressError, Resolution, Serve, TreeProgress, resolve};

use crate::Time;

/// The interface of a plan that a hand-over needs. The driver implements it for its plans.
pub trait Plan: Clone + PartialEq {
    /// Epoch of the plan. Later plans have later epochs, compared as numbers that wrap around. Led plans are not
    /// compared.
    fn epoch(&self) -> Epoch;

    /// Whether sums can go over the network with it.
    fn has_trees(&self) -> bool;

    /// Whether fragments of `before` are fragments of this plan, so that the rest of an operation on the trees of
    /// `before` can continue on these trees. If not, it uses the host path. All ranks must return the same value.
    fn continues(&self, before: &Self) -> bool;

    /// Time that a silent tree has before the ranks abandon the trees, unless a new plan arrives.
    fn patience_ns(&self) -> u64;

    /// Appends the encoded plan.
    fn encode(&self, out: &mut Vec<u8>);

    /// Decodes and validates a plan for a group of `size` ranks. Errors describe the problem.
    fn decode(bytes: &[u8], size: u32) -> Result<Self, String>;
}

/// The source of plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A controller outside of the group; every rank decides the same from all reports.
    Leaderless,
    /// Rank 0.
    Led,
}

/// Parameters of a rank's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// This rank.
    pub rank: Rank,
    /// Ranks of the group.
    pub size: u32,
    /// The source of plans; the same at all ranks.
    pub mode: Mode,
    /// A hand-over that takes longer ends in [`HandoverError::Timeout`], unless operations wait for it: then their
    /// deadlines apply.
    pub timeout_ns: u64,
}

/// The path on which sums are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// In the network, by the plan in use.
    Network,
    /// Between the hosts.
    Hosts,
}

/// An operation that the caller has begun; in the order of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingOperation {
    /// Its number.
    pub sequence: u64,
    /// Elements of its buffer.
    pub elements: u64,
    /// How long it may wait for a path.
    pub deadline: Time,
}

/// The driver's answer to [`Action::Freeze`]: the results of this rank.
#[derive(Clone, Debug, PartialEq)]
pub enum Frozen {
    /// Leaderless mode.
    Fragments {
        /// Results by tree.
        progress: Progress,
        /// Fragments that have a number in the epoch.
        submitted: u64,
    },
    /// Led mode.
    Elements {
        /// Elements of the current operation that have all contributions here; empty if there is no operation.
        finals: Ranges,
        /// Known faults, in the driver's own format.
        faults: Vec<Vec<u8>>,
    },
}

/// A message to another rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Receiver.
    pub to: Rank,
    /// Bytes for the receiver's [`Handover::handle_message`].
    pub bytes: Vec<u8>,
}

/// An action for the driver, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action<P> {
    /// Stop the network path: send and accept nothing there any more. Answer: [`Handover::handle_frozen`].
    Freeze,
    /// Led, rank 0: find a plan for the rest of the network. Answer: [`Handover::handle_planned`].
    Plan {
        /// Reason, as text.
        reason: String,
    },
    /// Led, rank 0: a rank has reported faults.
    Faults {
        /// The rank.
        from: Rank,
        /// Faults, in the driver's own format.
        faults: Vec<Vec<u8>>,
    },
    /// Leaderless: look up these fragments of the frozen epoch among retained results. Answer:
    /// [`Handover::handle_fetched`].
    Fetch(Vec<u64>),
    /// Leaderless: write these results of the frozen epoch to their positions.
    Deliver(Vec<(u64, Vec<u8>)>),
    /// Led: exchange elements of the current operation with other ranks. Answer: [`Handover::handle_exchanged`].
    Exchange {
        /// Pieces that this rank sends or receives.
        pieces: Vec<Piece>,
        /// Elements that have all contributions here afterwards.
        finals: Ranges,
    },
    /// Take the agreed conclusion into use.
    Resume(Box<Resume<P>>),
    /// Sum an operation, or the rest of it, on this path. In leaderless mode, an operation that the plan's protocol
    /// does not support uses the host path nevertheless.
    Run {
        /// Its number.
        sequence: u64,
        /// Path.
        path: Path,
    },
    /// Led: the current operation is complete, with all its results.
    Over {
        /// Its number.
        sequence: u64,
    },
    /// Leaderless: the set of silent trees of the plan in use has changed; the controller should be told immediately.
    SilentTrees(Vec<u8>),
    /// The ranks cannot continue. The machine accepts no further input.
    Fail(HandoverError),
}

/// How to continue after a hand-over.
#[derive(Clone, Debug, PartialEq)]
pub struct Resume<P> {
    /// Number of the hand-over.
    pub generation: u64,
    /// When sums stopped.
    pub since: Time,
    /// Leaderless: fragments of the frozen epoch that are complete; `None` if it had no trees.
    pub finished: Option<Finished>,
    /// The new plan. `None`: the one in use stays without its trees (leaderless), or there is none (led).
    pub plan: Option<P>,
    /// The path of further operations. With [`Path::Network`] in led mode the driver connects first and answers with
    /// [`Handover::handle_opened`] or [`Handover::request_plan`].
    pub path: Path,
    /// Leaderless: the path for the rest of operations that were on the old trees.
    pub rest: Path,
    /// Trees that did not answer some rank.
    pub silent: Vec<u8>,
    /// Led: the reason, as text.
    pub reason: String,
}

impl Settings {
    fn others(&self) -> impl Iterator<Item = Rank> + use<> {
        let Settings { rank, size, .. } = *self;
        (0..size).map(Rank).filter(move |&other| other != rank)
    }

    fn all(&self) -> Range<u32> {
        0..self.size
    }
}
