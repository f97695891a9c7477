//! Inputs and outputs of a worker.

use std::ops::Range;

use netsum_wire::atp::{Header, Level};
use netsum_wire::fixed::Scale;
use netsum_wire::{Dtype, Epoch, Format, JobId, Rank, ReduceOp, Words};

use crate::CongestionRule;
use crate::worker::{AcceptedResult, OutgoingPacket};

/// A worker's configuration, by its job's plan.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerConfig {
    /// Job.
    pub job: JobId,
    /// Version of the plan.
    pub epoch: Epoch,
    /// Index of this worker.
    pub rank: Rank,
    /// Workers of the job.
    pub ranks: u32,
    /// Position beneath each server, at least one; with `copies`, those of the copies are the second half.
    pub places: Vec<WorkerPosition>,
    /// Whether each server's tree has a copy, as in [`panama`](crate::panama::WorkerConfig::copies).
    pub copies: bool,
    /// Maximum number of fragments in flight per server.
    pub window_max: u16,
    /// Largest payload, in steps of 4.
    pub fragment_bytes: u16,
    /// Number of slots of a switch.
    pub slots: u32,
    /// Reaction to congestion.
    pub congestion: CongestionRule,
    /// Conversion of reals to integers.
    pub scaling: Scaling,
}

/// Position of a worker beneath one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerPosition {
    /// Level of the switch that it sends to.
    pub level: Level,
    /// Its bit in `workers`.
    pub worker: u8,
    /// Number of workers of its rack.
    pub rack_fan_in: u8,
    /// Its rack's bit in `racks`.
    pub rack: u8,
    /// Number of racks of the job.
    pub server_fan_in: u8,
}

/// Conversion of reals to integers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    /// One scale for all; fragments that exceed it are sent again as floats.
    Fixed(Scale),
    /// Per fragment, by the largest exponent of all workers: always fits.
    Shared,
}

/// Destination and content of a result.
#[derive(Clone, Debug, PartialEq)]
pub struct Accepted {
    /// Number of the fragment in this epoch, over all operations.
    pub g: u64,
    /// Id of the operation.
    pub id: u64,
    /// Dtype of the operation's buffer.
    pub dtype: Dtype,
    /// Content of the payload.
    pub content: Content,
}

/// Content of a payload.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Greatest exponents of the fragments with these numbers of the epoch, as int32.
    Exponents(Range<u64>),
    /// These elements, in words that a slot combines.
    Words(Range<u64>, Words),
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
    /// Id of the operation, and the payload's content.
    pub payload: Option<(u64, Content)>,
}

/// Whether this protocol supports a format with so many ranks; others use the host path.
pub fn supports(format: Format, ranks: u32) -> bool {
    is_scaled(format) || Words::of(format, ranks).is_some()
}

/// Whether elements become integers by a scale.
pub(super) fn is_scaled(format: Format) -> bool {
    matches!(format.dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16) && format.op == ReduceOp::Sum
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
