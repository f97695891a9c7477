//! A worker's view of one pool: which packet of each slot is in flight, and which can be sent.

use std::collections::VecDeque;

use super::Header;
use crate::Time;
use crate::flow::TreeStats;
use crate::handover::TreeProgress;
use crate::sequence;

/// Number of time-outs until the time-out doubles, and the increment of that number for each further doubling.
const DOUBLING: u32 = 100;
/// Maximum time-out: a switch that answers again must be noticed soon.
const MAX_TIMEOUT_NS: u64 = 250_000_000;
/// Time without a result after which the switch is reported as silent.
const SILENT_NS: u64 = 1_500_000_000;

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Next round to send, or the one in flight; packets carry its low 32 bits.
    round: u64,
    in_flight: bool,
}

/// The slots of one pool. Packet `number` uses slot `number` mod s in round ⌊`number` / s⌋.
#[derive(Debug)]
pub(super) struct Pool {
    slots: Vec<Slot>,
    /// Slots that have become free, and slots whose packet was lost.
    ready: VecDeque<(u16, bool)>,
    /// Deadlines in order of time: all packets have the same time-out.
    deadlines: VecDeque<(Time, u16, u64)>,
    timeout_ns: u64,
    timeouts: u32,
    next_doubling: u32,
    last_seen: Time,
    pub(super) stats: TreeStats,
}

/// A packet that can be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    pub(super) number: u64,
    pub(super) resent: bool,
}

impl Pool {
    /// `first`: the first round of every slot.
    pub(super) fn new(now: Time, slots: u16, first: u64, timeout_ns: u64) -> Pool {
        Pool {
            slots: vec![Slot { round: first, in_flight: false }; slots.into()],
            ready: (0..slots).map(|slot| (slot, false)).collect(),
            deadlines: VecDeque::new(),
            timeout_ns,
            timeouts: 0,
            next_doubling: DOUBLING,
            last_seen: now,
            stats: TreeStats::default(),
        }
    }

    /// The next packet to send, if any; `ready` tells whether a number can be sent.
    pub(super) fn next(&mut self, now: Time, ready: impl Fn(u64) -> bool) -> Option<Sending> {
        for _ in 0..self.ready.len() {
            let (slot, resent) = self.ready.pop_front()?;
            let Slot { round, in_flight } = self.slots[usize::from(slot)];
            if resent != in_flight {
                continue;
            }
            let number = self.number(slot, round);
            if !ready(number) {
                // Not submitted, or its exponent has not arrived.
                self.ready.push_back((slot, false));
                continue;
            }
            if self.slots.iter().all(|s| !s.in_flight) {
                self.last_seen = now;
            }
            self.slots[usize::from(slot)].in_flight = true;
            self.deadlines.push_back((now.after(self.timeout_ns), slot, round));
            self.stats.sent += u64::from(!resent);
            self.stats.resent += u64::from(resent);
            return Some(Sending { number, resent });
        }
        None
    }

    /// The slot and the round of a number.
    pub(super) fn place(&self, number: u64) -> (u16, u64) {
        let slots = self.slots.len() as u64;
        ((number % slots) as u16, number / slots)
    }

    /// The number in flight that a header refers to; `None`: its slot is in another round, or has nothing in flight.
    pub(super) fn in_flight(&self, header: &Header) -> Option<u64> {
        let slot = self.slots[usize::from(header.slot)];
        let same = slot.in_flight && slot.round as u32 == header.round;
        same.then(|| self.number(header.slot, slot.round))
    }

    /// The number that a header refers to, in flight or not; `None` if it is before the first.
    pub(super) fn near(&self, header: &Header) -> Option<u64> {
        let near = self.slots[usize::from(header.slot)].round;
        Some(self.number(header.slot, sequence::expand(header.round, near)?))
    }

    /// Records that the packet in flight in a slot is answered.
    pub(super) fn complete(&mut self, now: Time, slot: u16) {
        self.last_seen = now;
        self.stats.results += 1;
        let state = &mut self.slots[usize::from(slot)];
        *state = Slot { round: state.round + 1, in_flight: false };
        self.ready.push_back((slot, false));
    }

    /// Whether a number is complete.
    pub(super) fn has(&self, number: u64) -> bool {
        let (slot, round) = self.place(number);
        self.slots[usize::from(slot)].round > round
    }

    /// The number with which the lowest round begins that some slot has not completed.
    pub(super) fn lowest_round(&self) -> u64 {
        let lowest = self.slots.iter().map(|slot| slot.round).min().unwrap_or(0);
        self.number(0, lowest)
    }

    /// In order, by slot the number that it completed last, and the one to send next or in flight: others may lack the
    /// results of no others.
    pub(super) fn recent(&self) -> Vec<u64> {
        let rounds = |(slot, state): (u16, &Slot)| {
            let last = state.round.checked_sub(1);
            last.into_iter().chain([state.round]).map(move |round| (slot, round))
        };
        let places = (0..).zip(&self.slots).flat_map(rounds);
        let mut numbers: Vec<u64> = places.map(|(slot, round)| self.number(slot, round)).collect();
        numbers.sort_unstable();
        numbers
    }

    /// What is complete; `untaken` is left empty.
    pub(super) fn progress(&self) -> TreeProgress {
        let rounds = self.slots.iter().map(|slot| slot.round);
        let (low, high) = rounds.fold((u64::MAX, 0), |(l, h), r| (l.min(r), h.max(r)));
        let base = (self.number(0, low)..).find(|&number| !self.has(number)).unwrap_or(0);
        let above = (base..self.number(0, high)).map(|number| self.has(number)).collect();
        TreeProgress { base, above, untaken: Vec::new() }
    }

    /// The round of the first slot, which `Fin` names.
    pub(super) fn first_round(&self) -> u64 {
        self.slots[0].round
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.deadlines.front().map(|(at, ..)| *at)
    }

    /// Handles deadlines that have passed. Returns for how many nanoseconds the switch has been silent, once for each
    /// [`SILENT_NS`].
    pub(super) fn handle_timeout(&mut self, now: Time) -> Option<u64> {
        while let Some(&(at, slot, round)) = self.deadlines.front() {
            let state = self.slots[usize::from(slot)];
            let lost = state.in_flight && state.round == round;
            if lost && at > now {
                break;
            }
            self.deadlines.pop_front();
            if lost {
                self.ready.push_back((slot, true));
                self.stats.timeouts += 1;
                self.timeouts += 1;
                if self.timeouts >= self.next_doubling {
                    self.next_doubling += DOUBLING;
                    self.timeouts = 0;
                    self.timeout_ns = (self.timeout_ns * 2).min(MAX_TIMEOUT_NS);
                }
            }
        }
        let silent = now.since(self.last_seen);
        let is_silent = silent >= SILENT_NS && self.slots.iter().any(|s| s.in_flight);
        if is_silent {
            self.last_seen = now;
        }
        is_silent.then_some(silent)
    }

    /// Statistics; the window is the pool.
    pub(super) fn stats(&self) -> TreeStats {
        TreeStats {
            window: (self.slots.len() as u16).into(),
            window_cap: self.slots.len() as u16,
            in_flight: self.slots.iter().filter(|slot| slot.in_flight).count() as u32,
            ..self.stats
        }
    }

    fn number(&self, slot: u16, round: u64) -> u64 {
        round * self.slots.len() as u64 + u64::from(slot)
    }
}
