//! The event queue.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::clock::Nanos;

/// Events in order of time; events of equal time in order of insertion.
#[derive(Debug)]
pub struct Queue<E> {
    now: Nanos,
    made: u64,
    heap: BinaryHeap<Reverse<Entry<E>>>,
}

#[derive(Debug)]
struct Entry<E> {
    at: Nanos,
    number: u64,
    event: E,
}

impl<E> Queue<E> {
    /// An empty queue at time 0.
    pub fn new() -> Queue<E> {
        Queue { now: 0, made: 0, heap: BinaryHeap::new() }
    }

    /// The current time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Schedules an event at `at`, or now if that is past.
    pub fn at(&mut self, at: Nanos, event: E) {
        self.made += 1;
        let entry = Entry { at: at.max(self.now), number: self.made, event };
        self.heap.push(Reverse(entry));
    }

    /// Schedules an event after `ns` nanoseconds.
    pub fn after(&mut self, ns: Nanos, event: E) {
        self.at(self.now.saturating_add(ns), event);
    }

    /// Advances to the next event.
    pub fn next(&mut self) -> Option<E> {
        let Reverse(entry) = self.heap.pop()?;
        self.now = entry.at;
        Some(entry.event)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
