//! Figures of the slides, and the table over M that follows from them.

use netsum_plan::ocs::{Composition, Lane, Piece, bound, check, closed, dp, shared, synthesize};
use netsum_topo::{OcsPorts, Ratio};

use crate::{degrees, ocs, ratio, spec};

/// Slide 20: time over that of three rings for a full tree thrice (6 devices), a full tree and two
/// rings (2), a partial tree and a line (1).
#[test]
fn slide_20() {
    let rings = closed(&ocs(6, 3, 0, 4)).algbw(&ocs(6, 3, 0, 4));
    assert_eq!(rings, ratio(9, 5));
    for (devices, time) in [(6, ratio(3, 5)), (2, ratio(9, 11)), (1, ratio(9, 10))] {
        let spec = ocs(6, 3, devices, 4);
        let composition = closed(&spec);
        assert_eq!(rings / composition.algbw(&spec), time);
        assert_eq!(composition.devices(), devices);
        assert_eq!(check(&synthesize(&spec, &composition)).unwrap().algbw, rings / time);
    }
    let two = closed(&ocs(6, 3, 2, 4));
    assert_eq!((two.trees.len(), two.rings), (1, 2));
    let one = closed(&ocs(6, 3, 1, 4));
    assert_eq!((one.trees.len(), one.rings), (2, 0));
}

/// Slide 21: degrees (1,1,1,1,2,2) and (2,2,2,2,1,1) add up to three everywhere.
#[test]
fn slide_21() {
    let spec = ocs(6, 3, 1, 4);
    let tree = |devices: u32| {
        let pieces = (0..devices).map(|device| Piece { device, ports: 4 }).collect();
        let composition = Composition { trees: vec![pieces], ..Composition::default() };
        let mut degrees = degrees(&synthesize(&spec, &composition));
        degrees.sort_unstable();
        degrees
    };
    assert_eq!(tree(1), [1, 1, 1, 1, 2, 2]);
    assert_eq!(tree(0), [1, 1, 2, 2, 2, 2]);
    assert_eq!(degrees(&synthesize(&spec, &closed(&spec))), [3; 6]);
}

/// Slides 11 and 26: number of devices from which trees alone gain at all.
#[test]
fn devices_of_the_baseline() {
    let trees_beat_rings = |n: u32, d: u32, e: u32| {
        let rings = closed(&ocs(n, d, 0, e)).algbw(&ocs(n, d, 0, e));
        let full = (n - 2).div_ceil(e - 2);
        (0..).find(|devices| ratio((devices / full).min(d).into(), 1) > rings).unwrap()
    };
    assert_eq!(trees_beat_rings(16, 8, 8), 15);
    assert_eq!((128u32 - 2).div_ceil(4 - 2), 63);
    let tree = closed(&ocs(128, 1, 63, 4));
    assert_eq!((tree.algbw(&ocs(128, 1, 63, 4)), tree.devices()), (ratio(1, 1), 63));
    assert!(closed(&ocs(128, 1, 62, 4)).algbw(&ocs(128, 1, 62, 4)) < ratio(1, 1));
}

/// N=6, D=3, E=4 over M.
#[test]
fn small_table() {
    let table = [(9, 5), (2, 1), (11, 5), (11, 5), (13, 5), (13, 5), (3, 1)];
    for (devices, (above, below)) in table.into_iter().enumerate() {
        let spec = ocs(6, 3, devices as u32, 4);
        assert_eq!(closed(&spec).algbw(&spec), ratio(above, below), "M = {devices}");
    }
}

