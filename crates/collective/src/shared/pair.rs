//! Sums between two ranks: each adds one half of a chunk, and writes the result to the slot with the other rank's
//! values.
//!
//! The transfer of memory between cores dominates the cost. If each rank added everything, or wrote its half of the
//! sums to its own slot, every cache line of values would move to the other rank and back, and another line for the
//! sums; this way a line moves once with values and returns with sums.

use std::ops::Range;

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;
use netsum_wire::{Format, combine_both};

use super::{ALIGN, Rounds, Shared};
use crate::pieces::pieces;

/// Sums both `buffer`s in place. Round t has the contributions to chunk t; the sums of chunk t − 1 are in the slots of
/// the previous round.
pub(super) fn allreduce(
    rounds: &mut Rounds<'_>,
    format: Format,
    buffer: &mut Buffer,
) -> Result<(), MeshError> {
    rounds.open()?;
    put_first(rounds.shared, buffer);
    rounds.publish_to_be_answered();
    finish(rounds, format, buffer)
}

/// Writes the values of the first chunk that the other rank adds into the own slot of round 0, which is open.
pub(super) fn put_first(shared: &mut Shared, buffer: &Buffer) {
    let other = 1 - shared.arena.rank();
    if let Some(chunk) = chunks(shared, buffer).next() {
        let theirs = half(&chunk, other);
        buffer.read(theirs.start, &mut shared.arena.parts().0[..theirs.len()]);
    }
}

/// Completes a sum whose round 0 has been published.
pub(super) fn finish(
    rounds: &mut Rounds<'_>,
    format: Format,
    buffer: &mut Buffer,
) -> Result<(), MeshError> {
    let (rank, other) = (rounds.rank(), 1 - rounds.rank());
    let chunks: Vec<Range<usize>> = chunks(rounds.shared, buffer).collect();
    for round in 1..=chunks.len() + 1 {
        let publishes = round <= chunks.len();
        if publishes {
            let slot = rounds.open()?;
            if let Some(chunk) = chunks.get(round) {
                let theirs = half(chunk, other);
                buffer.read(theirs.start, &mut slot[..theirs.len()]);
            }
        }
        rounds.await_all()?;
        if let Some(chunk) = round.checked_sub(2).and_then(|done| chunks.get(done)) {
            let theirs = half(chunk, other);
            let answer = rounds.shared.arena.slots().of(rank, 1);
            buffer.write(theirs.start, &answer[..theirs.len()]);
        }
        if let Some(chunk) = chunks.get(round - 1) {
            let ours = half(chunk, rank);
            let answer = rounds.shared.arena.answer(other, ours.len());
            combine_both(format, buffer.slice_mut(ours), answer);
        }
        if publishes {
            rounds.publish_to_be_answered();
        }
    }
    Ok(())
}

fn chunks(shared: &Shared, buffer: &Buffer) -> impl Iterator<Item = Range<usize>> + use<> {
    pieces(0..buffer.len(), 2 * shared.arena.slot_bytes())
}

/// The part of a chunk that a rank adds.
fn half(chunk: &Range<usize>, rank: usize) -> Range<usize> {
    // Neither half is longer than half of two slots, which consist of whole lines.
    let middle = chunk.start + (chunk.len() / 2).next_multiple_of(ALIGN).min(chunk.len());
    if rank == 0 { chunk.start..middle } else { middle..chunk.end }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_fit_slots() {
        let slot = 10 * ALIGN;
        for len in 0..=2 * slot {
            let halves = [0, 1].map(|rank| half(&(7..7 + len), rank));
            assert!(halves.iter().all(|half| half.len() <= slot), "{len} bytes");
            assert_eq!([7, 7 + len], [halves[0].start, halves[1].end]);
            assert_eq!(halves[0].end, halves[1].start);
        }
    }
}
