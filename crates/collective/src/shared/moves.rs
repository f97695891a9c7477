//! Collectives that only move bytes, through shared memory.

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;

use super::Rounds;
use crate::pieces::copy;

/// Done when everybody has called it.
pub(crate) fn barrier(rounds: &mut Rounds<'_>) -> Result<(), MeshError> {
    rounds.open()?;
    rounds.publish(0);
    rounds.await_all()
}

/// The root's buffer in everybody's.
pub(crate) fn broadcast(
    rounds: &mut Rounds<'_>,
    buffer: &Buffer,
    root: u32,
) -> Result<(), MeshError> {
    let (root, step) = (root as usize, rounds.moved_bytes());
    let is_root = rounds.rank() == root;
    for round in 0..buffer.len().div_ceil(step).max(1) {
        let piece = cut(buffer.len(), step, round);
        let slot = rounds.open()?;
        if is_root {
            buffer.read(piece.start, &mut slot[..piece.len()]);
            rounds.publish(0);
        } else {
            rounds.publish(0);
            rounds.await_rank(root)?;
            buffer.write(piece.start, &rounds.shared.arena.slots().of(root, 0)[..piece.len()]);
        }
    }
    Ok(())
}

/// Everybody's `input` to everybody's `outputs`, by rank; the sizes are known to all.
pub(crate) fn allgather(
    rounds: &mut Rounds<'_>,
    input: &Buffer,
    outputs: &[Buffer],
) -> Result<(), MeshError> {
    let (rank, step) = (rounds.rank(), rounds.moved_bytes());
    copy(input, &outputs[rank]);
    let longest = outputs.iter().map(Buffer::len).max().unwrap_or(0);
    for round in 0..longest.div_ceil(step).max(1) {
        let piece = cut(input.len(), step, round);
        input.read(piece.start, &mut rounds.open()?[..piece.len()]);
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

/// Everybody's `input` to the root's `outputs`, by rank; elsewhere `outputs` is empty.
pub(crate) fn gather(
    rounds: &mut Rounds<'_>,
    input: &Buffer,
    outputs: &[Buffer],
    root: u32,
) -> Result<(), MeshError> {
    let root = root as usize;
    let is_root = rounds.rank() == root;
    let takes = |from: usize| is_root.then(|| &outputs[from]);
    if is_root {
        copy(input, &outputs[root]);
    }
    exchange(rounds, &[root], |_| (!is_root).then_some(input), takes)
}

/// The root's `inputs`, by rank, to everybody's `output`; elsewhere `inputs` is empty.
pub(crate) fn scatter(
    rounds: &mut Rounds<'_>,
    output: &Buffer,
    inputs: &[Buffer],
    root: u32,
) -> Result<(), MeshError> {
    let (rank, root) = (rounds.rank(), root as usize);
    let receivers: Vec<usize> = (0..rounds.ranks()).filter(|&to| to != root).collect();
    if rank == root {
        copy(&inputs[root], output);
    }
    let gives = |to: usize| (rank == root).then(|| &inputs[to]);
    exchange(rounds, &receivers, gives, |from| (from == root && rank != root).then_some(output))
}

/// Input i of rank r to output r of rank i.
pub(crate) fn alltoall(
    rounds: &mut Rounds<'_>,
    outputs: &[Buffer],
    inputs: &[Buffer],
) -> Result<(), MeshError> {
    let rank = rounds.rank();
    copy(&inputs[rank], &outputs[rank]);
    let all: Vec<usize> = (0..rounds.ranks()).collect();
    let (gives, takes) = (|to| Some(&inputs[to]), |from| Some(&outputs[from]));
    exchange(rounds, &all, gives, takes)
}

/// Messages between pairs of ranks, whose sizes only the two know.
///
/// A slot is cut into one part per receiver, behind a table of the sizes of all messages in it. How many rounds its
/// messages need is the word of a rank's first round. A message of the wrong size is left, and told at the end: the
/// other ranks are not to blame, and need our rounds.
fn exchange<'b>(
    rounds: &mut Rounds<'_>,
    receivers: &[usize],
    gives: impl Fn(usize) -> Option<&'b Buffer>,
    takes: impl Fn(usize) -> Option<&'b Buffer>,
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
            let (Some(place), Some(output)) = (own_place, takes(from)) else { continue };
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

/// The part of `len` bytes that goes in a round.
fn cut(len: usize, step: usize, round: usize) -> std::ops::Range<usize> {
    (round * step).min(len)..((round + 1) * step).min(len)
}

/// Bytes of a size in the table.
const SIZE: usize = 8;
const ALIGN: usize = 64;
