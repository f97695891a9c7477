//! The trees that a packing may use, and the initial trees of a programme.

use netsum_topo::Ratio;

use super::servers::Servers;
use super::spread::Spread;
use super::tree::Tree;

/// The set of trees to choose from.
#[derive(Debug, Clone)]
pub(super) enum Choice {
    /// All trees; the result is optimal.
    All,
    /// Trees of equal weight that share few links.
    Spread,
    /// The same, and from them all trees if all vertices are GPUs: for fabrics too large for the programme.
    Large,
    /// Trees of at most this many hops, found by a greedy search.
    Height(usize),
    /// The given trees.
    Only(Vec<Tree>),
    /// Trees in three phases over servers.
    Phases(Servers),
}

impl Choice {
    /// Whether any trees of any weights will do, if they are the best ones.
    pub(super) fn is_free(&self) -> bool {
        matches!(self, Choice::All | Choice::Large)
    }
}

/// The initial trees of a programme.
pub(super) struct First {
    /// The trees, each once.
    pub(super) trees: Vec<Tree>,
    /// Trees of equal weight that are already sufficient.
    pub(super) done: Option<Spread>,
    /// The best trees of equal weight, if they are not.
    pub(super) best: Option<Spread>,
}

impl First {
    pub(super) fn of(mut found: Vec<Spread>, enough: Option<Ratio>) -> First {
        if found.last().is_some_and(|best| Some(best.rate()) == enough) {
            return First { trees: Vec::new(), done: found.pop(), best: None };
        }
        let best = found.last().cloned();
        let mut trees: Vec<Tree> = found.into_iter().flat_map(|spread| spread.trees).collect();
        trees.sort();
        trees.dedup();
        First { trees, done: None, best }
    }
}
