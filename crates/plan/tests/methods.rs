//! Blink's method, few and low trees, coarse shares.

use netsum_plan::pack::{Baselines, coarse, front, pack, pack_blink, pack_rings};
use netsum_plan::program::verify_plan;
use netsum_topo::Ratio;
use netsum_topo::links::{Collective, LinkGraph, LinkKind, built};

fn dgx(name: &str, gpus: &str) -> LinkGraph {
    let graph = built(name).unwrap().only(&[LinkKind::Nvlink]).unwrap();
    if gpus.is_empty() {
        return graph;
    }
    graph.select(&gpus.split(',').collect::<Vec<_>>()).unwrap()
}

const BROADCAST: Collective = Collective::Broadcast { root: 0 };

/// Blink: DGX-1V with 181 candidate trees ends with 6 trees of weight 1, DGX-1P with 4.
#[test]
fn blink_finds_its_trees() {
    for (name, gpus, collective, trees, rate) in [
        ("dgx1v", "", BROADCAST, 6, Ratio::from(6)),
        ("dgx1p", "", BROADCAST, 4, Ratio::from(4)),
        ("dgx1p", "0,1,3,4,5,7", BROADCAST, 3, Ratio::from(3)),
        ("dgx1v", "0,1,4", Collective::Allreduce, 1, Ratio::from(1)),
    ] {
        let graph = dgx(name, gpus);
        let packed = pack_blink(&graph, collective).unwrap();
        verify_plan(&graph, &packed.plan(&graph)).unwrap();
        assert_eq!((packed.flows.len(), packed.rate), (trees, rate), "{name} {gpus}");
    }
}

#[test]
fn blink_is_within_five_percent() {
    for gpus in ["0,1,2", "0,2,3", "0,3,4,7", "0,1,2,4,7", "0,1,2,4,5,7", "0,1,2,3,4,5,6"] {
        let graph = dgx("dgx1v", gpus);
        for collective in [BROADCAST, Collective::Reduce { root: 2 }, Collective::Allreduce] {
            let (blink, exact) =
                (pack_blink(&graph, collective).unwrap(), pack(&graph, collective).unwrap());
            verify_plan(&graph, &blink.plan(&graph)).unwrap();
            assert!(blink.rate >= exact.rate * Ratio::new(95, 100), "{gpus} {collective:?}");
        }
    }
}

#[test]
fn the_front_contains_no_dominated_packing() {
    for graph in [dgx("dgx1v", "0,1,2,4,5,7"), built("dgx2").unwrap(), built("h100").unwrap()] {
        for collective in [BROADCAST, Collective::Allgather, Collective::Allreduce] {
            let best = pack(&graph, collective).unwrap();
            let points = front(&best);
            assert_eq!(points[0].rate, best.rate);
            for (i, point) in points.iter().enumerate() {
                verify_plan(&graph, &point.plan(&graph)).unwrap();
                let better = |other: &&netsum_plan::pack::Packed| {
                    other.rate >= point.rate
                        && other.flows.len() <= point.flows.len()
                        && other.height() <= point.height()
                };
                assert_eq!(points.iter().filter(better).count(), 1, "point {i}");
            }
        }
    }
}

/// On a DGX-2 every GPU reaches every other through the switch: one hop suffices for the full rate.
#[test]
fn one_hop_on_a_switch() {
    let packed = pack(&built("dgx2").unwrap(), Collective::Allgather).unwrap();
    assert_eq!((packed.height(), packed.flows.len()), (1, 16));
}

#[test]
fn coarse_shares_keep_most_of_the_rate() {
    for graph in [dgx("dgx1v", "0,1,2,4,5,7"), built("a100x2").unwrap(), built("mi250").unwrap()] {
        for collective in [Collective::Allgather, Collective::Allreduce] {
            let packed = pack(&graph, collective).unwrap();
            let rough = coarse(&packed, 16 * 60).unwrap();
            let plan = rough.plan(&graph);
            verify_plan(&graph, &plan).unwrap();
            assert!(plan.flows.iter().all(|flow| 16 * 60 % flow.share.den() == 0));
            assert!(
                rough.rate >= packed.rate * Ratio::new(9, 10),
                "{} of {}",
                rough.rate,
                packed.rate
            );
        }
    }
}

#[test]
fn rings_are_plans_too() {
    for graph in [dgx("dgx1v", ""), dgx("dgx1v", "0,1,2"), dgx("dgx1p", ""), built("dgx2").unwrap()]
    {
        let rings = pack_rings(&graph).unwrap().unwrap();
        verify_plan(&graph, &rings.plan(&graph)).unwrap();
        assert_eq!(Some(rings.rate), Baselines::new(&rings.net).ring_allreduce);
    }
    assert!(pack_rings(&dgx("dgx1v", "0,1,4")).unwrap().is_none());
}
