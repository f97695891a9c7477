//! Sums in shared memory, in the group's order of additions.
//!
//! *One shot*: everybody publishes all its values and adds everybody's. *Two shots*: each rank adds a share of a
//! chunk and publishes the sum in the round of the next chunk, so that a chunk costs one round.

use std::ops::Range;
use std::sync::Arc;

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;
use netsum_topo::SumOrder;
use netsum_wire::Format;
use smallvec::SmallVec;

use super::Rounds;
use crate::algorithm::pieces;
use crate::order::Adder;

/// The sum of everybody's `buffer`, in place.
pub(crate) fn allreduce(
    rounds: &mut Rounds<'_>,
    order: &Arc<SumOrder>,
    format: Format,
    buffer: &mut Buffer,
) -> Result<(), MeshError> {
    // Two ranks add as much in one shot as in two, and wait less.
    if rounds.ranks() == 2 || buffer.len() <= ONE_SHOT_MAX {
        return one_shot(rounds, order, format, buffer);
    }
    two_shots(rounds, order, format, buffer, true)
}

/// The sum of everybody's `buffer` in the root's; the others' are left alone.
pub(crate) fn reduce(
    rounds: &mut Rounds<'_>,
    order: &Arc<SumOrder>,
    format: Format,
    buffer: &mut Buffer,
    root: u32,
) -> Result<(), MeshError> {
    two_shots(rounds, order, format, buffer, rounds.rank() == root as usize)
}

/// The sum of everybody's `inputs[rank]` in `output`, which may be a part of our input.
pub(crate) fn reduce_scatter(
    rounds: &mut Rounds<'_>,
    order: &Arc<SumOrder>,
    format: Format,
    output: &mut Buffer,
    inputs: &[Buffer],
) -> Result<(), MeshError> {
    let mut kept = rounds.adder(order, format);
    scatter(rounds, inputs, |piece, values| {
        kept.adder.add(values, output.slice_mut(piece));
    })?;
    rounds.keep(kept);
    Ok(())
}

/// The partials of our place's portion, by adder; without `rounds` there is no other rank on the host.
///
/// `portions`: by place on the host, of the same buffer at all of them; `place`: ours.
pub(crate) fn partials(
    rounds: Option<&mut Rounds<'_>>,
    adders: &mut [Adder],
    portions: &[Buffer],
    place: usize,
) -> Result<Vec<Vec<u8>>, MeshError> {
    let own = &portions[place];
    let widened = |adder: &Adder, bytes: usize| {
        let dtype = adder.format().dtype;
        bytes / dtype.size() * dtype.accumulator_size()
    };
    let mut all: Vec<Vec<u8>> =
        adders.iter().map(|adder| vec![0; widened(adder, own.len())]).collect();
    let mut add = |piece: Range<usize>, values: &[&[u8]]| {
        for (adder, partial) in adders.iter_mut().zip(&mut all) {
            let within = widened(adder, piece.start)..widened(adder, piece.end);
            adder.add(values, &mut partial[within]);
        }
    };
    match rounds {
        Some(rounds) => scatter(rounds, portions, add)?,
        None => add(0..own.len(), &[own.slice(0..own.len())]),
    }
    Ok(all)
}

/// Calls `add` with everybody's values of each piece of our input.
fn scatter(
    rounds: &mut Rounds<'_>,
    inputs: &[Buffer],
    mut add: impl FnMut(Range<usize>, &[&[u8]]),
) -> Result<(), MeshError> {
    let (rank, ranks) = (rounds.rank(), rounds.ranks());
    let part = rounds.slot_bytes() / ranks / ALIGN * ALIGN;
    let longest = inputs.iter().map(Buffer::len).max().unwrap_or(0);
    let own = inputs[rank].len();
    let cut = |len: usize, round: usize| (round * part).min(len)..((round + 1) * part).min(len);
    let count = longest.div_ceil(part).max(1);
    for round in 0..=count {
        if round < count {
            let slot = rounds.open()?;
            for (to, input) in inputs.iter().enumerate() {
                let piece = cut(input.len(), round);
                input.read(piece.start, &mut slot[to * part..][..piece.len()]);
            }
        }
        if round > 0 {
            rounds.await_all()?;
            let piece = cut(own, round - 1);
            let slots = rounds.parts().1;
            let values = |from| &slots.of(from, 0)[rank * part..][..piece.len()];
            let values: Values<'_> = (0..ranks).map(values).collect();
            add(piece, &values);
        }
        if round < count {
            rounds.publish(0);
        }
    }
    Ok(())
}

