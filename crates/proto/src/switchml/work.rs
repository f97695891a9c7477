//! Inputs and outputs of a worker.

use std::ops::Range;

use netsum_wire::fixed::Scale;
use netsum_wire::{Dtype, Epoch, JobId, Words};

use super::Header;
use crate::worker::{AcceptedResult, OutgoingPacket};

/// A worker's configuration, by its job's plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerConfig {
    /// Job.
    pub job: JobId,
    /// Version of the plan.
    pub epoch: Epoch,
    /// Number of this worker.
    pub worker: u8,
    /// Number of workers of the job.
    pub workers: u8,
    /// Whether the job has a second pool, in which one worker's elements are copied to the others, so that all
    /// collectives go through the switch; workers are then numbered as ranks.
    pub copies: bool,
    /// Number of slots of each pool.
    pub slots: u16,
    /// Largest payload, in steps of 4.
    pub fragment_bytes: u16,
    /// Initial time-out; usually [`super::TIMEOUT_NS`].
    pub timeout_ns: u64,
}

/// Destination and content of a result.
#[derive(Clone, Debug, PartialEq)]
pub struct Accepted {
    /// Number of the packet in this epoch, over the packets of all pools.
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
    /// Nothing: the packet only carries the exponent in its header.
    Nothing,
    /// These elements, in words that a slot combines.
    Words(Range<u64>, Words),
    /// These elements times the scale, as int32.
    Scaled(Range<u64>, Scale),
    /// These elements, of which some worker's are not finite: zeros are sent, and all of the fragment becomes NaN.
    NotFinite(Range<u64>),
}

impl Content {
    /// Elements of the operation's buffer that a result replaces, if any.
    pub fn elements(&self) -> Option<Range<u64>> {
        match self {
            Content::Nothing => None,
            Content::Words(range, _) | Content::Scaled(range, _) | Content::NotFinite(range) => {
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
    /// Id of the operation, and the payload's content.
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
