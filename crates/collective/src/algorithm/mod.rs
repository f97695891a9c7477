//! Collectives on the host path: blocking functions over the messages of one operation.
//!
//! Each moves bytes straight between the callers' buffers where it can. What is added is added in the group's
//! order, so the bits are those of the trees.
//!
//! An operation for which there are several ways has a list of [`Algorithm`]s: one file each, and one line in the
//! list. [`choose`] takes the one that the group's options name, or the cheapest by the cost model; since it sees only what
//! all ranks agree on, all take the same. docs/algorithms.md writes one from scratch.

mod allreduce;
mod barrier;
mod broadcast;
mod bruck;
mod chain;
mod exchange;
mod halving_doubling;
mod hierarchical;
mod in_memory;
mod reduce;
mod ring;

pub(crate) use allreduce::allreduce_ranges;
pub use hierarchical::Across;

use std::ops::Range;
use std::sync::Arc;

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;
use netsum_topo::SumOrder;
use netsum_wire::Format;
use serde::Serialize;

use crate::comm::Comm;

/// One way to do an operation.
pub(crate) struct Algorithm<R: Request> {
    /// In options.
    pub(crate) name: &'static str,
    /// Seconds that a request of that shape will take; `None` where this way cannot be taken. Equal at all ranks.
    pub(crate) cost: fn(&Link, &R::Shape) -> Option<f64>,
    pub(crate) run: fn(&mut Comm<'_>, &R) -> Result<(), MeshError>,
}

/// An operation that has several ways.
pub(crate) trait Request {
    /// All that its cost depends on, equal at all ranks.
    type Shape;

    fn shape(&self) -> Self::Shape;
}

/// What costs are made of; equal at all ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Link {
    /// In the group.
    pub ranks: u32,
    /// All of them share memory.
    pub shared_memory: bool,
    /// From the call of a send to the end of the receive, for a small message.
    pub latency_s: f64,
    /// Of one rank, each way, while all send.
    pub bytes_per_s: f64,
    /// Between hosts, where some have several ranks that share memory.
    pub across: Option<Across>,
}

/// An allreduce, in place.
pub(crate) struct Sum {
    pub(crate) order: Arc<SumOrder>,
    pub(crate) format: Format,
    pub(crate) buffer: Buffer,
}

/// What the cost of an allreduce depends on.
pub(crate) struct Addition {
    pub(crate) order: Arc<SumOrder>,
    pub(crate) format: Format,
    pub(crate) bytes: usize,
}

impl Request for Sum {
    type Shape = Addition;

    fn shape(&self) -> Addition {
        let Sum { order, format, buffer } = self;
        Addition { order: order.clone(), format: *format, bytes: buffer.len() }
    }
}

/// An all-gather; `outputs` by rank.
pub(crate) struct Gather {
    pub(crate) input: Buffer,
    pub(crate) outputs: Vec<Buffer>,
}

/// Bytes that ranks give to an all-gather.
pub(crate) struct Pieces {
    pub(crate) longest: usize,
    pub(crate) all: usize,
}

impl Request for Gather {
    type Shape = Pieces;

    fn shape(&self) -> Pieces {
        let sizes = || self.outputs.iter().map(Buffer::len);
        Pieces { longest: sizes().max().unwrap_or(0), all: sizes().sum() }
    }
}

/// A broadcast.
pub(crate) struct Cast {
    pub(crate) buffer: Buffer,
    pub(crate) root: u32,
}

impl Request for Cast {
    /// Bytes.
    type Shape = usize;

    fn shape(&self) -> usize {
        self.buffer.len()
    }
}

/// A reduce, in place at the root.
pub(crate) struct Reduction {
    pub(crate) order: Arc<SumOrder>,
    pub(crate) format: Format,
    pub(crate) buffer: Buffer,
    pub(crate) root: u32,
}

impl Request for Reduction {
    type Shape = Addition;

    fn shape(&self) -> Addition {
        let Reduction { order, format, buffer, .. } = self;
        Addition { order: order.clone(), format: *format, bytes: buffer.len() }
    }
}

/// A reduce-scatter; `inputs` by rank.
pub(crate) struct Scattering {
    pub(crate) order: Arc<SumOrder>,
    pub(crate) format: Format,
    pub(crate) output: Buffer,
    pub(crate) inputs: Vec<Buffer>,
}

/// What the cost of a reduce-scatter depends on.
pub(crate) struct Scattered {
    pub(crate) order: Arc<SumOrder>,
    pub(crate) format: Format,
    /// Bytes of the longest output.
    pub(crate) longest: usize,
}

impl Request for Scattering {
    type Shape = Scattered;

    fn shape(&self) -> Scattered {
        let longest = self.inputs.iter().map(Buffer::len).max().unwrap_or(0);
        Scattered { order: self.order.clone(), format: self.format, longest }
    }
}

/// A gather; at the root `outputs` by rank.
pub(crate) struct Collect {
    pub(crate) input: Buffer,
    pub(crate) outputs: Vec<Buffer>,
    pub(crate) root: u32,
}

