//! How often a run stops for whoever follows it: to flush tables, tell progress, and hear that it shall end.

use std::ops::Range;
use std::time::{Duration, Instant};

/// Slices of simulated time, each as long as takes a moment of real time. Nothing in the results depends on them.
pub(super) struct Pace {
    /// Between two looks; outside of it slices grow or shrink.
    moment: Range<Duration>,
    slice_ps: u64,
    looked: Instant,
}

/// The shortest slice, and the first: a microsecond.
const LEAST_PS: u64 = 1_000_000;

impl Default for Pace {
    /// Seldom enough to cost nothing, often enough for a person.
    fn default() -> Pace {
        Pace::new(Duration::from_millis(20)..Duration::from_millis(200))
    }
}

impl Pace {
    pub(super) fn new(moment: Range<Duration>) -> Pace {
        Pace { moment, slice_ps: LEAST_PS / 2, looked: Instant::now() }
    }

    /// Somebody has looked at `now_ps`: when the next look shall be, in picoseconds.
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

    /// Whether the last look was a moment ago; if so, this is one.
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
    fn slices_grow_while_they_are_quick_and_shrink_while_they_are_slow() {
        let mut quick = Pace::new(Duration::MAX..Duration::MAX);
        assert_eq!([0; 3].map(|now| quick.look(now)), [1, 2, 4].map(|us| us * LEAST_PS));
        let mut slow = Pace { slice_ps: 8 * LEAST_PS, ..Pace::new(Duration::ZERO..Duration::ZERO) };
        assert_eq!([7; 4].map(|now| slow.look(now) - 7), [4, 2, 1, 1].map(|us| us * LEAST_PS));
    }
}
