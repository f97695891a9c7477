//! Collectives that only move bytes, through shared memory.

use std::ops::Range;

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;

use super::Rounds;
use crate::pieces::copy;

/// Completes when every rank has called it.
pub(crate) fn barrier(rounds: &mut Rounds<'_>) -> Result<(), MeshError> {
    rounds.open()?;
    rounds.publish(0);
    rounds.await_all()
}

/// Copies a range of the root's buffer to every rank's.
pub(crate) fn broadcast(
    rounds: &mut Rounds<'_>,
    buffer: &mut Buffer,
    range: Range<usize>,
    root: u32,
) -> Result<(), MeshError> {
    let (root, step) = (root as usize, rounds.moved_bytes());
    let is_root = rounds.rank() == root;
    for round in 0..range.len().div_ceil(step).max(1) {
        let piece = cut(range.len(), step, round);
        let at = range.start + piece.start;
        let slot = rounds.open()?;
        if is_root {
            buffer.read(at, &mut slot[..piece.len()]);
            rounds.publish(0);
        } else {
            rounds.publish(0);
            rounds.await_rank(root)?;
            buffer.write(at, &rounds.shared.arena.slots().of(root, 0)[..piece.len()]);
        }
    }
    Ok(())
}

/// The `input` of every rank to the others' `outputs`, by rank; the sizes are known to all.
pub(crate) fn allgather(
    rounds: &mut Rounds<'_>,
    input: &[u8],
    outputs: &mut [Buffer],
) -> Result<(), MeshError> {
    let step = rounds.moved_bytes();
    let longest = outputs.iter().map(Buffer::len).max().unwrap_or(0).max(input.len());
    for round in 0..longest.div_ceil(step).max(1) {
        let piece = cut(input.len(), step, round);
        rounds.open()?[..piece.len()].copy_from_slice(&input[piece]);
        rounds.publish(0);
        rounds.await_all()?;
        let slots = rounds.shared.arena.slots();
        for from in rounds.others() {
            let piece = cut(outputs[from].len(), step, round);
            outputs[from].write(piece.start, &slots.of(from, 0)[..piece.len()]);
        }
    }
    Ok(())
}

/// The `input` of every rank to the root's `outputs`, by rank; elsewhere `outputs` is empty.
pub(crate) fn gather(
    rounds: &mut Rounds<'_>,
    input: &Buffer,
    outputs: &mut [Buffer],
    root: u32,
) -> Result<(), MeshError> {
    let root = root as usize;
    if rounds.rank() != root {
        return exchange(rounds, &[root], |_| Some(input), Takes::Nothing);
    }
    copy(input, &mut outputs[root]);
    exchange(rounds, &[root], |_| None, Takes::OfAll(outputs))
}

/// The root's `inputs`, by rank, to the `output` of every rank; elsewhere `inputs` is empty.
pub(crate) fn scatter(
    rounds: &mut Rounds<'_>,
    output: &mut Buffer,
    inputs: &[Buffer],
    root: u32,
) -> Result<(), MeshError> {
    let root = root as usize;
    let receivers: Vec<usize> = (0..rounds.ranks()).filter(|&to| to != root).collect();
    if rounds.rank() != root {
        return exchange(rounds, &receivers, |_| None, Takes::OfOne(root, output));
    }
    copy(&inputs[root], output);
    exchange(rounds, &receivers, |to| Some(&inputs[to]), Takes::Nothing)
}

/// Input i of rank r to output r of rank i.
pub(crate) fn alltoall(
    rounds: &mut Rounds<'_>,
    outputs: &mut [Buffer],
    inputs: &[Buffer],
) -> Result<(), MeshError> {
    let rank = rounds.rank();
    copy(&inputs[rank], &mut outputs[rank]);
    let all: Vec<usize> = (0..rounds.ranks()).collect();
    exchange(rounds, &all, |to| Some(&inputs[to]), Takes::OfAll(outputs))
}

/// The targets of a rank's messages, by sender.
enum Takes<'a> {
    Nothing,
    OfOne(usize, &'a mut Buffer),
    OfAll(&'a mut [Buffer]),
}

impl Takes<'_> {
    fn of(&mut self, from: usize) -> Option<&mut Buffer> {
        match self {
            Takes::OfOne(sender, output) if *sender == from => Some(output),
            Takes::OfAll(outputs) => Some(&mut outputs[from]),
            Takes::Nothing | Takes::OfOne(..) => None,
        }
    }
}

/// Messages between pairs of ranks; only the two know their sizes.
///
/// A slot is divided into one part per receiver, behind a table of the sizes of all messages in it. A rank's first
/// round announces how many rounds its messages need. A message of the wrong size is left, and reported at the end: the
/// other ranks are not at fault, and need this rank's rounds.
fn exchange<'b>(
    rounds: &mut Rounds<'_>,
    receivers: &[usize],
    gives: impl Fn(usize) -> Option<&'b Buffer>,
    mut takes: Takes<'_>,
) -> Result<(), MeshError> {
    let rank = rounds.rank();
    let table = (receivers.len() * SIZE).next_multiple_of(ALIGN);
    let step = (rounds.moved_bytes() - table) / receivers.len() / ALIGN * ALIGN;
    let to = receivers.iter().filter(|&&to| to != rank);
    let longest = to.filter_map(|&to| gives(to)).map(Buffer::len).max().unwrap_or(0);
    let mut count = longest.div_ceil(step).max(1);
    let own_place = receivers.iter().position(|&to| to == rank);
    let mut wrong = None;
    let mut round = 0;
    while round < count {
        let slot = rounds.open()?;
        for (place, &to) in receivers.iter().enumerate() {
            let input = gives(to).filter(|_| to != rank);
            let len = input.map_or(0, Buffer::len);
            slot[place * SIZE..][..SIZE].copy_from_slice(&(len as u64).to_le_bytes());
            if let Some(input) = input {
                let piece = cut(len, step, round);
                input.read(piece.start, &mut slot[table + place * step..][..piece.len()]);
            }
        }
        rounds.publish(count as u64);
        rounds.await_all()?;
        let slots = rounds.shared.arena.slots();
        for from in rounds.others() {
            if round == 0 {
                count = count.max(slots.word(from) as usize);
            }
            let (Some(place), Some(output)) = (own_place, takes.of(from)) else { continue };
            let slot = slots.of(from, 0);
            let mut sent = [0; SIZE];
            sent.copy_from_slice(&slot[place * SIZE..][..SIZE]);
            let (sent, expected) = (u64::from_le_bytes(sent), output.len() as u64);
            if sent != expected {
                wrong = Some(MeshError::Size { rank: from as u32, sent, expected });
                continue;
            }
            let piece = cut(output.len(), step, round);
            output.write(piece.start, &slot[table + place * step..][..piece.len()]);
        }
        round += 1;
    }
    wrong.map_or(Ok(()), Err)
}

/// The `len` bytes' part that is sent in a round.
fn cut(len: usize, step: usize, round: usize) -> Range<usize> {
    (round * step).min(len)..((round + 1) * step).min(len)
}

/// Bytes of a size in the table.
const SIZE: usize = 8;
const ALIGN: usize = 64;
