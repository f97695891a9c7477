//! From one plan to the next without losing or repeating a sum: one sans-IO machine per rank.
//!
//! A *hand-over* has a number, its *generation*. In each, every rank stops its network path (*freeze*), says which
//! results it has (*report*), concludes what all others conclude (*resolve*), gives others the results that they lack
//! (*serve*) and goes on with the new plan (*resume*). There are two modes:
//!
//! - [`Mode::Leaderless`]: the plans are the controller's, an operation is cut into fragments. Whoever has a reason
//!   begins: a newer plan came, or a tree has been silent for too long. Whoever hears of it joins. Every rank sends its
//!   report to all others and decides by itself; nobody is in charge.
//! - [`Mode::Led`]: rank 0 brings the plans, progress is ranges of elements of one operation. Whoever finds that its path
//!   does not work asks rank 0; rank 0 freezes all, collects the reports, asks its driver for a plan, and sends the plan
//!   with everybody's progress.
//!
//! [`Handover`] is driven as the other machines: call a `handle_*` method, then drain
//! [`poll_transmit`](Handover::poll_transmit) and [`poll_action`](Handover::poll_action), and call
//! [`handle_timeout`](Handover::handle_timeout) at [`poll_timeout`](Handover::poll_timeout). Messages between two ranks
//! must arrive once and in order; nothing is assumed of messages between different pairs. A plan is opaque: see [`Plan`].
//!
//! The format of messages is in `message.rs`. Bytes from other ranks never panic the machine: what is malformed is a
//! [`MessageError`] that names the rank.

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

/// A plan, as far as a hand-over must know it. The driver implements it for whatever its plans are.
pub trait Plan: Clone + PartialEq {
    /// Its version. Later plans have later epochs, compared as numbers that wrap around. Led plans are not compared.
    fn epoch(&self) -> Epoch;

    /// Whether sums can go over the network with it.
    fn has_trees(&self) -> bool;

    /// Whether fragments of `before` are fragments of this plan, so that what is left of an operation on the trees of
    /// `before` can go on on these trees. If not, it goes over the hosts. All ranks must answer alike.
    fn continues(&self, before: &Self) -> bool;

    /// A tree that is silent gets this long for a new plan to come before the ranks give the trees up.
    fn patience_ns(&self) -> u64;

    /// Appends its bytes.
    fn encode(&self, out: &mut Vec<u8>);

    /// Reads and validates it for a group of `size` ranks. Errors say what is wrong.
    fn decode(bytes: &[u8], size: u32) -> Result<Self, String>;
}

/// Who brings plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A controller, outside of the group; every rank decides the same from all reports.
    Leaderless,
    /// Rank 0.
    Led,
}

/// What a rank's machine must know at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// This rank.
    pub rank: Rank,
    /// Ranks of the group.
    pub size: u32,
    /// Who brings plans; the same at all ranks.
    pub mode: Mode,
    /// A hand-over that takes longer ends in [`HandoverError::Timeout`], unless operations wait for it: then their
    /// deadlines count.
    pub timeout_ns: u64,
}

/// Where sums are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// In the network, as the plan in use says.
    Network,
    /// Between the hosts.
    Hosts,
}

/// An operation that the caller has begun, in the order of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingOperation {
    /// Its number.
    pub sequence: u64,
    /// Elements of its buffer.
    pub elements: u64,
    /// While it waits for a path, it waits until then.
    pub deadline: Time,
}

/// The driver's answer to [`Action::Freeze`]: which results are here.
#[derive(Clone, Debug, PartialEq)]
pub enum Frozen {
    /// Leaderless.
    Fragments {
        /// Results by tree.
        progress: Progress,
        /// Fragments that have a number in the epoch.
        submitted: u64,
    },
    /// Led.
    Elements {
        /// Elements of the operation under way that have everybody's values here; empty if none is under way.
        finals: Ranges,
        /// What is certain to be broken, in the driver's own format.
        faults: Vec<Vec<u8>>,
    },
}

/// A message to another rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Whom it is for.
    pub to: Rank,
    /// For the other's [`Handover::handle_message`].
    pub bytes: Vec<u8>,
}

/// What the driver must do, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action<P> {
    /// Stop the network path: nothing is sent or accepted there any more. Answer: [`Handover::handle_frozen`].
    Freeze,
    /// Led, rank 0: find a plan for what is left of the network. Answer: [`Handover::handle_planned`].
    Plan {
        /// Why, in words.
        reason: String,
    },
    /// Led, rank 0: a rank knows these to be broken.
    Faults {
        /// Who says so.
        from: Rank,
        /// In the driver's own format.
        faults: Vec<Vec<u8>>,
    },
    /// Leaderless: look these fragments of the frozen epoch up among retained results. Answer:
    /// [`Handover::handle_fetched`].
    Fetch(Vec<u64>),
    /// Leaderless: write these results of the frozen epoch to their places.
    Deliver(Vec<(u64, Vec<u8>)>),
    /// Led: exchange elements of the operation under way with other ranks. Answer: [`Handover::handle_exchanged`].
    Exchange {
        /// Those that this rank sends or receives.
        pieces: Vec<Piece>,
        /// Afterwards these elements have everybody's values here.
        finals: Ranges,
    },
    /// Go over to what was agreed on.
    Resume(Box<Resume<P>>),
    /// Sum an operation, or what is left of it, on this path. With the leaderless mode, an operation that the plan's
    /// protocol cannot do goes over the hosts all the same.
    Run {
        /// Its number.
        sequence: u64,
        /// Where.
        path: Path,
    },
    /// Led: the operation under way is over, all its results are here.
    Over {
        /// Its number.
        sequence: u64,
    },
    /// Leaderless: the trees of the plan in use that do not answer have changed; the controller should know at once.
    SilentTrees(Vec<u8>),
    /// The ranks cannot go on. The machine takes no more input.
    Fail(HandoverError),
}

/// How to go on after a hand-over.
#[derive(Clone, Debug, PartialEq)]
pub struct Resume<P> {
    /// Number of the hand-over.
    pub generation: u64,
    /// When sums stopped.
    pub since: Time,
    /// Leaderless: fragments of the frozen epoch that need no more summing; `None` if it had no trees.
    pub finished: Option<Finished>,
    /// The plan to take into use. `None`: the one in use stays without its trees (leaderless), or there is none (led).
    pub plan: Option<P>,
    /// Where operations go from here on. With [`Path::Network`] in led mode the driver connects first and answers
    /// with [`Handover::handle_opened`] or [`Handover::request_plan`].
    pub path: Path,
    /// Leaderless: where the rest of operations goes that were under way on the old trees.
    pub rest: Path,
    /// Trees that did not answer some rank.
    pub silent: Vec<u8>,
    /// Led: why, in words.
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
