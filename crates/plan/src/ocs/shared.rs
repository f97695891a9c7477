//! Improves on the slides: devices that serve several trees, classes of devices that take turns, and meshes of the
//! ports that make no ring.

use netsum_topo::{OcsSpec, Ratio};

use super::build::synthesize;
use super::composition::{Composition, Piece, Woven};
use super::crossed::classes_max;
use super::pieces::Numbers;
use super::plan::OcsPlan;
use super::savings::Savings;

/// A plan that is never slower than the best composition of whole devices ([`closed`](super::closed)): devices whose
/// ports are split among trees where whole ones would be wasted, and a mesh on the worker ports that make no whole
/// ring, beside the trees or folded into them.
///
/// Tries every number of trees in descending order of upper bounds, until the best plan found exceeds the next bound.
/// Meshes are tried up to 512 workers, folded ones up to 128.
pub fn shared(spec: &OcsSpec) -> OcsPlan {
    let numbers = Numbers::of(spec);
    let mut choices = beside(&numbers);
    let most = classes_max(&numbers).min(numbers.d).min(numbers.m * numbers.e / numbers.n);
    for classes in 2..=most {
        let devices = classes * numbers.n / numbers.e;
        let rest = Numbers { d: numbers.d - classes, m: numbers.m - devices, ..numbers };
        let crossed = |choice| Composition { crossed: classes as u32, ..choice };
        choices.extend(beside(&rest).into_iter().map(crossed));
    }
    choices.sort_by_key(|choice| {
        (std::cmp::Reverse(choice.algbw(spec)), choice.mesh_links, choice.folded)
    });
    let mut best: Option<(Ratio, OcsPlan)> = None;
    for choice in choices {
        if best.as_ref().is_some_and(|(rate, _)| *rate >= choice.algbw(spec)) {
            break;
        }
        let plan = synthesize(spec, &choice);
        let rate = plan.algbw();
        if best.as_ref().is_none_or(|(most, _)| *most < rate) {
            best = Some((rate, plan));
        }
    }
    best.expect("no tree at all fits always").1
}

/// Compositions of these workers' ports and devices without crossed classes.
fn beside(numbers: &Numbers) -> Vec<Composition> {
    let savings = Savings::of(numbers);
    let devices = numbers.m;
    let some = |trees: u64| {
        // Fewer devices may be better: those that fill trees leave no tree to fold.
        let full = numbers.m >= trees * savings.whole;
        let spared = numbers.m.min(if full { trees } else { 1 });
        let of = move |idle| Numbers { m: numbers.m - idle, ..*numbers };
        (0..=spared)
            .map(of)
            .flat_map(|numbers| choices(&numbers, &savings, trees, devices))
            .collect::<Vec<_>>()
    };
    (0..=numbers.d).flat_map(some).collect()
}

/// Compositions with `trees` trees: rings, or rings and a mesh, or a mesh folded into the trees.
fn choices(numbers: &Numbers, savings: &Savings, trees: u64, devices: u64) -> Vec<Composition> {
    let saved = savings.most(numbers, trees);
    let Some(left) = (numbers.worker_ports() + saved).checked_sub(trees * numbers.line()) else {
        return Vec::new();
    };
    let rings = numbers.rings(left);
    let plain = Composition {
        trees: savings.layout(numbers, trees),
        rings: rings as u32,
        ..Composition::default()
    };
    let mut choices = vec![];
    if numbers.n <= MESH_WORKERS_MAX {
        let beside = numbers.rings(left.saturating_sub(2 * numbers.n));
        let links = ((left - beside * numbers.n) / 2).min(2 * numbers.n - 1);
        if links > numbers.n {
            choices.push(Composition {
                rings: beside as u32,
                mesh_links: links as u32,
                ..plain.clone()
            });
        } else if (1..numbers.n - 1).contains(&(left / 2)) && numbers.n <= FOLD_WORKERS_MAX {
            choices.extend(folded(numbers, &plain, left / 2));
        }
    }
    if numbers.m == devices {
        choices.extend(woven(numbers, &plain, left));
        choices.extend(standing(numbers, savings, trees));
    }
    choices.push(plain);
    choices
}

