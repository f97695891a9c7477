//! The flag of a slot: the round that the slot holds, and sleepers that wait for another.
//!
//! Publishing has two steps, so that the publisher need not wait for the cache line between them: [`Flag::hand_over`]
//! is a plain store, and [`Flag::wake`] follows when the line has most likely arrived.
//!
//! Generic over the word, so that a model checker can run the same steps (`tests.rs`).

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::futex::Futex;

/// The round that a slot holds. One process publishes, the others wait.
#[repr(C)]
pub(super) struct Flag<W> {
    round: W,
    sleepers: W,
}

impl<W: Futex> Flag<W> {
    #[cfg(test)]
    pub(super) fn new(round: W, sleepers: W) -> Flag<W> {
        Flag { round, sleepers }
    }

    /// The round that was published last; everything written before is visible.
    #[inline(always)]
    pub(super) fn round(&self) -> u32 {
        self.round.load(Ordering::Acquire)
    }

    /// Publishes what was written to the slot without waking sleepers: [`Flag::wake`] must follow.
    #[inline(always)]
    pub(super) fn hand_over(&self, round: u32) {
        self.round.store(round, Ordering::Release);
    }

    /// Wakes those who slept before the last [`Flag::hand_over`].
    #[inline(always)]
    pub(super) fn wake(&self) {
        // Pairs with the fence in `sleep`: either this side sees the sleeper, or the sleeper sees the round.
        W::fence();
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            self.round.wake();
        }
    }

    /// Sleeps until the round differs from `seen`, at most for `patience`.
    pub(super) fn sleep(&self, seen: u32, patience: Duration) {
        self.sleepers.add(1, Ordering::Relaxed);
        W::fence();
        if self.round.load(Ordering::Relaxed) == seen {
            self.round.wait(seen, patience);
        }
        self.sleepers.add(u32::MAX, Ordering::Relaxed);
    }

    /// Wakes sleepers although nothing was published.
    pub(super) fn alarm(&self) {
        self.round.wake();
    }
}
