//! The blocks of an all-to-all on the links of trees: a link carries those of all GPUs behind it.

use netsum_topo::{Ratio, lcm};

use super::net::Net;
use super::tree::{Tree, hop_arcs};

/// The load of each arc: trees with their weights, times the GPUs behind the arc.
pub(super) fn loads<'t>(
    net: &Net,
    trees: impl Iterator<Item = (&'t Tree, Ratio)> + Clone,
) -> Vec<Ratio> {
    let common = trees
        .clone()
        .try_fold(1i128, |all, (_, weight)| lcm(all, weight.den()).filter(|&all| all < COMMON_MAX));
    let mut whole = vec![0i128; net.arcs.len()];
    let mut parts = vec![Ratio::ZERO; net.arcs.len()];
    for (tree, weight) in trees {
        let units = common.map(|common| weight.num() * (common / weight.den()));
        for (hop, gpus) in tree.hops.iter().zip(behind(net, tree)) {
            for arc in hop_arcs(net, hop) {
                match units {
                    Some(units) => whole[arc] += units * i128::from(gpus),
                    None => parts[arc] = parts[arc] + weight * Ratio::from(gpus),
                }
            }
        }
    }
    match common {
        Some(common) => whole.into_iter().map(|units| Ratio::new(units, common)).collect(),
        None => parts,
    }
}

/// By hop of a tree, the number of GPUs that are reached over it. All ends of hops are GPUs.
fn behind(net: &Net, tree: &Tree) -> Vec<i64> {
    let mut below = vec![1i64; net.n];
    let mut found: Vec<i64> = tree
        .hops
        .iter()
        .rev()
        .map(|hop| {
            below[hop.from] += below[hop.to];
            below[hop.to]
        })
        .collect();
    found.reverse();
    found
}

/// Sums of loads in parts of this fit into 127 bits.
const COMMON_MAX: i128 = 1 << 60;