/// The last of all full trees, woven with the devices that serve no tree and the remaining ports.
fn woven(numbers: &Numbers, plain: &Composition, left: u64) -> Option<Composition> {
    let full = plain.trees.iter().all(|tree| saving(tree) == numbers.n - 2);
    if !full || plain.trees.is_empty() || left != numbers.n || left > FOLD_WORKERS_MAX {
        return None;
    }
    let pieces = plain.trees.iter().flatten();
    let first = pieces.map(|piece| piece.device + 1).max().unwrap_or(0);
    let (spare, links) = spread(numbers, left, numbers.m - u64::from(first));
    // Two workers with a link have 2D − 1 links to the others and each other, so rates end at D − 1/2, which a ring
    // exceeds.
    let ring = plain.rings > 0 && links > 0;
    let woven = Some(Woven { tree: true, first, spare, links });
    (!ring).then(|| Composition { rings: 0, woven, ..plain.clone() })
}

/// Trees of algbw 1 beside a graph of few worker ports, in which some devices act like workers.
fn standing(numbers: &Numbers, savings: &Savings, trees: u64) -> Vec<Composition> {
    let with = |devices: u64| {
        let of_trees = Numbers { m: numbers.m - devices, ..*numbers };
        let saved = savings.most(&of_trees, trees);
        let left = (numbers.worker_ports() + saved).checked_sub(trees * numbers.line())?;
        let (spare, links) = spread(numbers, left, devices);
        let fits = (2 * numbers.n..STANDING_PORTS_MAX * numbers.n).contains(&left)
            && numbers.n <= STANDING_WORKERS_MAX
            && spare.len() as u64 == devices;
        fits.then(|| Composition {
            trees: savings.layout(&of_trees, trees),
            woven: Some(Woven { tree: false, first: of_trees.m as u32, spare, links }),
            ..Composition::default()
        })
    };
    (1..=numbers.m.min(STANDING_DEVICES_MAX)).filter_map(with).collect()
}

/// Worker ports for each of some devices, and links between workers on the remaining ports.
fn spread(numbers: &Numbers, mut ports: u64, devices: u64) -> (Vec<u32>, u32) {
    let own = |_| {
        let own = ports.min(numbers.e);
        ports -= if own > 2 { own } else { 0 };
        (own > 2).then_some(own as u32)
    };
    let mut spare: Vec<u32> = (0..devices).map_while(own).collect();
    // Links take two ports: an odd one is better left at a device.
    if let Some(last) = spare.last_mut().filter(|last| ports % 2 == 1 && **last > 3) {
        *last -= 1;
        ports += 1;
    }
    (spare, (ports / 2) as u32)
}

fn saving(tree: &[Piece]) -> u64 {
    tree.iter().map(|piece| u64::from(piece.ports) - 2).sum()
}

/// The trees with a spare port, folded with `links` links.
fn folded(numbers: &Numbers, plain: &Composition, links: u64) -> Option<Composition> {
    let (full, open): (Vec<_>, Vec<_>) =
        plain.trees.iter().cloned().partition(|tree| saving(tree) + 3 > numbers.n);
    let folded = open.len();
    (folded > 0).then(|| Composition {
        trees: full.into_iter().chain(open).collect(),
        mesh_links: links as u32,
        folded,
        ..Composition::default()
    })
}

/// Largest networks for which a mesh is searched, by itself and folded: some seconds. Without a mesh less than one
/// ring's ports are lost.
const MESH_WORKERS_MAX: u64 = 512;
const FOLD_WORKERS_MAX: u64 = 128;

/// Graphs with devices like workers gain where ports are few; larger graphs take too long.
const STANDING_WORKERS_MAX: u64 = 64;
const STANDING_PORTS_MAX: u64 = 4;
const STANDING_DEVICES_MAX: u64 = 4;
