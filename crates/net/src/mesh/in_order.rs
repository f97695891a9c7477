//! Messages that are taken by their numbers, from a network where they may overtake each other.

use std::collections::BTreeMap;

use super::limits::{ALLOWANCE, EARLY_MAX};

/// Messages of one peer: a frame and its payload.
pub(super) struct InOrder<F> {
    next: u64,
    /// What has overtaken others, by number.
    early: BTreeMap<u64, (F, Vec<u8>)>,
    early_bytes: u64,
}

impl<F> Default for InOrder<F> {
    fn default() -> Self {
        InOrder { next: 0, early: BTreeMap::new(), early_bytes: 0 }
    }
}

impl<F> InOrder<F> {
    /// A message has come: gives it back if it is its turn, and then [`InOrder::next`] has what it had held up. Errors:
    /// the number was there before, or more has overtaken others than a peer may have under way.
    #[inline]
    pub(super) fn arrived(
        &mut self,
        number: u64,
        frame: F,
        bytes: Vec<u8>,
    ) -> Result<Option<(F, Vec<u8>)>, &'static str> {
        if number == self.next {
            self.next += 1;
            return Ok(Some((frame, bytes)));
        }
        self.early_bytes += bytes.len() as u64;
        let too_many = self.early.len() >= EARLY_MAX || self.early_bytes > ALLOWANCE;
        if too_many || number < self.next || self.early.insert(number, (frame, bytes)).is_some() {
            return Err("frames out of order");
        }
        Ok(None)
    }

    /// The next one, if it is here.
    #[inline]
    pub(super) fn next(&mut self) -> Option<(F, Vec<u8>)> {
        let message = self.early.remove(&self.next)?;
        self.next += 1;
        self.early_bytes -= message.1.len() as u64;
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All that comes out while messages come in as given.
    fn taken(numbers: &[u64]) -> Result<Vec<u64>, &'static str> {
        let (mut order, mut out) = (InOrder::default(), Vec::new());
        for &number in numbers {
            let mut turn = order.arrived(number, number, vec![0; number as usize % 9])?;
            while let Some((frame, bytes)) = turn {
                assert_eq!(bytes.len() as u64, frame % 9);
                out.push(frame);
                turn = order.next();
            }
        }
        assert_eq!(order.early_bytes, 0);
        Ok(out)
    }

    proptest! {
        #[test]
        fn any_order_becomes_that_of_the_numbers(
            numbers in (1..60u64).prop_flat_map(|n| Just((0..n).collect::<Vec<_>>()).prop_shuffle())
        ) {
            let sorted: Vec<u64> = (0..numbers.len() as u64).collect();
            prop_assert_eq!(taken(&numbers), Ok(sorted));
        }
    }

    #[test]
    fn a_number_comes_once_and_not_too_much_is_kept() {
        assert!(taken(&[0, 1, 0]).is_err(), "it was taken");
        assert!(taken(&[2, 2]).is_err(), "it waits");
        let mut order = InOrder::default();
        let half = vec![0; ALLOWANCE as usize / 2];
        assert_eq!(order.arrived(1, (), half.clone()), Ok(None));
        assert_eq!(order.arrived(2, (), half), Ok(None));
        assert!(order.arrived(3, (), vec![0]).is_err());
        let mut order = InOrder::default();
        assert!((1..=EARLY_MAX as u64).all(|number| order.arrived(number, (), vec![]).is_ok()));
        assert!(order.arrived(EARLY_MAX as u64 + 1, (), vec![]).is_err());
    }
}
