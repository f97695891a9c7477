//! Reduce-scatter: each host adds its partials of every rank's piece, and each rank adds the partials of all hosts.

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;

use super::cut::Cut;
use super::{apart, tag};
use crate::algorithm::in_memory::memory_s;
use crate::algorithm::{Algorithm, ReduceScatter, ScatterShape};
use crate::comm::{Comm, Ticket};
use crate::hosts::Hosts;
use crate::link_cost::LinkCost;
use crate::shared;

pub(in crate::algorithm) const REDUCE_SCATTER: Algorithm<ReduceScatter> =
    Algorithm { name: "hierarchical", cost, run };

/// The data that a host sends is divided among its ranks, and the network among its lanes.
fn cost(link: &LinkCost, sum: &ScatterShape) -> Option<f64> {
    let across = link.across.as_ref()?;
    let cut = Cut::of(&sum.order, &across.hosts, sum.format);
    let lanes = across.hosts.lanes() as f64;
    let most = across.hosts.all().iter().map(Vec::len).max().unwrap_or(1) as f64;
    let sent = (f64::from(link.ranks) - lanes).max(most * (across.count() - 1.0));
    let bytes = sum.longest as f64 * cut.widening(sum.format) * sent;
    let memory = 2.0 * memory_s(sum.longest * link.ranks as usize);
    Some(memory + across.latency_s + bytes / (across.bytes_per_s * lanes))
}

fn run(comm: &mut Comm<'_>, scattering: &mut ReduceScatter) -> Result<(), MeshError> {
    let hosts = apart(comm)?.hosts;
    let ReduceScatter { order, format, inputs, .. } = &*scattering;
    let bytes = inputs[comm.rank() as usize].len();
    let cut = Cut::of(order, &hosts, *format);
    let (own, index) = hosts.place(comm.rank());
    let dtype = format.dtype;
    let widened = |bytes: usize| bytes / dtype.size() * dtype.accumulator_size();
    let parts = || cut.parts.iter().map(|(host, _)| *host).enumerate();
    let mut theirs: Vec<(Buffer, Ticket)> = Vec::new();
    for (part, host) in parts().filter(|&(_, host)| host != own) {
        let mut values = Buffer::from_vec(vec![0; widened(bytes)]);
        let from = adds_for(&hosts, host, comm.rank());
        let ticket = comm.receive(from, tag(0, part), &mut values, 0, widened(bytes));
        theirs.push((values, ticket));
    }
    // The pieces that a position adds: its own rank's first, then those of ranks on other hosts.
    let size = comm.size();
    let handled = |place: usize| {
        let rank = hosts.all()[own][place];
        let others =
            (0..size).filter(|&to| hosts.place(to).0 != own && adds_for(&hosts, own, to) == rank);
        std::iter::once(rank).chain(others).collect::<Vec<u32>>()
    };
    let portion = |place: usize| {
        let mut all = Vec::new();
        for rank in handled(place) {
            let input = &inputs[rank as usize];
            all.extend_from_slice(input.slice(0..input.len()));
        }
        Buffer::from_vec(all)
    };
    let mut portions: Vec<Buffer> = (0..hosts.all()[own].len()).map(portion).collect();
    let mut adders = cut.partials(own, *format);
    let ours = shared::partials(comm.host()?, &mut adders, &mut portions, index)?;
    let ours: Vec<Buffer> = ours.into_iter().map(Buffer::from_vec).collect();
    let mut at = widened(bytes);
    for to in handled(index).into_iter().skip(1) {
        let len = widened(inputs[to as usize].len());
        for ((part, _), values) in parts().filter(|&(_, host)| host == own).zip(&ours) {
            comm.send(to, tag(0, part), values, at, len);
        }
        at += len;
    }
    for (_, ticket) in &theirs {
        comm.wait(*ticket)?;
    }
    let len = widened(bytes);
    let mut ours = ours.iter().map(|values| values.slice(0..len));
    let mut theirs = theirs.iter().map(|(values, _)| values.slice(0..len));
    let values = parts().map(|(_, host)| if host == own { ours.next() } else { theirs.next() });
    let values: Vec<&[u8]> = values.map(|found| found.expect("one for each part")).collect();
    let mut sums = vec![0; bytes];
    cut.whole(*format).add(&values, &mut sums);
    scattering.output(comm.rank()).write(0, &sums);
    comm.finish()
}

/// The rank of a host that adds its partials for a rank elsewhere, in turn.
fn adds_for(hosts: &Hosts, host: usize, to: u32) -> u32 {
    let ranks = &hosts.all()[host];
    ranks[to as usize % ranks.len()]
}
