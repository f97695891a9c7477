//! Restores the order of numbered messages from a network that may reorder them.

use std::collections::BTreeMap;

use super::limits::{ALLOWANCE, EARLY_MAX};

/// Messages of one peer: a frame and its payload.
pub(super) struct InOrder<F> {
    next: u64,
    /// Messages that arrived early, by number.
    early: BTreeMap<u64, (F, Vec<u8>)>,
    early_bytes: u64,
}

impl<F> Default for InOrder<F> {
    fn default() -> Self {
        InOrder { next: 0, early: BTreeMap::new(), early_bytes: 0 }
    }
}

impl<F> InOrder<F> {
    /// Accepts a message: returns it if it is the next, and [`InOrder::next`] then returns those that waited for it.
    /// Errors: a repeated number, or more early messages than a peer may have in flight.
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

    /// The next message, if it has arrived.
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

    /// All messages delivered while `numbers` arrive.
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
        fn any_order_is_restored_by_number(
            numbers in (1..60u64).prop_flat_map(|n| Just((0..n).collect::<Vec<_>>()).prop_shuffle())
        ) {
            let sorted: Vec<u64> = (0..numbers.len() as u64).collect();
            prop_assert_eq!(taken(&numbers), Ok(sorted));
        }
    }

    #[test]
    fn repeated_numbers_and_too_many_early_messages_are_errors() {
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