/// A scatter; at the root `inputs` by rank.
pub(crate) struct Deal {
    pub(crate) output: Buffer,
    pub(crate) inputs: Vec<Buffer>,
    pub(crate) root: u32,
}

/// An all-to-all; both by rank.
pub(crate) struct Exchange {
    pub(crate) outputs: Vec<Buffer>,
    pub(crate) inputs: Vec<Buffer>,
}

/// A barrier.
pub(crate) struct Meeting;

/// Operations of which sizes are known to some ranks only, so that choices cannot depend on them.
macro_rules! of_unknown_size {
    ($($request:ty),*) => {
        $(impl Request for $request {
            type Shape = ();

            fn shape(&self) {}
        })*
    };
}
of_unknown_size!(Collect, Deal, Exchange, Meeting);

pub(crate) const REDUCE: [Algorithm<Reduction>; 3] =
    [in_memory::REDUCE, reduce::REDUCE, hierarchical::REDUCE];
pub(crate) const REDUCE_SCATTER: [Algorithm<Scattering>; 3] =
    [in_memory::REDUCE_SCATTER, reduce::REDUCE_SCATTER, hierarchical::REDUCE_SCATTER];
pub(crate) const GATHER: [Algorithm<Collect>; 3] =
    [in_memory::GATHER, exchange::GATHER, hierarchical::GATHER];
pub(crate) const SCATTER: [Algorithm<Deal>; 3] =
    [in_memory::SCATTER, exchange::SCATTER, hierarchical::SCATTER];
pub(crate) const ALLTOALL: [Algorithm<Exchange>; 3] =
    [in_memory::ALLTOALL, exchange::ALLTOALL, hierarchical::ALLTOALL];
pub(crate) const BARRIER: [Algorithm<Meeting>; 3] =
    [in_memory::BARRIER, barrier::DISSEMINATION, hierarchical::BARRIER];
pub(crate) const ALLREDUCE: [Algorithm<Sum>; 6] = [
    in_memory::ALLREDUCE,
    allreduce::ONE_HOP,
    allreduce::SHARES,
    halving_doubling::ALGORITHM,
    ring::ALLREDUCE,
    hierarchical::ALLREDUCE,
];
pub(crate) const ALLGATHER: [Algorithm<Gather>; 5] = [
    in_memory::ALLGATHER,
    exchange::ALLGATHER,
    bruck::ALLGATHER,
    ring::ALLGATHER,
    hierarchical::ALLGATHER,
];
pub(crate) const BROADCAST: [Algorithm<Cast>; 5] = [
    in_memory::BROADCAST,
    broadcast::BINOMIAL,
    broadcast::ONE_HOP,
    chain::BROADCAST,
    hierarchical::BROADCAST,
];

/// Names of the algorithms of an operation that has several.
pub(crate) fn names(operation: &str) -> Option<Vec<&'static str>> {
    match operation {
        "allreduce" => Some(ALLREDUCE.iter().map(|a| a.name).collect()),
        "allgather" => Some(ALLGATHER.iter().map(|a| a.name).collect()),
        "broadcast" => Some(BROADCAST.iter().map(|a| a.name).collect()),
        "reduce" => Some(REDUCE.iter().map(|a| a.name).collect()),
        "reduce_scatter" => Some(REDUCE_SCATTER.iter().map(|a| a.name).collect()),
        "gather" => Some(GATHER.iter().map(|a| a.name).collect()),
        "scatter" => Some(SCATTER.iter().map(|a| a.name).collect()),
        "alltoall" => Some(ALLTOALL.iter().map(|a| a.name).collect()),
        "barrier" => Some(BARRIER.iter().map(|a| a.name).collect()),
        _ => None,
    }
}

/// Operations that have several algorithms, as options name them.
pub(crate) const OPERATIONS: &str =
    "allreduce, allgather, broadcast, reduce, reduce_scatter, gather, scatter, alltoall, barrier";

/// The sum of everybody's buffer, in place.
pub(crate) fn allreduce(comm: &mut Comm<'_>, sum: &Sum) -> Result<(), MeshError> {
    run(comm, &ALLREDUCE, "allreduce", sum)
}

/// Everybody's input in everybody's outputs, by rank.
pub(crate) fn allgather(comm: &mut Comm<'_>, gather: &Gather) -> Result<(), MeshError> {
    run(comm, &ALLGATHER, "allgather", gather)
}

/// The root's buffer in everybody's.
pub(crate) fn broadcast(comm: &mut Comm<'_>, cast: &Cast) -> Result<(), MeshError> {
    run(comm, &BROADCAST, "broadcast", cast)
}

/// The sum of everybody's buffer in the root's; the others' are left alone.
pub(crate) fn reduce(comm: &mut Comm<'_>, reduction: &Reduction) -> Result<(), MeshError> {
    run(comm, &REDUCE, "reduce", reduction)
}

