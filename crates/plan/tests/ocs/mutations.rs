//! The verifier refuses every deliberately broken plan, and names the place.

use netsum_plan::ocs::{Lane, OcsPlan, check, closed, shared, synthesize};
use netsum_topo::{OcsNode, OcsPorts, Ratio};
use proptest::prelude::*;

use crate::{ocs, ratio, spec};

fn tree(
    plan: &mut OcsPlan,
    at: usize,
) -> Option<(&mut Ratio, &mut OcsNode, &mut Vec<u32>, &mut Vec<u32>)> {
    let trees = plan.lanes.iter_mut().filter_map(|lane| match lane {
        Lane::Tree { share, root, reduce, broadcast } => Some((share, root, reduce, broadcast)),
        Lane::Ring { .. } => None,
    });
    let mut trees: Vec<_> = trees.collect();
    let count = trees.len();
    (count > 0).then(|| trees.swap_remove(at % count))
}

fn ring(plan: &mut OcsPlan, at: usize) -> Option<&mut Vec<u32>> {
    let rings = plan.lanes.iter_mut().filter_map(|lane| match lane {
        Lane::Ring { circuits, .. } => Some(circuits),
        Lane::Tree { .. } => None,
    });
    let mut rings: Vec<_> = rings.collect();
    let count = rings.len();
    (count > 0).then(|| rings.swap_remove(at % count))
}

/// Breaks a plan in one way. False if the plan has no part that can be broken so.
fn mutate(plan: &mut OcsPlan, kind: usize, at: usize) -> bool {
    let pick = |count: usize| at % count;
    match kind {
        // A contribution is lost, added twice, or sent in the wrong direction.
        0 => tree(plan, at).is_some_and(|(_, _, reduce, _)| {
            reduce.swap_remove(pick(reduce.len()));
            true
        }),
        1 => tree(plan, at).is_some_and(|(_, _, reduce, _)| {
            reduce.push(reduce[pick(reduce.len())]);
            true
        }),
        2 => tree(plan, at).is_some_and(|(_, _, reduce, broadcast)| {
            let place = pick(reduce.len());
            std::mem::swap(&mut reduce[place], &mut broadcast[place]);
            true
        }),
        // The result is not sent everywhere, or is sent twice.
        3 => tree(plan, at).is_some_and(|(_, _, _, broadcast)| {
            broadcast.swap_remove(pick(broadcast.len()));
            true
        }),
        4 => tree(plan, at).is_some_and(|(_, _, _, broadcast)| {
            broadcast.push(broadcast[pick(broadcast.len())]);
            true
        }),
        5 => tree(plan, at).is_some_and(|(_, _, reduce, broadcast)| {
            std::mem::swap(reduce, broadcast);
            true
        }),
        // The sum is taken from a node that does not have it.
        6 => tree(plan, at).is_some_and(|(_, root, _, _)| {
            root.0 = if root.0 == 0 { 1 } else { root.0 - 1 };
            true
        }),
        7 => ring(plan, at).is_some_and(|circuits| {
            circuits.swap_remove(pick(circuits.len()));
            true
        }),
        8 => ring(plan, at).is_some_and(|circuits| {
            let place = pick(circuits.len());
            circuits[place] = circuits[(place + 1) % circuits.len()];
            true
        }),
        // A circuit is overloaded: every lane of these plans has a circuit that is full.
        9 => match &mut plan.lanes[0] {
            Lane::Tree { share, .. } | Lane::Ring { share, .. } => {
                *share = *share + ratio(1, 1);
                true
            }
        },
        // Ports: used twice, nonexistent, or joined to themselves.
        10 => {
            let place = pick(plan.circuits.len());
            plan.circuits[place].from = plan.circuits[(place + 1) % plan.circuits.len()].from;
            true
        }
        11 => {
            let place = pick(plan.circuits.len());
            plan.circuits[place].to.port = 1_000_000;
            true
        }
        12 => {
            let place = pick(plan.circuits.len());
            plan.circuits[place].to = plan.circuits[place].from;
            true
        }
        // Two circuits of a tree exchange their receivers, so that a result goes to the root.
        13 => {
            let Some((_, root, reduce, broadcast)) = tree(plan, at) else { return false };
            let (root, spread) = (*root, broadcast[pick(broadcast.len())] as usize);
            let mut up = reduce.clone().into_iter().map(|up| up as usize);
            let into_root = up.rfind(|&up| plan.circuits[up].to.node == root);
            let into_root = into_root.expect("a root has a child");
            (plan.circuits[spread].to, plan.circuits[into_root].to) =
                (plan.circuits[into_root].to, plan.circuits[spread].to);
            true
        }
        14 => tree(plan, at).is_some_and(|(_, _, reduce, _)| {
            reduce[0] = u32::MAX;
            true
        }),
        _ => tree(plan, at).is_some_and(|(share, ..)| {
            *share = ratio(0, 1);
            true
        }),
    }
}

