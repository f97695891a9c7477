//! All-gather in ⌈log₂ N⌉ exchanges: in step d (1, 2, 4 …) every rank sends all its pieces to the rank d below.
//!
//! Source: Bruck, Ho, Kipnis, Upfal, Weathersby, Efficient Algorithms for All-to-All Communications (TPDS 1997).
//! Differs: pieces are received at their final position, so nothing is rotated at the end; a message per piece.

use netsum_net::mesh::MeshError;

use super::{Algorithm, Allgather, GatherShape};
use crate::comm::Comm;
use crate::link_cost::LinkCost;
use crate::pieces::copy;

pub(super) const ALLGATHER: Algorithm<Allgather> = Algorithm { name: "bruck", cost, run };

fn cost(link: &LinkCost, pieces: &GatherShape) -> Option<f64> {
    let steps = f64::from(link.ranks.next_power_of_two().ilog2());
    let sent = pieces.all.saturating_sub(pieces.longest);
    Some(steps * link.latency_s + sent as f64 / link.bytes_per_s)
}

fn run(comm: &mut Comm<'_>, gather: &mut Allgather) -> Result<(), MeshError> {
    let (rank, size) = (comm.rank(), comm.size());
    copy(&gather.input, &mut gather.outputs[rank as usize]);
    // After step d this rank has the pieces of ranks `rank` to `rank + 2d − 1`.
    let mut distance = 1;
    while distance < size {
        let count = distance.min(size - distance);
        let (to, from) = ((rank + size - distance) % size, (rank + distance) % size);
        let piece = |first: u32, index: u32| (first + index) % size;
        let number = |of: u32| u64::from(distance) << 32 | u64::from(of);
        for index in 0..count {
            let of = piece(rank, index);
            let output = &gather.outputs[of as usize];
            comm.send(to, number(of), output, 0, output.len());
        }
        let mut tickets = Vec::new();
        for index in 0..count {
            let of = piece(from, index);
            let output = &mut gather.outputs[of as usize];
            tickets.push(comm.receive(from, number(of), output, 0, output.len()));
        }
        for ticket in tickets {
            comm.wait(ticket)?;
        }
        distance *= 2;
    }
    comm.finish()
}
