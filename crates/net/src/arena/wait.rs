//! Waiting for a round: look, then let others run, then sleep.
//!
//! Where a stranger wants the same cores, a rank that waits loses its core for a slice of the scheduler's, milliseconds, in
//! which the others wait for it. It sees that by the clock, and asks the scheduler for short turns then: it gets no more time
//! than before, but soon after it was woken.

#![allow(unsafe_code)]

use std::cell::Cell;
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
    /// There are fewer cores than ranks.
    pub(super) crowded: bool,
    pub(super) strangers: &'a Strangers,
}

/// Whether others want the cores.
#[derive(Default)]
pub(crate) struct Strangers {
    /// We lost the core lately, and wait as long as this as one that has short turns.
    until: Cell<Option<Instant>>,
}

impl Strangers {
    /// It took so long from one look to the next.
    pub(crate) fn between_looks(&self, from: Instant, to: Instant) {
        if to - from > LOST && take_short_turns() {
            self.until.set(Some(to + WARY));
        }
    }

    /// For how long who waits keeps awake.
    pub(crate) fn awake(&self, now: Instant, crowded: bool) -> Duration {
        match (crowded, self.until.get().is_some_and(|until| now < until)) {
            (true, _) => CROWDED_AWAKE,
            (false, true) => WARY_AWAKE,
            (false, false) => AWAKE,
        }
    }
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

    /// Whether looking again costs the time of the one that is waited for: there are fewer cores than ranks, or the scheduler
    /// has both of us on one.
    fn takes_turns(&self) -> bool {
        self.crowded || self.cpu.load(Ordering::Relaxed) == own_cpu()
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
        // Where strangers keep the core, the first is not the only one that takes long.
        let began = Instant::now();
        let appears = (1..CROWDED_YIELDS).any(|_| appears_after_one());
        self.strangers.between_looks(began, Instant::now());
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
            if !self.crowded {
                self.strangers.between_looks(last, now);
            }
            last = now;
            if (waiting.stopped)(self.rank) {
                // What a rank published before it left is there.
                return if self.is_here() { Ok(()) } else { Err(Ended::Stopped) };
            }
            if now >= waiting.deadline {
                return Err(Ended::Deadline);
            }
            if now - began > self.strangers.awake(now, self.crowded) {
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

/// Asks the scheduler to let this thread run soon after it is woken, and for a short time then: a slice of [`TURN_NS`]. Whether
/// it has that: Linux knows it from 6.12 on, for threads without a priority of their own. It stays so.
#[cold]
fn take_short_turns() -> bool {
    thread_local! {
        static HAS_THEM: bool = ask_for_short_turns();
    }
    HAS_THEM.with(|&has_them| has_them)
}

fn ask_for_short_turns() -> bool {
    let len = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the calls are about this thread; they fill and read a plain struct, whose length they are told, and which is
    // valid when zeroed.
    unsafe {
        let mut turns: libc::sched_attr = std::mem::zeroed();
        let asked = libc::syscall(libc::SYS_sched_getattr, 0, &raw mut turns, len, 0);
        if asked != 0 || turns.sched_policy != libc::SCHED_OTHER as u32 {
            return false;
        }
        turns.size = len;
        turns.sched_runtime = TURN_NS;
        libc::syscall(libc::SYS_sched_setattr, 0, &raw const turns, 0);
        libc::syscall(libc::SYS_sched_getattr, 0, &raw mut turns, len, 0);
        turns.sched_runtime == TURN_NS
    }
}

/// The processor that runs this thread at this moment; the next it may be another.
#[inline(always)]
pub(crate) fn own_cpu() -> u32 {
    // SAFETY: takes nothing and touches nothing.
    unsafe { libc::sched_getcpu() as u32 }
}

/// The answer of a rank that computes at the same pace is here within them, some microseconds.
const LOOKS: u32 = 200;
/// Without a pause between them, which may be as long as a line of memory takes from one core to another. With more ranks
/// than cores the one that is waited for is most likely not running, and there are no others.
const FIRST_LOOKS: u32 = 20;
/// As long as a line of memory takes between any two cores: where both are on one core, it is time to say so.
const TURN_LOOKS: u32 = 16;
/// Some twenty microseconds.
const PAUSES: u32 = 400;
/// Between two looks at the clock.
const CROWDED_YIELDS: u32 = 8;
/// With a core for every rank: longer than a scheduler's slice. A rank that lost its core to a stranger finds us where we
/// were.
const AWAKE: Duration = Duration::from_millis(4);
/// Beside strangers, with short turns: who is woken runs at once.
const WARY_AWAKE: Duration = Duration::from_micros(100);
/// Two looks are some microseconds apart: in between, somebody else had the core.
const LOST: Duration = Duration::from_micros(500);
/// Strangers stay for a while.
const WARY: Duration = Duration::from_secs(1);
/// The shortest that Linux grants.
const TURN_NS: u64 = 100_000;
/// With fewer: the core goes to whoever asks for it, most likely the rank that is waited for. A system call to sleep and
/// one to be woken cost more than that.
const CROWDED_AWAKE: Duration = Duration::from_micros(200);
/// A process that dies wakes nobody: whether all is well is asked so often.
const SLEEP: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_lost_the_core_sleeps_sooner_for_a_while() {
        // Each test has a thread of its own, whose turns may change.
        let (strangers, now) = (Strangers::default(), Instant::now());
        let awake = |now| strangers.awake(now, false);
        strangers.between_looks(now, now + LOST / 2);
        assert_eq!(awake(now), AWAKE, "nobody came between");
        strangers.between_looks(now, now + 2 * LOST);
        let wary = if take_short_turns() { WARY_AWAKE } else { AWAKE };
        assert_eq!(awake(now + WARY), wary);
        assert_eq!(awake(now + 2 * LOST + WARY), AWAKE);
        assert_eq!(strangers.awake(now, true), CROWDED_AWAKE);
    }
}
