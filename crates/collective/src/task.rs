//! Collectives that switches can do: their memory, and how each is done on either path.

use std::sync::Arc;

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;
use netsum_net::worker::{Parts, Remaining};
use netsum_proto::Pattern;
use netsum_topo::SumOrder;
use netsum_wire::{Dtype, Format, Rank};

use crate::algorithm::{self, Allgather, Allreduce, Broadcast, Reduce, ReduceScatter};
use crate::combine::{Combine, conclude, own_copy, prepare};
use crate::comm::Comm;
use crate::pieces::copy;
use crate::switch_cost::{COPIED, HostShape, Operation};

/// One collective as a rank called it.
pub(crate) enum Task {
    /// In place.
    Allreduce { dtype: Dtype, how: Combine, buffer: Buffer },
    /// Several small buffers, in place, added as one: `together` is made of them.
    AllreduceTogether { dtype: Dtype, how: Combine, parts: Vec<Buffer>, together: Buffer },
    /// In place at the root; the others' buffers do not change.
    Reduce { dtype: Dtype, how: Combine, buffer: Buffer, root: u32 },
    /// `inputs` by rank; `output` `None`: the own input.
    ReduceScatter { dtype: Dtype, how: Combine, output: Option<Buffer>, inputs: Vec<Buffer> },
    /// The root's buffer to all.
    Broadcast { buffer: Buffer, root: u32 },
    /// `outputs` by rank.
    Allgather { input: Buffer, outputs: Vec<Buffer> },
    /// Nothing but that all ranks have called it.
    Barrier,
}

impl Task {
    /// The part of a rank that has given its values to others and takes none.
    pub(crate) fn of(given: Remaining) -> Task {
        let Remaining { submission, buffer: memory } = given;
        let Format { dtype, op } = submission.format;
        let (how, size) = (Combine::Plain(op), dtype.size());
        let copy = |range| Buffer::from_vec(memory.slice(range).to_vec());
        match &submission.pattern {
            Pattern::ReduceScatter(shards) => {
                let mut end = 0;
                let inputs = shards.iter().map(|shard| {
                    let start = end;
                    end += *shard as usize * size;
                    copy(start..end)
                });
                Task::ReduceScatter { dtype, how, output: None, inputs: inputs.collect() }
            }
            Pattern::Reduce(root) => {
                Task::Reduce { dtype, how, buffer: copy(0..memory.len()), root: root.0 }
            }
            pattern => unreachable!("{pattern:?} gives nothing away"),
        }
    }

    /// Dtype and operation in packets.
    pub(crate) fn format(&self) -> Format {
        match self {
            Task::Allreduce { dtype, how, .. }
            | Task::AllreduceTogether { dtype, how, .. }
            | Task::Reduce { dtype, how, .. }
            | Task::ReduceScatter { dtype, how, .. } => {
                Format { dtype: *dtype, op: how.reduce_op() }
            }
            Task::Broadcast { .. } | Task::Allgather { .. } | Task::Barrier => COPIED,
        }
    }

    /// Who contributes and who takes.
    pub(crate) fn pattern(&self) -> Pattern {
        let elements = |parts: &[Buffer]| -> Arc<[u64]> {
            let size = self.format().dtype.size();
            parts.iter().map(|part| (part.len() / size) as u64).collect()
        };
        match self {
            Task::Allreduce { .. } | Task::AllreduceTogether { .. } => Pattern::Allreduce,
            Task::Reduce { root, .. } => Pattern::Reduce(Rank(*root)),
            Task::ReduceScatter { inputs, .. } => Pattern::ReduceScatter(elements(inputs)),
            Task::Broadcast { root, .. } => Pattern::Broadcast(Rank(*root)),
            Task::Allgather { outputs, .. } => Pattern::Allgather(elements(outputs)),
            Task::Barrier => Pattern::Barrier,
        }
    }

