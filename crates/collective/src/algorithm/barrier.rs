//! Barrier by dissemination: in round k every rank receives from the rank 2ᵏ below.

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;

use super::{Algorithm, Barrier};
use crate::comm::Comm;

pub(super) const DISSEMINATION: Algorithm<Barrier> = Algorithm {
    name: "dissemination",
    cost: |link, ()| Some(f64::from(steps(link.ranks)) * link.latency_s),
    run: |comm, _| {
        let all: Vec<u32> = (0..comm.size()).collect();
        disseminate(comm, &all, comm.rank() as usize)
    },
};

/// Rounds of so many ranks.
pub(super) fn steps(ranks: u32) -> u32 {
    ranks.next_power_of_two().ilog2()
}

/// Done when all of `ranks` have begun; `place`: ours among them.
pub(super) fn disseminate(
    comm: &mut Comm<'_>,
    ranks: &[u32],
    place: usize,
) -> Result<(), MeshError> {
    let size = ranks.len();
    let mut nothing = Buffer::from_vec(Vec::new());
    let mut distance = 1;
    while distance < size {
        let (to, from) = ((place + distance) % size, (place + size - distance) % size);
        comm.send(ranks[to], distance as u64, &nothing, 0, 0);
        let ticket = comm.receive(ranks[from], distance as u64, &mut nothing, 0, 0);
        comm.wait(ticket)?;
        distance *= 2;
    }
    Ok(())
}
