//! Broadcast down a binomial tree, in chunks that are passed on as they come.

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;

use super::{CHUNK, pieces};
use crate::comm::Comm;

pub(crate) fn broadcast(comm: &mut Comm<'_>, buffer: &Buffer, root: u32) -> Result<(), MeshError> {
    let size = comm.size();
    let place = (comm.rank() + size - root) % size;
    let real = |place: u32| (place + root) % size;
    let children: Vec<u32> = children(place, size).map(real).collect();
    let mut chunks: Vec<_> = pieces(0..buffer.len(), CHUNK).collect();
    if chunks.is_empty() {
        chunks.push(0..0);
    }
    let mut tickets = Vec::new();
    if let Some(parent) = parent(place) {
        for (part, chunk) in chunks.iter().enumerate() {
            let from = real(parent);
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
    }
    Ok(())
}

/// The parent of a place is the place without its lowest bit.
fn parent(place: u32) -> Option<u32> {
    (place != 0).then(|| place & (place - 1))
}

/// Places that differ from this one in a single bit below its lowest; the largest subtree first.
fn children(place: u32, size: u32) -> impl Iterator<Item = u32> {
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
