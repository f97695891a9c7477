//! Upper bounds on algbw, with the prices that prove them.

use netsum_topo::{OcsPorts, OcsSpec, Ratio};
use serde::Serialize;

use super::pieces::Numbers;

/// An upper bound on algbw, and its proof.
///
/// Every element is summed along a tree to one node and spread from there along a tree. A tree with
/// u device visits has N − 1 + u links, so it takes 2(N−1) − s of the workers' port directions and
/// s + 2u of the devices', if the visits have s + 2u ends. With circuits in both directions a visit
/// has at most E ends (children and parent are different peers), so u ≥ ⌈s/(E−2)⌉; and s ≤ N − 2,
/// since each worker has an end. Prices that make the cheapest such tree cost 1 or more bound the rate by
/// what all ports cost: algbw ≤ worker_price·N·D + device_price·M·E.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Bound {
    /// Upper bound if devices are joined to their peers in both directions: always with paired ports, and in everything
    /// that this planner and the slides build.
    pub algbw: Ratio,
    /// Price of a worker port.
    pub worker_price: Ratio,
    /// Price of a device port.
    pub device_price: Ratio,
    /// min(D, (N·D + (E−2)·M)/(2(N−1))): the bound for devices that are always used whole.
    pub whole_devices: Ratio,
    /// Upper bound for any plan. With simplex ports a device can have E children and yet another peer as parent, E + 1
    /// ends per visit: min(D, (N·D + M·E(E−1)/(E+1))/(2(N−1))).
    pub any_circuits: Ratio,
}

/// The least of three bounds, each with its prices, exactly.
pub fn bound(spec: &OcsSpec) -> Bound {
    let numbers = Numbers::of(spec);
    let n = Ratio::from(numbers.n as i64);
    let e = Ratio::from(numbers.e as i64);
    let two = Ratio::from(2);
    let line = Ratio::from(numbers.line() as i64);
    // Prices under which the following cost the same: all trees with whole devices only …
    let whole = (Ratio::ONE / line, (e - two) / e / line);
    // … trees of K−1 whole devices and full trees …
    let last = Ratio::from(numbers.last_saving() as i64);
    let ratio = last / (last + two);
    let before = Ratio::from(numbers.full().saturating_sub(1) as i64) * e;
    let worker = Ratio::ONE / (n + last + ratio * before);
    let mixed = (worker, worker * ratio);
    // … and full trees, with devices for nothing: each worker takes in the whole sum, rate ≤ D.
    let free = (Ratio::ONE / n, Ratio::ZERO);
    let total = |(worker, device): (Ratio, Ratio)| {
        let ports = |of: u64| Ratio::from(of as i64);
        worker * ports(numbers.worker_ports()) + device * ports(numbers.m * numbers.e)
    };
    let mut prices = vec![whole, free];
    if numbers.full() > 0 {
        prices.push(mixed);
    }
    let best = prices.into_iter().min_by_key(|&price| total(price)).expect("three prices");
    let algbw = total(best);
    let most = Ratio::from(numbers.d as i64);
    let m = Ratio::from(numbers.m as i64);
    let any = (most * n + m * e * (e - Ratio::ONE) / (e + Ratio::ONE)) / line;
    let any_circuits = match spec.ports {
        OcsPorts::Simplex => any.min(most).max(algbw),
        OcsPorts::Paired => algbw,
    };
    Bound {
        algbw,
        worker_price: best.0,
        device_price: best.1,
        whole_devices: total(whole).min(most),
        any_circuits,
    }
}

impl Bound {
    /// Whether the prices prove the bound: no tree costs less than 1, and all ports together cost what is claimed.
    /// O(N), by examining every possible s.
    pub fn is_proven(&self, spec: &OcsSpec) -> bool {
        let numbers = Numbers::of(spec);
        let (worker, device) = (self.worker_price, self.device_price);
        let cost = |ends: u64, of_devices: u64| {
            worker * Ratio::from(ends as i64) + device * Ratio::from(of_devices as i64)
        };
        let tree = |saved: u64| {
            let visits = if saved == 0 { 0 } else { saved.div_ceil(numbers.e - 2) };
            cost(numbers.line() - saved, saved + 2 * visits)
        };
        let savings = if numbers.e > 2 { 0..=numbers.n - 2 } else { 0..=0 };
        let one = Ratio::ONE;
        device >= Ratio::ZERO
            && savings.map(tree).all(|cost| cost >= one)
            && cost(numbers.worker_ports(), numbers.m * numbers.e) == self.algbw
    }
}
