//! Collectives that only move bytes: every piece goes straight from its sender to its receiver.

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;

use super::{Algorithm, Gather, copy};
use crate::comm::Comm;
use crate::shared;

/// Everybody's `input` to everybody's `outputs`.
pub(super) const ALLGATHER: Algorithm<Gather> = Algorithm {
    name: "one-hop",
    cost: |link, pieces| {
        let bytes = pieces.longest as f64 * f64::from(link.ranks - 1);
        Some(link.latency_s + bytes / link.bytes_per_s)
    },
    run: allgather,
};

fn allgather(comm: &mut Comm<'_>, gather: &Gather) -> Result<(), MeshError> {
    let Gather { input, outputs } = gather;
    for from in comm.others() {
        let output = &outputs[from as usize];
        comm.receive(from, 0, output, 0, output.len());
    }
    copy(input, &outputs[comm.rank() as usize]);
    for to in comm.others() {
        comm.send(to, 0, input, 0, input.len());
    }
    comm.finish()
}

/// Everybody's `input` to the root's `outputs`, by rank; elsewhere `outputs` is empty.
pub(crate) fn gather(
    comm: &mut Comm<'_>,
    input: &Buffer,
    outputs: &[Buffer],
    root: u32,
) -> Result<(), MeshError> {
    if let Some(rounds) = comm.rounds()? {
        return shared::gather(rounds, input, outputs, root);
    }
    if comm.rank() != root {
        comm.send(root, 0, input, 0, input.len());
        return comm.finish();
    }
    for from in comm.others() {
        let output = &outputs[from as usize];
        comm.receive(from, 0, output, 0, output.len());
    }
    copy(input, &outputs[root as usize]);
    comm.finish()
}

/// The root's `inputs`, by rank, to everybody's `output`; elsewhere `inputs` is empty.
pub(crate) fn scatter(
    comm: &mut Comm<'_>,
    output: &Buffer,
    inputs: &[Buffer],
    root: u32,
) -> Result<(), MeshError> {
    if let Some(rounds) = comm.rounds()? {
        return shared::scatter(rounds, output, inputs, root);
    }
    if comm.rank() != root {
        comm.receive(root, 0, output, 0, output.len());
        return comm.finish();
    }
    for to in comm.others() {
        let input = &inputs[to as usize];
        comm.send(to, 0, input, 0, input.len());
    }
    copy(&inputs[root as usize], output);
    comm.finish()
}

/// Input i of rank r to output r of rank i.
pub(crate) fn alltoall(
    comm: &mut Comm<'_>,
    outputs: &[Buffer],
    inputs: &[Buffer],
) -> Result<(), MeshError> {
    if let Some(rounds) = comm.rounds()? {
        return shared::alltoall(rounds, outputs, inputs);
    }
    for from in comm.others() {
        let output = &outputs[from as usize];
        comm.receive(from, 0, output, 0, output.len());
    }
    let own = comm.rank() as usize;
    copy(&inputs[own], &outputs[own]);
    for to in comm.others() {
        let input = &inputs[to as usize];
        comm.send(to, 0, input, 0, input.len());
    }
    comm.finish()
}
