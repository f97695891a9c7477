//! Shortest trees under given lengths: undirected, directed, and through switches.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::net::Net;

/// A connection between two vertices of a tree: direct, or through switches that only forward.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hop {
    /// The end nearer to the root.
    pub from: usize,
    /// The end farther from the root.
    pub to: usize,
    /// Switches between them, from `from` to `to`.
    pub via: Vec<usize>,
}

/// A rooted tree; each hop follows the hop that reaches its `from`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tree {
    /// A GPU, or a switch that adds and multicasts.
    pub root: usize,
    /// One hop for every vertex but the root.
    pub hops: Vec<Hop>,
}

impl Tree {
    /// Hops between the root and the farthest vertex.
    pub fn height(&self) -> usize {
        let mut depth = HashMap::from([(self.root, 0usize)]);
        for hop in &self.hops {
            let above = depth[&hop.from];
            depth.insert(hop.to, above + 1);
        }
        depth.into_values().max().unwrap_or(0)
    }

    /// Arcs from the root to the leaves, repeated as often as they are used; panics if `net` lacks one.
    pub fn arcs<'a>(&'a self, net: &'a Net) -> impl Iterator<Item = usize> + 'a {
        self.hops.iter().flat_map(move |hop| hop_arcs(net, hop))
    }

    /// The same tree with vertex v named `names[v]`.
    pub fn renamed(&self, names: &[usize]) -> Tree {
        let hop = |hop: &Hop| Hop {
            from: names[hop.from],
            to: names[hop.to],
            via: hop.via.iter().map(|&v| names[v]).collect(),
        };
        Tree { root: names[self.root], hops: self.hops.iter().map(hop).collect() }
    }

    /// The same tree rooted at another of its vertices.
    pub fn rerooted(&self, root: usize) -> Tree {
        let at = self.neighbours();
        let mut hops = Vec::with_capacity(self.hops.len());
        let mut reached = vec![(root, usize::MAX)];
        let mut next = 0;
        while next < reached.len() {
            let (here, above) = reached[next];
            next += 1;
            for &index in at[here].iter().filter(|&&index| index != above) {
                let hop = &self.hops[index];
                let hop = if hop.from == here {
                    hop.clone()
                } else {
                    let via = hop.via.iter().rev().copied().collect();
                    Hop { from: hop.to, to: hop.from, via }
                };
                reached.push((hop.to, index));
                hops.push(hop);
            }
        }
        Tree { root, hops }
    }

    /// Rooted at the vertex with the least height; ties go to the first.
    pub fn centred(&self) -> Tree {
        let at = self.neighbours();
        let farthest = |far: &[usize]| {
            let reached = (0..far.len()).filter(|&v| far[v] != FAR);
            reached.max_by_key(|&v| (far[v], v)).expect("a tree has a root")
        };
        // The farthest vertex from any vertex is one end of a longest path.
        let one = self.distances(&at, farthest(&self.distances(&at, self.root)));
        let other = self.distances(&at, farthest(&one));
        let reached = (0..one.len()).filter(|&v| one[v] != FAR);
        let lowest = reached.min_by_key(|&v| (one[v].max(other[v]), v));
        self.rerooted(lowest.expect("a tree has a root"))
    }

    /// The numbers of each vertex's hops.
    fn neighbours(&self) -> Vec<Vec<usize>> {
        let last = self.hops.iter().map(|hop| hop.from.max(hop.to)).max().unwrap_or(0);
        let mut at = vec![Vec::new(); last.max(self.root) + 1];
        for (index, hop) in self.hops.iter().enumerate() {
            at[hop.from].push(index);
            at[hop.to].push(index);
        }
        at
    }

    /// Number of hops to every vertex; [`FAR`] to those that are not in the tree.
    fn distances(&self, at: &[Vec<usize>], from: usize) -> Vec<usize> {
        let mut far = vec![FAR; at.len()];
        far[from] = 0;
        let mut stack = vec![from];
        while let Some(here) = stack.pop() {
            for &index in &at[here] {
                let Hop { from, to, .. } = self.hops[index];
                let next = if from == here { to } else { from };
                if far[next] == FAR {
                    far[next] = far[here] + 1;
                    stack.push(next);
                }
            }
        }
        far
    }
}

const FAR: usize = usize::MAX;

