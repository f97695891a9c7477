//! What goes into a worker and comes out of it.

use std::ops::Range;

use netsum_wire::fixed::Scale;
use netsum_wire::{Dtype, Epoch, JobId};

use super::Header;
use crate::worker::{AcceptedResult, OutgoingPacket};

/// What a worker must know of its job's plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerConfig {
    /// Job.
    pub job: JobId,
    /// Version of the plan.
    pub epoch: Epoch,
    /// Own number.
    pub worker: u8,
    /// Workers of the job.
    pub workers: u8,
    /// Slots of the pool.
    pub slots: u16,
    /// Largest payload, in steps of 4.
    pub fragment_bytes: u16,
    /// First time-out; usually [`super::TIMEOUT_NS`].
    pub timeout_ns: u64,
}

/// Where a result belongs, and what it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Accepted {
    /// Number of the packet in this epoch.
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
    /// Nothing: the packet is there for the exponent in its header.
    Nothing,
    /// These elements as they are.
    Integers(Range<u64>),
    /// These elements times the scale, as int32.
    Scaled(Range<u64>, Scale),
    /// These elements, of which some worker's are not finite: zeros travel, and all of the fragment
    /// comes back as NaN.
    NotFinite(Range<u64>),
}

impl Content {
    /// Elements of the operation's buffer that a result replaces, if any.
    pub fn elements(&self) -> Option<Range<u64>> {
        match self {
            Content::Nothing => None,
            Content::Integers(range) | Content::Scaled(range, _) | Content::NotFinite(range) => {
                Some(range.clone())
            }
        }
    }
}

/// A packet to be sent; `Worker::write` makes its payload.
#[derive(Clone, Debug, PartialEq)]
pub struct Outgoing {
    /// Header.
    pub header: Header,
    /// Operation, and what follows the header.
    pub payload: Option<(u64, Content)>,
    /// Elements whose exponent the header carries.
    pub next: Option<Range<u64>>,
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
