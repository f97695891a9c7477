//! Trees that have lost some of their hops, joined again over links that have room.
//!
//! Every loss leaves a part around the root and parts that hang below nothing. A part is joined by the widest path from
//! what the root reaches, whole or, where the path has room for fewer copies, in some copies. A part may be entered at
//! any of its vertices; its hops between there and its top then turn round.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

use super::budget::Budget;
use super::net::Net;
use super::tree::{Hop, Tree, hop_arcs};

/// Equal trees of which hops may be missing.
#[derive(Debug, Clone)]
pub(super) struct Torn {
    pub(super) root: usize,
    pub(super) copies: i64,
    /// By vertex the hop that reaches it.
    above: Vec<Option<Hop>>,
}

impl Torn {
    /// The tree of those hops that `net` still has and that make no circle, whatever the hops are.
    pub(super) fn new(net: &Net, root: usize, copies: i64, hops: Vec<Hop>) -> Torn {
        let mut torn = Torn { root, copies, above: vec![None; net.n] };
        let mut group: Vec<usize> = (0..net.n).collect();
        for hop in hops {
            let free = hop.to != root && torn.above[hop.to].is_none();
            if !free || !exists(net, &hop) {
                continue;
            }
            let (from, to) = (top(&mut group, hop.from), top(&mut group, hop.to));
            if from != to {
                group[to] = from;
                let to = hop.to;
                torn.above[to] = Some(hop);
            }
        }
        torn.prune(net);
        torn
    }

    /// The hops, in no order.
    pub(super) fn hops(&self) -> impl Iterator<Item = &Hop> {
        self.above.iter().flatten()
    }

    /// Whether a hop begins or ends at a vertex.
    pub(super) fn reaches(&self, v: usize) -> bool {
        self.above[v].is_some() || v == self.root || self.hops().any(|hop| hop.from == v)
    }

    /// Leaves out switches without anything below.
    fn prune(&mut self, net: &Net) {
        let mut below = vec![0; net.n];
        self.above.iter().flatten().for_each(|hop| below[hop.from] += 1);
        let mut bare: Vec<usize> =
            (0..net.n).filter(|&v| below[v] == 0 && !net.gpus.contains(&v)).collect();
        while let Some(v) = bare.pop() {
            if let Some(hop) = self.above[v].take() {
                below[hop.from] -= 1;
                if below[hop.from] == 0 && !net.gpus.contains(&hop.from) {
                    bare.push(hop.from);
                }
            }
        }
    }

    /// By vertex whether the root reaches it.
    fn inside(&self) -> Vec<bool> {
        let mut known: Vec<Option<bool>> = vec![None; self.above.len()];
        known[self.root] = Some(true);
        for start in 0..known.len() {
            let (mut way, mut at) = (Vec::new(), start);
            let reached = loop {
                match (known[at], &self.above[at]) {
                    (Some(reached), _) => break reached,
                    (None, None) => break false,
                    (None, Some(hop)) => {
                        way.push(at);
                        at = hop.from;
                    }
                }
            };
            known[start] = Some(reached);
            way.into_iter().for_each(|v| known[v] = Some(reached));
        }
        known.into_iter().map(|reached| reached == Some(true)).collect()
    }

    /// What the root reaches, as a tree.
    pub(super) fn tree(&self) -> Tree {
        let mut below: Vec<Vec<usize>> = vec![Vec::new(); self.above.len()];
        for (v, hop) in self.above.iter().enumerate() {
            if let Some(hop) = hop {
                below[hop.from].push(v);
            }
        }
        let (mut hops, mut queue) = (Vec::new(), VecDeque::from([self.root]));
        while let Some(here) = queue.pop_front() {
            for &v in &below[here] {
                hops.extend(self.above[v].clone());
                queue.push_back(v);
            }
        }
        Tree { root: self.root, hops }
    }

    /// Hops from a vertex up to the top of its part.
    fn upward(&self, from: usize) -> impl Iterator<Item = &Hop> {
        std::iter::successors(self.above[from].as_ref(), |hop| self.above[hop.from].as_ref())
    }

    /// Joins the part of the path's end below the path's start.
    fn join(&mut self, path: Hop) {
        let mut next = Some(path);
        while let Some(hop) = next {
            let to = hop.to;
            // The hop that reached this vertex before leads to its former upper end now.
            next = self.above[to].replace(hop).map(turned);
        }
    }
}

fn turned(hop: Hop) -> Hop {
    let mut via = hop.via;
    via.reverse();
    Hop { from: hop.to, to: hop.from, via }
}

