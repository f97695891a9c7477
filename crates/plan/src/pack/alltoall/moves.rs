//! Weight that moves between trees of one source: from the longest of its trees to the shortest that there is, under
//! lengths that rise exponentially with the load of links (Frank and Wolfe's method with pairwise steps, source by
//! source). Near the best rate on any fabric, in time that grows as the number of GPUs times that of links.

use netsum_topo::Ratio;

use super::super::tree::Tree;
use super::answer::Answer;
use super::wires::{NONE, Paths, Wires};

/// Trees per root, and lengths by which their rate is not far below the best. `bound`: a rate that cannot be exceeded.
pub(super) fn answer(wires: &Wires<'_>, bound: Option<Ratio>) -> Answer {
    let net = wires.net;
    let count = net.gpus.len();
    let mut moving = Moving::new(wires);
    let mut least: Option<(f64, Vec<u64>)> = None;
    let enough = bound.map_or(0.0, |bound| count as f64 / bound.to_f64());
    let (mut paths, mut spare) = (Paths::default(), Vec::new());
    let step = net.arcs.len() * ARC_WORK + net.n * VERTEX_WORK;
    let most = WORK / (count * step) as u64;
    let rounds = match wires.budget().is_timed() {
        true => usize::MAX,
        false => (most as usize).clamp(ROUNDS.0, ROUNDS.1),
    };
    let mut before = f64::INFINITY;
    for round in 0..rounds {
        moving.refresh();
        for rank in 0..count {
            // Every source has a tree, however little may be done.
            if round == 0 || !wires.budget().is_over() {
                wires.shortest(net.gpus[rank], &moving.whole, &mut paths);
                spare.clear();
                wires.loads(&mut paths, |arc, gpus| spare.push((arc as u32, gpus as u32)));
                moving.step(rank, Some(&spare));
            }
        }
        let last = round + 1 == rounds || wires.budget().is_over();
        if last || round % BOUND_EVERY == BOUND_EVERY - 1 {
            moving.refresh();
            let mean = moving.mean_lengths();
            let (rate, other) = (moving.bound(&moving.whole), moving.bound(&mean));
            if least.as_ref().is_none_or(|(known, _)| other < *known) {
                least = Some((other, mean));
            }
            // Steeper lengths are worth it when what is left to gain is small, or comes slowly.
            let gap = moving.fullest * rate - 1.0;
            let slow = moving.fullest > before * (1.0 - SLOW * gap);
            let wanted = if slow { f64::INFINITY } else { SHARP / gap };
            moving.steep = wanted.clamp(moving.steep, moving.steep * STEEPER).min(STEEP.1);
            before = moving.fullest;
            if least.as_ref().is_none_or(|(known, _)| rate < *known) {
                least = Some((rate, moving.whole.clone()));
            }
            let dual = least.as_ref().map_or(0.0, |(rate, _)| 1.0 / rate);
            if last || moving.fullest <= enough.max(dual) * (1.0 + NEAR) {
                break;
            }
        }
    }
    let most = (REACHED / count.pow(2)).clamp(TREES.0, TREES.1);
    let mut left = moving.parts.iter().map(Vec::len).max().unwrap_or(0);
    moving.steep = moving.steep.min(SETTLING);
    while left > most {
        left = most.max(left * 3 / 4);
        moving.prune(left);
        for _ in 0..if left == most { SETTLE.1 } else { SETTLE.0 } {
            moving.refresh();
            (0..count).for_each(|rank| moving.step(rank, None));
            wires.budget().spend(count * left * net.n);
        }
    }
    let parts = moving.parts;
    let trees = parts.into_iter().enumerate().flat_map(|(rank, parts)| {
        let weights = rounded(&parts);
        let root = net.gpus[rank];
        let used = parts.into_iter().zip(weights).filter(|(_, weight)| *weight > 0);
        used.map(move |(part, weight)| {
            (tree(wires, root, &part.arcs), Ratio::new(weight.into(), PIECES.into()))
        })
        .collect::<Vec<_>>()
    });
    Answer { trees: trees.collect(), lengths: least.map(|(_, lengths)| lengths) }
}

/// Weights as multiples of 1 / [`PIECES`] that add up to 1; the heaviest takes what rounding leaves.
fn rounded(parts: &[Part]) -> Vec<i64> {
    let total: f64 = parts.iter().map(|part| part.weight).sum();
    let whole = |part: &Part| (part.weight / total * PIECES as f64).floor() as i64;
    let mut weights: Vec<i64> = parts.iter().map(whole).collect();
    let rest = PIECES - weights.iter().sum::<i64>();
    let heaviest = (0..parts.len()).max_by_key(|&part| weights[part]).expect("a root has a tree");
    weights[heaviest] += rest;
    weights
}

/// The tree with these arcs.
fn tree(wires: &Wires<'_>, root: usize, arcs: &[(u32, u32)]) -> Tree {
    let mut paths = Paths { root, by: vec![NONE; wires.net.n], ..Paths::default() };
    // Arcs were listed from the leaves on.
    for &(arc, _) in arcs.iter().rev() {
        let to = wires.net.arcs[arc as usize].to;
        paths.by[to] = arc as usize;
        paths.order.push(to);
    }
    wires.tree(&paths)
}

