//! Competition of waiting ranks with other programs for the cores of a host.
//!
//! A waiting rank loses its core to such a program for a slice of the scheduler, several milliseconds, in which the
//! others wait for it. It detects that by the clock, and then asks the scheduler for short slices: it gets no more time
//! than before, but runs soon after it is woken.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Detects whether other programs compete for the cores; one thread's observation.
#[derive(Default)]
pub(crate) struct ExternalLoad {
    /// After a recent loss of the core: until this time the thread waits as one with short slices.
    until: Cell<Option<Instant>>,
}

impl ExternalLoad {
    /// Records the time between two polls.
    pub(crate) fn between_looks(&self, from: Instant, to: Instant) {
        if to - from > LOST && take_short_turns() {
            self.until.set(Some(to + WARY));
        }
    }

    /// How long a waiting thread stays awake.
    pub(crate) fn awake(&self, now: Instant, oversubscribed: bool) -> Duration {
        match (oversubscribed, self.until.get().is_some_and(|until| now < until)) {
            (true, _) => OVERSUBSCRIBED_AWAKE,
            (false, true) => WARY_AWAKE,
            (false, false) => AWAKE,
        }
    }
}

/// Asks the scheduler for slices of [`TURN_NS`], so that this thread runs soon after it is woken. Returns whether it
/// succeeded: Linux supports it from 6.12 on, for threads without a priority of their own. It remains in effect.
#[cold]
fn take_short_turns() -> bool {
    thread_local! {
        static HAS_THEM: bool = ask_for_short_turns();
    }
    HAS_THEM.with(|&has_them| has_them)
}

fn ask_for_short_turns() -> bool {
    let len = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the calls concern this thread; they fill and read a plain struct of the given length, which is valid when
    // zeroed.
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

/// The processor that runs this thread now.
#[inline(always)]
pub(crate) fn own_cpu() -> u32 {
    // SAFETY: takes no arguments and accesses no memory.
    unsafe { libc::sched_getcpu() as u32 }
}

/// If every rank has a core: longer than a scheduler's slice, so that a rank that lost its core to another program
/// finds this one awake.
const AWAKE: Duration = Duration::from_millis(4);
/// With competing programs and short slices: a woken thread runs at once.
const WARY_AWAKE: Duration = Duration::from_micros(100);
/// Polls are some microseconds apart: a longer gap means that another program had the core.
const LOST: Duration = Duration::from_micros(500);
/// How long other programs are assumed to stay.
const WARY: Duration = Duration::from_secs(1);
/// The shortest slice that Linux grants.
const TURN_NS: u64 = 100_000;
/// With fewer cores than ranks: the core goes to another thread, most likely the awaited rank. Two system calls, to
/// sleep and to be woken, cost more than that.
const OVERSUBSCRIBED_AWAKE: Duration = Duration::from_micros(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_lost_its_core_sleeps_sooner_for_a_while() {
        // Each test has its own thread, whose scheduling may change.
        let (load, now) = (ExternalLoad::default(), Instant::now());
        let awake = |now| load.awake(now, false);
        load.between_looks(now, now + LOST / 2);
        assert_eq!(awake(now), AWAKE, "nobody came between");
        load.between_looks(now, now + 2 * LOST);
        let wary = if take_short_turns() { WARY_AWAKE } else { AWAKE };
        assert_eq!(awake(now + WARY), wary);
        assert_eq!(awake(now + 2 * LOST + WARY), AWAKE);
        assert_eq!(load.awake(now, true), OVERSUBSCRIBED_AWAKE);
    }
}
