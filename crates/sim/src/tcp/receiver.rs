//! The receiving end of a flow.

use std::collections::VecDeque;

use crate::visit::Visitor;

/// Segments received, in order and out of order.
#[derive(Clone, Debug, Default)]
pub struct Receiver {
    expected: u32,
    /// Segments above `expected`, once some arrived out of order: whether each has arrived.
    ahead: VecDeque<bool>,
    /// Ends of messages.
    ends: VecDeque<u32>,
    /// Segments that had been received before.
    pub duplicates: u64,
}

impl Receiver {
    /// Visits the state, with segments counted from `una`.
    pub(crate) fn visit(&mut self, v: &mut impl Visitor, una: u32) {
        let Receiver { expected, ahead, ends, duplicates } = self;
        v.both(expected.wrapping_sub(una), ahead.len() as u32);
        ahead.iter().for_each(|&here| v.same(here.into()));
        v.same(ends.len() as u64);
        ends.iter().for_each(|end| v.same(end.wrapping_sub(una).into()));
        v.count(duplicates);
    }

    /// Announces a message that ends before segment `end`.
    pub fn expect(&mut self, end: u32) {
        self.ends.push_back(end);
    }

    /// Whether all messages have been received.
    pub fn is_complete(&self) -> bool {
        self.ends.is_empty()
    }

    /// Reads its memory, and that of its first message's end.
    #[inline]
    pub(crate) fn touch(&self) -> u32 {
        self.expected ^ self.ends.front().copied().unwrap_or(0)
    }

    /// The next expected segment.
    #[inline]
    pub fn expected(&self) -> u32 {
        self.expected
    }

    /// Receives a segment; returns how many messages it completes.
    #[inline]
    pub fn take(&mut self, seq: u32) -> u32 {
        if seq == self.expected {
            self.expected += 1;
            if !self.ahead.is_empty() {
                self.ahead.pop_front();
                while self.ahead.front() == Some(&true) {
                    self.ahead.pop_front();
                    self.expected += 1;
                }
            }
        } else {
            self.take_out_of_order(seq);
            return 0;
        }
        let mut complete = 0;
        while self.ends.front().is_some_and(|&end| end <= self.expected) {
            self.ends.pop_front();
            complete += 1;
        }
        complete
    }

    fn take_out_of_order(&mut self, seq: u32) {
        let Some(place) = seq.checked_sub(self.expected) else {
            self.duplicates += 1;
            return;
        };
        if self.ahead.len() <= place as usize {
            self.ahead.resize(place as usize + 1, false);
        }
        let here = &mut self.ahead[place as usize];
        self.duplicates += u64::from(*here);
        *here = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn any_order_with_repetitions_completes_each_message_once() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let mut order: Vec<u32> = (0..100).chain((0..100).filter(|s| s % 3 == 0)).collect();
            random.shuffle(&mut order);
            let mut receiver = Receiver::default();
            [10, 11, 60, 100].into_iter().for_each(|end| receiver.expect(end));
            let complete: u32 = order.iter().map(|&seq| receiver.take(seq)).sum();
            assert_eq!((complete, receiver.expected()), (4, 100));
            assert_eq!(receiver.duplicates, 34);
        }
    }
}
