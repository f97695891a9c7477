//! Waiting for a round: poll, then yield, then sleep.
//!
//! [`crate::external_load`] handles competition with other programs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::mark::Flag;
use crate::external_load::{ExternalLoad, own_cpu};

/// When a wait ends without success.
pub struct Waiting<'a> {
    /// Deadline.
    pub deadline: Instant,
    /// Whether to stop waiting for that rank; polled from time to time.
    pub stopped: &'a dyn Fn(usize) -> bool,
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Deadline,
    Stopped,
}

/// The flag that a rank waits for.
pub(super) struct Awaited<'a> {
    pub(super) rank: usize,
    pub(super) round: u32,
    pub(super) flag: &'a Flag<AtomicU32>,
    /// The processor of the awaited rank when it last published.
    pub(super) cpu: &'a AtomicU32,
    /// Whether there are fewer cores than ranks.
    pub(super) oversubscribed: bool,
    pub(super) load: &'a ExternalLoad,
}

impl Awaited<'_> {
    /// Polls without yielding the core, for as long as a rank of the same pace takes or, with fewer cores than ranks,
    /// hardly at all; returns whether the round has come.
    #[inline(always)]
    pub(super) fn appears(&self) -> bool {
        if (0..FIRST_LOOKS).any(|_| self.is_here()) {
            return true;
        }
        !self.oversubscribed && self.appears_later()
    }

    #[inline(never)]
    fn appears_later(&self) -> bool {
        self.appears_within(TURN_LOOKS) || !self.takes_turns() && self.appears_within(LOOKS)
    }

    fn appears_within(&self, looks: u32) -> bool {
        for _ in 0..looks {
            if self.is_here() {
                return true;
            }
            std::hint::spin_loop();
        }
        self.is_here()
    }

    /// Whether polling costs the time of the awaited rank: there are fewer cores than ranks, or the scheduler has put
    /// both on one.
    fn takes_turns(&self) -> bool {
        self.oversubscribed || self.cpu.load(Ordering::Relaxed) == own_cpu()
    }

    /// If ranks share cores: yields, and returns whether the round has come when others have run.
    #[cold]
    pub(super) fn appears_after_others(&self) -> bool {
        if !self.takes_turns() {
            return false;
        }
        let appears_after_one = || {
            std::thread::yield_now();
            self.is_here()
        };
        if appears_after_one() {
            return true;
        }
        // If other programs keep the core, later yields are slow, too.
        let began = Instant::now();
        let appears = (1..CROWDED_YIELDS).any(|_| appears_after_one());
        self.load.between_looks(began, Instant::now());
        appears
    }

    #[inline(always)]
    fn is_here(&self) -> bool {
        self.flag.round() == self.round
    }

    /// Waits until the flag has the round.
    #[cold]
    pub(super) fn wait(&self, waiting: &Waiting<'_>) -> Result<(), Ended> {
        let began = Instant::now();
        let mut last = began;
        loop {
            if self.look() {
                return Ok(());
            }
            let now = Instant::now();
            if !self.oversubscribed {
                self.load.between_looks(last, now);
            }
            last = now;
            if (waiting.stopped)(self.rank) {
                // A round that a rank published before it left is visible.
                return if self.is_here() { Ok(()) } else { Err(Ended::Stopped) };
            }
            if now >= waiting.deadline {
                return Err(Ended::Deadline);
            }
            if now - began > self.load.awake(now, self.oversubscribed) {
                let seen = self.flag.round();
                if seen != self.round {
                    self.flag.sleep(seen, SLEEP.min(waiting.deadline - now));
                    last = Instant::now();
                }
            }
        }
    }

    /// Polls for some microseconds, then yields the core to the awaited rank if that needs it; returns whether the
    /// round has come.
    fn look(&self) -> bool {
        if self.takes_turns() {
            return self.appears_after_others();
        }
        for _ in 0..PAUSES {
            if self.is_here() {
                return true;
            }
            std::hint::spin_loop();
        }
        self.is_here()
    }
}

/// Number of polls, some microseconds, within which a rank at the same pace answers.
const LOOKS: u32 = 200;
/// Number of polls without a pause, since a pause may be as long as a cache line takes between two cores. With more
/// ranks than cores the awaited rank is probably not running, and there are no further polls.
const FIRST_LOOKS: u32 = 20;
/// Number of polls that take as long as a cache line between any two cores: if both ranks are on one core, yield
/// afterwards.
const TURN_LOOKS: u32 = 16;
/// Number of polls with pauses: some twenty microseconds.
const PAUSES: u32 = 400;
/// Number of yields between two readings of the clock.
const CROWDED_YIELDS: u32 = 8;
/// A process that dies wakes no one: interval of checks whether to stop.
const SLEEP: Duration = Duration::from_millis(20);
