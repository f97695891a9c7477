//! Rates of whole machines against the known optimum.

use netsum_plan::pack::pack;
use netsum_plan::program::verify_plan;
use netsum_topo::Ratio;
use netsum_topo::links::{Collective, LinkKind, built};

/// algbw in GB/s.
fn rate(machine: &str, collective: Collective) -> Ratio {
    let graph = built(machine).unwrap();
    let fast = [LinkKind::Nvlink, LinkKind::Xgmi, LinkKind::Nic, LinkKind::Link];
    let packed = pack(&graph.only(&fast).unwrap(), collective).unwrap();
    assert_eq!(Some(packed.rate), packed.bound.as_ref().map(|bound| bound.rate), "{machine}");
    packed.rate * Ratio::new(packed.net.unit_bps.into(), 8_000_000_000)
}

/// Source: ForestColl's tool gives the all-gather rates; equal shards are optimal here.
#[test]
fn known_optimum() {
    for (machine, allgather) in [
        ("dgx1p", Ratio::new(640, 7)),
        ("dgx1v", Ratio::new(1200, 7)),
        ("dgx2", Ratio::new(160, 1)),
        ("a100", Ratio::new(2400, 7)),
        ("a100x2", Ratio::new(1040, 3)),
        ("mi250", Ratio::new(2400, 7)),
        ("torus:4x4", Ratio::new(640, 3)),
    ] {
        assert_eq!(rate(machine, Collective::Allgather), allgather, "{machine}");
        let allreduce = rate(machine, Collective::Allreduce);
        assert!(allreduce >= allgather * Ratio::new(1, 2), "{machine}: {allreduce}");
    }
}

/// Beyond the limits of the exact programme, with switches: trees of equal weight, valid, and near a proven bound.
#[test]
fn large_fabrics_are_near_their_bound() {
    for (machine, collective, percent) in [
        ("a100x20", Collective::Allgather, 95),
        ("a100x20", Collective::Allreduce, 90),
        ("fat-tree:10", Collective::Allreduce, 100),
    ] {
        let graph = built(machine).unwrap();
        let packed = pack(&graph, collective).unwrap();
        verify_plan(&graph, &packed.plan(&graph)).unwrap();
        let bound = packed.bound.as_ref().unwrap().rate;
        let share = packed.rate / bound * Ratio::from(100);
        assert!(
            packed.rate <= bound && share >= Ratio::from(percent),
            "{machine} {collective:?}: {} of {bound}",
            packed.rate
        );
    }
}

/// If NVSwitches add, boxes still bound the rate: no other box adds what they exchange.
#[test]
fn boxes_that_add_inside_are_bound_by_their_exchange() {
    for boxes in [4, 64] {
        let graph = built(&format!("h100x{boxes}")).unwrap();
        let (net, bound) = netsum_plan::pack::bound(&graph, Collective::Allreduce).unwrap();
        let bound = bound.unwrap();
        // 8 ports of 50 GB/s per box, over 2(p − 1) messages.
        let gbytes = Ratio::new(net.unit_bps.into(), 8_000_000_000);
        assert_eq!(bound.rate * gbytes, Ratio::new(400 * boxes, 2 * (boxes - 1)));
        let netsum_plan::pack::Certificate::Partition { parts, .. } = &bound.certificate else {
            panic!("{bound:?}")
        };
        assert_eq!(parts.len() as i128, boxes);
    }
    // With two boxes, the bound is a cut between them.
    assert_eq!(rate("h100x2", Collective::Allreduce), Ratio::from(400));
}

/// The bound over boxes that only share a network is a partition whose parts include switches.
#[test]
fn boxes_are_the_parts_of_the_bound() {
    let (net, bound) =
        netsum_plan::pack::bound(&built("a100x4").unwrap(), Collective::Allreduce).unwrap();
    let bound = bound.unwrap();
    assert_eq!(bound.rate, Ratio::new(16, 3));
    let netsum_plan::pack::Certificate::Partition { parts, cuts } = &bound.certificate else {
        panic!("{bound:?}")
    };
    assert_eq!((parts.len(), cuts.as_slice(), net.gpus.len()), (4, [8, 8, 8, 8].as_slice(), 32));
}