/// A tree of a source: its arcs with the GPUs behind each, from the leaves on, and its part of the source's blocks.
#[derive(Clone)]
struct Part {
    arcs: Vec<(u32, u32)>,
    weight: f64,
}

struct Moving<'a> {
    wires: &'a Wires<'a>,
    /// By rank.
    parts: Vec<Vec<Part>>,
    /// Blocks over each arc, over its capacity.
    load: Vec<f64>,
    /// exp(steep · (load / fullest − 1)) / capacity.
    length: Vec<f64>,
    /// The same as whole numbers.
    whole: Vec<u64>,
    inverse: Vec<f64>,
    /// The mean load if all sources have trees like the first.
    usual: f64,
    /// Load of the fullest arc when lengths were computed anew.
    fullest: f64,
    steep: f64,
    mean: Vec<f64>,
    /// By arc, the difference between two trees of a step.
    change: Vec<f64>,
}

impl<'a> Moving<'a> {
    fn new(wires: &'a Wires<'a>) -> Moving<'a> {
        let net = wires.net;
        let inverse: Vec<f64> = net.arcs.iter().map(|arc| 1.0 / arc.cap as f64).collect();
        let largest = inverse.iter().copied().fold(0.0, f64::max);
        Moving {
            wires,
            parts: vec![Vec::new(); net.gpus.len()],
            load: vec![0.0; net.arcs.len()],
            length: inverse.clone(),
            whole: inverse.iter().map(|inverse| scaled(inverse / largest / FAR_FIRST)).collect(),
            inverse,
            usual: 0.0,
            fullest: 0.0,
            steep: STEEP.0,
            mean: vec![0.0; net.arcs.len()],
            change: vec![0.0; net.arcs.len()],
        }
    }

    /// Computes loads and lengths anew, without the errors that have added up.
    fn refresh(&mut self) {
        if self.parts[0].is_empty() {
            return;
        }
        self.load.fill(0.0);
        for part in self.parts.iter().flatten() {
            for &(arc, gpus) in &part.arcs {
                self.load[arc as usize] +=
                    part.weight * f64::from(gpus) * self.inverse[arc as usize];
            }
        }
        self.fullest = self.fullest();
        (0..self.length.len()).for_each(|arc| self.set_length(arc));
    }

    fn fullest(&self) -> f64 {
        self.load.iter().copied().fold(0.0, f64::max)
    }

    fn set_length(&mut self, arc: usize) {
        let part = self.load[arc] / self.fullest - 1.0;
        self.length[arc] = (self.steep * part).exp() * self.inverse[arc];
        self.whole[arc] = scaled(self.length[arc] * self.largest());
    }

    /// What makes the length of a full arc of the least capacity 1.
    fn largest(&self) -> f64 {
        self.wires.least as f64
    }

    /// Gives a source its first tree, or moves weight from its longest tree to `new`, its shortest, or else to the
    /// shortest that it has.
    fn step(&mut self, rank: usize, new: Option<&[(u32, u32)]>) {
        if let (true, Some(new)) = (self.parts[rank].is_empty(), new) {
            if self.usual == 0.0 {
                let caps: i64 = self.wires.net.arcs.iter().map(|arc| arc.cap).sum();
                let blocks: u32 = new.iter().map(|&(_, gpus)| gpus).sum();
                self.usual = f64::from(blocks) * self.parts.len() as f64 / caps as f64;
            }
            for &(arc, gpus) in new {
                let arc = arc as usize;
                self.load[arc] += f64::from(gpus) * self.inverse[arc];
                // Later trees avoid what earlier ones load.
                let times = (self.load[arc] / self.usual + FREE).powi(4) / FREE.powi(4);
                self.whole[arc] = scaled(times * self.inverse[arc] * self.largest() / FAR_FIRST);
            }
            self.parts[rank].push(Part { arcs: new.to_vec(), weight: 1.0 });
            return;
        }
        let of = |arcs: &[(u32, u32)]| -> f64 {
            arcs.iter().map(|&(arc, gpus)| self.length[arc as usize] * f64::from(gpus)).sum()
        };
        let known: Vec<f64> = self.parts[rank].iter().map(|part| of(&part.arcs)).collect();
        let by_length = |&a: &usize, &b: &usize| known[a].total_cmp(&known[b]);
        let from = (0..known.len()).max_by(by_length).expect("it has a tree");
        let to = (0..known.len()).min_by(by_length).expect("it has a tree");
        let short = new.map_or(known[to], of);
        if known[from] <= short * (1.0 + 1e-9) {
            return;
        }
        let spare: Vec<(u32, u32)> = match new {
            Some(new) => new.to_vec(),
            None => self.parts[rank][to].arcs.clone(),
        };
        let mut touched: Vec<u32> = Vec::with_capacity(2 * spare.len());
        let (change, inverse) = (&mut self.change, &self.inverse);
        for (arcs, sign) in [(&spare, 1.0), (&self.parts[rank][from].arcs, -1.0)] {
            for &(arc, gpus) in arcs {
                if change[arc as usize] == 0.0 {
                    touched.push(arc);
                }
                change[arc as usize] += sign * f64::from(gpus) * inverse[arc as usize];
            }
        }
        let most = self.parts[rank][from].weight;
        let weight = self.line(&touched, most);
        for &arc in &touched {
            let arc = arc as usize;
            let change = std::mem::take(&mut self.change[arc]);
            if change != 0.0 {
                self.load[arc] += weight * change;
                self.set_length(arc);
            }
        }
        let parts = &mut self.parts[rank];
        parts[from].weight -= weight;
        match parts.iter_mut().find(|part| part.arcs == spare) {
            Some(known) => known.weight += weight,
            None => parts.push(Part { arcs: spare, weight }),
        }
        parts.retain(|part| part.weight > LEAST);
    }

    /// Leaves every source its heaviest trees, and the weight of the others to them.
    fn prune(&mut self, most: usize) {
        for parts in &mut self.parts {
            parts.sort_by(|a, b| b.weight.total_cmp(&a.weight));
            parts.truncate(most);
            let total: f64 = parts.iter().map(|part| part.weight).sum();
            parts.iter_mut().for_each(|part| part.weight /= total);
        }
    }

    /// The weight up to `most` whose move lowers Σ exp(steep · load / fullest) most: where its slope is 0.
    fn line(&self, touched: &[u32], most: f64) -> f64 {
        let rise = self.steep / self.fullest;
        let slope = |weight: f64| -> (f64, f64) {
            touched.iter().fold((0.0, 0.0), |(slope, bend), &arc| {
                let (arc, change) = (arc as usize, self.change[arc as usize]);
                let value =
                    (rise * (self.load[arc] - self.fullest + weight * change)).exp() * change;
                (slope + value, bend + value * change * rise)
            })
        };
        if slope(most).0 <= 0.0 {
            return most;
        }
        let (mut low, mut high, mut at) = (0.0, most, 0.0);
        for _ in 0..STEPS {
            let (value, bend) = slope(at);
            if value < 0.0 {
                low = at;
            } else {
                high = at;
            }
            let newton = at - value / bend;
            at = if newton > low && newton < high { newton } else { 0.5 * (low + high) };
        }
        // Never beyond the least value.
        if low > 0.0 { low } else { at }
    }

    /// The mean of the present lengths and those of earlier calls, later ones weighing more.
    fn mean_lengths(&mut self) -> Vec<u64> {
        let caps = self.wires.net.arcs.iter().map(|arc| arc.cap as f64);
        let room: f64 = caps.zip(&self.length).map(|(cap, length)| cap * length).sum();
        let most = self.mean.iter_mut().zip(&self.length).fold(0.0, |most: f64, (mean, length)| {
            *mean = *mean * KEEP + length / room;
            most.max(*mean)
        });
        self.mean.iter().map(|mean| scaled(mean / most)).collect()
    }

    fn bound(&self, lengths: &[u64]) -> f64 {
        let room: f64 = (self.wires.net.arcs.iter().zip(lengths))
            .map(|(arc, &length)| arc.cap as f64 * length as f64)
            .sum();
        room / self.wires.distances(lengths) as f64
    }
}

