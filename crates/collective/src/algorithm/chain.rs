//! Broadcast along a chain: every rank forwards to the next.

use netsum_net::mesh::MeshError;

use super::{Algorithm, Broadcast};
use crate::comm::Comm;
use crate::link_cost::LinkCost;
use crate::pieces::{CHUNK, pieces};

pub(super) const BROADCAST: Algorithm<Broadcast> = Algorithm { name: "chain", cost, run };

/// The last rank receives the first chunk after N − 1 hops; then one chunk follows the other.
fn cost(link: &LinkCost, bytes: &usize) -> Option<f64> {
    let (hops, bytes) = (f64::from(link.ranks - 1), *bytes as f64);
    let chunk = bytes.min(CHUNK as f64);
    let rate = link.to_next_bytes_per_s();
    Some(hops * (link.latency_s + chunk / rate) + (bytes - chunk) / rate)
}

fn run(comm: &mut Comm<'_>, broadcast: &mut Broadcast) -> Result<(), MeshError> {
    let place = (comm.rank() + comm.size() - broadcast.root) % comm.size();
    let (next, before) =
        ((comm.rank() + 1) % comm.size(), (comm.rank() + comm.size() - 1) % comm.size());
    let buffer = &mut broadcast.buffer;
    for (number, chunk) in pieces(0..buffer.len(), CHUNK).enumerate() {
        if place > 0 {
            let ticket = comm.receive(before, number as u64, buffer, chunk.start, chunk.len());
            comm.wait(ticket)?;
        }
        if place + 1 < comm.size() {
            comm.send(next, number as u64, buffer, chunk.start, chunk.len());
        }
    }
    comm.finish()
}
