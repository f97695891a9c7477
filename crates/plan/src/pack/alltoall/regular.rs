//! Fabrics that look the same from every GPU, as tori: what one GPU does, all do, moved.

use super::super::lp::{Column, Master};
use super::super::tree::{Hop, Tree};
use super::answer::Answer;
use super::exact::whole;
use super::wires::{Paths, Wires};

/// Trees of the first GPU that load all directions alike as far as is possible, moved to every other GPU. `None` if the
/// fabric has no such automorphisms, or they are not found.
///
/// The programme has a row per direction: over all GPUs, a tree loads every arc of a direction as much as it loads that
/// direction in all.
pub(super) fn answer(wires: &Wires<'_>) -> Option<Answer> {
    let automorphisms = Automorphisms::find(wires)?;
    let net = wires.net;
    let root = net.gpus[0];
    let rows = automorphisms.steps.len();
    let limits: Vec<i64> = wires.out(root).iter().map(|&(_, arc)| net.arcs[arc].cap).collect();
    let mut master = Master::new(limits.clone());
    let mut trees: Vec<Tree> = Vec::new();
    let mut offered: Vec<(Vec<(usize, i64)>, Tree)> = Vec::new();
    let mut paths = Paths::default();
    let mut column = |prices: &[u64]| {
        let lengths: Vec<u64> = automorphisms.direction.iter().map(|&row| prices[row]).collect();
        wires.shortest(root, &lengths, &mut paths);
        let mut total = vec![0i64; rows];
        wires.loads(&mut paths, |arc, gpus| total[automorphisms.direction[arc]] += gpus);
        let uses: Vec<(usize, i64)> =
            total.into_iter().enumerate().filter(|&(_, gpus)| gpus > 0).collect();
        offered.push((uses.clone(), wires.tree(&paths)));
        Column { gain: 1, uses }
    };
    // Directions of equal length, with ties for each in turn: most often these trees suffice.
    for first in 0..rows {
        let tied = |row: usize| FAR / limits[row] as u64 + ((row + rows - first) % rows) as u64;
        let prices: Vec<u64> = (0..rows).map(tied).collect();
        master.add(column(&prices));
    }
    let packing = master.solve(None, wires.budget(), &mut |prices, one| {
        let prices: Vec<u64> = prices.iter().map(|&price| price.max(0) as u64).collect();
        let found = column(&prices);
        let total: i128 =
            found.uses.iter().map(|&(row, gpus)| i128::from(prices[row]) * i128::from(gpus)).sum();
        if total < i128::from(one) { vec![found] } else { Vec::new() }
    });
    let mut answer = Answer::default();
    for &(number, weight) in &packing.weights {
        let uses = &master.columns()[number].uses;
        let tree = offered.iter().find(|(known, _)| known == uses).map(|(_, tree)| tree.clone());
        trees.push(tree?);
        let tree = trees.last().expect("it was added");
        for automorphism in &automorphisms.to {
            answer.trees.push((moved(tree, automorphism), weight));
        }
    }
    let place: Vec<usize> = {
        let mut place = vec![0; net.n];
        net.gpus.iter().enumerate().for_each(|(rank, &gpu)| place[gpu] = rank);
        place
    };
    answer.trees.sort_by_key(|(tree, _)| place[tree.root]);
    let prices = whole(&packing.prices)?;
    answer.lengths = Some(automorphisms.direction.iter().map(|&row| prices[row]).collect());
    Some(answer)
}

fn moved(tree: &Tree, automorphism: &[u32]) -> Tree {
    let to = |vertex: usize| automorphism[vertex] as usize;
    let hop = |hop: &Hop| Hop { from: to(hop.from), to: to(hop.to), via: Vec::new() };
    Tree { root: to(tree.root), hops: tree.hops.iter().map(hop).collect() }
}

/// Automorphisms of a fabric without switches that keep all arcs: one that moves every vertex along one arc for every
/// arc of the first GPU, and one for every place to which that GPU can be moved.
struct Automorphisms {
    steps: Vec<Vec<u32>>,
    /// By arc, the step that moves its sender to its receiver.
    direction: Vec<usize>,
    /// Compositions of steps, one per GPU.
    to: Vec<Vec<u32>>,
}

