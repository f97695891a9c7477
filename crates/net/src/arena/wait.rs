//! Waiting for a round: look, then let others run, then sleep.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::mark::Flag;

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
    /// There are fewer cores than ranks: looking again costs the time of the one that is waited for.
    pub(super) crowded: bool,
}

impl Awaited<'_> {
    /// Whether the round is there while we look, without giving the core away: for as long as a rank of the same pace takes,
    /// or, with fewer cores than ranks, hardly at all.
    #[inline(always)]
    pub(super) fn appears(&self) -> bool {
        if (0..FIRST_LOOKS).any(|_| self.is_here()) {
            return true;
        }
        !self.crowded && self.appears_later()
    }

    #[inline(never)]
    fn appears_later(&self) -> bool {
        for _ in 0..LOOKS {
            if self.is_here() {
                return true;
            }
            std::hint::spin_loop();
        }
        self.is_here()
    }

    /// With fewer cores than ranks: whether the round is there when others have run.
    #[cold]
    pub(super) fn appears_after_others(&self) -> bool {
        self.crowded
            && (0..CROWDED_YIELDS).any(|_| {
                std::thread::yield_now();
                self.is_here()
            })
    }

    #[inline(always)]
    fn is_here(&self) -> bool {
        self.flag.round() == self.round
    }

    /// Waits until the flag shows the round.
    #[cold]
    pub(super) fn wait(&self, waiting: &Waiting<'_>) -> Result<(), Ended> {
        let began = Instant::now();
        loop {
            if self.look() {
                return Ok(());
            }
            let now = Instant::now();
            if (waiting.stopped)(self.rank) {
                // What a rank published before it left is there.
                return if self.is_here() { Ok(()) } else { Err(Ended::Stopped) };
            }
            if now >= waiting.deadline {
                return Err(Ended::Deadline);
            }
            if now - began > if self.crowded { CROWDED_AWAKE } else { AWAKE } {
                let seen = self.flag.round();
                if seen != self.round {
                    self.flag.sleep(seen, SLEEP.min(waiting.deadline - now));
                }
            }
        }
    }

    /// Looks for some microseconds, and gives the core to the rank that is waited for, if that wants it; whether the
    /// round is there.
    fn look(&self) -> bool {
        if self.crowded {
            return self.appears_after_others();
        }
        for _ in 0..PAUSES {
            if self.is_here() {
                return true;
            }
            std::hint::spin_loop();
        }
        if self.cpu.load(Ordering::Relaxed) == own_cpu() {
            std::thread::yield_now();
        }
        self.is_here()
    }
}

/// The processor that runs this thread at this moment; the next it may be another.
#[inline(always)]
pub(super) fn own_cpu() -> u32 {
    // SAFETY: takes nothing and touches nothing.
    unsafe { libc::sched_getcpu() as u32 }
}

/// The answer of a rank that computes at the same pace is here within them, some microseconds.
const LOOKS: u32 = 200;
/// Without a pause between them, which may be as long as a line of memory takes from one core to another. With more ranks
/// than cores the one that is waited for is most likely not running, and there are no others.
const FIRST_LOOKS: u32 = 20;
/// Some twenty microseconds.
const PAUSES: u32 = 400;
/// Between two looks at the clock.
const CROWDED_YIELDS: u32 = 8;
/// With a core for every rank: longer than a scheduler's slice. A rank that lost its core to a stranger finds us where we
/// were.
const AWAKE: Duration = Duration::from_millis(4);
/// With fewer: the core goes to whoever asks for it, most likely the rank that is waited for. A system call to sleep and
/// one to be woken cost more than that.
const CROWDED_AWAKE: Duration = Duration::from_micros(200);
/// A process that dies wakes nobody: whether all is well is asked so often.
const SLEEP: Duration = Duration::from_millis(20);
