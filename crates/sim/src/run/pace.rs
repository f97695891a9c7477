//! Pacing of progress checks, in which a run flushes tables, reports progress and may be ended.

use std::ops::Range;
use std::time::{Duration, Instant};

/// Slices of simulated time, adapted to take a short real time each. Results do not depend on them.
pub(super) struct Pace {
    /// Target real time of a slice; slices grow or shrink to reach it.
    moment: Range<Duration>,
    slice_ps: u64,
    looked: Instant,
}

/// The shortest slice, and the first: a microsecond.
const LEAST_PS: u64 = 1_000_000;

impl Default for Pace {
    /// Rare enough to cost nothing, frequent enough for a person.
    fn default() -> Pace {
        Pace::new(Duration::from_millis(20)..Duration::from_millis(200))
    }
}

impl Pace {
    pub(super) fn new(moment: Range<Duration>) -> Pace {
        Pace { moment, slice_ps: LEAST_PS / 2, looked: Instant::now() }
    }

    /// Records a check at `now_ps`; returns when the next one is due, in picoseconds.
    pub(super) fn look(&mut self, now_ps: u64) -> u64 {
        let took = std::mem::replace(&mut self.looked, Instant::now()).elapsed();
        if took < self.moment.start {
            self.slice_ps = self.slice_ps.saturating_mul(2);
        } else if took > self.moment.end {
            self.slice_ps /= 2;
        }
        self.slice_ps = self.slice_ps.max(LEAST_PS);
        now_ps.saturating_add(self.slice_ps)
    }

    /// Whether the target time has passed since the last check; if so, this counts as one.
    pub(super) fn is_due(&mut self) -> bool {
        let due = self.looked.elapsed() > self.moment.end;
        if due {
            self.looked = Instant::now();
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_adapt_to_real_time() {
        let mut quick = Pace::new(Duration::MAX..Duration::MAX);
        assert_eq!([0; 3].map(|now| quick.look(now)), [1, 2, 4].map(|us| us * LEAST_PS));
        let mut slow = Pace { slice_ps: 8 * LEAST_PS, ..Pace::new(Duration::ZERO..Duration::ZERO) };
        assert_eq!([7; 4].map(|now| slow.look(now) - 7), [4, 2, 1, 1].map(|us| us * LEAST_PS));
    }
}