/// Ratio to rings for N=16, D=8, E=8 (slides 25–27), in thousandths.
#[test]
fn ratios_over_m() {
    let slides = [
        1000, 1000, 1094, 1109, 1188, 1203, 1219, 1312, 1312, 1422, 1422, 1422, 1531, 1531, 1641,
        1641, 1641, 1641, 1656, 1656, 1656, 1766, 1766, 1766, 1875,
    ];
    let bounds = [
        1000, 1047, 1094, 1141, 1188, 1234, 1281, 1328, 1375, 1422, 1469, 1516, 1562, 1609, 1656,
        1703, 1750, 1797, 1844, 1875, 1875, 1875, 1875, 1875, 1875,
    ];
    let most = ocs(16, 8, 24, 8);
    let rings = closed(&most.with_devices(0)).algbw(&most);
    let close = |value: Ratio, thousandths: i128| {
        let off = value / rings - ratio(thousandths, 1000);
        off * ratio(2000, 1) <= ratio(1, 1) && off * ratio(-2000, 1) <= ratio(1, 1)
    };
    let table = dp(&most);
    for devices in 0..=24usize {
        let spec = most.with_devices(devices as u32);
        let rate = closed(&spec).algbw(&spec);
        assert_eq!(rate, table[devices].algbw(&spec), "M = {devices}");
        assert!(close(rate, slides[devices]), "M = {devices}: {rate}");
        let whole = bound(&spec).whole_devices;
        assert!(close(whole, bounds[devices]), "M = {devices}: {whole}");
    }
}

/// First devices that gain and that reach D, for D = 8: slides 28 and 29.
#[test]
fn first_gain_and_saturation() {
    let expected = [
        (16, 8, 2, 24),
        (32, 8, 4, 40),
        (64, 8, 10, 88),
        (16, 16, 1, 8),
        (32, 16, 2, 24),
        (64, 16, 4, 40),
    ];
    for (n, e, gain, full) in expected {
        let rate = |devices| closed(&ocs(n, 8, devices, e)).algbw(&ocs(n, 8, devices, e));
        assert_eq!((1..).find(|&devices| rate(devices) > rate(0)), Some(gain), "N={n} E={e}");
        assert_eq!((1..).find(|&devices| rate(devices) == ratio(8, 1)), Some(full), "N={n} E={e}");
    }
}

/// With devices that serve two trees, 20 devices reach D instead of 24.
#[test]
fn a_device_serves_two_trees() {
    let plan = shared(&ocs(16, 8, 20, 8));
    assert_eq!(check(&plan).unwrap().algbw, ratio(8, 1));
    assert!(bound(&ocs(16, 8, 19, 8)).algbw < ratio(8, 1));
}

#[test]
fn paired_ports_have_rings_in_pairs() {
    let paired = spec(6, 3, 0, 4, OcsPorts::Paired);
    let composition = closed(&paired);
    // A cycle, 6/5, leaves a port each; a line on the remaining ports makes 1.
    assert_eq!((composition.algbw(&paired), composition.rings), (ratio(6, 5), 2));
    let plan = synthesize(&paired, &composition);
    assert!(plan.lanes.iter().all(|lane| matches!(lane, Lane::Ring { .. })));
    check(&plan).unwrap();
}

/// With simplex ports a device can have a parent that is no peer of its E children. That reaches 1 where the bound for
/// devices joined in both directions is 3/4.
#[test]
fn devices_joined_in_one_direction_exceed_the_bound_for_two() {
    let plan = serde_json::from_str(include_str!("one_way.json")).unwrap();
    assert_eq!(check(&plan).unwrap().algbw, ratio(1, 1));
    let bound = bound(&plan.spec);
    assert_eq!((bound.whole_devices, bound.any_circuits), (ratio(3, 4), ratio(1, 1)));
}

/// Trees are full there; crossed classes of devices help. In units of 1: 4 + 32/9, 5 + 8/3, 6 + 16/9, 3 + 80/17.
#[test]
fn classes_cross_close_to_saturation() {
    for (n, e, devices, rate) in [
        (32, 8, 36, ratio(68, 9)),
        (32, 8, 37, ratio(23, 3)),
        (32, 8, 38, ratio(70, 9)),
        (64, 8, 77, ratio(68, 9)),
        (64, 8, 79, ratio(23, 3)),
        (64, 8, 83, ratio(70, 9)),
        (64, 16, 35, ratio(131, 17)),
    ] {
        for ports in [OcsPorts::Simplex, OcsPorts::Paired] {
            let spec = spec(n, 8, devices, e, ports);
            let plan = shared(&spec);
            assert_eq!(check(&plan).unwrap().algbw, plan.algbw());
            assert!(plan.algbw() >= rate, "{spec:?}: {}", plan.algbw());
            assert!(
                plan.algbw() > closed(&spec).algbw(&spec) && plan.algbw() <= bound(&spec).algbw
            );
        }
    }
}
