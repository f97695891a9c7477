//! Programs: what every GPU does step by step, in the form that executors and MSCCL know.
//!
//! A [`Program`] is lower than a plan: threads of steps with explicit dependencies. [`check`] says
//! whether it computes its collective in every order that the dependencies allow; it shares nothing
//! with the search for trees.

mod check;
mod lower;
mod msccl;
mod mscclpp;
mod outcome;
mod plan_check;
mod reach;

pub use check::{Fault, check};
pub use lower::lower;
pub use msccl::{read_msccl, write_msccl};
pub use mscclpp::{read_mscclpp, write_mscclpp};
pub use plan_check::verify_plan;

use netsum_topo::links::Collective;

/// Memory of an agent, in pieces of equal size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Memory {
    /// What the caller gives.
    Input,
    /// What the caller gets; the same memory as the input in a program in place.
    Output,
    /// The program's own.
    Scratch,
}

/// Pieces of one memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemoryLocation {
    /// Which memory.
    pub memory: Memory,
    /// First piece.
    pub at: u64,
}

/// What a step does with `count` pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Step {
    /// The action.
    pub action: Action,
    /// Where pieces are read, where the action reads.
    pub from: MemoryLocation,
    /// Where pieces are written, where the action writes.
    pub to: MemoryLocation,
    /// How many.
    pub count: u64,
    /// A step of another thread of the same agent that must be over first.
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
    /// Agent that sends reach.
    pub send: Option<usize>,
    /// Agent that receives are from.
    pub receive: Option<usize>,
    /// Tells connections between the same agents apart.
    pub channel: usize,
    /// In order.
    pub steps: Vec<Step>,
}

/// A collective, step by step. Agents 0..`ranks` are the GPUs; agents after them are switches that
/// add and multicast, without data of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// What it computes.
    pub collective: Collective,
    /// GPUs.
    pub ranks: usize,
    /// Pieces of the whole buffer; of all shards together for all-gather and reduce-scatter.
    pub pieces: u64,
    /// Whether input and output are the same memory (of all shards, an agent's own in its place).
    pub in_place: bool,
    /// By agent.
    pub threads: Vec<Vec<Thread>>,
}
