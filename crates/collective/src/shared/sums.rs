//! Sums in shared memory, in the group's order of additions.
//!
//! A small sum is one round ([`small`]). Otherwise each rank adds a share of a chunk, and the chunk's sums are published in
//! the round of the next one, so that a chunk costs one round; between two ranks by [`pair`].

use std::ops::Range;
use std::sync::Arc;

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;
use netsum_topo::SumOrder;
use netsum_wire::Format;

use super::{ALIGN, BLOCK, BLOCK_AT, Block, Kept, Rounds, SMALL_MAX, Shared, Values, pair, small};
use crate::order::Adder;
use crate::pieces::pieces;

/// The sum of all ranks' `buffer`, in place.
pub(crate) fn allreduce(
    rounds: &mut Rounds<'_>,
    order: &Arc<SumOrder>,
    format: Format,
    buffer: &mut Buffer,
) -> Result<(), MeshError> {
    if rounds.shared.in_one_round(buffer.len()) {
        return small::allreduce(rounds, order, format, buffer);
    }
    if rounds.ranks() == 2 {
        return pair::allreduce(rounds, format, buffer);
    }
    by_shares(rounds, order, format, buffer, true)
}

impl Shared {
    /// Whether [`Shared::begin_sum`] can be called for a sum of so many bytes.
    #[inline]
    pub(crate) fn begins(&self, bytes: usize) -> bool {
        bytes <= SMALL_MAX || self.ranks() == 2
    }

    /// Hands over what the first round of the sum `call` (number and fingerprint) holds of `buffer`; [`finish`] does the
    /// rest.
    pub(crate) fn begin_sum(&mut self, call: (u64, u32), buffer: &Buffer) {
        if self.in_one_round(buffer.len()) {
            return self.begin(call, buffer.slice(0..buffer.len()));
        }
        pair::put_first(self, buffer);
        self.hand_over(call, true);
    }

    fn in_one_round(&self, bytes: usize) -> bool {
        bytes <= if self.ranks() == 2 { ONE_ROUND_OF_TWO_MAX } else { SMALL_MAX }
    }
}

/// The rest of a sum that [`Shared::begin_sum`] or, if it is small, [`Shared::begin`] has begun.
pub(crate) fn finish(
    rounds: &mut Rounds<'_>,
    order: &Arc<SumOrder>,
    format: Format,
    buffer: &mut Buffer,
) -> Result<(), MeshError> {
    if rounds.shared.in_one_round(buffer.len()) {
        return small::finish(rounds, order, format, buffer);
    }
    pair::finish(rounds, format, buffer)
}

/// The sum of all ranks' `buffer` at the root; the other ranks' buffers are unchanged.
pub(crate) fn reduce(
    rounds: &mut Rounds<'_>,
    order: &Arc<SumOrder>,
    format: Format,
    buffer: &mut Buffer,
    root: u32,
) -> Result<(), MeshError> {
    by_shares(rounds, order, format, buffer, rounds.rank() == root as usize)
}

/// The sum of all ranks' `inputs[rank]` in `output`, or in place of this rank's own.
pub(crate) fn reduce_scatter(
    rounds: &mut Rounds<'_>,
    order: &Arc<SumOrder>,
    format: Format,
    mut output: Option<&mut Buffer>,
    inputs: &mut [Buffer],
) -> Result<(), MeshError> {
    let (rank, mut kept) = (rounds.rank(), rounds.adder(order, format));
    scatter(rounds, inputs, |inputs, piece, values| {
        let output = output.as_deref_mut().unwrap_or(&mut inputs[rank]);
        kept.adder.add(values, output.slice_mut(piece));
    })?;
    rounds.keep(kept);
    Ok(())
}

/// The partials of this rank's portion, by adder; without `rounds` there is no other rank on the host.
///
/// `portions`: by position on the host, of the same buffer at all of them; `place`: this rank's.
pub(crate) fn partials(
    rounds: Option<&mut Rounds<'_>>,
    adders: &mut [Adder],
    portions: &mut [Buffer],
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
        Some(rounds) => scatter(rounds, portions, |_, piece, values| add(piece, values))?,
        None => add(0..own.len(), &[own.slice(0..own.len())]),
    }
    Ok(all)
}

/// Calls `add` with all ranks' values of each piece of this rank's input, which is then no longer needed there.
fn scatter(
    rounds: &mut Rounds<'_>,
    inputs: &mut [Buffer],
    mut add: impl FnMut(&mut [Buffer], Range<usize>, &[&[u8]]),
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
            add(inputs, piece, &values);
        }
        if round < count {
            rounds.publish(0);
        }
    }
    Ok(())
}

/// Round t holds the contributions to chunk t and the sums of chunk t − 1. `takes`: whether this rank receives the
/// sums.
fn by_shares(
    rounds: &mut Rounds<'_>,
    order: &Arc<SumOrder>,
    format: Format,
    buffer: &mut Buffer,
    takes: bool,
) -> Result<(), MeshError> {
    let (rank, ranks, element) = (rounds.rank(), rounds.ranks(), format.dtype.size());
    // A slot holds a chunk and a rank's share of another, which may be an element more than the others'.
    let step = (rounds.slot_bytes() - ALIGN) * ranks / (ranks + 1) / ALIGN * ALIGN;
    let chunks: Vec<Range<usize>> = chunks(buffer.len(), step).collect();
    let sums_at = step;
    let share = |chunk: &Range<usize>, rank: usize| {
        let n = chunk.len() / element;
        n * rank / ranks * element..n * (rank + 1) / ranks * element
    };
    let mut kept = rounds.adder(order, format);
    let Kept { adder, block, .. } = &mut kept;
    let block = &mut block.get_or_insert_with(Block::new).0[BLOCK_AT..];
    for round in 0..=chunks.len() + 1 {
        let publishes = round <= chunks.len();
        if publishes {
            let slot = rounds.open()?;
            if let Some(chunk) = chunks.get(round) {
                // The own share is read from the buffer.
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
            let (slot, slots) = rounds.parts();
            for piece in pieces(own.clone(), BLOCK) {
                let at = chunk.start + piece.start;
                let values = |from| match from == rank {
                    true => buffer.slice(at..at + piece.len()),
                    false => &slots.of(from, 0)[piece.clone()],
                };
                let sums = &mut block[..piece.len()];
                adder.add(&(0..ranks).map(values).collect::<Values<'_>>(), sums);
                slot[sums_at + piece.start - own.start..][..piece.len()].copy_from_slice(sums);
                if takes {
                    buffer.write(at, sums);
                }
            }
        }
        if publishes {
            rounds.publish(0);
        }
    }
    rounds.keep(kept);
    Ok(())
}

/// At least one: an empty buffer has an empty chunk, by which every rank learns of the operation.
fn chunks(len: usize, step: usize) -> impl Iterator<Item = Range<usize>> {
    let nothing = (len == 0).then_some(0..0);
    nothing.into_iter().chain(pieces(0..len, step))
}

/// Two ranks add as much in one round as in three, up to here in less time.
const ONE_ROUND_OF_TWO_MAX: usize = 16 << 10;
