//! Blink's method: near-optimal fractional packing by multiplicative weights, then an integer programme for few trees
//! of equal weight.
//!
//! Source: Blink (MLSys 2020), TreeGen. Differs: allreduce packs undirected trees, since a packing of broadcast trees
//! that is also used backwards over-books links; if whole links lose more than 5 %, links are split into k equal parts,
//! k = 2, 3, 4, before fractions are accepted.

use netsum_topo::Ratio;
use netsum_topo::links::{Collective, LinkGraph};

use super::budget::Budget;
use super::choice::Choice;
use super::net::Net;
use super::packed::{Flow, Packed, bound_for, net_for};
use super::packing::pack_net;
use super::search::Search;
use super::tree::Tree;
use crate::error::PackError;

/// Packs as Blink does. Supports broadcast, reduce and allreduce only, and for allreduce links of equal rate in both
/// directions: its trees have one root or none. Each of its three parts ends within [`Budget::standard`].
pub fn pack_blink(graph: &LinkGraph, collective: Collective) -> Result<Packed, PackError> {
    let net = net_for(collective, graph)?;
    let bound = bound_for(collective, &net);
    let refuse = |problem: &str| {
        Err(PackError::Format { format: "method blink", problem: problem.to_owned() })
    };
    match collective {
        Collective::Allreduce if net.mirror.is_none() => {
            return refuse("links differ by direction; use the exact method");
        }
        Collective::Allgather | Collective::ReduceScatter | Collective::Alltoall => {
            return refuse("it packs broadcast, reduce and allreduce; use the exact method");
        }
        _ => {}
    }
    let search_net =
        if let Collective::Reduce { .. } = collective { net.reversed() } else { net.clone() };
    let budget = || Budget::standard(net.gpus.len());
    let candidates = multiplicative_weights(&search_net, collective, &budget());
    let choice = Choice::Only(candidates.clone());
    let exact = pack_net(net.clone(), collective, bound, &choice, &budget());
    let budget = budget();
    for parts in 1..=PARTS_MAX {
        let rate = exact.rate * Ratio::from(parts);
        let target = rate.num() / rate.den();
        let least = (exact.rate * Ratio::new(95, 100) * Ratio::from(parts)).to_f64();
        let mut goal = target as i64;
        while goal as f64 >= least && goal > 0 && goal <= TREES_MAX && !budget.is_over() {
            let links = Divided { net: &search_net, collective, parts };
            if let Some(counts) = few_trees(&links, &candidates, goal, &budget) {
                let flows = counts.into_iter().map(|(tree, count)| {
                    flow(
                        collective,
                        &net,
                        candidates[tree].clone(),
                        Ratio::new(count.into(), parts.into()),
                    )
                });
                let rate = Ratio::new(goal.into(), parts.into());
                return Ok(Packed { flows: flows.collect(), rate, ..exact });
            }
            goal -= 1;
        }
    }
    Ok(exact)
}

fn flow(collective: Collective, net: &Net, tree: Tree, weight: Ratio) -> Flow {
    let root = tree.root;
    match collective {
        Collective::Broadcast { .. } => Flow { weight, root, up: None, down: Some(tree) },
        Collective::Reduce { .. } => Flow { weight, root, up: Some(tree), down: None },
        _ => {
            debug_assert!(net.mirror.is_some());
            let tree = tree.centred();
            Flow { weight, root: tree.root, up: Some(tree.clone()), down: Some(tree) }
        }
    }
}

/// Rows of arcs that share their capacity: both directions for allreduce.
fn rows(net: &Net, collective: Collective) -> Vec<usize> {
    match (&net.mirror, collective) {
        (Some(mirror), Collective::Allreduce) => {
            mirror.iter().enumerate().map(|(arc, &back)| arc.min(back)).collect()
        }
        _ => (0..net.arcs.len()).collect(),
    }
}