impl Automorphisms {
    fn find(wires: &Wires<'_>) -> Option<Automorphisms> {
        let net = wires.net;
        let degree = wires.out(net.gpus[0]).len();
        let alike = |&v: &usize| wires.out(v).len() == degree;
        if net.gpus.len() != net.n || !net.gpus.iter().all(alike) || degree > DEGREE_MAX {
            return None;
        }
        let mut signatures: Vec<Vec<i64>> = Vec::new();
        for &gpu in &net.gpus {
            let mut caps: Vec<i64> =
                wires.out(gpu).iter().map(|&(_, arc)| net.arcs[arc].cap).collect();
            caps.sort_unstable();
            signatures.push(caps);
        }
        if signatures.iter().any(|caps| *caps != signatures[0]) {
            return None;
        }
        let root = net.gpus[0];
        let mut direction = vec![usize::MAX; net.arcs.len()];
        let mut steps = Vec::new();
        for (row, &(to, arc)) in wires.out(root).iter().enumerate() {
            let step =
                Step { wires, cap: net.arcs[arc].cap, direction: &direction }.find(root, to)?;
            let kept = |arc: &super::super::net::Arc| {
                let moved = net.arc(step[arc.from] as usize, step[arc.to] as usize);
                moved.is_some_and(|moved| net.arcs[moved].cap == arc.cap)
            };
            if !net.arcs.iter().all(kept) {
                return None;
            }
            for (from, &to) in step.iter().enumerate() {
                let arc = net.arc(from, to as usize)?;
                if std::mem::replace(&mut direction[arc], row) != usize::MAX {
                    return None;
                }
            }
            steps.push(step);
        }
        let mut to: Vec<Option<Vec<u32>>> = vec![None; net.n];
        to[root] = Some((0..net.n as u32).collect());
        let mut next = vec![root];
        while let Some(here) = next.pop() {
            for step in &steps {
                let there = step[here] as usize;
                if to[there].is_none() {
                    let known = to[here].as_ref().expect("it was reached");
                    to[there] = Some(known.iter().map(|&v| step[v as usize]).collect());
                    next.push(there);
                }
            }
        }
        Some(Automorphisms { steps, direction, to: to.into_iter().collect::<Option<_>>()? })
    }
}

/// The search for an automorphism that moves every vertex along an arc of one capacity that no other automorphism uses.
struct Step<'a> {
    wires: &'a Wires<'a>,
    cap: i64,
    direction: &'a [usize],
}

impl Step<'_> {
    fn find(&self, from: usize, to: usize) -> Option<Vec<u32>> {
        let net = self.wires.net;
        // Vertices in the order of a walk, each next to an earlier one.
        let mut order = vec![from];
        let mut seen = vec![false; net.n];
        seen[from] = true;
        let mut at = 0;
        while at < order.len() {
            for &(next, _) in self.wires.out(order[at]) {
                if !std::mem::replace(&mut seen[next], true) {
                    order.push(next);
                }
            }
            at += 1;
        }
        let mut image = vec![u32::MAX; net.n];
        let mut taken = vec![false; net.n];
        let mut choices: Vec<Vec<usize>> = vec![vec![to]];
        let mut work = 0;
        loop {
            self.wires.budget().spend(CHOICE_WORK);
            work += 1;
            let here = order[choices.len() - 1];
            if image[here] != u32::MAX {
                taken[image[here] as usize] = false;
                image[here] = u32::MAX;
            }
            if work > TRIES * net.n {
                return None;
            }
            let Some(place) = choices.last_mut().expect("the first is never removed").pop() else {
                choices.pop();
                if choices.is_empty() {
                    return None;
                }
                continue;
            };
            image[here] = place as u32;
            taken[place] = true;
            if choices.len() == order.len() {
                return Some(image);
            }
            let next = order[choices.len()];
            choices.push(self.choices(next, &image, &taken));
        }
    }

    /// Where a vertex may be moved to, with everything next to it that is moved already.
    fn choices(&self, vertex: usize, image: &[u32], taken: &[bool]) -> Vec<usize> {
        let (wires, net) = (self.wires, self.wires.net);
        let cap = |from: usize, to: usize| net.arc(from, to).map(|arc| net.arcs[arc].cap);
        let fits = |place: usize| {
            wires.out(vertex).iter().all(|&(other, arc)| {
                let moved = image[other];
                moved == u32::MAX
                    || (cap(place, moved as usize) == Some(net.arcs[arc].cap)
                        && cap(moved as usize, place) == cap(other, vertex))
            })
        };
        let free = |&&(to, arc): &&(usize, usize)| {
            !taken[to] && self.direction[arc] == usize::MAX && net.arcs[arc].cap == self.cap
        };
        wires.out(vertex).iter().filter(free).map(|&(to, _)| to).filter(|&to| fits(to)).collect()
    }
}

/// Fabrics with more links per GPU are small, and planned exactly.
const DEGREE_MAX: usize = 32;
/// Attempts per vertex before the search for an automorphism ends.
const TRIES: usize = 64;
const CHOICE_WORK: usize = 500;
/// The length of an arc of capacity 1 where there is a choice.
const FAR: u64 = 1 << 30;
