//! Arrivals of flows: sources, destinations and times.

use super::{FlowSizes, FlowSpec};
use crate::random::Random;

/// Every host sends one flow to another host, a different one for each, at time 0.
pub fn permutation(hosts: u32, bytes: u64, seed: u64) -> Vec<FlowSpec> {
    let mut random = Random::derived(seed, "permutation");
    let mut to: Vec<u32> = (0..hosts).collect();
    // Sattolo's shuffle: one cycle through all hosts, so that no host sends to itself.
    for i in (1..to.len()).rev() {
        to.swap(i, random.below(i as u64) as usize);
    }
    let pairs = to.into_iter().enumerate().filter(|(src, dst)| *src as u32 != *dst);
    pairs.map(|(src, dst)| FlowSpec { start_ps: 0, src: src as u32, dst, bytes }).collect()
}

/// An endless stream of flows: exponential gaps, uniform source and destination, sizes from a distribution.
///
/// `load`: share of the hosts' links that the payload takes (headers come on top). Source: PANAMA §7, pFabric.
pub fn poisson(
    hosts: u32,
    rate_bps: u64,
    load: f64,
    sizes: FlowSizes,
    seed: u64,
) -> impl Iterator<Item = FlowSpec> {
    let mut random = Random::derived(seed, "arrivals");
    let per_second = load * f64::from(hosts) * rate_bps as f64 / 8.0 / sizes.mean();
    let mut now_ps = 0.0;
    std::iter::from_fn(move || {
        now_ps += random.exponential(1e12 / per_second);
        let src = random.below(u64::from(hosts)) as u32;
        let other = random.below(u64::from(hosts) - 1) as u32;
        let dst = if other >= src { other + 1 } else { other };
        Some(FlowSpec { start_ps: now_ps as u64, src, dst, bytes: sizes.at(random.unit()) })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_permutation_is_one_to_one() {
        for seed in 0..20 {
            let flows = permutation(64, 1000, seed);
            let to: HashSet<u32> = flows.iter().map(|f| f.dst).collect();
            assert_eq!((flows.len(), to.len()), (64, 64));
            assert!(flows.iter().all(|f| f.src != f.dst));
        }
    }

    #[test]
    fn poisson_arrivals_have_the_load() {
        let sizes = FlowSizes::named("web-search").unwrap();
        let flows: Vec<FlowSpec> =
            poisson(1024, 10_000_000_000, 0.2, sizes, 5).take(300_000).collect();
        let seconds = flows.last().unwrap().start_ps as f64 / 1e12;
        let rate = flows.len() as f64 / seconds;
        assert!((rate / 149_598.0 - 1.0).abs() < 0.01, "{rate} flows/s");
        let bytes: u64 = flows.iter().map(|f| f.bytes).sum();
        let load = bytes as f64 * 8.0 / seconds / 1024e10;
        assert!((load - 0.2).abs() < 0.004, "{load}");
        assert!(flows.iter().all(|f| f.src != f.dst && f.src < 1024 && f.dst < 1024));
    }
}
