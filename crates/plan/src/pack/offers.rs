//! Candidate trees for a programme: all trees, low ones only, or a given set.

use netsum_topo::Ratio;

use super::budget::Budget;
use super::choice::{Choice, First};
use super::net::Net;
use super::phases::Phases;
use super::rails::rails;
use super::search::Search;
use super::spread::{Effort, Spread, spread};
use super::tree::Tree;

/// Candidate trees on one net.
pub(super) struct Offers<'a> {
    net: &'a Net,
    search: Search<'a>,
    choice: &'a Choice,
    budget: &'a Budget<'a>,
}

impl<'a> Offers<'a> {
    pub(super) fn new(net: &'a Net, choice: &'a Choice, budget: &'a Budget<'a>) -> Offers<'a> {
        Offers { net, search: Search::new(net, budget), choice, budget }
    }

    /// Whether finding no tree proves that there is none.
    pub(super) fn complete(&self) -> bool {
        matches!(self.choice, Choice::All) && self.search.complete
    }

    /// Initial trees, from each of `roots` (which may repeat). `row`: by arc, the arc whose capacity it shares.
    pub(super) fn first(&self, roots: &[usize], row: &[usize], enough: Option<Ratio>) -> First {
        let height = match self.choice {
            Choice::All => {
                return First::of(self.spread(row, roots, enough, Effort::Little), enough);
            }
            Choice::Spread | Choice::Large => {
                let mut found = self.spread(row, roots, enough, Effort::Much);
                return First { trees: Vec::new(), done: found.pop(), best: None };
            }
            Choice::Only(trees) => {
                return First { trees: trees.clone(), done: None, best: None };
            }
            Choice::Phases(servers) => {
                return Phases::new(self.net, servers, self.budget).first(roots, row);
            }
            Choice::Height(height) => *height,
        };
        let mut load = vec![0i64; self.net.arcs.len()];
        let mut found = Vec::new();
        for _ in 0..ROUNDS {
            for &root in roots {
                let loaded = self.net.arcs.iter().zip(&load);
                let lengths: Vec<i64> = loaded.map(|(arc, &load)| (load << 16) / arc.cap).collect();
                if let Some(tree) = self.search.limited(root, height, &lengths) {
                    tree.arcs(self.net).for_each(|arc| load[arc] += 1);
                    found.push(tree);
                }
            }
        }
        found.sort();
        found.dedup();
        First { trees: found, done: None, best: None }
    }

    /// Trees that share few links; along chains of servers, if that is better. The best comes last.
    fn spread(
        &self,
        row: &[usize],
        roots: &[usize],
        enough: Option<Ratio>,
        effort: Effort,
    ) -> Vec<Spread> {
        let mut found = spread(self.net, row, roots, enough, effort, self.budget);
        let best = found.last().map(Spread::rate);
        if best.is_none_or(|best| enough.is_none_or(|enough| best < enough)) {
            let chained = rails(self.net, row, roots, self.budget);
            found.extend(chained.filter(|chained| best.is_none_or(|best| best < chained.rate())));
        }
        found
    }

    /// A short tree from each of `roots`, with its length.
    pub(super) fn directed(&self, lengths: &[i64], roots: &[usize]) -> Vec<(Tree, i64)> {
        match self.choice {
            Choice::All => self.search.directed(lengths, roots),
            Choice::Height(height) => self.low(lengths, roots, *height),
            Choice::Only(_) | Choice::Spread | Choice::Large | Choice::Phases(_) => Vec::new(),
        }
    }

    /// A short tree for use in both directions, with its length.
    pub(super) fn undirected(&self, lengths: &[i64]) -> Option<(Tree, i64)> {
        match self.choice {
            Choice::All => Some(self.search.undirected(lengths)),
            Choice::Height(height) => {
                let roots = [self.net.gpus.clone(), self.net.aggregators()].concat();
                let trees = self.low(lengths, &roots, *height);
                trees.into_iter().min_by_key(|(_, total)| *total)
            }
            Choice::Phases(servers) => {
                Some(Phases::new(self.net, servers, self.budget).shortest(lengths))
            }
            Choice::Only(_) | Choice::Spread | Choice::Large => None,
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