fn one_shot(
    rounds: &mut Rounds<'_>,
    order: &Arc<SumOrder>,
    format: Format,
    buffer: &mut Buffer,
) -> Result<(), MeshError> {
    let mut kept = rounds.adder(order, format);
    let mut before: Option<Range<usize>> = None;
    for chunk in chunks(buffer.len(), rounds.slot_bytes()) {
        buffer.read(chunk.start, &mut rounds.open()?[..chunk.len()]);
        if let Some(before) = before.replace(chunk) {
            add_all(rounds, &mut kept.adder, buffer, before)?;
        }
        rounds.publish(0);
    }
    if let Some(last) = before {
        add_all(rounds, &mut kept.adder, buffer, last)?;
    }
    rounds.keep(kept);
    Ok(())
}

/// Adds a chunk that everybody has in the last round.
fn add_all(
    rounds: &mut Rounds<'_>,
    adder: &mut Adder,
    buffer: &mut Buffer,
    chunk: Range<usize>,
) -> Result<(), MeshError> {
    rounds.await_all()?;
    let ranks = rounds.ranks();
    let slots = rounds.shared.arena.slots();
    // Our own values, too, come from the slot: the sum is written over those in the buffer.
    let values: Values<'_> = (0..ranks).map(|from| &slots.of(from, 0)[..chunk.len()]).collect();
    adder.add(&values, buffer.slice_mut(chunk));
    Ok(())
}

/// Round t holds the contributions to chunk t and the sums of chunk t − 1. `takes`: whether this rank wants the sums.
fn two_shots(
    rounds: &mut Rounds<'_>,
    order: &Arc<SumOrder>,
    format: Format,
    buffer: &mut Buffer,
    takes: bool,
) -> Result<(), MeshError> {
    let (rank, ranks, element) = (rounds.rank(), rounds.ranks(), format.dtype.size());
    // A slot holds a chunk and a rank's share of another.
    let step = rounds.slot_bytes() * ranks / (ranks + 1) / ALIGN * ALIGN - ALIGN;
    let sums_at = step;
    let chunks: Vec<Range<usize>> = chunks(buffer.len(), step).collect();
    let share = |chunk: &Range<usize>, rank: usize| {
        let n = chunk.len() / element;
        n * rank / ranks * element..n * (rank + 1) / ranks * element
    };
    let mut kept = rounds.adder(order, format);
    for round in 0..=chunks.len() + 1 {
        let publishes = round <= chunks.len();
        if publishes {
            let slot = rounds.open()?;
            if let Some(chunk) = chunks.get(round) {
                // Our own share goes from the buffer.
                let own = share(chunk, rank);
                buffer.read(chunk.start, &mut slot[..own.start]);
                buffer.read(chunk.start + own.end, &mut slot[own.end..chunk.len()]);
            }
        }
        if round > 0 {
            rounds.await_all()?;
        }
        if let Some(chunk) = round.checked_sub(2).and_then(|done| chunks.get(done))
            && takes
        {
            let slots = rounds.shared.arena.slots();
            for from in rounds.others() {
                let part = share(chunk, from);
                let sums = &slots.of(from, 0)[sums_at..][..part.len()];
                buffer.write(chunk.start + part.start, sums);
            }
        }
        if let Some(chunk) = round.checked_sub(1).and_then(|adding| chunks.get(adding)) {
            let own = share(chunk, rank);
            let at = chunk.start + own.start;
            let (slot, slots) = rounds.parts();
            let values = |from| match from == rank {
                true => buffer.slice(at..at + own.len()),
                false => &slots.of(from, 0)[own.clone()],
            };
            let values: Values<'_> = (0..ranks).map(values).collect();
            let sums = &mut slot[sums_at..][..own.len()];
            kept.adder.add(&values, sums);
            if takes {
                buffer.write(at, sums);
            }
        }
        if publishes {
            rounds.publish(0);
        }
    }
    rounds.keep(kept);
    Ok(())
}

/// At least one: an empty buffer has an empty chunk, in which everybody hears of the operation.
fn chunks(len: usize, step: usize) -> impl Iterator<Item = Range<usize>> {
    let nothing = (len == 0).then_some(0..0);
    nothing.into_iter().chain(pieces(0..len, step))
}

/// Everybody's values of a piece, by rank; on the stack for as many ranks as hosts have most often.
type Values<'a> = SmallVec<[&'a [u8]; 8]>;

/// Whole elements of every type, on cache lines of their own.
const ALIGN: usize = 64;
/// Up to here everybody adds everything: one wait in place of two.
const ONE_SHOT_MAX: usize = 8 << 10;
