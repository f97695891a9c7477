//! What a method found.

use netsum_topo::Ratio;

use super::super::tree::Tree;

/// Trees with weights, and lengths that bound the rate; either may be missing.
#[derive(Default)]
pub(super) struct Answer {
    pub(super) trees: Vec<(Tree, Ratio)>,
    pub(super) lengths: Option<Vec<u64>>,
}
