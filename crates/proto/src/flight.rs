//! Fragments in flight on one tree: times of sending, results, retransmissions.

use std::collections::VecDeque;

use crate::handover::TreeProgress;
use crate::visit::{Counted, Visitor};
use crate::{Time, sequence};

/// Number of results above a hole that make it a loss: reordering within a tree is smaller (RFC 5681's threshold).
const HOLE_THRESHOLD: u64 = 3;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum State {
    #[default]
    Unsent,
    /// Not sent, but others wait for it.
    Requested,
    Sent(Time),
    Resent(Time),
    /// An aggregator has counted the own contribution and waits for others', as reported at this time.
    Counted(Time),
    Received,
}

/// A sliding window of vids, which count from the start of the epoch and never wrap.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Flight {
    ring: Vec<State>,
    /// Lowest vid without a result.
    base: u64,
    /// Next vid that was never sent.
    next: u64,
    /// One past the highest vid with a result.
    highest: u64,
    /// One past the highest vid that was requested.
    requested: u64,
    /// Vids below were checked for holes.
    examined: u64,
    /// Vids to be sent again.
    again: VecDeque<u64>,
}

/// Effect of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receipt {
    /// It had come before.
    Duplicate,
    /// The first result of the vid; with the round trip if the fragment was sent once.
    New {
        /// Time since it was sent.
        rtt_ns: Option<u64>,
        /// Whether the fragment was sent again.
        was_resent: bool,
    },
}

impl Flight {
    /// `most`: maximum number of vids in flight, from `base`; `first`: the first vid.
    pub(crate) fn new(most: u16, first: u64) -> Self {
        let len = usize::from(most).next_power_of_two() * 2;
        Flight {
            ring: vec![State::Unsent; len],
            base: first,
            next: first,
            highest: first,
            requested: first,
            examined: first,
            again: VecDeque::with_capacity(len),
        }
    }

