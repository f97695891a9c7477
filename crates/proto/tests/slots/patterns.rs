//! Collectives of all patterns, and the buffers that ranks must end with.

use std::ops::Range;
use std::sync::Arc;

use netsum_proto::Pattern;
use netsum_wire::{Dtype, Format, Rank, ReduceOp};

use super::network::Random;
use super::oracle::{self, Path};

/// What is copied is counted in words.
pub const COPIED: Format = Format { dtype: Dtype::I32, op: ReduceOp::Sum };

fn shards(random: &mut Random, workers: u64, most: u64) -> Arc<[u64]> {
    let uneven = random.below(2) == 0;
    let same = 1 + random.below(most);
    let mut sizes: Vec<u64> =
        (0..workers).map(|_| if uneven { random.below(most + 1) } else { same }).collect();
    let some = random.below(workers) as usize;
    sizes[some] = sizes[some].max(1);
    sizes.into()
}

/// An operation, and the elements of its buffer.
pub fn pattern(random: &mut Random, workers: u64, most: u64) -> (Pattern, usize) {
    let root = Rank(random.below(workers) as u32);
    let numel = 1 + random.below(most * workers) as usize;
    let sharded = |random: &mut Random, of: fn(Arc<[u64]>) -> Pattern| {
        let sizes = shards(random, workers, most);
        let numel = sizes.iter().sum::<u64>() as usize;
        (of(sizes), numel)
    };
    match random.below(8) {
        0 => (Pattern::Allreduce, numel),
        1 => (Pattern::Reduce(root), numel),
        2 => (Pattern::Broadcast(root), numel),
        3 => (Pattern::Barrier, 0),
        4 | 5 => sharded(random, Pattern::ReduceScatter),
        _ => sharded(random, Pattern::Allgather),
    }
}

/// Patterns of four ranks on 200 elements on which ranks may disagree, in pairs on the same tree.
pub fn disagreements() -> [(Pattern, Pattern); 6] {
    let sizes: Arc<[u64]> = vec![50; 4].into();
    let uneven: Arc<[u64]> = vec![50, 49, 51, 50].into();
    [
        (Pattern::ReduceScatter(sizes.clone()), Pattern::Allreduce),
        (Pattern::ReduceScatter(sizes.clone()), Pattern::ReduceScatter(uneven.clone())),
        (Pattern::Reduce(Rank(0)), Pattern::Reduce(Rank(1))),
        (Pattern::Broadcast(Rank(0)), Pattern::Broadcast(Rank(1))),
        (Pattern::Broadcast(Rank(2)), Pattern::Allgather(sizes.clone())),
        (Pattern::Allgather(sizes), Pattern::Allgather(uneven)),
    ]
}

pub fn is_copied(pattern: &Pattern) -> bool {
    pattern.copies() || *pattern == Pattern::Barrier
}

/// The rank of the shard to which an element belongs.
fn shard_of(sizes: &[u64], element: u64) -> u32 {
    let mut end = 0;
    let owner = sizes.iter().position(|size| {
        end += size;
        element < end
    });
    owner.unwrap() as u32
}

/// The fragments of an operation: each lies within one shard.
fn fragments(pattern: &Pattern, numel: usize, per_fragment: usize) -> Vec<Range<usize>> {
    let whole = [numel as u64];
    let sizes = match pattern {
        Pattern::ReduceScatter(sizes) | Pattern::Allgather(sizes) => &sizes[..],
        _ => &whole[..],
    };
    let (mut all, mut start) = (Vec::new(), 0);
    for &size in sizes {
        let end = start + size as usize;
        all.extend((start..end).step_by(per_fragment).map(|at| at..(at + per_fragment).min(end)));
        start = end;
    }
    all
}

/// The buffers with which the ranks must end that began with `inputs`: what a rank does not take stays as it was.
/// `scale`: the fixed one, if the plan has one; `words`: payload bytes of a full fragment; `sum`: the combination of an
/// element's values.
pub fn results(
    pattern: &Pattern,
    format: Format,
    (scale, words): (Option<f32>, usize),
    inputs: &[Vec<u8>],
    sum: impl Fn(Path, &[&[u8]]) -> Vec<u8>,
) -> Vec<Vec<u8>> {
    let size = format.dtype.size();
    let per_fragment = oracle::fragment_bytes(format, words) / size;
    let mut buffers = inputs.to_vec();
    for fragment in fragments(pattern, inputs[0].len() / size, per_fragment) {
        let of = |range: Range<usize>| -> Vec<&[u8]> {
            inputs.iter().map(|v| &v[range.start * size..range.end * size]).collect()
        };
        let path = oracle::path(format, scale, &of(fragment.clone()));
        for element in fragment {
            let each = of(element..element + 1);
            let owner = |sizes: &[u64]| shard_of(sizes, element as u64);
            let (taker, result) = match pattern {
                Pattern::Allreduce => (None, sum(path, &each)),
                Pattern::Reduce(to) => (Some(to.0), sum(path, &each)),
                Pattern::ReduceScatter(sizes) => (Some(owner(sizes)), sum(path, &each)),
                Pattern::Broadcast(from) => (None, each[from.0 as usize].to_vec()),
                Pattern::Allgather(sizes) => (None, each[owner(sizes) as usize].to_vec()),
                Pattern::Barrier => unreachable!("it has no elements"),
            };
            for (rank, buffer) in buffers.iter_mut().enumerate() {
                if taker.is_none_or(|taker| taker == rank as u32) {
                    buffer[element * size..][..size].copy_from_slice(&result);
                }
            }
        }
    }
    buffers
}
