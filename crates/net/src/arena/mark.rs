//! The flag in front of a slot: which round it holds, and who sleeps until it holds another.
//!
//! Generic over the word, so that a model checker can run the very same steps (`tests.rs`).

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::futex;

/// A word that other processes change, and that one can sleep on.
pub(super) trait Word {
    fn load(&self, order: Ordering) -> u32;
    fn swap(&self, value: u32, order: Ordering) -> u32;
    fn add(&self, value: u32, order: Ordering) -> u32;
    /// Sleeps while the word is `seen`, at most `patience`; may return early for no reason.
    fn wait(&self, seen: u32, patience: Duration);
    /// Wakes all who sleep on it.
    fn wake(&self);
}

impl Word for AtomicU32 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }
    #[inline(always)]
    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.swap(value, order)
    }
    fn add(&self, value: u32, order: Ordering) -> u32 {
        self.fetch_add(value, order)
    }
    fn wait(&self, seen: u32, patience: Duration) {
        futex::wait(self, seen, patience);
    }
    fn wake(&self) {
        futex::wake(self);
    }
}

/// Which round a slot holds. One process publishes, the others wait.
#[repr(C)]
pub(super) struct Flag<W> {
    round: W,
    sleepers: W,
}

impl<W: Word> Flag<W> {
    #[cfg(test)]
    pub(super) fn new(round: W, sleepers: W) -> Flag<W> {
        Flag { round, sleepers }
    }

    /// The round that was published last; what was written before it can be read.
    #[inline(always)]
    pub(super) fn round(&self) -> u32 {
        self.round.load(Ordering::Acquire)
    }

    /// Hands over what was written to the slot.
    #[inline(always)]
    pub(super) fn publish(&self, round: u32) {
        // Sequentially consistent with `sleep`: either we see the sleeper, or it sees the round.
        self.round.swap(round, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            self.round.wake();
        }
    }

    /// Sleeps until the round is not `seen` any more, or a while.
    pub(super) fn sleep(&self, seen: u32, patience: Duration) {
        self.sleepers.add(1, Ordering::SeqCst);
        if self.round.load(Ordering::SeqCst) == seen {
            self.round.wait(seen, patience);
        }
        self.sleepers.add(u32::MAX, Ordering::SeqCst);
    }

    /// Wakes who sleeps, although nothing was published.
    pub(super) fn alarm(&self) {
        self.round.wake();
    }
}
