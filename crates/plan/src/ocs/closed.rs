//! The best composition of trees and rings, in O(D).

use netsum_topo::OcsSpec;

use super::composition::Composition;
use super::pieces::Numbers;

/// The best composition of trees with whole devices and rings, as slide 22 asks for.
///
/// A tree's first K−1 devices save E−2 worker ports each, the K-th saves fewer. For T trees it is therefore best to
/// fill all of them to K−1 before any gets its K-th; the remaining ports make rings. The best T is taken; ties go to
/// the fewest trees, and devices that gain nothing are left out.
pub fn closed(spec: &OcsSpec) -> Composition {
    let numbers = Numbers::of(spec);
    let choices = (0..=numbers.d).filter_map(|trees| Choice::of(&numbers, trees));
    let best = choices.reduce(|best, other| if other.units > best.units { other } else { best });
    best.expect("no tree at all fits always").composition(&numbers)
}

struct Choice {
    trees: u64,
    /// Devices that save E−2 ports, and those that complete a tree.
    whole: u64,
    last: u64,
    rings: u64,
    units: u64,
}

impl Choice {
    fn of(numbers: &Numbers, trees: u64) -> Option<Choice> {
        let mut whole = numbers.m.min(trees * numbers.full().saturating_sub(1));
        let mut last = if numbers.full() > 0 { (numbers.m - whole).min(trees) } else { 0 };
        let saved = whole * (numbers.e - 2) + last * numbers.last_saving();
        let left = (numbers.worker_ports() + saved).checked_sub(trees * numbers.line())?;
        let rings = numbers.rings(left);
        let mut idle = left - rings * numbers.n;
        drop_idle(&mut last, &mut idle, numbers.last_saving());
        drop_idle(&mut whole, &mut idle, numbers.e - 2);
        let units = trees * numbers.line() + rings * numbers.n;
        Some(Choice { trees, whole, last, rings, units })
    }

    fn composition(&self, numbers: &Numbers) -> Composition {
        let share = |tree| {
            let even = self.whole / self.trees + u64::from(tree < self.whole % self.trees);
            even + u64::from(tree < self.last)
        };
        let counts: Vec<u64> = (0..self.trees).map(share).collect();
        Composition::of_counts(numbers, &counts, self.rings)
    }
}

/// Leaves out devices whose saving only makes ports idle.
fn drop_idle(devices: &mut u64, idle: &mut u64, saving: u64) {
    let Some(useless) = idle.checked_div(saving) else { return };
    let dropped = useless.min(*devices);
    *devices -= dropped;
    *idle -= dropped * saving;
}
