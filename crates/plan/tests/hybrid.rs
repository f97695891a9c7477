//! Links of several kinds at once: the split is optimal, and the plan is correct.

use netsum_plan::pack::{KindCost, pack_hybrid, split};
use netsum_plan::program::verify_plan;
use netsum_topo::links::{Collective, LinkKind, built};
use proptest::prelude::*;

/// The earliest time at which `bytes` can be transferred, by bisection.
fn earliest(classes: &[(f64, f64)], bytes: f64) -> f64 {
    let carried = |end: f64| -> f64 {
        classes.iter().map(|(rate, setup)| rate * (end - setup).max(0.0)).sum()
    };
    let (mut low, mut high) = (0.0, 1e9);
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        if carried(middle) < bytes { low = middle } else { high = middle }
    }
    high
}

proptest! {
    #[test]
    fn the_split_is_the_numeric_optimum(
        classes in prop::collection::vec((1.0f64..1e3, 0.0f64..10.0), 1..6),
        bytes in 1.0f64..1e4,
    ) {
        let (amounts, seconds) = split(&classes, bytes);
        let best = earliest(&classes, bytes);
        prop_assert!((seconds - best).abs() <= 1e-6 * best, "{seconds} and {best}");
        prop_assert!((amounts.iter().sum::<f64>() - bytes).abs() <= 1e-6 * bytes);
        for (amount, (rate, setup)) in amounts.iter().zip(&classes) {
            prop_assert!(*amount == 0.0 || (setup + amount / rate - seconds).abs() <= 1e-6 * seconds);
        }
    }

    /// Blink's formula, and its threshold.
    #[test]
    fn two_kinds_follow_blinks_formula(nvlink in 10.0f64..200.0, pcie in 1.0f64..12.0, setup in 0.0f64..1.0, bytes in 0.1f64..500.0) {
        let (amounts, _) = split(&[(nvlink, 0.0), (pcie, setup)], bytes);
        let both = pcie + nvlink;
        let expected = bytes * pcie / both - setup * pcie * nvlink / both;
        prop_assert!((amounts[1] - expected.max(0.0)).abs() <= 1e-6 * bytes);
        prop_assert_eq!(amounts[1] > 0.0, bytes > setup * nvlink);
    }
}

#[test]
fn nvlink_and_pcie_of_a_dgx1() {
    let graph = built("dgx1v").unwrap();
    let kinds = |setup: f64| {
        [KindCost { kind: LinkKind::Nvlink, setup: 0.0 }, KindCost { kind: LinkKind::Pcie, setup }]
    };
    for collective in [
        Collective::Allreduce,
        Collective::Allgather,
        Collective::ReduceScatter,
        Collective::Broadcast { root: 1 },
        Collective::Reduce { root: 2 },
    ] {
        let both = pack_hybrid(&graph, collective, &kinds(1e-4), 1e9).unwrap();
        verify_plan(&graph, &both.plan).unwrap();
        assert!(both.parts[1].bytes > 0.0 && both.seconds < both.alone_seconds, "{collective:?}");
        let small = pack_hybrid(&graph, collective, &kinds(1e-4), 1e6).unwrap();
        verify_plan(&graph, &small.plan).unwrap();
        assert_eq!((small.parts[1].bytes, small.seconds), (0.0, small.alone_seconds));
    }
    // GPUs 1 and 4 have no NVLink between them: only PCIe is used.
    let pair = graph.select(&["1", "4"]).unwrap();
    let only = pack_hybrid(&pair, Collective::Allreduce, &kinds(1e-4), 1e9).unwrap();
    assert_eq!(only.parts.len(), 1);
    let none = [KindCost { kind: LinkKind::Nvlink, setup: 0.0 }];
    let error = pack_hybrid(&pair, Collective::Allreduce, &none, 1e9).unwrap_err().to_string();
    assert!(error.contains("disconnected"), "{error}");
}
