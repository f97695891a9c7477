//! Empty contributions that a worker has not sent, and answers that it can expect: one tree.

use crate::visit::{Counted, Visitor};

/// What a worker owes a switch, and the switch a worker, without elements.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Answers {
    /// A packet names others among so many vids before its own; at most 64.
    reach: u64,
    /// Operation of the unsent empty contributions: a packet names those of one operation only, so that every rank
    /// sends the shape of each operation on each tree.
    operation: u64,
    /// Their vids, in order, within the reach of one packet.
    unsent: Vec<u64>,
    /// One past the highest vid at which an answer comes, or is asked for.
    expected: u64,
}

impl Answers {
    pub(crate) fn new(first: u64, reach: u64) -> Answers {
        Answers { reach, operation: 0, unsent: Vec::new(), expected: first }
    }

    /// Visits the state.
    pub(crate) fn visit(&mut self, v: &mut impl Visitor) {
        let Answers { reach: _, operation, unsent, expected } = self;
        v.same(unsent.len() as u64);
        // It matters to the unsent ones alone.
        if !unsent.is_empty() {
            v.number(operation, Counted::Operations);
        }
        unsent.iter_mut().for_each(|vid| v.number(vid, Counted::Vids));
        v.number(expected, Counted::Vids);
    }

    /// Adds an empty contribution; returns those before it, as for `flush`, if one packet cannot name all.
    pub(crate) fn add(&mut self, operation: u64, vid: u64) -> Option<(u64, u64)> {
        let full = !self.unsent.is_empty() && !self.fits(operation, vid);
        let before = if full { self.all() } else { None };
        self.operation = operation;
        self.unsent.push(vid);
        before
    }

    /// Takes the unsent ones out for a contribution to `vid`: returns that vid and the others, or, if it cannot carry
    /// them, as `flush` does.
    pub(crate) fn take(&mut self, operation: u64, vid: u64) -> Option<(u64, u64)> {
        if self.unsent.is_empty() || !self.fits(operation, vid) {
            return self.all();
        }
        let others = self.unsent.drain(..).fold(0, |others, v| others | 1 << (vid - v - 1));
        Some((vid, others))
    }

    /// Takes the unsent ones out if they are half of what is in flight, so that they do not wait for each other's
    /// results, or if nothing follows that could carry them. Returns the highest and the others.
    pub(crate) fn flush(&mut self, in_flight: u32, nothing_follows: bool) -> Option<(u64, u64)> {
        let due = nothing_follows || 2 * self.unsent.len() >= in_flight as usize;
        if due { self.all() } else { None }
    }

    /// Whether the switch must answer at `vid`. It answers by itself where this rank takes the result.
    pub(crate) fn asks(&mut self, vid: u64, takes: bool, window: u32, last: bool) -> bool {
        let far = vid + 1 >= self.expected + u64::from(window / 2).max(1);
        let asks = !takes && (last || far);
        if takes || asks {
            self.expected = self.expected.max(vid + 1);
        }
        asks
    }

    /// Forgets an unsent one whose fragment is complete: it was sent again before it was sent.
    pub(crate) fn forget(&mut self, vid: u64) {
        self.unsent.retain(|&unsent| unsent != vid);
    }

    fn fits(&self, operation: u64, vid: u64) -> bool {
        let near = self.unsent.first().is_none_or(|first| vid - first <= self.reach);
        near && operation == self.operation
    }

    fn all(&mut self) -> Option<(u64, u64)> {
        let last = self.unsent.pop()?;
        let others = self.unsent.drain(..).fold(0, |others, vid| others | 1 << (last - vid - 1));
        Some((last, others))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_contributions_travel_with_the_next_contribution_of_the_same_operation() {
        let mut answers = Answers::new(0, 64);
        assert_eq!(answers.take(1, 3), None);
        for vid in [4, 5, 7] {
            assert_eq!(answers.add(1, vid), None);
        }
        assert_eq!(answers.take(1, 8), Some((8, 0b1101)));
        assert_eq!(answers.add(1, 9), None);
        assert_eq!(answers.take(2, 10), Some((9, 0)), "another operation");
        assert_eq!(answers.add(2, 11), None);
        assert_eq!(answers.take(2, 76), Some((11, 0)), "too far ahead");
        assert_eq!(answers.add(2, 77), None);
        assert_eq!(answers.add(2, 142), Some((77, 0)));
        assert_eq!(answers.take(2, 206), Some((206, 1 << 63)));
    }

    #[test]
    fn half_of_what_is_in_flight_is_not_kept() {
        let mut answers = Answers::new(0, 64);
        assert_eq!(answers.flush(0, true), None);
        for vid in 0..4 {
            answers.add(1, vid);
        }
        assert_eq!(answers.flush(9, false), None);
        assert_eq!(answers.flush(8, false), Some((3, 0b111)));
        answers.add(1, 4);
        answers.add(1, 5);
        answers.forget(5);
        assert_eq!(answers.flush(9, true), Some((4, 0)));
    }

    #[test]
    fn an_answer_comes_every_half_window() {
        let mut answers = Answers::new(0, 64);
        let asks: Vec<u64> = (0..12).filter(|&vid| answers.asks(vid, vid == 5, 8, false)).collect();
        assert_eq!(asks, [3, 9]);
        assert!(answers.asks(12, false, 8, true), "the last one");
        assert!(answers.asks(13, false, 1, false));
    }
}
