//! What the operations of the host path are given, and what their costs depend on.

use std::sync::Arc;

use netsum_net::Buffer;
use netsum_topo::SumOrder;
use netsum_wire::Format;

/// An operation that has several algorithms.
pub(crate) trait Request {
    /// All that its cost depends on, equal at all ranks.
    type Shape;

    fn shape(&self) -> Self::Shape;
}

/// An allreduce, in place.
pub(crate) struct Allreduce {
    pub(crate) order: Arc<SumOrder>,
    pub(crate) format: Format,
    pub(crate) buffer: Buffer,
}

/// What the cost of an allreduce depends on.
pub(crate) struct SumShape {
    pub(crate) order: Arc<SumOrder>,
    pub(crate) format: Format,
    pub(crate) bytes: usize,
}

impl Request for Allreduce {
    type Shape = SumShape;

    fn shape(&self) -> SumShape {
        let Allreduce { order, format, buffer } = self;
        SumShape { order: order.clone(), format: *format, bytes: buffer.len() }
    }
}

/// An all-gather; `outputs` by rank.
pub(crate) struct Allgather {
    pub(crate) input: Buffer,
    pub(crate) outputs: Vec<Buffer>,
}

/// Bytes that ranks give to an all-gather.
pub(crate) struct GatherShape {
    pub(crate) longest: usize,
    pub(crate) all: usize,
}

impl Request for Allgather {
    type Shape = GatherShape;

    fn shape(&self) -> GatherShape {
        let sizes = || self.outputs.iter().map(Buffer::len);
        GatherShape { longest: sizes().max().unwrap_or(0), all: sizes().sum() }
    }
}

/// A broadcast.
pub(crate) struct Broadcast {
    pub(crate) buffer: Buffer,
    pub(crate) root: u32,
}

impl Request for Broadcast {
    /// Bytes.
    type Shape = usize;

    fn shape(&self) -> usize {
        self.buffer.len()
    }
}

/// A reduce, in place at the root.
pub(crate) struct Reduce {
    pub(crate) order: Arc<SumOrder>,
    pub(crate) format: Format,
    pub(crate) buffer: Buffer,
    pub(crate) root: u32,
}

impl Request for Reduce {
    type Shape = SumShape;

    fn shape(&self) -> SumShape {
        let Reduce { order, format, buffer, .. } = self;
        SumShape { order: order.clone(), format: *format, bytes: buffer.len() }
    }
}

/// A reduce-scatter; `inputs` by rank.
pub(crate) struct ReduceScatter {
    pub(crate) order: Arc<SumOrder>,
    pub(crate) format: Format,
    /// `None`: our own input.
    pub(crate) output: Option<Buffer>,
    pub(crate) inputs: Vec<Buffer>,
}

impl ReduceScatter {
    /// Where the sum of that rank, ours, goes.
    pub(crate) fn output(&mut self, rank: u32) -> &mut Buffer {
        self.output.as_mut().unwrap_or(&mut self.inputs[rank as usize])
    }
}

/// What the cost of a reduce-scatter depends on.
pub(crate) struct ScatterShape {
    pub(crate) order: Arc<SumOrder>,
    pub(crate) format: Format,
    /// Bytes of the longest output.
    pub(crate) longest: usize,
}

impl Request for ReduceScatter {
    type Shape = ScatterShape;

    fn shape(&self) -> ScatterShape {
        let longest = self.inputs.iter().map(Buffer::len).max().unwrap_or(0);
        ScatterShape { order: self.order.clone(), format: self.format, longest }
    }
}

/// A gather; at the root `outputs` by rank.
pub(crate) struct Gather {
    pub(crate) input: Buffer,
    pub(crate) outputs: Vec<Buffer>,
    pub(crate) root: u32,
}

/// A scatter; at the root `inputs` by rank.
pub(crate) struct Scatter {
    pub(crate) output: Buffer,
    pub(crate) inputs: Vec<Buffer>,
    pub(crate) root: u32,
}

/// An all-to-all; both by rank.
pub(crate) struct Alltoall {
    pub(crate) outputs: Vec<Buffer>,
    pub(crate) inputs: Vec<Buffer>,
}

/// A barrier.
pub(crate) struct Barrier;

/// Operations of which sizes are known to some ranks only, so that choices cannot depend on them.
macro_rules! of_unknown_size {
    ($($request:ty),*) => {
        $(impl Request for $request {
            type Shape = ();

            fn shape(&self) {}
        })*
    };
}
of_unknown_size!(Gather, Scatter, Alltoall, Barrier);
