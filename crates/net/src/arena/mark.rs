//! The flag in front of a slot: which round it holds, and who sleeps until it holds another.
//!
//! Publishing is two steps, so that who publishes need not wait for the line of memory between them:
//! [`Flag::hand_over`] is a plain store, and [`Flag::wake`] comes when the line is there most likely.
//!
//! Generic over the word, so that a model checker can run the very same steps (`tests.rs`).

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::futex::Futex;

/// Which round a slot holds. One process publishes, the others wait.
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

    /// The round that was published last; what was written before it can be read.
    #[inline(always)]
    pub(super) fn round(&self) -> u32 {
        self.round.load(Ordering::Acquire)
    }

    /// Hands over what was written to the slot. Who sleeps is not woken: [`Flag::wake`] must follow.
    #[inline(always)]
    pub(super) fn hand_over(&self, round: u32) {
        self.round.store(round, Ordering::Release);
    }

    /// Wakes who slept before the round that was handed over last.
    #[inline(always)]
    pub(super) fn wake(&self) {
        // With the fence in `sleep`: either we see the sleeper, or it sees the round.
        W::fence();
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            self.round.wake();
        }
    }

    /// Sleeps until the round is not `seen` any more, or a while.
    pub(super) fn sleep(&self, seen: u32, patience: Duration) {
        self.sleepers.add(1, Ordering::Relaxed);
        W::fence();
        if self.round.load(Ordering::Relaxed) == seen {
            self.round.wait(seen, patience);
        }
        self.sleepers.add(u32::MAX, Ordering::Relaxed);
    }

    /// Wakes who sleeps, although nothing was published.
    pub(super) fn alarm(&self) {
        self.round.wake();
    }
}
