//! Every class of connected GPU sets of a DGX-1: counts, rates and proofs.
//!
//! The tables in `data/` were computed by an independent program (networkx, HiGHS).

use netsum_plan::pack::{Baselines, pack};
use netsum_topo::links::{Collective, LinkGraph, LinkKind, dgx1p, dgx1v, link_classes};
use netsum_topo::{Rate, Ratio};

fn nvlink(graph: &LinkGraph) -> LinkGraph {
    graph.only(&[LinkKind::Nvlink]).unwrap()
}

fn check(graph: &LinkGraph, table: &str) {
    let classes = link_classes(graph, 3..=8);
    let rows: Vec<Vec<&str>> = (table.lines().filter(|line| !line.starts_with('#')))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(classes.len(), rows.len());
    for (class, row) in classes.iter().zip(rows) {
        let names: Vec<String> = class.gpus.iter().map(usize::to_string).collect();
        assert_eq!((names.join(",").as_str(), class.sets.to_string().as_str()), (row[0], row[1]));
        let fragment = graph.select(&names).unwrap();
        let ways = [
            (Collective::Broadcast { root: 0 }, row[2]),
            (Collective::Reduce { root: 1 }, row[2]),
            (Collective::Allgather, row[3]),
            (Collective::ReduceScatter, row[3]),
            (Collective::Allreduce, row[4]),
        ];
        for (collective, rate) in ways {
            let packed = pack(&fragment, collective).unwrap();
            let links = Ratio::new(packed.net.unit_bps.into(), 1);
            let expected: Ratio = rate.parse().unwrap();
            assert_eq!(packed.rate * links, expected, "{collective:?} on {}", row[0]);
            assert_eq!(
                packed.bound.unwrap().rate * links,
                expected,
                "{collective:?} on {}",
                row[0]
            );
        }
        let net = pack(&fragment, Collective::Allreduce).unwrap().net;
        let rings = Baselines::new(&net).rings as u64 * net.unit_bps;
        assert_eq!(rings.to_string(), row[5], "rings of {}", row[0]);
    }
}

#[test]
fn dgx1p_classes() {
    check(&nvlink(&dgx1p(Rate(1))), include_str!("data/dgx1p.txt"));
}

#[test]
fn dgx1v_classes() {
    check(&nvlink(&dgx1v(Rate(1))), include_str!("data/dgx1v.txt"));
}
