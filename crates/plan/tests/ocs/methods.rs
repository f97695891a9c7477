//! Closed form, programme and oracle agree; plans reach their claimed rates; no plan exceeds the bound.

use netsum_plan::ocs::{bound, check, closed, dp, shared, synthesize};
use netsum_topo::{OcsPorts, OcsSpec, Ratio};
use proptest::prelude::*;

use crate::{degrees, ratio, spec};

/// Slide 22 literally: an unbounded knapsack over devices and worker ports, all small topologies as items. Values in
/// 2(N−1)ths. Row m, column p: the best with m devices and p ports.
fn knapsack(spec: &OcsSpec) -> Vec<Ratio> {
    let (n, e) = (spec.workers as usize, spec.device_ports as usize);
    let (m, p) = (spec.devices as usize, n * spec.worker_ports as usize);
    let mut items = Vec::new();
    for devices in 0..=m {
        // Leaf ports of a tree with this many devices; further workers are attached to workers.
        let leaves = devices * e + 2 - 2 * devices;
        items.push((devices, if leaves >= n { n } else { 2 * n - leaves }, 2 * (n - 1)));
        if leaves >= n {
            break;
        }
    }
    match spec.ports {
        OcsPorts::Simplex => items.push((0, n, n)),
        OcsPorts::Paired => items.push((0, 2 * n, 2 * n)),
    }
    let mut best = vec![vec![0usize; p + 1]; m + 1];
    for devices in 0..=m {
        for ports in 0..=p {
            for &(own, used, value) in &items {
                if own <= devices && used <= ports {
                    let with = best[devices - own][ports - used] + value;
                    best[devices][ports] = best[devices][ports].max(with);
                }
            }
        }
    }
    best.iter().map(|row| ratio(row[p] as i128, 2 * (n as i128 - 1))).collect()
}

fn any_spec(
    workers: u32,
    ports: u32,
    devices: u32,
    device_ports: u32,
) -> impl Strategy<Value = OcsSpec> {
    let mode = prop_oneof![Just(OcsPorts::Simplex), Just(OcsPorts::Paired)];
    (2..=workers, 1..=ports, 0..=devices, 2..=device_ports, mode)
        .prop_map(|(n, d, m, e, ports)| spec(n, d, m, e, ports))
}

#[test]
fn closed_form_and_programme_equal_the_knapsack_on_a_grid() {
    for ports in [OcsPorts::Simplex, OcsPorts::Paired] {
        for n in 2..=12 {
            for d in 1..=4 {
                for e in 2..=7 {
                    let most = spec(n, d, 14, e, ports);
                    let oracle = knapsack(&most);
                    for (devices, programmed) in dp(&most).into_iter().enumerate() {
                        let one = most.with_devices(devices as u32);
                        let formula = closed(&one);
                        assert_eq!(formula.algbw(&one), oracle[devices], "{one} {ports:?}");
                        assert_eq!(programmed.algbw(&one), oracle[devices], "{one} {ports:?}");
                        assert!(formula.devices() <= programmed.devices().max(formula.devices()));
                        assert!(formula.devices() as usize <= devices);
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn closed_form_equals_programme_on_large_networks(spec in any_spec(400, 16, 200, 40)) {
        let table = dp(&spec);
        prop_assert_eq!(closed(&spec).algbw(&spec), table[spec.devices as usize].algbw(&spec));
    }

    #[test]
    fn plans_of_the_closed_form_reach_their_claimed_rate(spec in any_spec(40, 8, 30, 12)) {
        let composition = closed(&spec);
        let plan = synthesize(&spec, &composition);
        let report = check(&plan).map_err(|fault| TestCaseError::fail(fault.to_string()))?;
        prop_assert_eq!(report.algbw, composition.algbw(&spec));
        prop_assert_eq!(report.devices_used, composition.devices());
        let degrees = degrees(&plan);
        prop_assert!(degrees.iter().max().unwrap() - degrees.iter().min().unwrap() <= 1);
    }

    #[test]
    fn shared_plans_are_valid_and_never_slower(spec in any_spec(24, 8, 30, 10)) {
        let plan = shared(&spec);
        let report = check(&plan).map_err(|fault| TestCaseError::fail(fault.to_string()))?;
        prop_assert_eq!(report.algbw, plan.algbw());
        prop_assert!(report.algbw >= closed(&spec).algbw(&spec));
        let bound = bound(&spec);
        prop_assert!(report.algbw <= bound.algbw, "{} above {}", report.algbw, bound.algbw);
    }

    #[test]
    fn bounds_are_proven_and_ordered(spec in any_spec(300, 20, 300, 40)) {
        let bound = bound(&spec);
        prop_assert!(bound.is_proven(&spec));
        prop_assert!(closed(&spec).algbw(&spec) <= bound.algbw);
        prop_assert!(bound.algbw <= bound.whole_devices);
        prop_assert!(bound.algbw <= bound.any_circuits);
        let mut cheaper = bound.clone();
        cheaper.worker_price = cheaper.worker_price * ratio(999, 1000);
        prop_assert!(!cheaper.is_proven(&spec));
    }

    #[test]
    fn more_is_never_less(spec in any_spec(24, 6, 20, 10)) {
        let rate = |spec: &OcsSpec| closed(spec).algbw(spec);
        prop_assert!(rate(&spec.with_devices(spec.devices + 1)) >= rate(&spec));
        let bound_of = |spec: &OcsSpec| bound(spec).algbw;
        prop_assert!(bound_of(&spec.with_devices(spec.devices + 1)) >= bound_of(&spec));
    }
}

/// Every point of the slides' curves that is below the bound, where the better method gains.
#[test]
fn the_better_method_gains_below_the_bound() {
    let cases = [
        (16, 8, 24, 20, 13, 0, OcsPorts::Simplex),
        (32, 8, 40, 30, 22, 3, OcsPorts::Simplex),
        (16, 16, 8, 0, 0, 0, OcsPorts::Simplex),
        (32, 16, 24, 21, 18, 0, OcsPorts::Simplex),
        (16, 8, 24, 21, 14, 0, OcsPorts::Paired),
        (32, 8, 40, 35, 26, 0, OcsPorts::Paired),
    ];
    for (n, e, most, room, optimal, no_gain, ports) in cases {
        let mut found = (0, 0, 0);
        for devices in 0..=most {
            let spec = spec(n, 8, devices, e, ports);
            let (slides, most) = (closed(&spec).algbw(&spec), bound(&spec).algbw);
            let ours = check(&shared(&spec)).unwrap().algbw;
            if slides < most {
                found.0 += 1;
                found.1 += u32::from(ours == most);
                found.2 += u32::from(ours == slides);
            }
        }
        assert!(
            found.0 == room && found.1 >= optimal && found.2 <= no_gain,
            "N={n} E={e} {ports:?}: {found:?}"
        );
    }
}

#[test]
fn plans_of_large_networks_are_valid() {
    for (n, d, m, e) in [(2048, 8, 1000, 8), (2024, 8, 300, 16), (1000, 3, 40, 64)] {
        let spec = spec(n, d, m, e, OcsPorts::Simplex);
        let composition = closed(&spec);
        let report = check(&synthesize(&spec, &composition)).unwrap();
        assert_eq!(report.algbw, composition.algbw(&spec));
        let better = check(&shared(&spec)).unwrap();
        assert!(better.algbw >= report.algbw);
    }
}
