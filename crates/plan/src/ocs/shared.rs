//! Better than the slides: devices that serve several trees, and meshes of what makes no ring.

use netsum_topo::OcsSpec;

use super::Rational;
use super::build::synthesize;
use super::composition::Composition;
use super::pieces::Numbers;
use super::plan::OcsPlan;
use super::savings::Savings;

/// A plan that is never slower than the best composition of whole devices ([`closed`](super::closed)):
/// devices whose ports are split among trees where whole ones would be wasted, and a mesh on the
/// worker ports that make no whole ring, beside the trees or folded into them.
///
/// Every number of trees is tried, those that promise most first, until what was found beats all that is
/// promised. No mesh is sought beyond 512 workers, none folded beyond 128.
pub fn shared(spec: &OcsSpec) -> OcsPlan {
    let numbers = Numbers::of(spec);
    let savings = Savings::of(&numbers);
    let some = |trees: u64| {
        // Fewer devices may do better: those that fill trees leave none open to be folded.
        let full = numbers.m >= trees * savings.whole;
        let spared = numbers.m.min(if full { trees } else { 1 });
        let of = move |idle| Numbers { m: numbers.m - idle, ..numbers };
        (0..=spared)
            .map(of)
            .flat_map(|numbers| choices(&numbers, &savings, trees))
            .collect::<Vec<_>>()
    };
    let mut choices: Vec<Composition> = (0..=numbers.d).flat_map(some).collect();
    choices.sort_by_key(|choice| {
        (std::cmp::Reverse(choice.algbw(spec)), choice.mesh_links, choice.folded)
    });
    let mut best: Option<(Rational, OcsPlan)> = None;
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

/// What can be made with so many trees: rings, or rings and a mesh, or a mesh folded into the trees.
fn choices(numbers: &Numbers, savings: &Savings, trees: u64) -> Vec<Composition> {
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
    choices.push(plain);
    choices
}

/// The trees that have a port to spare, folded with so many links.
fn folded(numbers: &Numbers, plain: &Composition, links: u64) -> Option<Composition> {
    let saving =
        |tree: &Vec<super::Piece>| tree.iter().map(|piece| u64::from(piece.ports) - 2).sum::<u64>();
    let (full, open): (Vec<_>, Vec<_>) =
        plain.trees.iter().cloned().partition(|tree| saving(tree) + 3 > numbers.n);
    let folded = open.len();
    (folded > 0).then(|| Composition {
        trees: full.into_iter().chain(open).collect(),
        rings: 0,
        mesh_links: links as u32,
        folded,
    })
}

/// Largest networks for which a mesh is sought, by itself and folded: some seconds. Without them less than
/// one ring's ports are lost.
const MESH_WORKERS_MAX: u64 = 512;
const FOLD_WORKERS_MAX: u64 = 128;
