//! How the state of a simulation is compared and moved: one visit of every value on which the future depends.
//!
//! Every type with state has a method `visit` that takes itself apart without `..`, so that a new field does not
//! compile until somebody has decided what it is. A field that is passed to `same` without need only prevents skips;
//! the other methods need a reason.

use crate::tcp::Estimates;

/// What counts as progress between two states that are otherwise the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// Steps of training.
    Step,
    /// Steps of one operation, all of which are alike.
    Round,
}

/// The part that a timer has in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pending {
    /// It repeats itself.
    Part,
    /// It follows from other parts.
    Follows,
    /// It comes from outside: nothing is skipped beyond it.
    Beyond,
}

/// How far a job is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    pub step: u32,
    /// Step of the running operation.
    pub round: u32,
}

/// What happens to the state on a visit.
pub(crate) trait Visitor {
    /// A value that must be the same.
    fn same(&mut self, value: u64);

    /// A moment in picoseconds, compared relative to now; `u64::MAX` means never.
    fn time(&mut self, at_ps: &mut u64);

    /// A moment on which nothing depends that is not compared elsewhere: it moves with the others.
    fn moves(&mut self, at_ps: &mut u64);

    /// A counter that only results read: it grows by the same amount in every repetition.
    fn count(&mut self, counter: &mut u64);

    /// What the sender of a flow estimates: `Sender::may_repeat` decides whether it repeats itself.
    fn estimates(&mut self, estimates: Estimates);

    /// As `count`, for a counter of 32 bits.
    fn count_u32(&mut self, counter: &mut u32) {
        let mut wide = u64::from(*counter);
        self.count(&mut wide);
        *counter = wide as u32;
    }

    /// Two values of 32 bits that must be the same.
    fn both(&mut self, a: u32, b: u32) {
        self.same(u64::from(a) << 32 | u64::from(b));
    }
}

/// Writes the state down.
pub(crate) struct Recorder {
    now_ps: u64,
    /// The state, with moments relative to `now_ps`. Equal records are equal states: every list is preceded by its
    /// length, and every value has its place.
    pub words: Vec<u64>,
    pub counters: Vec<u64>,
    /// By flow.
    pub estimates: Vec<Estimates>,
}

impl Recorder {
    /// A record at `now_ps`.
    pub(crate) fn new(now_ps: u64) -> Recorder {
        Recorder { now_ps, words: Vec::new(), counters: Vec::new(), estimates: Vec::new() }
    }
}

impl Visitor for Recorder {
    #[inline]
    fn same(&mut self, value: u64) {
        self.words.push(value);
    }

    #[inline]
    fn time(&mut self, at_ps: &mut u64) {
        // Twice the distance, which may be negative; an odd value means never.
        let relative = match *at_ps {
            u64::MAX => 1,
            at_ps => at_ps.wrapping_sub(self.now_ps) << 1,
        };
        self.words.push(relative);
    }

    #[inline]
    fn moves(&mut self, _: &mut u64) {}

    #[inline]
    fn count(&mut self, counter: &mut u64) {
        self.counters.push(*counter);
    }

    fn estimates(&mut self, estimates: Estimates) {
        self.estimates.push(estimates);
    }
}

/// Moves the state by a time, and lets counters grow.
pub(crate) struct Mover<'a> {
    pub by_ps: u64,
    /// What each counter grows by, in the order of the visit.
    pub growth: std::slice::Iter<'a, u64>,
}

impl Visitor for Mover<'_> {
    fn same(&mut self, _: u64) {}

    fn time(&mut self, at_ps: &mut u64) {
        if *at_ps != u64::MAX {
            *at_ps += self.by_ps;
        }
    }

    fn moves(&mut self, at_ps: &mut u64) {
        self.time(at_ps);
    }

    fn count(&mut self, counter: &mut u64) {
        *counter += self.growth.next().expect("a visit has as many counters as the one before");
    }

    fn estimates(&mut self, _: Estimates) {}
}
