//! Programs: the steps of every GPU, in the form of executors and MSCCL.
//!
//! A [`Program`] is lower than a plan: threads of steps with explicit dependencies. [`check`] checks that it computes
//! its collective in every order that the dependencies allow; it is independent of the search for trees.

mod check;
mod distances;
mod group_check;
mod lower;
mod msccl;
mod mscclpp;
mod orbit_check;
mod outcome;
mod plan_check;
mod reach;
mod sum;
mod tree_flow;

pub use check::{Fault, check};
pub use distances::distance_bound;
pub use group_check::verify_groups;
pub use lower::{lower, lower_onto};
pub use msccl::{read_msccl, write_msccl};
pub use mscclpp::{read_mscclpp, write_mscclpp};
pub use orbit_check::verify_orbits;
pub use plan_check::verify_plan;

use netsum_topo::links::Collective;

/// Memory of an agent, in pieces of equal size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Memory {
    /// The caller's input.
    Input,
    /// The caller's output; the same memory as the input in a program in place.
    Output,
    /// The program's scratch memory.
    Scratch,
}

/// A location in one memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemoryLocation {
    /// Which memory.
    pub memory: Memory,
    /// First piece.
    pub at: u64,
}

/// An operation on `count` pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Step {
    /// The action.
    pub action: Action,
    /// Source, for actions that read.
    pub from: MemoryLocation,
    /// Destination, for actions that write.
    pub to: MemoryLocation,
    /// Number of pieces.
    pub count: u64,
    /// A step of another thread of the same agent that must complete first.
    pub after: Option<(usize, usize)>,
}

/// Actions, named as in MSCCL's XML.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// `s`: sends what is at `from`.
    Send,
    /// `r`: receives to `to`.
    Receive,
    /// `rrc`: receives, adds to what is at `from`, writes to `to`.
    ReceiveReduce,
    /// `rcs`: receives to `to` and sends it on.
    ReceiveSend,
    /// `rrs`: receives, adds what is at `from`, sends the sum on and writes nothing.
    ReceiveReduceSend,
    /// `rrcs`: receives, adds to what is at `from`, writes to `to` and sends it on.
    ReceiveReduceCopySend,
    /// `cpy`: copies from `from` to `to`.
    Copy,
    /// `re`: adds what is at `from` to `to`.
    Reduce,
    /// `nop`: waits only.
    Nothing,
}

impl Action {
    /// Whether it takes the next message of its thread's peer.
    pub fn receives(self) -> bool {
        use Action::*;
        matches!(
            self,
            Receive | ReceiveReduce | ReceiveSend | ReceiveReduceSend | ReceiveReduceCopySend
        )
    }

    /// Whether it sends a message to its thread's peer.
    pub fn sends(self) -> bool {
        use Action::*;
        matches!(self, Send | ReceiveSend | ReceiveReduceSend | ReceiveReduceCopySend)
    }

    /// Whether it reads at `from`.
    pub fn reads(self) -> bool {
        use Action::*;
        matches!(
            self,
            Send | ReceiveReduce | ReceiveReduceSend | ReceiveReduceCopySend | Copy | Reduce
        )
    }

    /// Whether it writes at `to`.
    pub fn writes(self) -> bool {
        use Action::*;
        matches!(
            self,
            Receive | ReceiveReduce | ReceiveSend | ReceiveReduceCopySend | Copy | Reduce
        )
    }
}

/// Steps one after another, with at most one peer to send to and one to receive from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Thread {
    /// Agent to which the thread sends.
    pub send: Option<usize>,
    /// Agent from which the thread receives.
    pub receive: Option<usize>,
    /// Distinguishes connections between the same agents.
    pub channel: usize,
    /// Steps in order.
    pub steps: Vec<Step>,
}

/// A collective, step by step. Agents 0..`ranks` are the GPUs; agents after them are switches that
/// add and multicast, without data of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The collective.
    pub collective: Collective,
    /// Number of GPUs.
    pub ranks: usize,
    /// Pieces of the whole buffer; of all shards together for all-gather and reduce-scatter.
    pub pieces: u64,
    /// Whether input and output are the same memory (of all shards, an agent's own at its position).
    pub in_place: bool,
    /// Threads by agent.
    pub threads: Vec<Vec<Thread>>,
}