    /// Visits the state.
    pub(crate) fn visit(&mut self, v: &mut impl Visitor) {
        let Flight { ring, base, next, highest, requested, examined, again } = self;
        *requested = (*requested).max(*base);
        let (first, end) = (*base, (*next).max(*highest).max(*requested));
        [&mut *base, next, highest, requested, examined]
            .into_iter()
            .for_each(|n| v.number(n, Counted::Vids));
        let mask = ring.len() - 1;
        for vid in first..end {
            let state = &mut ring[vid as usize & mask];
            let (code, at) = match state {
                State::Unsent => (0, None),
                State::Received => (1, None),
                State::Sent(at) => (2, Some(at)),
                State::Resent(at) => (3, Some(at)),
                State::Counted(at) => (4, Some(at)),
                State::Requested => (5, None),
            };
            v.same(code);
            at.into_iter().for_each(|at| v.moment(at));
        }
        v.same(again.len() as u64);
        again.iter_mut().for_each(|vid| v.number(vid, Counted::Vids));
        // Numbers outside were not sent, and are all the same.
        ring.rotate_right(base.wrapping_sub(first) as usize & mask);
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn highest(&self) -> u64 {
        self.highest
    }

    /// Number of vids from the lowest without a result to the last sent.
    pub(crate) fn in_flight(&self) -> u32 {
        (self.next - self.base) as u32
    }

    /// The vid whose low 32 bits are in a packet; `None` if it is before the first one.
    pub(crate) fn expand(&self, wire: u32) -> Option<u64> {
        sequence::expand(wire, self.base)
    }

    /// Results that have arrived.
    pub(crate) fn progress(&self) -> TreeProgress {
        let above = (self.base..self.highest).map(|vid| self.is_received(vid));
        TreeProgress { base: self.base, above: above.collect(), untaken: Vec::new() }
    }

    pub(crate) fn is_received(&self, vid: u64) -> bool {
        vid < self.base || self.covers(vid) && self.at(vid) == State::Received
    }

    /// Whether a vid may have a result now.
    pub(crate) fn covers(&self, vid: u64) -> bool {
        vid.checked_sub(self.base).is_some_and(|ahead| ahead < self.ring.len() as u64)
    }

    /// The next vid to send for the first time, if it is below `limit`, and whether it was requested; skips vids whose
    /// results arrived without the own contribution.
    pub(crate) fn send_next(&mut self, now: Time, limit: u64) -> Option<(u64, bool)> {
        while self.next < limit {
            let vid = self.next;
            self.next += 1;
            let state = self.at(vid);
            if state != State::Received {
                *self.at_mut(vid) = State::Sent(now);
                return Some((vid, state == State::Requested));
            }
        }
        None
    }

    /// The next vid to send again.
    pub(crate) fn send_again(&mut self, now: Time) -> Option<u64> {
        while let Some(vid) = self.again.pop_front() {
            if !self.is_received(vid) {
                *self.at_mut(vid) = State::Resent(now);
                return Some(vid);
            }
        }
        None
    }

    /// Queues a vid that `covers` accepts and others wait for, if it was sent `age_ns` ago; one that was not sent is
    /// marked. Returns whether it was sent for the first time since.
    pub(crate) fn request(&mut self, now: Time, vid: u64, age_ns: u64) -> bool {
        match self.at(vid) {
            State::Unsent => {
                *self.at_mut(vid) = State::Requested;
                self.requested = self.requested.max(vid + 1);
                false
            }
            State::Sent(at) | State::Resent(at) | State::Counted(at) if now.since(at) >= age_ns => {
                self.queue(vid);
                false
            }
            State::Sent(_) => true,
            _ => false,
        }
    }

    /// Records a result for a vid that `covers` accepts.
    pub(crate) fn receive(&mut self, now: Time, vid: u64) -> Receipt {
        let state = self.at(vid);
        if state == State::Received {
            return Receipt::Duplicate;
        }
        *self.at_mut(vid) = State::Received;
        self.highest = self.highest.max(vid + 1);
        while self.base != self.highest && self.at(self.base) == State::Received {
            // The entry in the ring belongs to the vid a whole ring ahead.
            *self.at_mut(self.base) = State::Unsent;
            self.base += 1;
        }
        self.next = self.next.max(self.base);
        let rtt_ns = match state {
            State::Sent(at) => Some(now.since(at)),
            _ => None,
        };
        let was_resent = matches!(state, State::Resent(_) | State::Counted(_));
        Receipt::New { rtt_ns, was_resent }
    }

    /// Queues vids that results have overtaken; each is found once, later losses are found by the time-out. Returns
    /// their number.
    pub(crate) fn find_holes(&mut self) -> usize {
        let mut found = 0;
        self.examined = self.examined.max(self.base);
        while self.highest > self.examined + HOLE_THRESHOLD {
            if let State::Sent(_) = self.at(self.examined) {
                self.again.push_back(self.examined);
                found += 1;
            }
            self.examined += 1;
        }
        found
    }

    /// Queues vids that were sent again and still lack a result, although a fragment sent later, at `since`, has one:
    /// the retransmission was lost, too (RFC 8985). Returns their number.
    pub(crate) fn find_lost_again(&mut self, since: Time) -> usize {
        match self.at(self.base) {
            // The vid that was sent again first is the lowest, so this usually examines no others.
            State::Resent(at) if at < since && self.has_hole() => {
                self.resend_holes(|state| matches!(state, State::Resent(at) if at < since))
            }
            _ => 0,
        }
    }

    /// Queues holes that were sent up to `since`, and those whose own contribution was reported as counted up to
    /// `counted_since`: the contribution of another worker, or its result, was lost. Returns their number.
    pub(crate) fn resend_old_holes(&mut self, since: Time, counted_since: Time) -> usize {
        self.resend_holes(|state| match state {
            State::Sent(at) | State::Resent(at) => at <= since,
            State::Counted(at) => at <= counted_since,
            _ => false,
        })
    }

    fn resend_holes(&mut self, lost: impl Fn(State) -> bool) -> usize {
        let mut found = 0;
        for vid in self.base..self.highest {
            if lost(self.at(vid)) && !self.again.contains(&vid) {
                self.again.push_back(vid);
                found += 1;
            }
        }
        found
    }

    /// Records that the own contribution to a vid was counted.
    pub(crate) fn set_counted(&mut self, now: Time, vid: u64) {
        *self.at_mut(vid) = State::Counted(now);
    }

    /// Whether a result has overtaken another.
    pub(crate) fn has_hole(&self) -> bool {
        self.highest > self.base
    }

    /// Queues a vid that must be sent again immediately.
    pub(crate) fn queue(&mut self, vid: u64) {
        if !self.again.contains(&vid) {
            self.again.push_back(vid);
        }
    }

    /// Queues the lowest vid without a result: its answer shows the cause of the silence.
    pub(crate) fn probe(&mut self) -> Option<u64> {
        let unanswered =
            self.in_flight() > 0 && !matches!(self.at(self.base), State::Unsent | State::Requested);
        if unanswered && !self.again.contains(&self.base) {
            self.again.push_front(self.base);
        }
        unanswered.then_some(self.base)
    }

    /// Queues everything that was sent before `since` and has no result.
    pub(crate) fn resend_older(&mut self, since: Time) -> usize {
        let mut found = 0;
        for vid in self.base..self.next {
            let old = match self.at(vid) {
                State::Sent(at) | State::Resent(at) => at < since,
                _ => false,
            };
            if old && !self.again.contains(&vid) {
                self.again.push_back(vid);
                found += 1;
            }
        }
        found
    }

    fn at(&self, vid: u64) -> State {
        self.ring[vid as usize & (self.ring.len() - 1)]
    }

    fn at_mut(&mut self, vid: u64) -> &mut State {
        let mask = self.ring.len() - 1;
        &mut self.ring[vid as usize & mask]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(n: u64) -> Flight {
        let mut flight = Flight::new(64, 0);
        for _ in 0..n {
            flight.send_next(Time(0), n).unwrap();
        }
        flight
    }

    #[test]
    fn a_hole_is_resent_once_after_three_later_results() {
        let mut flight = sent(10);
        for vid in [0, 2, 3] {
            flight.receive(Time(5), vid);
            assert_eq!(flight.find_holes(), 0);
        }
        flight.receive(Time(5), 4);
        assert_eq!(flight.find_holes(), 1);
        flight.receive(Time(5), 5);
        assert_eq!(flight.find_holes(), 0);
        assert_eq!(flight.send_again(Time(6)), Some(1));
        assert_eq!(flight.send_again(Time(6)), None);
        let receipt = flight.receive(Time(9), 1);
        assert_eq!(receipt, Receipt::New { rtt_ns: None, was_resent: true });
        assert_eq!(flight.base(), 6);
    }

    #[test]
    fn repeated_loss_is_found_when_later_fragments_overtake() {
        let mut flight = sent(6);
        (1..5).for_each(|vid| _ = flight.receive(Time(5), vid));
        assert_eq!(flight.find_holes(), 1);
        assert_eq!(flight.send_again(Time(6)), Some(0));
        assert_eq!(flight.find_lost_again(Time(6)), 0, "sent no later than the second sending");
        assert_eq!(flight.find_lost_again(Time(7)), 1);
        assert_eq!(flight.find_lost_again(Time(7)), 0, "it waits to be sent");
        assert_eq!(flight.send_again(Time(8)), Some(0));
        assert_eq!(flight.resend_old_holes(Time(7), Time(0)), 0);
        assert_eq!(
            flight.resend_old_holes(Time(8), Time(0)),
            1,
            "a hole, and old enough; 5 is no hole"
        );
        flight.send_again(Time(9));
        flight.set_counted(Time(10), 0);
        assert_eq!(flight.resend_old_holes(Time(20), Time(9)), 0, "others are asked first");
        assert_eq!(flight.resend_old_holes(Time(20), Time(10)), 1);
        flight.receive(Time(9), 0);
        assert!(!flight.has_hole());
    }

    #[test]
    fn a_probe_is_not_queued_twice() {
        let mut flight = sent(3);
        assert_eq!(flight.probe(), Some(0));
        assert_eq!(flight.probe(), Some(0));
        assert_eq!(flight.send_again(Time(1)), Some(0));
        assert_eq!(flight.send_again(Time(1)), None);
    }

    #[test]
    fn results_without_the_own_contribution_are_not_sent() {
        let mut flight = sent(1);
        flight.receive(Time(1), 2);
        assert_eq!(flight.send_next(Time(1), 4), Some((1, false)));
        assert_eq!(flight.send_next(Time(1), 4), Some((3, false)));
        flight.receive(Time(1), 0);
        flight.receive(Time(1), 1);
        assert_eq!(flight.base(), 3);
    }

    #[test]
    fn the_ring_comes_round() {
        let first = (1 << 32) - 500;
        let mut flight = Flight::new(4, first);
        for vid in first..first + 1000 {
            assert_eq!(flight.send_next(Time(0), u64::MAX), Some((vid, false)));
            assert_eq!(flight.expand(vid as u32), Some(vid));
            assert!(matches!(flight.receive(Time(1), vid), Receipt::New { .. }));
            assert!(flight.is_received(vid));
        }
        assert_eq!(flight.in_flight(), 0);
    }
}
