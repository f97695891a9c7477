//! Collectives that only move bytes: every piece goes directly from its sender to its receiver.

use netsum_net::mesh::MeshError;

use super::{Algorithm, Allgather, Alltoall, Gather, Scatter};
use crate::comm::Comm;
use crate::link_cost::LinkCost;
use crate::pieces::{TYPICAL, copy};

/// The `input` of every rank to the `outputs` of every rank.
pub(super) const ALLGATHER: Algorithm<Allgather> = Algorithm {
    name: "one-hop",
    cost: |link, pieces| {
        let bytes = pieces.longest as f64 * f64::from(link.ranks - 1);
        Some(link.latency_s + bytes / link.bytes_per_s)
    },
    run: allgather,
};

fn allgather(comm: &mut Comm<'_>, gather: &mut Allgather) -> Result<(), MeshError> {
    let Allgather { input, outputs } = gather;
    for from in comm.others() {
        let output = &mut outputs[from as usize];
        comm.receive(from, 0, output, 0, output.len());
    }
    copy(input, &mut outputs[comm.rank() as usize]);
    for to in comm.others() {
        comm.send(to, 0, input, 0, input.len());
    }
    comm.finish()
}

/// Every rank sends directly to the root.
pub(super) const GATHER: Algorithm<Gather> =
    Algorithm { name: "one-hop", cost: typical_cost, run: gather };
/// The root sends directly to every rank.
pub(super) const SCATTER: Algorithm<Scatter> =
    Algorithm { name: "one-hop", cost: typical_cost, run: scatter };
/// Every rank sends directly to every rank.
pub(super) const ALLTOALL: Algorithm<Alltoall> =
    Algorithm { name: "one-hop", cost: typical_cost, run: alltoall };

/// One rank gives or takes a typical piece of every other.
fn typical_cost(link: &LinkCost, (): &()) -> Option<f64> {
    let bytes = TYPICAL as f64 * f64::from(link.ranks - 1);
    Some(link.latency_s + bytes / link.bytes_per_s)
}

fn gather(comm: &mut Comm<'_>, collect: &mut Gather) -> Result<(), MeshError> {
    let Gather { input, outputs, root } = collect;
    if comm.rank() != *root {
        comm.send(*root, 0, input, 0, input.len());
        return comm.finish();
    }
    for from in comm.others() {
        let output = &mut outputs[from as usize];
        comm.receive(from, 0, output, 0, output.len());
    }
    copy(input, &mut outputs[*root as usize]);
    comm.finish()
}

fn scatter(comm: &mut Comm<'_>, deal: &mut Scatter) -> Result<(), MeshError> {
    let Scatter { output, inputs, root } = deal;
    if comm.rank() != *root {
        comm.receive(*root, 0, output, 0, output.len());
        return comm.finish();
    }
    for to in comm.others() {
        let input = &inputs[to as usize];
        comm.send(to, 0, input, 0, input.len());
    }
    copy(&inputs[*root as usize], output);
    comm.finish()
}

fn alltoall(comm: &mut Comm<'_>, exchange: &mut Alltoall) -> Result<(), MeshError> {
    let Alltoall { outputs, inputs } = exchange;
    for from in comm.others() {
        let output = &mut outputs[from as usize];
        comm.receive(from, 0, output, 0, output.len());
    }
    let own = comm.rank() as usize;
    copy(&inputs[own], &mut outputs[own]);
    for to in comm.others() {
        let input = &inputs[to as usize];
        comm.send(to, 0, input, 0, input.len());
    }
    comm.finish()
}
