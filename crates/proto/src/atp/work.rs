//! What goes into a worker and comes out of it.

use std::ops::Range;

use netsum_wire::atp::{Header, Level};
use netsum_wire::fixed::Scale;
use netsum_wire::{Dtype, Epoch, Format, JobId, ReduceOp};

use crate::CongestionRule;
use crate::worker::{AcceptedResult, OutgoingPacket};

/// What a worker must know of its job's plan.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerConfig {
    /// Job.
    pub job: JobId,
    /// Version of the plan.
    pub epoch: Epoch,
    /// Workers of the job.
    pub ranks: u32,
    /// Own place beneath each server, at least one.
    pub places: Vec<WorkerPosition>,
    /// The most fragments in flight per server.
    pub window_max: u16,
    /// Largest payload, in steps of 4.
    pub fragment_bytes: u16,
    /// Slots of a switch.
    pub slots: u32,
    /// Reaction to congestion.
    pub congestion: CongestionRule,
    /// How reals become integers.
    pub scaling: Scaling,
}

/// Where a worker stands beneath one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerPosition {
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

/// Whether this protocol can do a format; the rest goes over the hosts.
pub fn supports(format: Format) -> bool {
    match (format.dtype, format.op) {
        (Dtype::F32 | Dtype::F16 | Dtype::Bf16, ReduceOp::Sum) => true,
        (Dtype::I32, op) => matches!(op, ReduceOp::Sum | ReduceOp::Min | ReduceOp::Max),
        _ => false,
    }
}

impl AcceptedResult for Accepted {
    fn g(&self) -> u64 {
        self.g
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn elements(&self) -> Option<Range<u64>> {
        self.content.elements()
    }
}

impl OutgoingPacket for Outgoing {
    type Header = Header;

    fn header(&self) -> &Header {
        &self.header
    }

    fn operation(&self) -> Option<u64> {
        self.payload.as_ref().map(|(id, _)| *id)
    }

    fn elements(&self) -> Option<Range<u64>> {
        self.payload.as_ref().and_then(|(_, content)| content.elements())
    }
}
