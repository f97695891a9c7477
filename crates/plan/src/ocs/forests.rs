//! Packs as many spanning trees as a graph has room for: matroid union by augmenting paths.

use std::collections::VecDeque;

/// Packs one forest per slot into a multigraph, with as many edges in all as possible.
///
/// `copies`: how many forests may use an edge. `slots`: for each forest a label below `vertices` for each vertex
/// (vertices with the same label count as one), or [`ABSENT`] for vertices that it leaves out; the forest cannot use
/// edges between equal labels or to a vertex left out. Returns the edges of each forest. The total is the most possible
/// (Edmonds); which forests fall short, if any, is arbitrary. `start` shifts the order in which equal edges are tried.
pub(super) fn pack(
    vertices: usize,
    edges: &[(u32, u32)],
    copies: usize,
    slots: &[&[u32]],
    start: usize,
) -> Vec<Vec<u32>> {
    let mut union = Union {
        edges,
        copies,
        used: vec![0; edges.len()],
        forests: slots.iter().map(|labels| Forest::new(vertices, labels, edges.len())).collect(),
    };
    union.fill(start);
    while union.augment() {}
    union.forests.into_iter().map(|forest| forest.edges).collect()
}

/// Label of a vertex that a forest leaves out.
pub(super) const ABSENT: u32 = u32::MAX;

struct Union<'a> {
    edges: &'a [(u32, u32)],
    copies: usize,
    /// Per edge the forests that have it.
    used: Vec<usize>,
    forests: Vec<Forest<'a>>,
}

impl Union<'_> {
    /// Each forest in turn takes the edges that the others use least.
    fn fill(&mut self, start: usize) {
        let count = self.edges.len();
        for index in 0..self.forests.len() {
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by_key(|&edge| (self.used[edge], (edge + start + index * 7) % count));
            let forest = &mut self.forests[index];
            let mut groups: Vec<u32> = (0..forest.parent.len() as u32).collect();
            for edge in order {
                let (a, b) = forest.ends(self.edges[edge]);
                let (a, b) = (find(&mut groups, a), find(&mut groups, b));
                if self.used[edge] < self.copies && a != b {
                    groups[a as usize] = b;
                    forest.insert(edge as u32);
                    self.used[edge] += 1;
                }
            }
            forest.rebuild(self.edges);
        }
    }

    /// Adds one more edge to one forest, by a shortest chain of exchanges from an edge with a free copy.
    fn augment(&mut self) -> bool {
        let mut came: Vec<Option<Came>> = vec![None; self.edges.len()];
        let mut queue = VecDeque::new();
        for (edge, &used) in self.used.iter().enumerate() {
            if used < self.copies {
                came[edge] = Some(Came::Free);
                queue.push_back(edge as u32);
            }
        }
        while let Some(edge) = queue.pop_front() {
            for index in 0..self.forests.len() {
                let forest = &self.forests[index];
                let (a, b) = forest.ends(self.edges[edge as usize]);
                if a == b || forest.has[edge as usize] {
                    continue;
                }
                if forest.tree[a as usize] != forest.tree[b as usize] {
                    self.exchange(edge, index, &came);
                    return true;
                }
                forest.between(a, b, |other| {
                    if came[other as usize].is_none() {
                        came[other as usize] = Some(Came::For { edge, forest: index });
                        queue.push_back(other);
                    }
                });
            }
        }
        false
    }

    fn exchange(&mut self, mut edge: u32, mut into: usize, came: &[Option<Came>]) {
        loop {
            self.forests[into].insert(edge);
            let from = came[edge as usize].expect("reached");
            if let Came::For { forest, .. } = from {
                self.forests[forest].remove(edge);
            }
            self.forests[into].rebuild(self.edges);
            match from {
                Came::Free => break self.used[edge as usize] += 1,
                Came::For { edge: instead, forest } => (edge, into) = (instead, forest),
            }
        }
    }
}

/// How an edge becomes available.
#[derive(Clone, Copy)]
enum Came {
    /// It has a copy that no forest uses.
    Free,
    /// `edge` can take its place in `forest`.
    For { edge: u32, forest: usize },
}

/// A rooted forest on the labels.
struct Forest<'a> {
    labels: &'a [u32],
    edges: Vec<u32>,
    has: Vec<bool>,
    /// Per label: parent with the edge to it, depth, root.
    parent: Vec<(u32, u32)>,
    depth: Vec<u32>,
    tree: Vec<u32>,
}