const KINDS: usize = 16;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_broken_plan_is_refused(
        n in 3..16u32,
        d in 1..6u32,
        m in 0..10u32,
        e in 3..9u32,
        better: bool,
        kind in 0..KINDS,
        at in 0..1_000_000usize,
    ) {
        let spec = ocs(n, d, m, e);
        let mut plan = if better { shared(&spec) } else { synthesize(&spec, &closed(&spec)) };
        prop_assume!(!plan.lanes.is_empty());
        check(&plan).map_err(|fault| TestCaseError::fail(fault.to_string()))?;
        let sound = plan.clone();
        prop_assume!(mutate(&mut plan, kind, at));
        prop_assert!(check(&plan).is_err(), "kind {} at {} accepted:\n{:?}\n{:?}", kind, at, sound, plan);
    }
}

#[test]
fn faults_are_named() {
    let spec = ocs(4, 1, 1, 4);
    let sound = synthesize(&spec, &closed(&spec));
    let fault = |change: &dyn Fn(&mut OcsPlan)| {
        let mut plan = sound.clone();
        change(&mut plan);
        check(&plan).unwrap_err().to_string()
    };
    assert_eq!(
        fault(&|plan| plan.circuits[2].from.port = 0),
        "circuit 2 (d0.0 → w1.0): its transmitter is in circuit 0 too"
    );
    assert_eq!(fault(&|plan| plan.circuits[2].from.port = 4), "circuit 2: d0 has no port 4");
    let lanes = |change: fn(&mut Ratio, &mut Vec<u32>, &mut Vec<u32>)| {
        fault(&|plan| {
            let (share, _, reduce, broadcast) = tree(plan, 0).unwrap();
            change(share, reduce, broadcast);
        })
    };
    assert_eq!(
        lanes(|_, reduce, _| reduce.truncate(reduce.len() - 1)),
        "lane 0: its root has 3 of 4 contributions"
    );
    assert_eq!(
        lanes(|_, _, broadcast| broadcast.truncate(broadcast.len() - 1)),
        "lane 0: w3 never gets the result"
    );
    assert_eq!(lanes(|share, _, _| *share = ratio(0, 1)), "lane 0: a share of 0 is not possible");
    let over = lanes(|share, _, _| *share = ratio(3, 2));
    assert!(over.ends_with("carries 3/2, more than its rate"), "{over}");
}

#[test]
fn paired_ports_need_circuits_in_both_directions() {
    let one_way = ocs(3, 1, 0, 4);
    let mut plan = synthesize(&one_way, &closed(&one_way));
    check(&plan).unwrap();
    plan.spec.ports = OcsPorts::Paired;
    assert!(check(&plan).unwrap_err().to_string().contains("nothing leads back"));
    let paired = spec(3, 2, 0, 4, OcsPorts::Paired);
    check(&synthesize(&paired, &closed(&paired))).unwrap();
}

#[test]
fn plans_survive_being_written() {
    let plan = shared(&ocs(16, 8, 11, 8));
    let text = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<OcsPlan>(&text).unwrap(), plan);
    for wrong in ["\"1/0\"", "\"1/-2\"", "\"half\"", "\"\"", "1"] {
        assert!(serde_json::from_str::<Ratio>(wrong).is_err(), "{wrong}");
    }
}
