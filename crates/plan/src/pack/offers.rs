//! Which trees a packing may use: all there are, low ones only, or some that are given.

use super::net::Net;
use super::search::Search;
use super::tree::Tree;

/// What to choose from.
#[derive(Debug, Clone)]
pub(super) enum Choice {
    /// All trees; the result is optimal.
    All,
    /// Trees of at most so many hops, found by a greedy search.
    Height(usize),
    /// These.
    Only(Vec<Tree>),
}

/// Trees for a programme on one net.
pub(super) struct Offers<'a> {
    net: &'a Net,
    search: Search<'a>,
    choice: &'a Choice,
}

impl<'a> Offers<'a> {
    pub(super) fn new(net: &'a Net, choice: &'a Choice) -> Offers<'a> {
        Offers { net, search: Search::new(net), choice }
    }

    /// Whether finding no tree proves that there is none.
    pub(super) fn complete(&self) -> bool {
        matches!(self.choice, Choice::All) && self.search.complete
    }

    /// Trees to begin with: low ones from each of `roots`, spread over the arcs, which are often
    /// good enough.
    pub(super) fn first(&self, roots: &[usize]) -> Vec<Tree> {
        let least = match self.choice {
            Choice::All => 1,
            Choice::Height(height) => *height,
            Choice::Only(trees) => return trees.clone(),
        };
        let most = if matches!(self.choice, Choice::All) { self.net.n } else { least };
        let mut load = vec![0i64; self.net.arcs.len()];
        let mut found = Vec::new();
        for _ in 0..ROUNDS {
            for &root in roots {
                let loaded = self.net.arcs.iter().zip(&load);
                let lengths: Vec<i64> = loaded.map(|(arc, &load)| (load << 16) / arc.cap).collect();
                let tree =
                    (least..=most).find_map(|height| self.search.limited(root, height, &lengths));
                if let Some(tree) = tree {
                    tree.arcs(self.net).for_each(|arc| load[arc] += 1);
                    found.push(tree);
                }
            }
        }
        found.sort();
        found.dedup();
        found
    }

    /// A short tree from each of `roots`, with its length.
    pub(super) fn directed(&self, lengths: &[i64], roots: &[usize]) -> Vec<(Tree, i64)> {
        match self.choice {
            Choice::All => self.search.directed(lengths, roots),
            Choice::Height(height) => self.low(lengths, roots, *height),
            Choice::Only(_) => Vec::new(),
        }
    }

    /// A short tree for use both ways, with its length.
    pub(super) fn undirected(&self, lengths: &[i64]) -> Option<(Tree, i64)> {
        match self.choice {
            Choice::All => Some(self.search.undirected(lengths)),
            Choice::Height(height) => {
                let roots = [self.net.gpus.clone(), self.net.aggregators()].concat();
                let trees = self.low(lengths, &roots, *height);
                trees.into_iter().min_by_key(|(_, total)| *total)
            }
            Choice::Only(_) => None,
        }
    }

    fn low(&self, lengths: &[i64], roots: &[usize], height: usize) -> Vec<(Tree, i64)> {
        let tree = |&root: &usize| {
            let tree = self.search.limited(root, height, lengths)?;
            let total = tree.arcs(self.net).map(|arc| lengths[arc]).sum();
            Some((tree, total))
        };
        roots.iter().filter_map(tree).collect()
    }
}

const ROUNDS: usize = 2;