/// Candidate trees by Garg and Könemann's algorithm with ε = 0.1, the heaviest first.
fn multiplicative_weights(net: &Net, collective: Collective, budget: &Budget<'_>) -> Vec<Tree> {
    let search = Search::new(net, budget);
    let row = rows(net, collective);
    let arcs = net.arcs.len() as f64;
    let mut length: Vec<f64> = {
        let start = (1.0 + EPSILON) / ((1.0 + EPSILON) * arcs).powf(1.0 / EPSILON);
        net.arcs.iter().map(|arc| start / arc.cap as f64).collect()
    };
    let mut weights: Vec<(Tree, f64)> = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let total: f64 =
            net.arcs.iter().zip(&length).map(|(arc, length)| arc.cap as f64 * length).sum();
        if total >= 1.0 || budget.is_over() && !weights.is_empty() {
            break;
        }
        let longest = length.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let whole: Vec<i64> =
            row.iter().map(|&row| (length[row] / longest * WHOLE) as i64 + 1).collect();
        let tree = match collective {
            Collective::Broadcast { root } | Collective::Reduce { root } => {
                search.directed(&whole, &[net.gpus[root]]).remove(0).0
            }
            _ => search.undirected(&whole).0,
        };
        let mut uses = vec![0i64; net.arcs.len()];
        tree.arcs(net).for_each(|arc| uses[row[arc]] += 1);
        let used = || (0..uses.len()).filter(|&arc| uses[arc] > 0);
        let weight =
            used().map(|arc| net.arcs[arc].cap as f64 / uses[arc] as f64).fold(f64::MAX, f64::min);
        for arc in used() {
            length[arc] *= 1.0 + EPSILON * weight * uses[arc] as f64 / net.arcs[arc].cap as f64;
        }
        match weights.iter_mut().find(|(known, _)| *known == tree) {
            Some(known) => known.1 += weight,
            None => weights.push((tree, weight)),
        }
    }
    weights.sort_by(|a, b| b.1.total_cmp(&a.1));
    weights.into_iter().map(|(tree, _)| tree).collect()
}

/// Links that are divided into equal parts.
struct Divided<'a> {
    net: &'a Net,
    collective: Collective,
    parts: i64,
}

/// Trees with whole counts, `goal` in all, on divided links; a depth-first search over the candidates that gives up
/// after [`NODES_MAX`] steps, or at the end of the budget.
fn few_trees(
    links: &Divided<'_>,
    candidates: &[Tree],
    goal: i64,
    budget: &Budget<'_>,
) -> Option<Vec<(usize, i64)>> {
    let row = rows(links.net, links.collective);
    let uses = |tree: &Tree| -> Vec<(usize, i64)> {
        let mut uses: Vec<(usize, i64)> = Vec::new();
        for arc in tree.arcs(links.net).map(|arc| row[arc]) {
            match uses.iter_mut().find(|(known, _)| *known == arc) {
                Some((_, times)) => *times += 1,
                None => uses.push((arc, 1)),
            }
        }
        uses
    };
    let uses: Vec<Vec<(usize, i64)>> = candidates.iter().map(uses).collect();
    let free = links.net.arcs.iter().map(|arc| arc.cap * links.parts).collect();
    let mut filling = Filling { uses: &uses, free, nodes: 0, budget };
    let mut chosen = Vec::new();
    filling.fill(0, goal, &mut chosen).then_some(chosen)
}

/// The search for whole counts.
struct Filling<'a> {
    /// By tree, arcs and how often it uses them.
    uses: &'a [Vec<(usize, i64)>],
    /// By arc, what is left of it.
    free: Vec<i64>,
    nodes: usize,
    budget: &'a Budget<'a>,
}

impl Filling<'_> {
    fn fill(&mut self, first: usize, goal: i64, chosen: &mut Vec<(usize, i64)>) -> bool {
        if goal == 0 {
            return true;
        }
        for tree in first..self.uses.len() {
            self.nodes += 1;
            self.budget.spend(self.uses[tree].len() * USE_WORK);
            let room = self.uses[tree].iter().map(|&(arc, times)| self.free[arc] / times).min();
            let most = room.unwrap_or(0).min(goal);
            self.take(tree, most);
            // The largest count of a tree comes first, for few trees.
            for count in (1..=most).rev() {
                if self.is_over() {
                    return false;
                }
                chosen.push((tree, count));
                if self.fill(tree + 1, goal - count, chosen) {
                    return true;
                }
                chosen.pop();
                self.take(tree, -1);
            }
        }
        false
    }

    /// Takes what so many of a tree use from its arcs.
    fn take(&mut self, tree: usize, count: i64) {
        self.uses[tree].iter().for_each(|&(arc, times)| self.free[arc] -= times * count);
    }

    fn is_over(&self) -> bool {
        self.nodes > NODES_MAX || self.budget.is_over()
    }
}

const EPSILON: f64 = 0.1;
/// Precision of the comparison of lengths.
const WHOLE: f64 = (1u64 << 30) as f64;
const ROUNDS_MAX: usize = 20_000;
/// Blink accepts packings within 5 % of the optimum.
const PARTS_MAX: i64 = 4;
const NODES_MAX: usize = 200_000;
/// More whole trees than this are no fewer than those with fractions.
const TREES_MAX: i64 = 4096;
/// Work per arc of a step of the search.
const USE_WORK: usize = 4;
