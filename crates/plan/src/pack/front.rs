//! The trade-off between rate, number of trees and height.

use netsum_topo::Ratio;

use super::choice::Choice;
use super::packed::{Flow, Packed, fit};
use super::packing::pack_net;
use super::tree::Tree;

/// Packings of which none is dominated in rate, number of trees and height; the best rate first. The first has the
/// optimal rate of `best`; for the others it is not proven that no better one exists (low trees come from a greedy
/// search, few trees from leaving out the lightest).
pub fn front(best: &Packed) -> Vec<Packed> {
    let mut found = vec![best.clone()];
    for height in 1..=best.height() {
        let low = pack_net(
            best.net.clone(),
            best.collective,
            best.bound.clone(),
            &Choice::Height(height),
        );
        // Nothing can be packed if some root has no tree this low.
        if low.rate.is_positive() {
            found.extend(fewer(&low));
        }
    }
    found.extend(fewer(best));
    found.sort_by_key(|packed| {
        (std::cmp::Reverse(packed.rate), packed.flows.len(), packed.height())
    });
    let mut kept: Vec<Packed> = Vec::new();
    for packed in found {
        let worse = |other: &Packed| {
            other.flows.len() <= packed.flows.len() && other.height() <= packed.height()
        };
        if !kept.iter().any(worse) {
            kept.push(packed);
        }
    }
    kept
}

/// `packed`, and its variants with ever fewer trees.
fn fewer(packed: &Packed) -> Vec<Packed> {
    let mut found = vec![packed.clone()];
    let mut flows = packed.flows.clone();
    while flows.len() > 1 {
        let lightest = (0..flows.len()).min_by_key(|&f| flows[f].weight).expect("there are flows");
        flows.remove(lightest);
        let trees: Vec<Tree> =
            flows.iter().filter_map(|flow| flow.down.clone().or(flow.up.clone())).collect();
        let one_tree =
            |flow: &Flow| flow.up.is_none() || flow.down.is_none() || flow.up == flow.down;
        if !flows.iter().all(one_tree) {
            break;
        }
        let less = pack_net(
            packed.net.clone(),
            packed.collective,
            packed.bound.clone(),
            &Choice::Only(trees),
        );
        if !less.rate.is_positive() {
            break;
        }
        flows.clone_from(&less.flows);
        found.push(less);
    }
    found
}

/// A packing with every share a multiple of 1/`pieces`, for executors with few chunks: the given packing with rounded
/// shares, or trees of equal weight if these are then faster. Its rate is limited by the fullest link.
///
/// `None` if there are more trees than pieces (per root, for sharded collectives).
pub fn coarse(packed: &Packed, pieces: u64) -> Option<Packed> {
    let Packed { net, collective, bound, .. } = packed;
    let even = pack_net(net.clone(), *collective, bound.clone(), &Choice::Spread);
    let both = [packed, &even].into_iter().filter_map(|packed| rounded(packed, pieces));
    both.reduce(|one, other| if other.rate > one.rate { other } else { one })
}

fn rounded(packed: &Packed, pieces: u64) -> Option<Packed> {
    let mut flows: Vec<Flow> = Vec::new();
    let sharded = matches!(
        packed.collective,
        netsum_topo::links::Collective::Allgather | netsum_topo::links::Collective::ReduceScatter
    );
    let groups: Vec<Vec<&Flow>> = if sharded {
        let of = |&root: &usize| packed.flows.iter().filter(|flow| flow.root == root).collect();
        packed.net.gpus.iter().map(of).collect()
    } else {
        vec![packed.flows.iter().collect()]
    };
    let each = pieces / groups.len() as u64;
    for group in &groups {
        let total: Ratio = group.iter().map(|flow| flow.weight).sum();
        let exact = |flow: &Flow| flow.weight / total * Ratio::new(each.into(), 1);
        let mut whole: Vec<i128> = group
            .iter()
            .map(|flow| {
                let exact = exact(flow);
                exact.num() / exact.den()
            })
            .collect();
        // The largest remainders get the rest.
        let mut order: Vec<usize> = (0..group.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(exact(group[i]) - Ratio::new(whole[i], 1)));
        let left = i128::from(each) - whole.iter().sum::<i128>();
        for &i in order.iter().cycle().take(left as usize) {
            whole[i] += 1;
        }
        for (flow, pieces) in group.iter().zip(whole).filter(|(_, pieces)| *pieces > 0) {
            flows.push(Flow { weight: Ratio::new(pieces, 1), ..(*flow).clone() });
        }
    }
    if each == 0 || flows.is_empty() {
        return None;
    }
    let total: Ratio = flows.iter().map(|flow| flow.weight).sum();
    let rate = total * fit(&packed.net, &flows)?;
    flows.iter_mut().for_each(|flow| flow.weight = flow.weight / total * rate);
    Some(Packed { flows, rate, ..packed.clone() })
}
