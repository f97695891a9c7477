//! The largest rate that every tenant may have at an overloaded switch.

/// The level at which demands that are cut to it add up to `capacity`: max-min fairness. `None`: all demands fit.
pub(super) fn water_level(demands: &mut [u64], capacity: u64) -> Option<u64> {
    demands.sort_unstable();
    let mut left = capacity;
    for (index, &demand) in demands.iter().enumerate() {
        let share = left / (demands.len() - index) as u64;
        if demand > share {
            return Some(share);
        }
        left -= demand;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_largest_demands_are_cut_alike() {
        assert_eq!(water_level(&mut [10, 500, 20, 400], 230), Some(100));
        assert_eq!(water_level(&mut [10, 20], 30), None);
        assert_eq!(water_level(&mut [], 0), None);
        assert_eq!(water_level(&mut [7, 7, 7], 10), Some(3));
    }

    proptest! {
        #[test]
        fn demands_at_the_level_fill_the_capacity(
            mut demands in prop::collection::vec(0..1_000_000u64, 0..100),
            capacity in 0..50_000_000u64,
        ) {
            let level = water_level(&mut demands, capacity);
            let used: u64 = demands.iter().map(|&demand| demand.min(level.unwrap_or(demand))).sum();
            prop_assert!(used <= capacity);
            match level {
                None => prop_assert_eq!(used, demands.iter().sum::<u64>()),
                // Whole numbers leave less than one for each demand.
                Some(_) => prop_assert!(used + demands.len() as u64 > capacity),
            }
        }
    }
}
