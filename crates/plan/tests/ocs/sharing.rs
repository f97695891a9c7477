//! Devices of one pool among several jobs.

use netsum_plan::ocs::{closed, share_devices};
use netsum_topo::{OcsSpec, Ratio};
use proptest::prelude::*;

use crate::{ocs, ratio};

fn gain(job: &OcsSpec, devices: u32) -> Ratio {
    let rate = |devices: u32| {
        let spec = job.with_devices(devices);
        closed(&spec).algbw(&spec)
    };
    rate(devices) / rate(0)
}

/// Every assignment of `pool` devices to the jobs.
fn all_ways(jobs: usize, pool: u32) -> Vec<Vec<u32>> {
    if jobs == 1 {
        return vec![vec![pool]];
    }
    let first = |own: u32| {
        all_ways(jobs - 1, pool - own).into_iter().map(move |mut rest| {
            rest.insert(0, own);
            rest
        })
    };
    (0..=pool).flat_map(first).collect()
}

#[test]
fn equal_jobs_gain_alike() {
    let jobs = [ocs(16, 8, 0, 8), ocs(16, 8, 0, 8)];
    let grants = share_devices(&jobs, 18, 8, false).unwrap();
    assert_eq!(grants.iter().map(|grant| grant.devices).collect::<Vec<_>>(), [9, 9]);
    let all = share_devices(&jobs, 1000, 8, false).unwrap();
    assert!(all.iter().all(|grant| grant.devices == 24 && grant.gain == ratio(15, 8)));
}

#[test]
fn wrong_requests_are_named() {
    assert!(share_devices(&[], 4, 8, true).unwrap_err().to_string().contains("no job"));
    let other = share_devices(&[ocs(4, 1, 0, 6)], 4, 8, true).unwrap_err().to_string();
    assert_eq!(other, "job 0 counts on devices with 6 ports, but those of the pool have 8");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// No assignment gives the worst-off job more; no device that would help is left; the pool is not exceeded.
    #[test]
    fn the_least_gain_is_the_greatest_possible(
        sizes in proptest::collection::vec((3..12u32, 1..5u32), 1..4),
        pool in 0..8u32,
        e in 3..7u32,
    ) {
        let jobs: Vec<OcsSpec> = sizes.iter().map(|&(n, d)| ocs(n, d, 0, e)).collect();
        let grants = share_devices(&jobs, pool, e, false).unwrap();
        let given: u32 = grants.iter().map(|grant| grant.devices).sum();
        prop_assert!(given <= pool);
        for (job, grant) in jobs.iter().zip(&grants) {
            prop_assert_eq!(grant.gain, gain(job, grant.devices));
            prop_assert_eq!(gain(job, grant.devices + pool - given), grant.gain, "devices lie idle");
        }
        let least = |ways: &[u32]| jobs.iter().zip(ways).map(|(job, &own)| gain(job, own)).min();
        let best = all_ways(jobs.len(), pool).iter().filter_map(|ways| least(ways)).max();
        prop_assert_eq!(grants.iter().map(|grant| grant.gain).min(), best);
    }
}
