//! Waiting for a round: look, then let others run, then sleep.

use std::sync::atomic::AtomicU32;
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

/// Waits until the `flag` of a rank shows `round`. `crowded`: there are fewer cores than ranks, so looking again costs the time of
/// the one that is waited for.
#[inline(always)]
pub(super) fn until(
    flag: &Flag<AtomicU32>,
    (rank, round): (usize, u32),
    crowded: bool,
    waiting: &Waiting<'_>,
) -> Result<(), Ended> {
    let looks = if crowded { CROWDED_LOOKS } else { LOOKS };
    for _ in 0..=looks {
        if flag.round() == round {
            return Ok(());
        }
    }
    patiently(flag, (rank, round), crowded, waiting)
}

#[cold]
fn patiently(
    flag: &Flag<AtomicU32>,
    (rank, round): (usize, u32),
    crowded: bool,
    waiting: &Waiting<'_>,
) -> Result<(), Ended> {
    let began = Instant::now();
    loop {
        let seen = look(flag, round, crowded);
        if seen == round {
            return Ok(());
        }
        let now = Instant::now();
        if (waiting.stopped)(rank) {
            // What a rank published before it left is there.
            return if flag.round() == round { Ok(()) } else { Err(Ended::Stopped) };
        }
        if now >= waiting.deadline {
            return Err(Ended::Deadline);
        }
        if now - began > if crowded { CROWDED_AWAKE } else { AWAKE } {
            flag.sleep(seen, SLEEP.min(waiting.deadline - now));
        }
    }
}

/// Looks for some microseconds, then lets others run; the round that was seen last.
fn look(flag: &Flag<AtomicU32>, round: u32, crowded: bool) -> u32 {
    for _ in 0..if crowded { 0 } else { PAUSES } {
        if flag.round() == round {
            return round;
        }
        std::hint::spin_loop();
    }
    for _ in 0..if crowded { YIELDS } else { 1 } {
        std::thread::yield_now();
        if flag.round() == round {
            return round;
        }
    }
    flag.round()
}

/// Looks without a pause: the answer of a rank that computes at the same pace is here within them.
const LOOKS: u32 = 200;
/// With more ranks than cores the one that is waited for is most likely not running.
const CROWDED_LOOKS: u32 = 20;
/// Looks with the processor's pause between: some twenty microseconds, then the rank that is waited for may need our core
/// after all.
const PAUSES: u32 = 400;
/// Between two looks at the clock.
const YIELDS: u32 = 8;
/// With a core for every rank: longer than a scheduler's slice. A rank that lost its core to a stranger finds us where we
/// were.
const AWAKE: Duration = Duration::from_millis(4);
/// With fewer: the core goes to whoever asks for it, most likely the rank that is waited for. A system call to sleep and
/// one to be woken cost more than that.
const CROWDED_AWAKE: Duration = Duration::from_micros(200);
/// A process that dies wakes nobody: whether all is well is asked so often.
const SLEEP: Duration = Duration::from_millis(20);