/// The sum of everybody's `inputs[rank]` in `output`.
pub(crate) fn reduce_scatter(comm: &mut Comm<'_>, all: &Scattering) -> Result<(), MeshError> {
    run(comm, &REDUCE_SCATTER, "reduce_scatter", all)
}

/// Everybody's input in the root's outputs.
pub(crate) fn gather(comm: &mut Comm<'_>, collect: &Collect) -> Result<(), MeshError> {
    run(comm, &GATHER, "gather", collect)
}

/// The root's inputs in everybody's output.
pub(crate) fn scatter(comm: &mut Comm<'_>, deal: &Deal) -> Result<(), MeshError> {
    run(comm, &SCATTER, "scatter", deal)
}

/// Input i of rank r in output r of rank i.
pub(crate) fn alltoall(comm: &mut Comm<'_>, exchange: &Exchange) -> Result<(), MeshError> {
    run(comm, &ALLTOALL, "alltoall", exchange)
}

/// Done when everybody has called it.
pub(crate) fn barrier(comm: &mut Comm<'_>) -> Result<(), MeshError> {
    run(comm, &BARRIER, "barrier", &Meeting)
}

fn run<R: Request>(
    comm: &mut Comm<'_>,
    all: &[Algorithm<R>],
    operation: &str,
    request: &R,
) -> Result<(), MeshError> {
    if comm.size() == 1 {
        // Any of them copies what there is to copy; the first needs shared memory.
        return (all[1].run)(comm, request);
    }
    let wanted = comm.wanted(operation);
    if comm.in_memory() && wanted.is_none() {
        // The first of every list. Nothing comes near, and the others' costs are not worked out in vain.
        return (all[0].run)(comm, request);
    }
    (choose(all, wanted, &comm.link(), &request.shape()).run)(comm, request)
}

/// The algorithm that `wanted` names if it can do the request, else the cheapest; the first of equals.
pub(crate) fn choose<'a, R: Request>(
    all: &'a [Algorithm<R>],
    wanted: Option<&str>,
    link: &Link,
    shape: &R::Shape,
) -> &'a Algorithm<R> {
    let able = || all.iter().filter_map(|a| Some((a, (a.cost)(link, shape)?)));
    let named = able().find(|(a, _)| Some(a.name) == wanted);
    let cheapest = || able().reduce(|best, next| if next.1 < best.1 { next } else { best });
    named.or_else(cheapest).map(|(a, _)| a).expect("one hop does everything")
}

/// Bytes of the elements that `rank` adds: shares differ by at most one element.
fn share(bytes: usize, element: usize, rank: u32, size: u32) -> Range<usize> {
    let (n, size) = ((bytes / element) as u64, u64::from(size));
    let start = |rank: u64| (n * rank / size) as usize * element;
    start(u64::from(rank))..start(u64::from(rank) + 1)
}

/// Copies all of `from` to the start of `to`; the two may be the same memory, or overlap.
pub(crate) fn copy(from: &Buffer, to: &Buffer) {
    let source = from.slice(0..from.len());
    let (target, origin) = (to.slice(0..to.len()).as_ptr_range(), source.as_ptr_range());
    if target.start == origin.start {
        return;
    }
    if target.end <= origin.start || origin.end <= target.start {
        to.write(0, source);
    } else {
        let apart = source.to_vec();
        to.write(0, &apart);
    }
}

/// Cuts `range` into pieces of at most `step`.
pub(crate) fn pieces(range: Range<usize>, step: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(step).map(move |start| start..end.min(start + step))
}

/// Bytes of a piece for which ways are compared where only some ranks know the sizes.
pub(crate) const TYPICAL: usize = 64 << 10;

/// Bytes of a message in a pipeline: long enough that its cost per message is small, short enough that several
/// are under way.
pub(crate) const CHUNK: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use netsum_wire::{Dtype, ReduceOp};

    use super::*;

    fn chosen(ranks: u32, bytes: usize, dtype: Dtype, wanted: Option<&str>) -> &'static str {
        let link = Link {
            ranks,
            shared_memory: false,
            latency_s: 30e-6,
            bytes_per_s: 1.25e9,
            across: None,
        };
        let format = Format { dtype, op: ReduceOp::Sum };
        let order = Arc::new(SumOrder::flat(ranks));
        choose(&ALLREDUCE, wanted, &link, &Addition { order, format, bytes }).name
    }

    #[test]
    fn the_cheapest_is_taken_unless_another_is_named_and_can_do_it() {
        assert_eq!(chosen(4, 64, Dtype::F32, None), "one-hop");
        assert_eq!(chosen(4, 16 << 20, Dtype::F32, None), "shares");
        assert_eq!(chosen(4, 64, Dtype::F32, Some("halving-doubling")), "halving-doubling");
        assert_eq!(chosen(4, 64, Dtype::I32, Some("ring")), "ring");
        // Its additions would be in another order.
        assert_eq!(chosen(4, 64, Dtype::F32, Some("ring")), "one-hop");
        assert_eq!(chosen(4, 64, Dtype::F32, Some("shared-memory")), "one-hop");
    }
}
