//! The cost model: the fastest method of an allreduce by size.

use netsum_plan::pack::cost::{Exchange, Trees, turn};
use netsum_plan::pack::{Net, explain, pack, pack_rings};
use netsum_topo::links::{Collective, LinkGraph, LinkKind, built};

const SIZES: [f64; 5] = [1.0, 4e3, 1e6, 3e8, 1e10];

fn fragment(gpus: &str) -> LinkGraph {
    let graph = built("dgx1v").unwrap().only(&[LinkKind::Nvlink]).unwrap();
    graph.select(&gpus.split(',').collect::<Vec<_>>()).unwrap()
}

#[test]
fn a_plan_takes_as_long_as_its_trees() {
    for graph in [fragment("0,1,4"), fragment("0,1,2,3,4,6"), built("a100x2").unwrap()] {
        for collective in [Collective::Allreduce, Collective::Broadcast { root: 0 }] {
            let packed = pack(&graph, collective).unwrap();
            let (own, read) = (
                Trees::of(&packed),
                Trees::of_plan(&graph, &packed.plan(&graph)).expect("its own links"),
            );
            for bytes in SIZES {
                let (one, other) = (own.executed(bytes).seconds, read.executed(bytes).seconds);
                assert!((one / other - 1.0).abs() < 1e-9, "{collective:?}: {one} {other}");
                let least = bytes / (packed.rate_bps() / 8.0);
                assert!(own.time(bytes).seconds >= least && one > own.time(bytes).seconds);
            }
        }
    }
    let elsewhere = pack(&fragment("0,1,2"), Collective::Allreduce).unwrap();
    let plan = elsewhere.plan(&fragment("0,1,2"));
    assert!(Trees::of_plan(&fragment("0,1,4"), &plan).is_none());
}

/// Sixteen GPUs at one switch: each link carries fifteen buffers, over two links of 1 µs.
#[test]
fn an_exchange_fills_the_fullest_link() {
    let graph = built("dgx2").unwrap();
    let exchange = Exchange::new(&Net::new(&graph, false, false).unwrap());
    let close =
        |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-9, "{found}");
    close(exchange.one_step(150e9).seconds, 2e-6 + 15.0);
    close(exchange.two_steps(150e9).seconds, 2.0 * (2e-6 + 15.0 / 16.0));
    close(exchange.by_hosts(4000.0).seconds, exchange.one_step(4000.0).seconds);
    close(exchange.by_hosts(5000.0).seconds, exchange.two_steps(5000.0).seconds);
}

#[test]
fn trees_are_used_where_they_are_faster() {
    // Between GPUs 1 and 4 the exchange uses both links: two buffers in each direction.
    for gpus in ["0,1,4", "0,1,2,3,4,6"] {
        let graph = fragment(gpus);
        let trees = Trees::of(&pack(&graph, Collective::Allreduce).unwrap());
        let exchange = Exchange::new(&Net::new(&graph, false, false).unwrap());
        let from = turn(&trees, &exchange).expect("trees win at last") as f64;
        assert!((1e3..1e7).contains(&from), "{from}");
        let ahead = |bytes| exchange.by_hosts(bytes).seconds * 1.02 / trees.executed(bytes).seconds;
        assert!(ahead(from * 0.98) < 1.0 && ahead(from * 1.01) >= 1.0, "{gpus}: {from}");
        assert!(SIZES.iter().all(|&bytes| bytes < from || ahead(bytes) >= 1.0));
    }
    // A ring of four slow links, while the exchange has all six.
    let graph = fragment("0,1,2,3");
    let rings = Trees::of(&pack_rings(&graph.select(&["0", "1", "2"]).unwrap()).unwrap().unwrap());
    let exchange = Exchange::new(&Net::new(&graph, false, false).unwrap());
    assert_eq!(turn(&rings, &exchange), None);
}

#[test]
fn explanations_show_where_the_best_method_changes() {
    for machine in ["dgx1v", "dgx2", "h100", "h100x2", "leaf-spine:2x3x2"] {
        let found = explain(&built(machine).unwrap(), &SIZES).unwrap();
        let at = |bytes: f64| {
            explain(&built(machine).unwrap(), &[bytes]).unwrap().choices[0].best.clone()
        };
        assert_eq!((found.turns[0].0, &found.turns[0].1), (1.0, &at(1.0)));
        for pair in found.turns.windows(2) {
            let (before, (bytes, way)) = (&pair[0].1, &pair[1]);
            assert_eq!(
                (at(bytes * 0.99), at(bytes * 1.01)),
                (before.clone(), way.clone()),
                "{machine} {bytes}"
            );
        }
        for choice in &found.choices {
            let way = found.turns.iter().rfind(|(from, _)| *from <= choice.bytes).unwrap();
            assert_eq!(way.1, choice.best, "{machine} {}", choice.bytes);
        }
    }
}
