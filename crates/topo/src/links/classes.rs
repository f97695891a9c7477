//! Classes of GPU sets with equal links: connected induced sub-graphs up to renaming.

use std::collections::BTreeMap;

use super::LinkGraph;

/// Sets of GPUs whose links are equal up to renaming.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkClass {
    /// The lexicographically first set, as numbers among the GPUs.
    pub gpus: Vec<usize>,
    /// Number of sets.
    pub sets: usize,
}

/// Classes of connected sets of `sizes` GPUs, by size and then by first set.
///
/// Considers direct links between GPUs and their rates only; for boxes of at most 16 GPUs (every set is examined, with
/// up to `size`! renamings of each).
pub fn link_classes(graph: &LinkGraph, sizes: std::ops::RangeInclusive<usize>) -> Vec<LinkClass> {
    let gpus = graph.gpus();
    let n = gpus.len();
    assert!(n <= 16, "classes are enumerated for at most 16 GPUs");
    let mut rate = vec![vec![0u64; n]; n];
    for (from, to, link) in graph.arcs() {
        if let (Ok(a), Ok(b)) = (gpus.binary_search(&from), gpus.binary_search(&to)) {
            rate[a][b] += link.rate.0;
        }
    }
    let mut classes: BTreeMap<(usize, Vec<u64>), LinkClass> = BTreeMap::new();
    for set in 1u32..1 << n {
        let members: Vec<usize> = (0..n).filter(|&i| set >> i & 1 == 1).collect();
        if !sizes.contains(&members.len()) || !connected(&rate, &members) {
            continue;
        }
        let form = canonical(&rate, &members);
        let class = classes
            .entry((members.len(), form))
            .or_insert_with(|| LinkClass { gpus: members.clone(), sets: 0 });
        class.sets += 1;
        class.gpus = class.gpus.clone().min(members);
    }
    let mut found: Vec<LinkClass> = classes.into_values().collect();
    found.sort_by(|a, b| (a.gpus.len(), &a.gpus).cmp(&(b.gpus.len(), &b.gpus)));
    found
}

fn connected(rate: &[Vec<u64>], members: &[usize]) -> bool {
    let mut seen = vec![members[0]];
    let mut next = 0;
    while next < seen.len() {
        let here = seen[next];
        next += 1;
        for &other in members {
            if rate[here][other] > 0 && !seen.contains(&other) {
                seen.push(other);
            }
        }
    }
    seen.len() == members.len()
}

/// The least matrix over all renamings, row by row up to the diagonal. Prunes renamings that are already greater.
fn canonical(rate: &[Vec<u64>], members: &[usize]) -> Vec<u64> {
    let mut best = Vec::new();
    extend(rate, members, &mut Vec::new(), &mut Vec::new(), &mut best);
    best
}

fn extend(
    rate: &[Vec<u64>],
    members: &[usize],
    order: &mut Vec<usize>,
    form: &mut Vec<u64>,
    best: &mut Vec<u64>,
) {
    let shorter = form.len().min(best.len());
    if !best.is_empty() && form[..shorter] > best[..shorter] {
        return;
    }
    if order.len() == members.len() {
        if best.is_empty() || *form < *best {
            best.clone_from(form);
        }
        return;
    }
    for &next in members {
        if order.contains(&next) {
            continue;
        }
        let length = form.len();
        form.extend(order.iter().flat_map(|&before| [rate[before][next], rate[next][before]]));
        order.push(next);
        extend(rate, members, order, form, best);
        order.pop();
        form.truncate(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::{LinkKind, dgx1p, dgx1v};
    use crate::units::Rate;

    #[test]
    fn counts_of_blink() {
        for (graph, classes) in [(dgx1p(Rate(1)), 14), (dgx1v(Rate(1)), 46)] {
            let nvlink = graph.only(&[LinkKind::Nvlink]).unwrap();
            let found = link_classes(&nvlink, 3..=8);
            assert_eq!(found.len(), classes);
            assert!(found.iter().all(|class| class.sets > 0));
        }
    }
}
