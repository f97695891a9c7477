//! How much a search may do, and who watches it.

use std::cell::Cell;
use std::fmt;
use std::time::{Duration, Instant};

/// State of a search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Time since the search began.
    pub elapsed: Duration,
    /// Rate of the best trees so far over the upper bound, from 0 to 1.
    pub reached: f64,
}

/// Limits of a search, which ends with the best trees so far when it reaches one of them.
///
/// Work is counted in units of about a nanosecond on one core of 2020; the same search does the same work on every
/// machine. Time is read from the clock.
pub struct Budget<'a> {
    most: u64,
    left: Cell<u64>,
    begun: Instant,
    until: Option<Duration>,
    watch: Option<&'a dyn Fn(Progress) -> bool>,
    /// Work since the clock was read.
    unread: Cell<u64>,
    shown: Cell<Duration>,
    reached: Cell<f64>,
    over: Cell<bool>,
}

impl<'a> Budget<'a> {
    /// The work that planning for so many GPUs may take by default: 1.5 s up to 16 GPUs, then more by their square.
    pub fn standard(gpus: usize) -> Budget<'a> {
        let times = (gpus.max(SMALL) as u64).pow(2) / (SMALL as u64).pow(2);
        Budget::of_work(SMALL_WORK.saturating_mul(times))
    }

    /// So many units of work.
    pub fn of_work(most: u64) -> Budget<'a> {
        Budget {
            most,
            left: Cell::new(most),
            begun: Instant::now(),
            until: None,
            watch: None,
            unread: Cell::new(0),
            shown: Cell::new(Duration::ZERO),
            reached: Cell::new(0.0),
            over: Cell::new(false),
        }
    }

    /// Any amount of work within a time.
    pub fn of_time(limit: Duration) -> Budget<'a> {
        Budget { until: Some(limit), ..Budget::of_work(u64::MAX) }
    }

    /// The same limits; `watch` is called about once a second, and ends the search by `false`.
    #[must_use]
    pub fn watched(self, watch: &'a dyn Fn(Progress) -> bool) -> Budget<'a> {
        Budget { watch: Some(watch), ..self }
    }

    /// Work done so far.
    pub fn spent(&self) -> u64 {
        self.most - self.left.get()
    }

    /// Whether a limit was reached.
    pub fn is_over(&self) -> bool {
        self.over.get()
    }

    /// Whether time is the limit, and not work.
    pub(super) fn is_timed(&self) -> bool {
        self.until.is_some()
    }

    /// At most so much of what is left. What is spent of it must be spent here as well.
    pub(super) fn part(&self, most: u64) -> Budget<'a> {
        let most = most.min(self.left.get());
        Budget {
            most,
            left: Cell::new(most),
            unread: Cell::new(0),
            shown: self.shown.clone(),
            reached: self.reached.clone(),
            over: Cell::new(self.is_over()),
            ..*self
        }
    }

    /// Counts work that was done, or is about to be done.
    pub(super) fn spend(&self, work: usize) {
        let work = work as u64;
        let left = self.left.get().saturating_sub(work);
        self.left.set(left);
        if left == 0 {
            self.over.set(true);
        }
        self.unread.set(self.unread.get().saturating_add(work));
        if self.unread.get() >= READ_AFTER && (self.until.is_some() || self.watch.is_some()) {
            self.unread.set(0);
            self.read_clock();
        }
    }

    /// Records what the best trees so far reach of the bound.
    pub(super) fn note(&self, reached: f64) {
        self.reached.set(self.reached.get().max(reached));
    }

    fn read_clock(&self) {
        let elapsed = self.begun.elapsed();
        if self.until.is_some_and(|until| elapsed >= until) {
            self.over.set(true);
        }
        if let Some(watch) = self.watch
            && elapsed >= self.shown.get() + SHOW_EVERY
        {
            self.shown.set(elapsed);
            if !watch(Progress { elapsed, reached: self.reached.get() }) {
                self.over.set(true);
            }
        }
    }
}

impl fmt::Debug for Budget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Budget");
        text.field("left", &self.left.get()).field("until", &self.until).finish_non_exhaustive()
    }
}

/// Up to so many GPUs the standard work is the same.
const SMALL: usize = 16;
const SMALL_WORK: u64 = 1_500_000_000;
/// Work between two looks at the clock.
const READ_AFTER: u64 = 4_000_000;
const SHOW_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_ends_a_search() {
        let budget = Budget::of_work(10);
        budget.spend(9);
        assert!(!budget.is_over());
        budget.spend(9);
        assert!(budget.is_over());
        assert_eq!(budget.spent(), 10);
    }

    #[test]
    fn time_and_the_watcher_end_a_search() {
        let late = Budget::of_time(Duration::ZERO);
        late.spend(READ_AFTER as usize);
        assert!(late.is_over());
        let seen = Cell::new(0.0);
        let stop = |progress: Progress| {
            seen.set(progress.reached);
            false
        };
        let watched = Budget::of_work(u64::MAX).watched(&stop);
        watched.note(0.5);
        watched.note(0.25);
        while !watched.is_over() {
            watched.spend(READ_AFTER as usize);
        }
        assert_eq!(seen.get(), 0.5);
    }
}
