//! One rank collects the others' pieces and adds them; the root of a reduce, each rank of a reduce-scatter.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;
use netsum_topo::SumOrder;
use netsum_wire::Format;

use super::{Algorithm, Reduce, ReduceScatter};
use crate::comm::{Comm, Ticket};
use crate::order::Adder;
use crate::pieces::{CHUNK, pieces};

/// Every rank sends its whole buffer to the root.
pub(super) const REDUCE: Algorithm<Reduce> = Algorithm {
    name: "one-hop",
    cost: |link, sum| {
        let bytes = sum.bytes as f64 * f64::from(link.ranks - 1);
        Some(link.latency_s + bytes / link.bytes_per_s)
    },
    run: reduce,
};
/// Every rank sends each piece to the rank that receives its sum.
pub(super) const REDUCE_SCATTER: Algorithm<ReduceScatter> = Algorithm {
    name: "one-hop",
    cost: |link, sum| {
        let bytes = sum.longest as f64 * f64::from(link.ranks - 1);
        Some(link.latency_s + bytes / link.bytes_per_s)
    },
    run: reduce_scatter,
};

fn reduce(comm: &mut Comm<'_>, reduction: &mut Reduce) -> Result<(), MeshError> {
    let Reduce { order, format, buffer, root } = reduction;
    let all = 0..buffer.len();
    if comm.rank() == *root {
        let mut collector = Collector::new(comm, order, *format, all, PLAIN);
        while let Some(chunk) = collector.next(comm)? {
            let sum = collector.add(comm, buffer, &chunk);
            buffer.write(chunk.start, sum);
        }
    } else {
        contribute(comm, *root, buffer, all, *format, PLAIN);
    }
    comm.finish()
}

fn reduce_scatter(comm: &mut Comm<'_>, scattering: &mut ReduceScatter) -> Result<(), MeshError> {
    let ReduceScatter { order, format, inputs, .. } = scattering;
    for to in comm.others() {
        let input = &inputs[to as usize];
        contribute(comm, to, input, 0..input.len(), *format, PLAIN);
    }
    let rank = comm.rank();
    let len = inputs[rank as usize].len();
    let mut collector = Collector::new(comm, order, *format, 0..len, PLAIN);
    while let Some(chunk) = collector.next(comm)? {
        // The output may be this rank's input: it is written when a chunk is added, in order.
        let sum = collector.add(comm, &scattering.inputs[rank as usize], &chunk);
        scattering.output(rank).write(chunk.start, sum);
    }
    comm.finish()
}

/// How the chunks of a stage are numbered among the parts of an operation.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    pub(super) first: u64,
    pub(super) step: u64,
}

const PLAIN: Parts = Parts { first: 0, step: 1 };

/// Sends a range of own values to the rank that adds it.
pub(super) fn contribute(
    comm: &Comm<'_>,
    to: u32,
    buffer: &Buffer,
    range: Range<usize>,
    format: Format,
    parts: Parts,
) {
    for (index, chunk) in chunks(range, format).enumerate() {
        let part = parts.first + parts.step * index as u64;
        comm.send(to, part, buffer, chunk.start, chunk.len());
    }
}

/// Chunks of whole elements; an empty range is one empty chunk, so that every rank learns of the operation.
pub(super) fn chunks(range: Range<usize>, format: Format) -> impl Iterator<Item = Range<usize>> {
    let nothing = range.is_empty().then(|| range.clone());
    let step = CHUNK / format.dtype.size() * format.dtype.size();
    nothing.into_iter().chain(pieces(range, step))
}

/// Receives all ranks' values of a range, chunk after chunk, a few ahead.
pub(super) struct Collector {
    adder: Adder,
    parts: Parts,
    todo: VecDeque<(u64, Range<usize>)>,
    ahead: VecDeque<Expected>,
    /// Memory of chunks that are added.
    spare: Vec<Vec<Buffer>>,
    /// The sum of a chunk.
    sum: Vec<u8>,
}

struct Expected {
    chunk: Range<usize>,
    /// The other ranks' values, by rank; the own entry is empty.
    values: Vec<Buffer>,
    tickets: Vec<Ticket>,
}

impl Collector {
    pub(super) fn new(
        comm: &mut Comm<'_>,
        order: &Arc<SumOrder>,
        format: Format,
        range: Range<usize>,
        parts: Parts,
    ) -> Collector {
        let numbered = chunks(range, format).enumerate();
        let todo = numbered.map(|(index, chunk)| (index as u64, chunk)).collect();
        let adder = Adder::new(order, format);
        let (ahead, spare, sum) = (VecDeque::new(), Vec::new(), Vec::new());
        let mut collector = Collector { adder, parts, todo, ahead, spare, sum };
        for _ in 0..AHEAD {
            collector.expect(comm);
        }
        collector
    }

    /// Waits for the next chunk's values.
    pub(super) fn next(&mut self, comm: &mut Comm<'_>) -> Result<Option<Range<usize>>, MeshError> {
        let Some(expected) = self.ahead.front() else { return Ok(None) };
        for &ticket in &expected.tickets {
            comm.wait(ticket)?;
        }
        Ok(Some(expected.chunk.clone()))
    }

    /// Adds the chunk returned by `next`, with own values from `own`; returns the sum.
    pub(super) fn add(&mut self, comm: &mut Comm<'_>, own: &Buffer, chunk: &Range<usize>) -> &[u8] {
        self.sum.resize(chunk.len(), 0);
        if let Some(expected) = self.ahead.pop_front() {
            let mut values: Vec<&[u8]> =
                expected.values.iter().map(|v| v.slice(0..v.len().min(chunk.len()))).collect();
            values[comm.rank() as usize] = own.slice(chunk.clone());
            self.adder.add(&values, &mut self.sum);
            self.spare.push(expected.values);
            self.expect(comm);
        }
        &self.sum
    }

    fn expect(&mut self, comm: &mut Comm<'_>) {
        let Some((index, chunk)) = self.todo.pop_front() else { return };
        let rank = comm.rank();
        let mut values: Vec<Buffer> = self.spare.pop().unwrap_or_else(|| {
            let len = |from: u32| if from == rank { 0 } else { chunk.len() };
            (0..comm.size()).map(|from| Buffer::from_vec(vec![0; len(from)])).collect()
        });
        let part = self.parts.first + self.parts.step * index;
        let others = comm.others();
        let tickets = others
            .map(|from| comm.receive(from, part, &mut values[from as usize], 0, chunk.len()))
            .collect();
        self.ahead.push_back(Expected { chunk, values, tickets });
    }
}

/// Chunks for which memory is allocated: one is added while the next ones arrive.
const AHEAD: usize = 3;
