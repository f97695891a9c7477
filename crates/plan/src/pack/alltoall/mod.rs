//! All-to-all: every GPU has another block for every GPU. The best rate is that of a maximum concurrent flow between
//! all pairs; its dual is a length per link.
//!
//! The blocks of one GPU travel along trees: a link carries the blocks of all GPUs behind it, not one copy for all, as in
//! an all-gather. A flow from one source with equal demands is a combination of such trees, so n sources with their
//! trees say all that n² pairs could. If every link gets a length, all blocks together travel at least Σ distance ×
//! block, and links offer Σ capacity × length: each choice of lengths bounds the rate, and the best choice reaches it.
//!
//! [`best`] takes the first of these that reaches the bound: what symmetry gives ([`regular`], [`classes`]), the exact
//! programme over trees of all sources ([`exact`]), and trees that move away from loaded links one by one ([`moves`]).

mod answer;
mod classes;
mod exact;
mod moves;
mod regular;
mod ties;
mod wires;

use netsum_topo::Ratio;

use super::blocks::loads;
use super::bound::{ArcLength, Bound, Certificate};
use super::budget::Budget;
use super::net::Net;
use super::packed::Flow;
use super::programme::Found;
use super::tree::Tree;
use answer::Answer;
use wires::Wires;

/// The best trees, and the best bound, within the budget.
pub(super) fn best(net: &Net, budget: &Budget<'_>) -> Found {
    let wires = Wires::new(net, budget);
    let mut state = State { wires: &wires, flows: Vec::new(), rate: Ratio::ZERO, bound: None };
    let small = net.arcs.len() + net.gpus.len() <= EXACT_ROWS_MAX;
    if let Some(answer) = regular::answer(&wires) {
        state.take(answer);
    }
    if !state.is_done() && !small {
        state.take_all(classes::answers(&wires));
    }
    if !state.is_done() && small {
        let part = budget.part(EXACT_WORK);
        state.take(exact::answer(&Wires::new(net, &part)));
        budget.spend(usize::try_from(part.spent()).unwrap_or(usize::MAX));
    }
    if !state.is_done() {
        let bound = state.bound.as_ref().map(|bound| bound.rate);
        state.take(moves::answer(&wires, bound));
    }
    Found { flows: state.flows, bound: state.bound }
}

/// The best of the answers so far.
struct State<'a> {
    wires: &'a Wires<'a>,
    flows: Vec<Flow>,
    rate: Ratio,
    bound: Option<Bound>,
}

impl State<'_> {
    fn is_done(&self) -> bool {
        self.bound.as_ref().is_some_and(|bound| bound.rate == self.rate)
    }

    fn take_all(&mut self, answers: impl Iterator<Item = Answer>) {
        for answer in answers {
            self.take(answer);
            if self.is_done() {
                return;
            }
        }
    }

    fn take(&mut self, answer: Answer) {
        let net = self.wires.net;
        if let Some(bound) = answer.lengths.and_then(|lengths| bound(self.wires, &lengths))
            && self.bound.as_ref().is_none_or(|known| bound.rate < known.rate)
        {
            self.bound = Some(bound);
        }
        if let Some((flows, rate)) = scaled(net, answer.trees)
            && rate > self.rate
        {
            (self.flows, self.rate) = (flows, rate);
        }
        if let Some(bound) = &self.bound {
            self.wires.budget().note(self.rate.to_f64() / bound.rate.to_f64());
        }
    }
}

/// The rate if every block takes a path of fewest arcs, in [`Net::unit_bps`].
pub(super) fn fewest_hops(net: &Net) -> Ratio {
    let budget = Budget::of_work(u64::MAX);
    let wires = Wires::new(net, &budget);
    let (ones, mut paths) = (vec![1; net.arcs.len()], wires::Paths::default());
    let mut load = vec![0i64; net.arcs.len()];
    for &root in &net.gpus {
        wires.shortest(root, &ones, &mut paths);
        wires.loads(&mut paths, |arc, gpus| load[arc] += gpus);
    }
    let used = net.arcs.iter().zip(load).filter(|(_, load)| *load > 0);
    let least = used.map(|(arc, load)| Ratio::new(arc.cap.into(), load.into())).min();
    least.expect("GPUs reach each other") * Ratio::from(net.gpus.len() as i64)
}

/// Number of GPUs × Σ capacity × length / Σ distance between GPUs. `None` if all distances are 0.
fn bound(wires: &Wires<'_>, lengths: &[u64]) -> Option<Bound> {
    let net = wires.net;
    let common = lengths.iter().fold(0, |all, &length| netsum_topo::gcd(all, length.into()));
    let lengths: Vec<u64> = lengths.iter().map(|&length| length / common.max(1) as u64).collect();
    let distances = wires.distances(&lengths);
    let room: i128 = (net.arcs.iter().zip(&lengths))
        .map(|(arc, &length)| i128::from(arc.cap) * i128::from(length))
        .sum();
    let rate = (distances > 0).then(|| Ratio::new(room * net.gpus.len() as i128, distances))?;
    let arcs = net.arcs.iter().zip(&lengths).filter(|(_, length)| **length > 0);
    let arcs = arcs.map(|(arc, &length)| ArcLength {
        from: arc.from,
        to: arc.to,
        length: Ratio::from(length as i64),
    });
    let certificate = Certificate::Distances { arcs: arcs.collect(), distances };
    Some(Bound { rate, certificate })
}

/// Flows of trees with weights that are equal for every root, scaled until the fullest link is full, and their rate.
/// `None` if a root has no tree.
fn scaled(net: &Net, trees: Vec<(Tree, Ratio)>) -> Option<(Vec<Flow>, Ratio)> {
    let mut of = vec![Ratio::ZERO; net.n];
    for (tree, weight) in &trees {
        of[tree.root] = of[tree.root] + *weight;
    }
    let each = of[net.gpus[0]];
    if !each.is_positive() || net.gpus.iter().any(|&gpu| of[gpu] != each) {
        return None;
    }
    let load = loads(net, trees.iter().map(|(tree, weight)| (tree, *weight)));
    let used = net.arcs.iter().zip(load).filter(|(_, load)| load.is_positive());
    let most = used.map(|(arc, load)| Ratio::from(arc.cap) / load).min()?;
    let flow = |(tree, weight): (Tree, Ratio)| {
        let (root, weight) = (tree.root, weight * most);
        Flow { weight, root, up: None, down: Some(tree) }
    };
    let flows: Vec<Flow> = trees.into_iter().map(flow).collect();
    Some((flows, each * most * Ratio::from(net.gpus.len() as i64)))
}

/// The exact programme's matrix is dense, with a row per arc and per GPU: beyond this it takes minutes.
const EXACT_ROWS_MAX: usize = 600;
/// Programmes that take more have many optimal trees, to which moves come near in less.
const EXACT_WORK: u64 = 2_500_000_000;
