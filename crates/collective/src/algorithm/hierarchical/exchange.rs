//! Exchange of pieces between ranks: through memory within a host, directly over the network otherwise.

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;

use crate::algorithm::in_memory::memory_s;
use crate::algorithm::{Algorithm, Alltoall, Gather, Scatter};
use crate::comm::Comm;
use crate::hosts::Hosts;
use crate::link_cost::Across;
use crate::link_cost::LinkCost;
use crate::pieces::{TYPICAL, copy};
use crate::shared;

pub(in crate::algorithm) const GATHER: Algorithm<Gather> =
    Algorithm { name: "hierarchical", cost: rooted_cost, run: gather };
pub(in crate::algorithm) const SCATTER: Algorithm<Scatter> =
    Algorithm { name: "hierarchical", cost: rooted_cost, run: scatter };
pub(in crate::algorithm) const ALLTOALL: Algorithm<Alltoall> =
    Algorithm { name: "hierarchical", cost: alltoall_cost, run: alltoall };

/// The root alone uses the rate of all lanes of its host.
fn rooted_cost(link: &LinkCost, (): &()) -> Option<f64> {
    let across = link.across.as_ref()?;
    let rate = across.bytes_per_s * across.hosts.lanes() as f64;
    Some(across.latency_s + apart_bytes(link, across) / rate + memory_s(TYPICAL))
}

/// The lanes' rate is divided among all ranks of a host.
fn alltoall_cost(link: &LinkCost, (): &()) -> Option<f64> {
    let across = link.across.as_ref()?;
    let most = across.hosts.all().iter().map(Vec::len).max().unwrap_or(1) as f64;
    let rate = across.bytes_per_s * across.hosts.lanes() as f64 / most;
    Some(across.latency_s + apart_bytes(link, across) / rate + memory_s(TYPICAL))
}

/// Bytes that a rank of the smallest host exchanges with other hosts, for typical pieces.
fn apart_bytes(link: &LinkCost, across: &Across) -> f64 {
    TYPICAL as f64 * (f64::from(link.ranks) - across.hosts.lanes() as f64)
}

fn gather(comm: &mut Comm<'_>, collect: &mut Gather) -> Result<(), MeshError> {
    let hosts = comm.hosts();
    let Gather { input, outputs, root } = collect;
    let (home, seat) = hosts.place(*root);
    let (own, _) = hosts.place(comm.rank());
    if own != home {
        comm.send(*root, 0, input, 0, input.len());
        return comm.finish();
    }
    let at_root = comm.rank() == *root;
    if at_root {
        for from in away(&hosts, own) {
            let output = &mut outputs[from as usize];
            comm.receive(from, 0, output, 0, output.len());
        }
    }
    let mut near = if at_root { of(&hosts, own, outputs) } else { Vec::new() };
    match comm.host()? {
        Some(rounds) => {
            named(shared::gather(rounds, input, &mut near, seat as u32), &hosts, own)?;
        }
        None => copy(input, &mut near[seat]),
    }
    comm.finish()
}

fn scatter(comm: &mut Comm<'_>, deal: &mut Scatter) -> Result<(), MeshError> {
    let hosts = comm.hosts();
    let Scatter { output, inputs, root } = deal;
    let (home, seat) = hosts.place(*root);
    let (own, _) = hosts.place(comm.rank());
    if own != home {
        comm.receive(*root, 0, output, 0, output.len());
        return comm.finish();
    }
    let at_root = comm.rank() == *root;
    if at_root {
        for to in away(&hosts, own) {
            let input = &inputs[to as usize];
            comm.send(to, 0, input, 0, input.len());
        }
    }
    let near = if at_root { of(&hosts, own, inputs) } else { Vec::new() };
    match comm.host()? {
        Some(rounds) => {
            named(shared::scatter(rounds, output, &near, seat as u32), &hosts, own)?;
        }
        None => copy(&near[seat], output),
    }
    comm.finish()
}

fn alltoall(comm: &mut Comm<'_>, exchange: &mut Alltoall) -> Result<(), MeshError> {
    let hosts = comm.hosts();
    let Alltoall { outputs, inputs } = exchange;
    let (own, index) = hosts.place(comm.rank());
    for from in away(&hosts, own) {
        let output = &mut outputs[from as usize];
        comm.receive(from, 0, output, 0, output.len());
    }
    for to in away(&hosts, own) {
        let input = &inputs[to as usize];
        comm.send(to, 0, input, 0, input.len());
    }
    let (gives, mut takes) = (of(&hosts, own, inputs), of(&hosts, own, outputs));
    match comm.host()? {
        Some(rounds) => named(shared::alltoall(rounds, &mut takes, &gives), &hosts, own)?,
        None => copy(&gives[index], &mut takes[index]),
    }
    comm.finish()
}

/// The ranks of all other hosts, starting after this one.
fn away(hosts: &Hosts, own: usize) -> impl Iterator<Item = u32> {
    let count = hosts.all().len();
    (1..count).flat_map(move |step| hosts.all()[(own + step) % count].iter().copied())
}

/// The buffers of a host's ranks, of one buffer per rank.
fn of(hosts: &Hosts, host: usize, all: &mut [Buffer]) -> Vec<Buffer> {
    hosts.all()[host].iter().map(|&rank| all[rank as usize].lend_all()).collect()
}

/// Translates positions on the host, as in errors of shared memory, to ranks.
fn named(outcome: Result<(), MeshError>, hosts: &Hosts, own: usize) -> Result<(), MeshError> {
    outcome.map_err(|error| match error {
        MeshError::Size { rank, sent, expected } => {
            MeshError::Size { rank: hosts.all()[own][rank as usize], sent, expected }
        }
        other => other,
    })
}
