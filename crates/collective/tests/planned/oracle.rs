//! The expected result of a plan, element by element, from the plan's JSON fields and the documented order of additions
//! alone.

use std::collections::HashMap;

use netsum_collective::{Dtype, ReduceOp};
use netsum_topo::links::{Collective, PlannedFlow, TreePlan};
use netsum_wire::{Encoding, Format, Input, reduce};

/// A rank's values: floats of very different size, so that another order of additions gives other bits.
pub fn values(dtype: Dtype, n: usize, rank: usize, salt: u64) -> Vec<u8> {
    let mut state = ((rank as u64) << 32 ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(n * dtype.size());
    for _ in 0..n {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let float = (state as i32 as f64) * 2f64.powi((state >> 40) as i32 % 24 - 40);
        match dtype {
            Dtype::F32 => out.extend((float as f32).to_le_bytes()),
            Dtype::F64 => out.extend(float.to_le_bytes()),
            Dtype::F16 => out.extend(half::f16::from_f64(float).to_le_bytes()),
            Dtype::Bf16 => out.extend(half::bf16::from_f64(float).to_le_bytes()),
            Dtype::Bool => out.push((state & 1) as u8),
            other => out.extend(&state.to_le_bytes()[..other.size()]),
        }
    }
    out
}

/// Asserts that `found` is the plan's result for `begin`, both by rank.
pub fn check(plan: &TreePlan, dtype: Dtype, op: ReduceOp, begin: &[Vec<u8>], found: &[Vec<u8>]) {
    let size = dtype.size();
    let n = begin[0].len() / size;
    let ranks = begin.len();
    let rank_of: HashMap<usize, usize> =
        plan.gpus.iter().enumerate().map(|(rank, &vertex)| (vertex, rank)).collect();
    let adds = |flow: &PlannedFlow| match plan.collective {
        Collective::Broadcast { .. } | Collective::Allgather => begin[rank_of[&flow.root]].clone(),
        _ => sum_at(flow, flow.root, dtype, op, begin, &rank_of),
    };
    let sums: Vec<Vec<u8>> = plan.flows.iter().map(adds).collect();
    // Flows divide the buffer, or their root's shard of it, by their shares; the executor's rounding determines the
    // boundaries.
    let sharded = matches!(plan.collective, Collective::Allgather | Collective::ReduceScatter);
    let mut spans = Vec::new();
    let (mut owner, mut at) = (usize::MAX, 0.0);
    for flow in &plan.flows {
        let root = rank_of[&flow.root];
        let (start, end) =
            if sharded { (n * root / ranks, n * (root + 1) / ranks) } else { (0, n) };
        if !sharded || owner != root {
            at = if sharded { start as f64 } else { at };
            owner = root;
        }
        let share = flow.share.to_f64() * if sharded { ranks as f64 } else { 1.0 };
        let to = at + share * (end - start) as f64;
        spans.push((at, to));
        at = to;
    }
    for (rank, found) in found.iter().enumerate() {
        for i in 0..n {
            let element = &found[i * size..(i + 1) * size];
            let own = &begin[rank][i * size..(i + 1) * size];
            let gets = |flow: &PlannedFlow| match plan.collective {
                Collective::Reduce { .. } | Collective::ReduceScatter => {
                    rank_of[&flow.root] == rank
                }
                _ => true,
            };
            let near =
                |&(from, to): &(f64, f64)| (i + 1) as f64 >= from - 0.5 && i as f64 <= to + 0.5;
            let possible =
                spans.iter().zip(&plan.flows).zip(&sums).filter(|((span, _), _)| near(span));
            let right = possible.into_iter().any(|((_, flow), sum)| match gets(flow) {
                true => element == &sum[i * size..(i + 1) * size],
                false => element == own,
            });
            assert!(right, "rank {rank}, element {i} of {n}: {element:?}");
        }
    }
}

/// The sum at a vertex: its own values, then its children in the order of their paths.
fn sum_at(
    flow: &PlannedFlow,
    vertex: usize,
    dtype: Dtype,
    op: ReduceOp,
    begin: &[Vec<u8>],
    rank_of: &HashMap<usize, usize>,
) -> Vec<u8> {
    let own = begin[rank_of[&vertex]].clone();
    let children = flow.up.iter().filter(|way| way[way.len() - 1] == vertex);
    let mut parts = vec![own];
    parts.extend(children.map(|way| sum_at(flow, way[0], dtype, op, begin, rank_of)));
    if parts.len() == 1 {
        return parts.remove(0);
    }
    let mut sum = vec![0; parts[0].len()];
    let inputs: Vec<_> =
        parts.iter().map(|bytes| Some(Input { bytes, encoding: Encoding::Element })).collect();
    reduce(Format { dtype, op }, &inputs, sum.len() / dtype.size(), &mut sum, Encoding::Element);
    sum
}
