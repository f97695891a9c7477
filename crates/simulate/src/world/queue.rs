//! What happens next.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::clock::Nanos;

/// Events in the order of their times; those of one time in the order in which they were made.
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
    /// Nothing, at time 0.
    pub fn new() -> Queue<E> {
        Queue { now: 0, made: 0, heap: BinaryHeap::new() }
    }

    /// The time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Makes something happen at `at`, or now if that is past.
    pub fn at(&mut self, at: Nanos, event: E) {
        self.made += 1;
        let entry = Entry { at: at.max(self.now), number: self.made, event };
        self.heap.push(Reverse(entry));
    }

    /// Makes something happen after a while.
    pub fn after(&mut self, ns: Nanos, event: E) {
        self.at(self.now.saturating_add(ns), event);
    }

    /// Goes on to what happens next.
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
