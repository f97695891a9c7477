//! The programme over the trees of all sources: a row per link, and one per source for its equal part.

use std::collections::HashMap;

use netsum_topo::Ratio;

use super::super::lp::{Column, Master};
use super::super::tree::Tree;
use super::answer::Answer;
use super::wires::{Paths, Wires};

/// The best trees, with the programme's dual as lengths.
pub(super) fn answer(wires: &Wires<'_>) -> Answer {
    let net = wires.net;
    let (arcs, count) = (net.arcs.len(), net.gpus.len());
    let mut limits: Vec<i64> = net.arcs.iter().map(|arc| arc.cap).collect();
    limits.resize(arcs + count, 0);
    let mut master = Master::new(limits);
    master.add(Column {
        gain: count as i64,
        uses: (arcs..arcs + count).map(|row| (row, 1)).collect(),
    });
    let mut paths = Paths::default();
    let mut offered: HashMap<Vec<(usize, i64)>, Tree> = HashMap::new();
    let mut found = |lengths: &[u64], least: &mut dyn FnMut(usize, i128) -> bool| {
        let mut columns = Vec::new();
        for (rank, &root) in net.gpus.iter().enumerate() {
            if rank > 0 && wires.budget().is_over() {
                break;
            }
            wires.shortest(root, lengths, &mut paths);
            let total = net.gpus.iter().map(|&gpu| i128::from(paths.far[gpu])).sum();
            if !least(rank, total) {
                continue;
            }
            let mut uses = Vec::new();
            wires.loads(&mut paths, |arc, gpus| uses.push((arc, gpus)));
            uses.sort_unstable();
            uses.push((arcs + rank, -1));
            offered.insert(uses.clone(), wires.tree(&paths));
            columns.push(Column { gain: 0, uses });
        }
        columns
    };
    let even: Vec<u64> = net.arcs.iter().map(|arc| (EVEN / arc.cap as u64).max(1)).collect();
    for column in found(&even, &mut |_, _| true) {
        master.add(column);
    }
    let packing = master.solve(None, wires.budget(), &mut |prices, _| {
        let lengths: Vec<u64> = prices[..arcs].iter().map(|&price| price.max(0) as u64).collect();
        found(&lengths, &mut |rank, total| total < i128::from(prices[arcs + rank]))
    });
    let lengths = whole(&packing.prices[..arcs]);
    let mut trees = Vec::new();
    let mut left = vec![packing.value / Ratio::from(count as i64); net.n];
    for &(column, weight) in &packing.weights {
        let Some(tree) = offered.get(&master.columns()[column].uses) else { continue };
        // A root may have more than its part.
        let weight = weight.min(left[tree.root]);
        if weight.is_positive() {
            left[tree.root] = left[tree.root] - weight;
            trees.push((tree.clone(), weight));
        }
    }
    let place = |gpu: usize| net.gpus.iter().position(|&other| other == gpu);
    trees.sort_by_key(|(tree, _)| place(tree.root));
    Answer { trees, lengths }
}

/// Prices as whole numbers in the same proportion, or near it where they would be too large.
pub(super) fn whole(prices: &[Ratio]) -> Option<Vec<u64>> {
    let most = prices.iter().copied().max().filter(|most| most.is_positive())?;
    let common = prices.iter().try_fold(1i128, |all, price| netsum_topo::lcm(all, price.den()));
    let exact = |common: i128| -> Option<Vec<u64>> {
        let one = |price: &Ratio| {
            let value = price.num().max(0).checked_mul(common / price.den())?;
            u64::try_from(value).ok().filter(|&value| value <= LENGTH_MAX)
        };
        prices.iter().map(one).collect()
    };
    common.and_then(exact).or_else(|| {
        let most = most.to_f64();
        let one = |price: &Ratio| (price.to_f64().max(0.0) / most * EVEN as f64).round() as u64;
        Some(prices.iter().map(one).collect())
    })
}

/// Lengths up to this add up along any path.
pub(super) const LENGTH_MAX: u64 = 1 << 44;
/// The longest length where there is a choice.
pub(super) const EVEN: u64 = 1 << 36;