    /// Bytes of all elements.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Task::Allreduce { buffer, .. }
            | Task::AllreduceTogether { together: buffer, .. }
            | Task::Reduce { buffer, .. }
            | Task::Broadcast { buffer, .. } => buffer.len(),
            Task::ReduceScatter { inputs: parts, .. } | Task::Allgather { outputs: parts, .. } => {
                parts.iter().map(Buffer::len).sum()
            }
            Task::Barrier => 0,
        }
    }

    /// Elements as packets count them.
    pub(crate) fn numel(&self) -> u64 {
        (self.bytes() / self.format().dtype.size()) as u64
    }

    /// The operation that it is.
    pub(crate) fn operation(&self) -> Operation {
        match self {
            Task::Allreduce { .. } | Task::AllreduceTogether { .. } => Operation::Allreduce,
            Task::Reduce { .. } => Operation::Reduce,
            Task::ReduceScatter { .. } => Operation::ReduceScatter,
            Task::Broadcast { .. } => Operation::Broadcast,
            Task::Allgather { .. } => Operation::Allgather,
            Task::Barrier => Operation::Barrier,
        }
    }

    /// What its modelled cost between the hosts depends on.
    pub(crate) fn host_shape(&self) -> HostShape {
        let bytes = self.bytes();
        let longest = match self {
            Task::ReduceScatter { inputs: parts, .. } | Task::Allgather { outputs: parts, .. } => {
                parts.iter().map(Buffer::len).max().unwrap_or(0)
            }
            _ => bytes,
        };
        HostShape { operation: self.operation(), format: self.format(), bytes, longest }
    }

    /// Whether every part consists of whole elements of packets.
    pub(crate) fn is_whole(&self) -> bool {
        let size = self.format().dtype.size();
        match self {
            Task::Broadcast { buffer, .. } => buffer.len().is_multiple_of(size),
            Task::Allgather { outputs, .. } => outputs.iter().all(|o| o.len().is_multiple_of(size)),
            _ => true,
        }
    }

    /// Scales the values of a scaled sum, in copies where the caller's must not change.
    pub(crate) fn prepare(&mut self, rank: u32) {
        match self {
            Task::Allreduce { dtype, how, buffer }
            | Task::AllreduceTogether { dtype, how, together: buffer, .. } => {
                prepare(*how, *dtype, buffer);
            }
            Task::Reduce { dtype, how, buffer, root } => {
                if rank != *root
                    && let Some(copy) = own_copy(*how, buffer)
                {
                    *buffer = copy;
                }
                prepare(*how, *dtype, buffer);
            }
            Task::ReduceScatter { dtype, how, output, inputs } => {
                for (number, input) in (0..).zip(inputs) {
                    let Some(copy) = own_copy(*how, input) else { break };
                    let given = std::mem::replace(input, copy);
                    if number == rank {
                        output.get_or_insert(given);
                    }
                    prepare(*how, *dtype, input);
                }
            }
            Task::Broadcast { .. } | Task::Allgather { .. } | Task::Barrier => {}
        }
    }

    /// Lends the memory to the driver of the trees.
    pub(crate) fn lend(&mut self, rank: u32) -> Parts {
        let own = rank as usize;
        match self {
            Task::Allreduce { buffer, .. }
            | Task::AllreduceTogether { together: buffer, .. }
            | Task::Reduce { buffer, .. }
            | Task::Broadcast { buffer, .. } => buffer.lend_all().into(),
            Task::ReduceScatter { output, inputs, .. } => {
                let start = inputs[..own].iter().map(Buffer::len).sum();
                let parts = Parts::new(inputs.iter_mut().map(Buffer::lend_all));
                match output {
                    Some(output) => parts.with_output(start, output.lend_all()),
                    None => parts,
                }
            }
            Task::Allgather { input, outputs } => {
                // The caller's input may be where its output is.
                copy(input, &mut outputs[own]);
                Parts::new(outputs.iter_mut().map(Buffer::lend_all))
            }
            Task::Barrier => Parts::new([]),
        }
    }

    /// Divides the sum of an average by the number of ranks whose values it contains, and copies sums to where they
    /// belong.
    pub(crate) fn conclude(&mut self, rank: u32, ranks: u32) {
        match self {
            Task::Allreduce { dtype, how, buffer } => conclude(*how, *dtype, buffer, ranks),
            Task::AllreduceTogether { dtype, how, parts, together } => {
                conclude(*how, *dtype, together, ranks);
                let mut start = 0;
                for part in parts {
                    let end = start + part.len();
                    part.write(0, together.slice(start..end));
                    start = end;
                }
            }
            Task::Reduce { dtype, how, buffer, root } if *root == rank => {
                conclude(*how, *dtype, buffer, ranks);
            }
            Task::ReduceScatter { dtype, how, output, inputs } => {
                let result = output.as_mut().unwrap_or(&mut inputs[rank as usize]);
                conclude(*how, *dtype, result, ranks);
            }
            Task::Reduce { .. }
            | Task::Broadcast { .. }
            | Task::Allgather { .. }
            | Task::Barrier => {}
        }
    }

    /// The result, if all ranks have the same in one buffer.
    pub(crate) fn common_result(&self) -> Option<&Buffer> {
        match self {
            Task::Allreduce { buffer, .. }
            | Task::AllreduceTogether { together: buffer, .. }
            | Task::Broadcast { buffer, .. } => Some(buffer),
            _ => None,
        }
    }

    /// Does it between the hosts, after [`Task::prepare`].
    pub(crate) fn run(
        &mut self,
        comm: &mut Comm<'_>,
        order: Arc<SumOrder>,
    ) -> Result<(), MeshError> {
        let format = self.format();
        match self {
            Task::Allreduce { buffer, .. } | Task::AllreduceTogether { together: buffer, .. } => {
                let buffer = buffer.lend_all();
                algorithm::allreduce(comm, &mut Allreduce { order, format, buffer })?;
            }
            Task::Reduce { buffer, root, .. } => {
                let (buffer, root) = (buffer.lend_all(), *root);
                algorithm::reduce(comm, &mut Reduce { order, format, buffer, root })?;
            }
            Task::ReduceScatter { output, inputs, .. } => {
                let output = output.as_mut().map(Buffer::lend_all);
                let inputs = inputs.iter_mut().map(Buffer::lend_all).collect();
                algorithm::reduce_scatter(
                    comm,
                    &mut ReduceScatter { order, format, output, inputs },
                )?;
            }
            Task::Broadcast { buffer, root } => {
                let (buffer, root) = (buffer.lend_all(), *root);
                algorithm::broadcast(comm, &mut Broadcast { buffer, root })?;
            }
            Task::Allgather { input, outputs } => {
                let outputs = outputs.iter_mut().map(Buffer::lend_all).collect();
                algorithm::allgather(comm, &mut Allgather { input: input.lend_all(), outputs })?;
            }
            Task::Barrier => algorithm::barrier(comm)?,
        }
        comm.finish()?;
        self.conclude(comm.rank(), comm.size());
        Ok(())
    }
}
