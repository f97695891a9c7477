//! Fabrics whose links fall into few classes that look the same, as servers with equal GPUs and the network between
//! them: the programme with a row per class.

use std::collections::BTreeMap;

use super::super::lp::{Column, Master};
use super::super::tree::Tree;
use super::answer::Answer;
use super::exact::whole;
use super::ties::Ties;
use super::wires::{Paths, Wires};

/// Lengths per class that are the best ones if links of a class can be exchanged, and trees under such lengths.
///
/// Nothing here relies on classes being right: bounds and rates are computed from all links.
pub(super) fn answers<'a>(wires: &'a Wires<'a>) -> impl Iterator<Item = Answer> + 'a {
    let classes = Classes::new(wires);
    let found = (classes.limits.len() <= CLASSES_MAX).then(|| classes.solve(wires));
    let (lengths, patterns) = found.unwrap_or_default();
    let bound = Answer { trees: Vec::new(), lengths };
    let count = wires.net.gpus.len();
    let of = move |rotated: bool| {
        let mut trees = Vec::new();
        for (lengths, weight) in &patterns {
            let most = (TREES_MAX / (count * count)).clamp(1, TIES_MAX);
            let Some(ties) =
                Ties::new(wires, lengths.clone(), if rotated { TIES_MAX } else { most })
            else {
                return Answer::default();
            };
            let per_root = ties.trees_per_root();
            for (rank, &root) in wires.net.gpus.iter().enumerate() {
                if rotated {
                    trees.push((ties.tree(root, rank), *weight));
                } else {
                    let part = *weight / netsum_topo::Ratio::from(per_root as i64);
                    trees.extend((0..per_root).map(|number| (ties.tree(root, number), part)));
                }
            }
        }
        let mut place = vec![0; wires.net.n];
        wires.net.gpus.iter().enumerate().for_each(|(rank, &gpu)| place[gpu] = rank);
        trees.sort_by_key(|(tree, _): &(Tree, _)| place[tree.root]);
        Answer { trees, lengths: None }
    };
    // One tree per root and pattern often suffices, if neighbours take different ones.
    std::iter::once(bound).chain([true, false].into_iter().map(of))
}

struct Classes {
    /// By arc.
    class: Vec<usize>,
    /// Capacity of all arcs of each class.
    limits: Vec<i64>,
    /// A GPU of each class, and how many there are.
    roots: Vec<(usize, i64)>,
}

/// The arcs of a vertex: whether they leave it, the colour of the other end, and their capacity.
type Around = Vec<(bool, usize, i64)>;

/// Blocks over each class.
type Uses = Vec<(usize, i64)>;

/// Lengths of arcs under which trees are shortest, and the weight of these trees.
type Pattern = (Vec<u64>, netsum_topo::Ratio);

impl Classes {
    /// Vertices are refined by the classes and the capacities of their arcs until nothing changes; an arc's class is
    /// that of its ends with its capacity.
    fn new(wires: &Wires<'_>) -> Classes {
        let net = wires.net;
        let mut colour: Vec<usize> = wires.is_gpu.iter().map(|&gpu| usize::from(gpu)).collect();
        let mut count = 0;
        for _ in 0..net.n {
            let mut names: BTreeMap<(usize, Around), usize> = BTreeMap::new();
            let signature = |v: usize| {
                let out = wires.out(v).iter().map(|&(to, arc)| (true, to, arc));
                let into = wires.into(v).iter().map(|&(from, arc)| (false, from, arc));
                let ends = out.chain(into);
                let mut around: Around =
                    ends.map(|(out, other, arc)| (out, colour[other], net.arcs[arc].cap)).collect();
                around.sort_unstable();
                (colour[v], around)
            };
            let signatures: Vec<_> = (0..net.n).map(signature).collect();
            for signature in &signatures {
                let next = names.len();
                names.entry(signature.clone()).or_insert(next);
            }
            colour = signatures.iter().map(|signature| names[signature]).collect();
            if names.len() == count {
                break;
            }
            count = names.len();
        }
        let mut names: BTreeMap<(usize, usize, i64), usize> = BTreeMap::new();
        let mut limits = Vec::new();
        let class = net.arcs.iter().map(|arc| {
            let next = names.len();
            let class = *names.entry((colour[arc.from], colour[arc.to], arc.cap)).or_insert(next);
            limits.resize(names.len(), 0);
            limits[class] += arc.cap;
            class
        });
        let class = class.collect();
        let mut roots: Vec<(usize, i64)> = Vec::new();
        for &gpu in &net.gpus {
            match roots.iter_mut().find(|(known, _)| colour[*known] == colour[gpu]) {
                Some((_, count)) => *count += 1,
                None => roots.push((gpu, 1)),
            }
        }
        Classes { class, limits, roots }
    }

    fn solve(&self, wires: &Wires<'_>) -> (Option<Vec<u64>>, Vec<Pattern>) {
        let rows = self.limits.len();
        let mut offered: Vec<(Uses, Vec<u64>)> = Vec::new();
        let mut paths = Paths::default();
        let mut column = |prices: &[u64]| {
            let lengths: Vec<u64> = self.class.iter().map(|&row| prices[row]).collect();
            let mut total = vec![0i64; rows];
            for &(root, count) in &self.roots {
                wires.shortest(root, &lengths, &mut paths);
                wires.loads(&mut paths, |arc, gpus| total[self.class[arc]] += gpus * count);
            }
            let uses = total.into_iter().enumerate().filter(|&(_, gpus)| gpus > 0);
            let uses: Vec<(usize, i64)> = uses.collect();
            offered.push((uses.clone(), lengths));
            Column { gain: 1, uses }
        };
        let mut master = Master::new(self.limits.clone());
        let even: Vec<u64> =
            self.limits.iter().map(|&limit| (FAR / limit.max(1) as u64).max(1)).collect();
        for prices in [vec![1; rows], even] {
            master.add(column(&prices));
        }
        let packing = master.solve(None, wires.budget(), &mut |prices, one| {
            let prices: Vec<u64> = prices.iter().map(|&price| price.max(0) as u64).collect();
            let found = column(&prices);
            let total: i128 = (found.uses.iter())
                .map(|&(row, gpus)| i128::from(prices[row]) * i128::from(gpus))
                .sum();
            if total < i128::from(one) { vec![found] } else { Vec::new() }
        });
        let pattern = |&(number, weight): &(usize, netsum_topo::Ratio)| {
            let uses = &master.columns()[number].uses;
            let lengths = offered.iter().find(|(known, _)| known == uses)?.1.clone();
            Some((lengths, weight))
        };
        let patterns: Option<Vec<Pattern>> = packing.weights.iter().map(pattern).collect();
        let prices = whole(&packing.prices);
        let lengths = prices.map(|prices| self.class.iter().map(|&row| prices[row]).collect());
        (lengths, patterns.unwrap_or_default())
    }
}

/// With more classes the fabric is irregular.
const CLASSES_MAX: usize = 64;
/// Trees per root and pattern where ties are used alike.
const TIES_MAX: usize = 64;
/// GPUs that all trees together may reach.
const TREES_MAX: usize = 1 << 23;
const FAR: u64 = 1 << 40;
