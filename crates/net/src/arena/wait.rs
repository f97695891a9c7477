//! Waiting for a round: look, then let others run, then sleep.
//!
//! Where other programs want the same cores, see [`crate::external_load`].

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::mark::Flag;
use crate::external_load::{ExternalLoad, own_cpu};

/// When a wait is to end without what it waits for.
pub struct Waiting<'a> {
    /// At the latest.
    pub deadline: Instant,
    /// Whether there is no sense in waiting for that rank any more; asked now and then.
    pub stopped: &'a dyn Fn(usize) -> bool,
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Deadline,
    Stopped,
}

/// Whom and what a rank waits for.
pub(super) struct Awaited<'a> {
    pub(super) rank: usize,
    pub(super) round: u32,
    pub(super) flag: &'a Flag<AtomicU32>,
    /// The processor on which the rank was when it published last.
    pub(super) cpu: &'a AtomicU32,
    /// There are fewer cores than ranks.
    pub(super) oversubscribed: bool,
    pub(super) load: &'a ExternalLoad,
}

impl Awaited<'_> {
    /// Whether the round is there while we look, without giving the core away: for as long as a rank of the same pace
    /// takes, or, with fewer cores than ranks, hardly at all.
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

    /// Whether looking again costs the time of the one that is waited for: there are fewer cores than ranks, or the
    /// scheduler has both of us on one.
    fn takes_turns(&self) -> bool {
        self.oversubscribed || self.cpu.load(Ordering::Relaxed) == own_cpu()
    }

    /// Where ranks take turns: whether the round is there when others have run.
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
        // Where other programs keep the core, the first is not the only one that takes long.
        let began = Instant::now();
        let appears = (1..CROWDED_YIELDS).any(|_| appears_after_one());
        self.load.between_looks(began, Instant::now());
        appears
    }

    #[inline(always)]
    fn is_here(&self) -> bool {
        self.flag.round() == self.round
    }

    /// Waits until the flag shows the round.
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
                // What a rank published before it left is there.
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

    /// Looks for some microseconds, and gives the core to the rank that is waited for, if that wants it; whether the
    /// round is there.
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

/// The answer of a rank that computes at the same pace is here within them, some microseconds.
const LOOKS: u32 = 200;
/// Without a pause between them, which may be as long as a line of memory takes from one core to another. With more
/// ranks than cores the one that is waited for is most likely not running, and there are no others.
const FIRST_LOOKS: u32 = 20;
/// As long as a line of memory takes between any two cores: where both are on one core, it is time to say so.
const TURN_LOOKS: u32 = 16;
/// Some twenty microseconds.
const PAUSES: u32 = 400;
/// Between two looks at the clock.
const CROWDED_YIELDS: u32 = 8;
/// A process that dies wakes nobody: whether all is well is asked so often.
const SLEEP: Duration = Duration::from_millis(20);
