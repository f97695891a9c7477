//! The trade-off between rate, number of trees and height.

use netsum_topo::links::Collective;
use serde::Serialize;

use super::budget::Budget;
use super::choice::Choice;
use super::cost::{LARGEST_LOG2, Trees};
use super::packed::{Flow, Packed};
use super::packing::pack_net;
use super::shares::rounded;
use super::tree::Tree;

/// Packings of which none is dominated in rate, number of trees and height; the best rate first. The first has the
/// optimal rate of `best`, and is the only one for an all-to-all; for the others it is not proven that no better one exists (low trees come from a greedy
/// search, few trees from leaving out the lightest; all of it within four times [`Budget::standard`]).
pub fn front(best: &Packed) -> Vec<Packed> {
    let mut found = vec![best.clone()];
    if best.collective == Collective::Alltoall {
        return found;
    }
    let gpus = best.net.gpus.len();
    let budget = Budget::standard(2 * gpus);
    for height in 1..=best.height() {
        if budget.is_over() {
            break;
        }
        let choice = Choice::Height(height);
        let low = pack_net(best.net.clone(), best.collective, best.bound.clone(), &choice, &budget);
        // Nothing can be packed if some root has no tree this low.
        if low.rate.is_positive() {
            found.extend(fewer(&low, &Budget::standard(gpus)));
        }
    }
    found.extend(fewer(best, &Budget::standard(gpus)));
    found.sort_by_key(|packed| {
        (std::cmp::Reverse(packed.rate), packed.flows.len(), packed.height())
    });
    let mut kept: Vec<Packed> = Vec::new();
    for packed in found {
        let worse = |other: &Packed| {
            other.flows.len() <= packed.flows.len() && other.height() <= packed.height()
        };
        if !kept.iter().any(worse) {
            kept.push(packed);
        }
    }
    kept
}

/// The sizes at which one of several plans is the fastest.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fastest {
    /// Its number.
    pub point: usize,
    /// The least size, in bytes: a power of two.
    pub from_bytes: u64,
    /// Its time at that size, in seconds.
    pub seconds: f64,
    /// The time of the plan with the highest rate at that size.
    pub of_first: f64,
}

/// Which of some plans for one collective is the fastest, from which size on: low trees for small buffers, high rates
/// for large ones, by the model of [`cost`](super::cost). Sizes in ascending order, from 1 byte on.
pub fn fastest(points: &[Packed]) -> Vec<Fastest> {
    let trees: Vec<Trees> = points.iter().map(Trees::of).collect();
    let mut found: Vec<Fastest> = Vec::new();
    for log2 in 0..=LARGEST_LOG2 {
        let bytes = 1u64 << log2;
        let times = trees.iter().map(|trees| trees.time(bytes as f64).seconds).enumerate();
        let Some((point, seconds)) = times.min_by(|a, b| a.1.total_cmp(&b.1)) else { break };
        if found.last().is_none_or(|last| last.point != point) {
            let of_first = trees[0].time(bytes as f64).seconds;
            found.push(Fastest { point, from_bytes: bytes, seconds, of_first });
        }
    }
    found
}

/// `packed`, and its variants with ever fewer trees.
pub(super) fn fewer(packed: &Packed, budget: &Budget<'_>) -> Vec<Packed> {
    let mut found = vec![packed.clone()];
    let mut flows = packed.flows.clone();
    while flows.len() > 1 && !budget.is_over() {
        let lightest = (0..flows.len()).min_by_key(|&f| flows[f].weight).expect("there are flows");
        flows.remove(lightest);
        let trees: Vec<Tree> =
            flows.iter().filter_map(|flow| flow.down.clone().or(flow.up.clone())).collect();
        let one_tree =
            |flow: &Flow| flow.up.is_none() || flow.down.is_none() || flow.up == flow.down;
        if !flows.iter().all(one_tree) {
            break;
        }
        let choice = Choice::Only(trees);
        let (net, bound) = (packed.net.clone(), packed.bound.clone());
        let less = pack_net(net, packed.collective, bound, &choice, budget);
        if !less.rate.is_positive() {
            break;
        }
        flows.clone_from(&less.flows);
        found.push(less);
    }
    found
}

/// A packing with every share a multiple of 1/`pieces`, for executors with few chunks: the given packing with rounded
/// shares, or trees of equal weight if these are then faster. Its rate is limited by the fullest link.
///
/// `None` if there are more trees than pieces (per root, for sharded collectives).
pub fn coarse(packed: &Packed, pieces: u64) -> Option<Packed> {
    let Packed { net, collective, bound, .. } = packed;
    if *collective == Collective::Alltoall {
        return rounded(packed, pieces);
    }
    let budget = Budget::standard(net.gpus.len());
    let even = pack_net(net.clone(), *collective, bound.clone(), &Choice::Spread, &budget);
    let both = [packed, &even].into_iter().filter_map(|packed| rounded(packed, pieces));
    both.reduce(|one, other| if other.rate > one.rate { other } else { one })
}