/// Arcs along one hop.
pub fn hop_arcs<'a>(net: &'a Net, hop: &'a Hop) -> impl Iterator<Item = usize> + 'a {
    let ends = hop.via.iter().copied().chain([hop.to]);
    let mut here = hop.from;
    ends.map(move |next| {
        let arc = net.arc(here, next).expect("a hop follows arcs");
        here = next;
        arc
    })
}

/// Shortest paths from one vertex to all others, through relays only.
#[derive(Debug, Clone)]
pub struct Ways {
    start: usize,
    length: Vec<Option<i64>>,
    /// By vertex the arc by which it is reached.
    by: Vec<Option<usize>>,
}

impl Ways {
    /// `is_member`: vertices that paths do not pass. `lengths`: per arc, at least 0. Ties go to the path with fewer
    /// arcs.
    pub fn new(
        net: &Net,
        start: usize,
        is_member: &[bool],
        out: &[Vec<usize>],
        lengths: &[i64],
    ) -> Ways {
        let mut best: Vec<Option<i64>> = vec![None; net.n];
        let mut by = vec![None; net.n];
        let mut done = vec![false; net.n];
        let mut queue = BinaryHeap::from([Reverse((0i64, start))]);
        best[start] = Some(0);
        while let Some(Reverse((so_far, here))) = queue.pop() {
            // Only relays forward; an aggregator that is not a member is a relay.
            if std::mem::replace(&mut done[here], true) || (here != start && is_member[here]) {
                continue;
            }
            for &arc in &out[here] {
                let to = net.arcs[arc].to;
                let total = so_far + lengths[arc] * TIE + 1;
                if best[to].is_none_or(|known| total < known) {
                    best[to] = Some(total);
                    by[to] = Some(arc);
                    queue.push(Reverse((total, to)));
                }
            }
        }
        Ways { start, length: best, by }
    }

    /// Length of the path to a vertex, in the units of [`Closure::between`]; `None` if there is no path.
    pub fn length(&self, to: usize) -> Option<i64> {
        self.length[to]
    }

    /// The path to a vertex that is reached.
    pub fn hop(&self, net: &Net, to: usize) -> Hop {
        let mut via = Vec::new();
        let mut here = to;
        while here != self.start {
            let arc = self.by[here].expect("the way was found");
            here = net.arcs[arc].from;
            if here != self.start {
                via.push(here);
            }
        }
        via.reverse();
        Hop { from: self.start, to, via }
    }
}

/// Shortest paths between the vertices at which trees may branch, through relays only.
pub struct Closure {
    /// GPUs, then aggregating switches that are allowed.
    pub members: Vec<usize>,
    /// Paths from each member.
    ways: Vec<Ways>,
}

impl Closure {
    /// `lengths`: per arc, at least 0.
    pub fn new(net: &Net, members: Vec<usize>, out: &[Vec<usize>], lengths: &[i64]) -> Closure {
        let mut is_member = vec![false; net.n];
        members.iter().for_each(|&v| is_member[v] = true);
        let ways = |&start: &usize| Ways::new(net, start, &is_member, out, lengths);
        let ways = members.iter().map(ways).collect();
        Closure { members, ways }
    }

    /// Paths between GPUs with equal lengths of arcs.
    pub fn of_gpus(net: &Net) -> Closure {
        Closure::new(net, net.gpus.clone(), &net.outgoing(), &vec![0; net.arcs.len()])
    }

    /// Length of the path between two members by position, a little more than [`TIE`] times that of its arcs.
    pub fn between(&self, from: usize, to: usize) -> Option<i64> {
        self.ways[from].length(self.members[to])
    }

    /// Whether a member reaches all others through members.
    pub fn spans(&self, from: usize) -> bool {
        let mut seen = vec![false; self.members.len()];
        seen[from] = true;
        let mut stack = vec![from];
        while let Some(here) = stack.pop() {
            for (to, seen) in seen.iter_mut().enumerate() {
                if self.between(here, to).is_some() && !std::mem::replace(seen, true) {
                    stack.push(to);
                }
            }
        }
        seen.into_iter().all(|seen| seen)
    }

    /// The path between two members by position.
    pub fn hop(&self, net: &Net, from: usize, to: usize) -> Hop {
        self.ways[from].hop(net, self.members[to])
    }

