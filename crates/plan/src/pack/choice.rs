//! Which trees a packing may use, and what a programme starts from.

use netsum_topo::Ratio;

use super::servers::Servers;
use super::spread::Spread;
use super::tree::Tree;

/// What to choose from.
#[derive(Debug, Clone)]
pub(super) enum Choice {
    /// All trees; the result is optimal.
    All,
    /// A set of trees of equal weight that hardly meet, for fabrics that are too large for more.
    Spread,
    /// Trees of at most so many hops, found by a greedy search.
    Height(usize),
    /// These.
    Only(Vec<Tree>),
    /// Trees in three phases over servers.
    Phases(Servers),
}

/// What a programme starts from.
pub(super) struct First {
    /// Each but once.
    pub(super) trees: Vec<Tree>,
    /// Trees of equal weight with which there is nothing left to do.
    pub(super) done: Option<Spread>,
}

impl First {
    pub(super) fn of(mut found: Vec<Spread>, enough: Option<Ratio>) -> First {
        if found.last().is_some_and(|best| Some(best.rate()) == enough) {
            return First { trees: Vec::new(), done: found.pop() };
        }
        let mut trees: Vec<Tree> = found.into_iter().flat_map(|spread| spread.trees).collect();
        trees.sort();
        trees.dedup();
        First { trees, done: None }
    }
}
