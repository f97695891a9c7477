//! Allreduce and all-gather around a ring: every rank communicates with its two neighbours only.
//!
//! Sums travel once around and are added on the way, so in another order than the group's: for additions that do not
//! depend on order (integers, least and greatest), where the bits are the same.
//! Source: Patarasuk, Yuan, Bandwidth optimal all-reduce algorithms (JPDC 2009).

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;
use netsum_wire::{Encoding, Input, reduce};

use super::{Algorithm, Allgather, Allreduce, GatherShape, SumShape};
use crate::comm::Comm;
use crate::link_cost::LinkCost;
use crate::pieces::{copy, share};

pub(super) const ALLREDUCE: Algorithm<Allreduce> =
    Algorithm { name: "ring", cost: allreduce_cost, run: allreduce };
pub(super) const ALLGATHER: Algorithm<Allgather> =
    Algorithm { name: "ring", cost: allgather_cost, run: allgather };

fn allreduce_cost(link: &LinkCost, sum: &SumShape) -> Option<f64> {
    let steps = 2.0 * f64::from(link.ranks - 1);
    let part = sum.bytes as f64 / f64::from(link.ranks);
    sum.format.any_order().then(|| steps * (link.latency_s + part / link.to_next_bytes_per_s()))
}

fn allreduce(comm: &mut Comm<'_>, sum: &mut Allreduce) -> Result<(), MeshError> {
    let (rank, size, element) = (comm.rank(), comm.size(), sum.format.dtype.size());
    let buffer = &mut sum.buffer;
    let len = buffer.len();
    let part = |at: u32| share(len, element, at % size, size);
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    // In step s part `rank − s` is forwarded; at the end this rank has the sum of part `rank + 1`.
    for step in 0..size - 1 {
        let (gives, takes) = (part(rank + size - step), part(rank + size - step - 1));
        comm.send(next, step.into(), buffer, gives.start, gives.len());
        let mut came = Buffer::from_vec(vec![0; takes.len()]);
        let ticket = comm.receive(before, step.into(), &mut came, 0, takes.len());
        comm.wait(ticket)?;
        let ours = buffer.slice(takes.clone()).to_vec();
        let came = came.slice(0..takes.len());
        let inputs =
            [&ours[..], came].map(|bytes| Some(Input { bytes, encoding: Encoding::Element }));
        let (n, out) = (takes.len() / element, buffer.slice_mut(takes));
        reduce(sum.format, &inputs, n, out, Encoding::Element);
    }
    for step in 0..size - 1 {
        let (gives, takes) = (part(rank + 1 + size - step), part(rank + size - step));
        let number = u64::from(size + step);
        comm.send(next, number, buffer, gives.start, gives.len());
        let ticket = comm.receive(before, number, buffer, takes.start, takes.len());
        comm.wait(ticket)?;
    }
    comm.finish()
}

fn allgather_cost(link: &LinkCost, pieces: &GatherShape) -> Option<f64> {
    let step = link.latency_s + pieces.longest as f64 / link.to_next_bytes_per_s();
    Some(f64::from(link.ranks - 1) * step)
}

fn allgather(comm: &mut Comm<'_>, gather: &mut Allgather) -> Result<(), MeshError> {
    let (rank, size) = (comm.rank(), comm.size());
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    let Allgather { input, outputs } = gather;
    let place = |at: u32| (at % size) as usize;
    copy(input, &mut outputs[place(rank)]);
    for step in 0..size - 1 {
        let gives = &outputs[place(rank + size - step)];
        comm.send(next, step.into(), gives, 0, gives.len());
        let takes = &mut outputs[place(rank + size - step - 1)];
        let ticket = comm.receive(before, step.into(), takes, 0, takes.len());
        comm.wait(ticket)?;
    }
    comm.finish()
}