    /// A shortest spanning tree under lengths that are equal in both directions (Prim). Returns its length too.
    pub fn spanning_tree(&self, net: &Net) -> (Tree, i64) {
        let n = self.members.len();
        let mut nearest: Vec<(i64, usize)> = vec![(i64::MAX, 0); n];
        let mut inside = vec![false; n];
        let (mut hops, mut total, mut here) = (Vec::new(), 0, 0);
        inside[0] = true;
        for _ in 1..n {
            for other in (0..n).filter(|&v| !inside[v]) {
                if let Some(length) = self.between(here, other)
                    && length < nearest[other].0
                {
                    nearest[other] = (length, here);
                }
            }
            here = (0..n)
                .filter(|&v| !inside[v])
                .min_by_key(|&v| nearest[v].0)
                .expect("vertices are left");
            let (length, from) = nearest[here];
            inside[here] = true;
            total += length / TIE;
            hops.push(self.hop(net, from, here));
        }
        (Tree { root: self.members[0], hops }, total)
    }

    /// A shortest tree from a member to all others (Chu, Liu, Edmonds). Returns its length too.
    pub fn arborescence(&self, net: &Net, root: usize) -> (Tree, i64) {
        let n = self.members.len();
        let mut edges = Vec::new();
        for from in 0..n {
            for to in (0..n).filter(|&to| to != root && to != from) {
                if let Some(length) = self.between(from, to) {
                    edges.push((from, to, length));
                }
            }
        }
        let chosen = chu_liu(n, root, &edges);
        let total = chosen.iter().map(|&e| edges[e].2 / TIE).sum();
        let mut below = vec![Vec::new(); n];
        chosen.iter().for_each(|&e| below[edges[e].0].push(edges[e].1));
        let (mut order, mut next) = (vec![root], 0);
        let mut hops = Vec::new();
        while next < order.len() {
            let here = order[next];
            next += 1;
            below[here].sort_unstable();
            for &v in &below[here] {
                order.push(v);
                hops.push(self.hop(net, here, v));
            }
        }
        (Tree { root: self.members[root], hops }, total)
    }
}

/// Numbers of the edges of a shortest tree from `root`; every vertex must be reachable.
fn chu_liu(n: usize, root: usize, edges: &[(usize, usize, i64)]) -> Vec<usize> {
    // The shortest edge into each vertex.
    let mut into: Vec<Option<usize>> = vec![None; n];
    for (e, &(from, to, length)) in edges.iter().enumerate() {
        if from != to && to != root && into[to].is_none_or(|best| length < edges[best].2) {
            into[to] = Some(e);
        }
    }
    // Cycles among them become one vertex each.
    let mut group = vec![usize::MAX; n];
    let mut walk = vec![usize::MAX; n];
    let mut groups = 0;
    let mut cycle_of = vec![false; n];
    for start in 0..n {
        let mut v = start;
        while v != root && walk[v] == usize::MAX {
            walk[v] = start;
            v = edges[into[v].expect("every vertex is reachable")].0;
        }
        if v != root && walk[v] == start && group[v] == usize::MAX {
            let first = v;
            loop {
                group[v] = groups;
                cycle_of[v] = true;
                v = edges[into[v].expect("on a cycle")].0;
                if v == first {
                    break;
                }
            }
            groups += 1;
        }
    }
    if groups == 0 {
        return (0..n).filter(|&v| v != root).map(|v| into[v].expect("reachable")).collect();
    }
    for g in group.iter_mut().filter(|g| **g == usize::MAX) {
        *g = groups;
        groups += 1;
    }
    let mut origin = Vec::new();
    let mut smaller = Vec::new();
    for (e, &(from, to, length)) in edges.iter().enumerate() {
        if group[from] != group[to] && to != root {
            let saved = if cycle_of[to] { edges[into[to].expect("on a cycle")].2 } else { 0 };
            smaller.push((group[from], group[to], length - saved));
            origin.push(e);
        }
    }
    let mut chosen: Vec<usize> =
        chu_liu(groups, group[root], &smaller).into_iter().map(|e| origin[e]).collect();
    let mut entered = vec![false; n];
    chosen.iter().for_each(|&e| entered[edges[e].1] = true);
    // All edges of each cycle but the one into the vertex that is entered from outside.
    chosen.extend(
        (0..n).filter(|&v| cycle_of[v] && !entered[v]).map(|v| into[v].expect("on a cycle")),
    );
    chosen
}

/// Lengths are multiplied by this, and every arc adds 1: ties go to paths with fewer arcs.
const TIE: i64 = 1 << 12;