fn scaled(length: f64) -> u64 {
    ((length * FAR) as u64).clamp(1, LENGTH_MAX)
}

const LENGTH_MAX: u64 = 1 << 44;
/// Work of all rounds, of a step per arc and per vertex, in nanoseconds, about.
const WORK: u64 = 5_000_000_000;
const ARC_WORK: usize = 10;
const VERTEX_WORK: usize = 150;
/// Fewest and most rounds.
const ROUNDS: (usize, usize) = (24, 400);
/// GPUs that all trees together reach, about.
const REACHED: usize = 1 << 22;
/// Fewest and most trees of a source, whatever that gives.
const TREES: (usize, usize) = (8, 64);
const BOUND_EVERY: usize = 4;
/// The least and the largest exponent.
const STEEP: (f64, f64) = (16.0, 3000.0);
/// Steps of the search along a line.
const STEPS: usize = 8;
/// Lighter trees are dropped.
const LEAST: f64 = 1e-7;
/// The exponent times the distance from the bound, and how much it grows at once.
const SHARP: f64 = 4.0;
const STEEPER: f64 = 1.5;
/// A part of the distance from the bound that is a slow gain.
const SLOW: f64 = 0.01;
/// Lengths of arcs without load are as those with this part of the mean.
const FREE: f64 = 0.2;
/// What makes room for the growth of the first lengths.
const FAR_FIRST: f64 = (1 << 10) as f64;
/// The largest exponent while trees are left out.
const SETTLING: f64 = 200.0;
/// How much of the mean of lengths remains.
const KEEP: f64 = 0.7;
/// Rounds after trees have been left out, and after the last have.
const SETTLE: (usize, usize) = (2, 12);
/// As near as weights of whole pieces come.
const NEAR: f64 = 1e-5;
/// Trees carry so many parts of a block.
const PIECES: i64 = 1 << 20;
/// The length of a full link of the least capacity.
const FAR: f64 = (1u64 << 36) as f64;
