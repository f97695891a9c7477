//! The rest of an operation after a hand-over, between the hosts.

use std::ops::Range;
use std::sync::Arc;

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;
use netsum_net::worker::{Parts, Remaining};
use netsum_topo::SumOrder;
use netsum_wire::{MAX_SCOPED_RANKS, Parties};

use crate::algorithm::{Allgather, allgather, allreduce_ranges, barrier};
use crate::comm::Comm;

/// Does the rest of an operation from the trees; the fragments are the same at all ranks. `fragment_bytes`: of the plan
/// on whose trees it was.
pub(crate) fn run(
    comm: &mut Comm<'_>,
    order: &Arc<SumOrder>,
    rest: Remaining,
    fragment_bytes: u16,
) -> Result<(), MeshError> {
    let Remaining { submission, buffer: mut memory } = rest;
    // Larger jobs have allreduces alone, which every rank takes.
    let (format, me) = (submission.format, 1 << (comm.rank() % MAX_SCOPED_RANKS));
    let places = submission.places(fragment_bytes);
    let Some((first, _)) = places.first() else { return Ok(()) };
    match first {
        Parties::Nobody => barrier(comm),
        Parties::FromOne(_) => copy(comm, &mut memory, &places, format.dtype.size()),
        Parties::All | Parties::ToOne(_) => {
            let taken = |parties: &Parties| parties.takes(me);
            let ranges = joined(&places);
            let ranges: Vec<_> =
                ranges.into_iter().map(|(parties, range)| (range, taken(&parties))).collect();
            allreduce_ranges(comm, order, format, &mut memory, &ranges)?;
            comm.finish()
        }
    }
}

/// Copies elements from one rank each to all others. `size`: bytes of an element.
fn copy(
    comm: &mut Comm<'_>,
    memory: &mut Parts,
    places: &[(Parties, Range<u64>)],
    size: usize,
) -> Result<(), MeshError> {
    let bytes = |range: &Range<u64>| range.start as usize * size..range.end as usize * size;
    let of = |rank: u32| {
        let from = Parties::FromOne(rank as u8);
        places.iter().filter(move |(parties, _)| *parties == from).map(|(_, range)| bytes(range))
    };
    let own: Vec<u8> = of(comm.rank()).flat_map(|range| memory.slice(range).to_vec()).collect();
    let empty = |rank| Buffer::from_vec(vec![0; of(rank).map(|range| range.len()).sum()]);
    let outputs = (0..comm.size()).map(empty).collect();
    let mut gathered = Allgather { input: Buffer::from_vec(own), outputs };
    allgather(comm, &mut gathered)?;
    comm.finish()?;
    for (rank, output) in (0..).zip(&gathered.outputs).filter(|(rank, _)| *rank != comm.rank()) {
        let mut at = 0;
        for range in of(rank) {
            let len = range.len();
            memory.result_mut(range).copy_from_slice(output.slice(at..at + len));
            at += len;
        }
    }
    Ok(())
}

/// The same elements, with neighbours of equal parties in one range.
fn joined(places: &[(Parties, Range<u64>)]) -> Vec<(Parties, Range<u64>)> {
    let mut ranges: Vec<(Parties, Range<u64>)> = Vec::new();
    for (parties, range) in places {
        match ranges.last_mut() {
            Some((same, last)) if same == parties && last.end == range.start => {
                last.end = range.end
            }
            _ => ranges.push((*parties, range.clone())),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_equal_parties_are_one_range() {
        let (one, two) = (Parties::ToOne(1), Parties::ToOne(2));
        let places = [(one, 0..4), (one, 4..6), (two, 6..8), (one, 9..10), (one, 10..12)];
        assert_eq!(joined(&places), [(one, 0..6), (two, 6..8), (one, 9..12)]);
    }
}
