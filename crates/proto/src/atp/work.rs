//! What goes into a worker and comes out of it.

use std::ops::Range;

use netsum_wire::atp::{Header, Level};
use netsum_wire::fixed::Scale;
use netsum_wire::{Dtype, Epoch, Format, JobId, ReduceOp, TreeId};

use crate::CongestionRule;
use crate::operations;

/// What a worker must know of its job's plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerConfig {
    /// Job.
    pub job: JobId,
    /// Version of the plan.
    pub epoch: Epoch,
    /// Workers of the job.
    pub ranks: u32,
    /// Own place beneath each server, at least one.
    pub places: Vec<Place>,
    /// The most fragments in flight per server.
    pub window_max: u16,
    /// Largest payload, in steps of 4.
    pub fragment_bytes: u16,
    /// Slots of a switch.
    pub slots: u32,
    /// Reaction to congestion.
    pub congestion: CongestionRule,
}

/// Where a worker stands beneath one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The switch that it sends to.
    pub level: Level,
    /// Own bit in `workers`.
    pub worker: u8,
    /// Workers of its rack.
    pub rack_fan_in: u8,
    /// Own rack's bit in `racks`.
    pub rack: u8,
    /// Racks of the job.
    pub server_fan_in: u8,
}

/// An allreduce, and how its reals become integers.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    /// What to reduce; its format must be one that `supports` does.
    pub what: operations::Submission,
    /// For a sum of reals.
    pub scaling: Scaling,
}

/// How reals become integers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    /// One scale for all; fragments that it does not fit travel again as floats.
    Fixed(Scale),
    /// Per fragment, by the largest exponent that any worker has there: always fits.
    Shared,
}

/// Where a result belongs, and what it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Accepted {
    /// Number of the fragment in this epoch, over all operations.
    pub g: u64,
    /// Operation.
    pub id: u64,
    /// Of the operation's buffer.
    pub dtype: Dtype,
    /// What is in the payload.
    pub content: Content,
}

/// What a payload holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Greatest exponents of fragments, as int32: those with these numbers of the epoch.
    Exponents(Range<u64>),
    /// These elements as they are.
    Integers(Range<u64>),
    /// These elements times the scale, as int32.
    Scaled(Range<u64>, Scale),
    /// These elements as float32.
    Floats(Range<u64>),
}

/// A packet to be sent towards a server; `Worker::write` makes its payload.
#[derive(Clone, Debug, PartialEq)]
pub struct Outgoing {
    /// Header.
    pub header: Header,
    /// Operation, and what follows the header.
    pub payload: Option<(u64, Content)>,
}

/// What the caller must hear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Every fragment of the operation is summed.
    Done {
        /// Operation.
        id: u64,
    },
    /// The workers do not agree on what they reduce; the operation will not end.
    Mismatch {
        /// Operation.
        id: u64,
    },
    /// Something is in flight and the server has not answered for this long. Repeated.
    Silent {
        /// Server.
        tree: TreeId,
        /// How long.
        for_ns: u64,
    },
}

/// Whether this protocol can do a format; the rest goes over the hosts.
pub fn supports(format: Format) -> bool {
    match (format.dtype, format.op) {
        (Dtype::F32 | Dtype::F16 | Dtype::Bf16, ReduceOp::Sum) => true,
        (Dtype::I32, op) => matches!(op, ReduceOp::Sum | ReduceOp::Min | ReduceOp::Max),
        _ => false,
    }
}