/// Whether a hop from any plan is one of this net: it follows arcs and passes through switches.
fn exists(net: &Net, hop: &Hop) -> bool {
    let may_end = |v: usize| v < net.n && !net.relay[v];
    let mut here = hop.from;
    may_end(hop.from)
        && may_end(hop.to)
        && hop.via.iter().all(|&v| v < net.n && !net.gpus.contains(&v))
        && hop.via.iter().chain([&hop.to]).all(|&next| {
            let known = net.arc(here, next).is_some();
            here = next;
            known
        })
}

fn top(group: &mut [usize], mut v: usize) -> usize {
    while group[v] != v {
        group[v] = group[group[v]];
        v = group[v];
    }
    v
}

/// Room for copies of trees on a net.
pub(super) struct Mending<'a> {
    net: &'a Net,
    /// By arc the arc whose room it takes.
    row: &'a [usize],
    /// By row the copies for which there is room.
    pub(super) room: Vec<i64>,
    out: Vec<Vec<usize>>,
    is_gpu: Vec<bool>,
    budget: &'a Budget<'a>,
}

/// A cost that is a number.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cost(f64);

impl Eq for Cost {}

impl Ord for Cost {
    fn cmp(&self, other: &Cost) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Cost {
    fn partial_cmp(&self, other: &Cost) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// What a place to join a part is worth: for how many copies it has room, whether no hop needs room to turn round, and
/// what the path costs.
type Worth = (i64, bool, Reverse<Cost>);

/// A way to join a part: in how many copies, and over which path.
struct Join {
    copies: i64,
    path: Hop,
}

impl<'a> Mending<'a> {
    pub(super) fn new(
        net: &'a Net,
        row: &'a [usize],
        room: Vec<i64>,
        budget: &'a Budget<'a>,
    ) -> Mending<'a> {
        let mut is_gpu = vec![false; net.n];
        net.gpus.iter().for_each(|&gpu| is_gpu[gpu] = true);
        Mending { net, row, room, out: net.outgoing(), is_gpu, budget }
    }

    /// Joins the parts of all trees as far as there is room. Returns whole trees, and trees that still lack parts; no
    /// link has more copies than it has room for.
    pub(super) fn mend(&mut self, trees: Vec<Torn>) -> (Vec<Torn>, Vec<Torn>) {
        let mut trees = self.placed(trees);
        let (mut whole, mut left) = (Vec::new(), Vec::new());
        while let Some(mut torn) = trees.pop() {
            let inside = torn.inside();
            if self.is_whole(&inside) {
                self.take(&torn, -torn.copies);
                torn.prune(self.net);
                self.take(&torn, torn.copies);
                whole.push(torn);
                continue;
            }
            let Some(Join { copies, path }) = self.widest(&torn, &inside) else {
                left.push(torn);
                continue;
            };
            if copies < torn.copies {
                trees.push(Torn { copies: torn.copies - copies, ..torn.clone() });
                torn.copies = copies;
            }
            self.take(&torn, -copies);
            torn.join(path);
            self.take(&torn, copies);
            trees.push(torn);
        }
        (whole, left)
    }

    /// The same trees, which take their room; they lose hops where links have less.
    pub(super) fn placed(&mut self, mut trees: Vec<Torn>) -> Vec<Torn> {
        trees.retain(|torn| torn.copies > 0);
        trees.iter().for_each(|torn| self.take(torn, torn.copies));
        self.relieve(&mut trees);
        trees
    }

    /// Takes hops away from links that have more copies than room: a link can have become slower.
    fn relieve(&mut self, trees: &mut Vec<Torn>) {
        for arc in 0..self.net.arcs.len() {
            let row = self.row[arc];
            let mut at = 0;
            while self.room[row] < 0 && at < trees.len() {
                let crosses = |hop: &Hop| hop_arcs(self.net, hop).any(|arc| self.row[arc] == row);
                let mut hops = trees[at].above.iter().flatten();
                let Some(to) = hops.find(|hop| crosses(hop)).map(|hop| hop.to) else {
                    at += 1;
                    continue;
                };
                let copies = trees[at].copies.min(-self.room[row]);
                if copies < trees[at].copies {
                    let rest = Torn { copies: trees[at].copies - copies, ..trees[at].clone() };
                    trees[at].copies = copies;
                    trees.push(rest);
                }
                if let Some(hop) = trees[at].above[to].take() {
                    hop_arcs(self.net, &hop).for_each(|arc| self.room[self.row[arc]] += copies);
                }
            }
        }
    }

    /// Joins the parts of a tree over links with as much room as possible, even if they have none.
    pub(super) fn force(&mut self, mut torn: Torn) -> Torn {
        loop {
            let inside = torn.inside();
            if self.is_whole(&inside) {
                return torn;
            }
            let crossing = (0..self.net.arcs.len()).filter(|&arc| {
                let arc = &self.net.arcs[arc];
                inside[arc.from] && !inside[arc.to]
            });
            let arc = crossing.max_by_key(|&arc| (self.room[self.row[arc]], Reverse(arc)));
            let arc = self.net.arcs[arc.expect("the GPUs reach each other")];
            self.take(&torn, -torn.copies);
            torn.join(Hop { from: arc.from, to: arc.to, via: Vec::new() });
            self.take(&torn, torn.copies);
        }
    }

    fn is_whole(&self, inside: &[bool]) -> bool {
        self.net.gpus.iter().all(|&gpu| inside[gpu])
    }

    fn take(&mut self, torn: &Torn, copies: i64) {
        for hop in torn.above.iter().flatten() {
            hop_arcs(self.net, hop).for_each(|arc| self.room[self.row[arc]] -= copies);
        }
    }

    /// The path by which the most copies can be joined to a part; of those with room for all, one that needs no room
    /// for hops that turn round, over arcs that have much room left.
    fn widest(&self, torn: &Torn, inside: &[bool]) -> Option<Join> {
        let net = self.net;
        self.budget.spend(net.arcs.len() * ARC_WORK);
        let mut member = self.is_gpu.clone();
        for (v, hop) in torn.above.iter().enumerate() {
            if let Some(hop) = hop {
                (member[v], member[hop.from]) = (true, true);
            }
        }
        // What a path costs is the sum of 1 / room over its arcs.
        let mut far = vec![f64::INFINITY; net.n];
        let mut width = vec![0i64; net.n];
        let mut by = vec![None; net.n];
        let mut done = vec![false; net.n];
        let mut queue = BinaryHeap::new();
        for v in (0..net.n).filter(|&v| inside[v]) {
            (far[v], width[v]) = (0.0, i64::MAX);
            queue.push((Reverse(Cost(0.0)), v));
        }
        let mut best: Option<(Worth, usize)> = None;
        while let Some((Reverse(Cost(cost)), here)) = queue.pop() {
            if std::mem::replace(&mut done[here], true) {
                continue;
            }
            if !inside[here] && member[here] {
                let Some(turning) = self.turning(torn, here) else { continue };
                let rooms = turning.iter().map(|&row| self.room[row]);
                let wide = rooms.min().map_or(width[here], |room| room.min(width[here]));
                let worth = (wide.min(torn.copies), turning.is_empty(), Reverse(Cost(cost)));
                if wide > 0 && best.as_ref().is_none_or(|(known, _)| worth > *known) {
                    best = Some((worth, here));
                }
                continue;
            }
            for &arc in &self.out[here] {
                let (to, room) = (net.arcs[arc].to, self.room[self.row[arc]]);
                let total = cost + 1.0 / room as f64;
                if room > 0 && !inside[to] && total < far[to] {
                    (far[to], width[to], by[to]) = (total, width[here].min(room), Some(arc));
                    queue.push((Reverse(Cost(total)), to));
                }
            }
        }
        let (_, to) = best?;
        let (mut via, mut here) = (Vec::new(), to);
        let from = loop {
            let arc: usize = by[here]?;
            let before = net.arcs[arc].from;
            if inside[before] {
                break before;
            }
            via.push(before);
            here = before;
        };
        via.reverse();
        let path = Hop { from, to, via };
        let copies = self.fitting(torn, &path).min(torn.copies);
        (copies > 0).then_some(Join { copies, path })
    }

    /// The copies for which a path, and the hops that turn round because of it, have room together.
    fn fitting(&self, torn: &Torn, path: &Hop) -> i64 {
        let mut rows: Vec<usize> = hop_arcs(self.net, path).map(|arc| self.row[arc]).collect();
        rows.extend(self.turning(torn, path.to).into_iter().flatten());
        rows.sort_unstable();
        let each = rows.chunk_by(|a, b| a == b);
        each.map(|rows| self.room[rows[0]] / rows.len() as i64).min().unwrap_or(0)
    }

    /// The rows that hops above a vertex need in order to turn round; `None` if a link has no opposite.
    fn turning(&self, torn: &Torn, from: usize) -> Option<Vec<usize>> {
        let mut rows = Vec::new();
        for hop in torn.upward(from) {
            let back = turned(hop.clone());
            if !exists(self.net, &back) {
                return None;
            }
            let there: Vec<usize> = hop_arcs(self.net, hop).map(|arc| self.row[arc]).collect();
            let back = hop_arcs(self.net, &back).map(|arc| self.row[arc]);
            // Both directions may share their room.
            rows.extend(there.into_iter().rev().zip(back).filter(|(a, b)| a != b).map(|(_, b)| b));
        }
        Some(rows)
    }
}

/// Work of a search per arc.
const ARC_WORK: usize = 40;