impl<'a> Forest<'a> {
    fn new(vertices: usize, labels: &'a [u32], edges: usize) -> Forest<'a> {
        Forest {
            labels,
            edges: Vec::new(),
            has: vec![false; edges],
            parent: vec![(0, 0); vertices],
            depth: vec![0; vertices],
            tree: (0..vertices as u32).collect(),
        }
    }

    /// The labels that an edge joins; twice the same if the forest cannot use it.
    fn ends(&self, (a, b): (u32, u32)) -> (u32, u32) {
        match (self.labels[a as usize], self.labels[b as usize]) {
            (ABSENT, _) | (_, ABSENT) => (0, 0),
            ends => ends,
        }
    }

    fn insert(&mut self, edge: u32) {
        self.edges.push(edge);
        self.has[edge as usize] = true;
    }

    fn remove(&mut self, edge: u32) {
        self.edges.retain(|&other| other != edge);
        self.has[edge as usize] = false;
    }

    fn rebuild(&mut self, ends: &[(u32, u32)]) {
        let mut near: Vec<Vec<(u32, u32)>> = vec![Vec::new(); self.parent.len()];
        for &edge in &self.edges {
            let (a, b) = self.ends(ends[edge as usize]);
            near[a as usize].push((b, edge));
            near[b as usize].push((a, edge));
        }
        self.tree.fill(u32::MAX);
        let mut stack = Vec::new();
        for root in 0..self.parent.len() as u32 {
            if self.tree[root as usize] != u32::MAX {
                continue;
            }
            (self.tree[root as usize], self.depth[root as usize]) = (root, 0);
            stack.push(root);
            while let Some(at) = stack.pop() {
                for &(next, edge) in &near[at as usize] {
                    if self.tree[next as usize] == u32::MAX {
                        self.tree[next as usize] = root;
                        self.depth[next as usize] = self.depth[at as usize] + 1;
                        self.parent[next as usize] = (at, edge);
                        stack.push(next);
                    }
                }
            }
        }
    }

    /// The edges of the path between two labels of one tree.
    fn between(&self, mut a: u32, mut b: u32, mut visit: impl FnMut(u32)) {
        while a != b {
            if self.depth[a as usize] < self.depth[b as usize] {
                (a, b) = (b, a);
            }
            let (above, edge) = self.parent[a as usize];
            visit(edge);
            a = above;
        }
    }
}

/// The representative of a set of a union-find forest.
pub(super) fn find(groups: &mut [u32], mut at: u32) -> u32 {
    while groups[at as usize] != at {
        groups[at as usize] = groups[groups[at as usize] as usize];
        at = groups[at as usize];
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Strength bound by brute force: the most trees with `copies` uses per edge.
    fn most_trees(vertices: usize, edges: &[(u32, u32)], copies: usize) -> usize {
        let mut labels = vec![0; vertices];
        let mut least = usize::MAX;
        loop {
            let parts = labels.iter().max().unwrap() + 1;
            if parts > 1 {
                let across =
                    edges.iter().filter(|(a, b)| labels[*a as usize] != labels[*b as usize]);
                least = least.min(copies * across.count() / (parts - 1));
            }
            // The next partition, as a string in which each number is at most one above those before.
            let Some(at) = (1..vertices)
                .rev()
                .find(|&at| labels[at] <= labels[..at].iter().copied().max().unwrap())
            else {
                return least;
            };
            labels[at] += 1;
            labels[at + 1..].fill(0);
        }
    }

    fn spanning(vertices: usize, edges: &[(u32, u32)], copies: usize, trees: usize) -> bool {
        let labels: Vec<u32> = (0..vertices as u32).collect();
        let slots = vec![&labels[..]; trees];
        let forests = pack(vertices, edges, copies, &slots, 3);
        let mut used = vec![0; edges.len()];
        for forest in &forests {
            let mut groups = labels.clone();
            for &edge in forest {
                used[edge as usize] += 1;
                let (a, b) = edges[edge as usize];
                let (a, b) = (find(&mut groups, a), find(&mut groups, b));
                assert_ne!(a, b, "a cycle");
                groups[a as usize] = b;
            }
        }
        assert!(used.iter().all(|&count| count <= copies), "an edge too often");
        forests.iter().all(|forest| forest.len() == vertices - 1)
    }

    proptest::proptest! {
        #[test]
        fn as_many_trees_as_the_weakest_partition_allows(
            vertices in 2..7usize,
            copies in 1..4usize,
            raw in proptest::collection::vec((0..7u32, 1..7u32), 1..16),
        ) {
            let size = vertices as u32;
            let edges: Vec<(u32, u32)> = raw
                .iter()
                .map(|&(a, step)| (a % size, (a % size + 1 + step % (size - 1).max(1)) % size))
                .filter(|(a, b)| a != b)
                .collect();
            let most = most_trees(vertices, &edges, copies);
            proptest::prop_assert!(spanning(vertices, &edges, copies, most));
            proptest::prop_assert!(!spanning(vertices, &edges, copies, most + 1));
        }
    }
}
