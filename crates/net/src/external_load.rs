//! What ranks that wait for each other on one host do about programs that want the same cores.
//!
//! A rank that waits loses its core to such a program for a slice of the scheduler's, milliseconds, in which the others
//! wait for it. It sees that by the clock, and asks the scheduler for short turns then: it gets no more time than
//! before, but soon after it was woken.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Whether other programs want the cores; one thread's observation.
#[derive(Default)]
pub(crate) struct ExternalLoad {
    /// We lost the core lately, and wait as long as this as one that has short turns.
    until: Cell<Option<Instant>>,
}

impl ExternalLoad {
    /// It took so long from one look to the next.
    pub(crate) fn between_looks(&self, from: Instant, to: Instant) {
        if to - from > LOST && take_short_turns() {
            self.until.set(Some(to + WARY));
        }
    }

    /// For how long a thread that waits keeps awake.
    pub(crate) fn awake(&self, now: Instant, oversubscribed: bool) -> Duration {
        match (oversubscribed, self.until.get().is_some_and(|until| now < until)) {
            (true, _) => OVERSUBSCRIBED_AWAKE,
            (false, true) => WARY_AWAKE,
            (false, false) => AWAKE,
        }
    }
}

/// Asks the scheduler to let this thread run soon after it is woken, and for a short time then: a slice of [`TURN_NS`].
/// Whether it has that: Linux knows it from 6.12 on, for threads without a priority of their own. It stays so.
#[cold]
fn take_short_turns() -> bool {
    thread_local! {
        static HAS_THEM: bool = ask_for_short_turns();
    }
    HAS_THEM.with(|&has_them| has_them)
}

fn ask_for_short_turns() -> bool {
    let len = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the calls are about this thread; they fill and read a plain struct, whose length they are told, and which
    // is valid when zeroed.
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

/// With a core for every rank: longer than a scheduler's slice. A rank that lost its core to another program finds us
/// where we were.
const AWAKE: Duration = Duration::from_millis(4);
/// Beside other programs, with short turns: a thread that is woken runs at once.
const WARY_AWAKE: Duration = Duration::from_micros(100);
/// Two looks are some microseconds apart: in between, somebody else had the core.
const LOST: Duration = Duration::from_micros(500);
/// Other programs stay for a while.
const WARY: Duration = Duration::from_secs(1);
/// The shortest that Linux grants.
const TURN_NS: u64 = 100_000;
/// With fewer: the core goes to whoever asks for it, most likely the rank that is waited for. A system call to sleep
/// and one to be woken cost more than that.
const OVERSUBSCRIBED_AWAKE: Duration = Duration::from_micros(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_lost_its_core_sleeps_sooner_for_a_while() {
        // Each test has a thread of its own, whose turns may change.
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
