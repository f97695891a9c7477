//! Broadcast down a tree, in chunks that are passed on as they come.

use std::ops::Range;

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;

use super::{Algorithm, Broadcast};
use crate::comm::Comm;
use crate::pieces::{CHUNK, pieces};

/// Each rank forwards to those whose position differs in one bit.
pub(super) const BINOMIAL: Algorithm<Broadcast> = Algorithm {
    name: "binomial",
    cost: |link, &bytes| {
        let depth = f64::from(link.ranks.next_power_of_two().ilog2());
        let chunk = bytes.min(CHUNK) as f64;
        // The root sends all data once per level of the tree; its last message is then forwarded down once more.
        let bytes = bytes as f64 * depth + chunk * (depth - 1.0);
        Some(depth * link.latency_s + bytes / link.bytes_per_s)
    },
    run: |comm, cast| {
        let size = comm.size();
        let place = (comm.rank() + size - cast.root) % size;
        let real = |place: u32| (place + cast.root) % size;
        let children = children(place, size).map(real).collect();
        down(comm, &mut cast.buffer, parent(place).map(real), children, |_, _, _| Ok(()))
    },
};
/// The root sends to every rank.
pub(super) const ONE_HOP: Algorithm<Broadcast> = Algorithm {
    name: "one-hop",
    cost: |link, &bytes| {
        let bytes = bytes as f64 * f64::from(link.ranks - 1);
        Some(link.latency_s + bytes / link.bytes_per_s)
    },
    run: |comm, cast| {
        let root = cast.root == comm.rank();
        let children = if root { comm.others().collect() } else { Vec::new() };
        down(comm, &mut cast.buffer, (!root).then_some(cast.root), children, |_, _, _| Ok(()))
    },
};

/// From the parent, if there is one, to the children, chunk by chunk; `then` is called with each received chunk.
pub(super) fn down(
    comm: &mut Comm<'_>,
    buffer: &mut Buffer,
    parent: Option<u32>,
    children: Vec<u32>,
    mut then: impl FnMut(&mut Comm<'_>, &mut Buffer, Range<usize>) -> Result<(), MeshError>,
) -> Result<(), MeshError> {
    let mut chunks: Vec<_> = pieces(0..buffer.len(), CHUNK).collect();
    if chunks.is_empty() {
        chunks.push(0..0);
    }
    let mut tickets = Vec::new();
    if let Some(from) = parent {
        for (part, chunk) in chunks.iter().enumerate() {
            tickets.push(comm.receive(from, part as u64, buffer, chunk.start, chunk.len()));
        }
    }
    for (part, chunk) in chunks.iter().enumerate() {
        if let Some(&ticket) = tickets.get(part) {
            comm.wait(ticket)?;
        }
        for &child in &children {
            comm.send(child, part as u64, buffer, chunk.start, chunk.len());
        }
        then(comm, buffer, chunk.clone())?;
    }
    Ok(())
}

/// The parent of a position is the position without its lowest bit.
pub(super) fn parent(place: u32) -> Option<u32> {
    (place != 0).then(|| place & (place - 1))
}

/// Positions that differ from this one in a single bit below its lowest; the largest subtree first.
pub(super) fn children(place: u32, size: u32) -> impl Iterator<Item = u32> {
    let lowest = if place == 0 { u32::BITS } else { place.trailing_zeros() };
    (0..lowest).rev().map(move |bit| place + (1u32 << bit)).filter(move |&child| child < size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_has_one_parent() {
        for size in 1..40 {
            let mut reached = vec![0; size as usize];
            for place in 0..size {
                for child in children(place, size) {
                    assert_eq!(parent(child), Some(place));
                    reached[child as usize] += 1;
                }
            }
            reached[0] += 1;
            assert!(reached.iter().all(|&n| n == 1), "{size}: {reached:?}");
        }
    }
}
