//! How the state of a simulation is compared and moved: one visit of every value on which the future depends.
//!
//! Every type with state has a method `visit` that takes itself apart without `..`, so that a new field does not
//! compile until somebody has decided what it is. A field that is passed to `same` without need only prevents skips;
//! the other methods need a reason.

use std::collections::BTreeMap;

use netsum_proto::Time;
use netsum_proto::congestion::without_marks;
use netsum_proto::visit::{Counted, Origin, Visitor as MachineVisitor};
use netsum_wire::{JobId, TreeId};

use crate::tcp::Estimates;

/// What counts as progress between two states that are otherwise the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// Steps of training.
    Step,
    /// Steps of one operation, all of which are alike.
    Round,
}

impl View {
    /// Visits a time of a job: within a step it stays, and between steps it moves.
    pub(crate) fn time(self, v: &mut impl Visitor, at_ps: &mut u64) {
        match self {
            View::Step => v.time(at_ps),
            View::Round => v.same(*at_ps),
        }
    }
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

/// What happens to the state on a visit; the state of `proto`'s machines is a part of it.
pub(crate) trait Visitor: MachineVisitor {
    /// A moment in picoseconds, compared relative to now; `u64::MAX` means never.
    fn time(&mut self, at_ps: &mut u64);

    /// A moment on which nothing depends that is not compared elsewhere: it moves with the others.
    fn moves(&mut self, at_ps: &mut u64);

    /// What the sender of a flow estimates: `Sender::may_repeat` decides whether it repeats itself.
    fn estimates(&mut self, estimates: Estimates);

    /// A packet in the network whose content has this handle: it is visited with the machines.
    fn content(&mut self, handle: u32);

    /// The contents whose visit is due, in the order of their packets.
    fn contents(&mut self) -> Vec<u32>;

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

/// By job with machines, from where its numbers are counted.
pub(crate) type Origins = BTreeMap<u32, Origin>;

/// The origin of a job that has none.
const NO_ORIGIN: Origin = Origin { vids: [0; 2], trees: 1, operation: 0, within: true };

const FIRST_TREE: TreeId = TreeId(0);

fn origin_of(origins: &Origins, job: JobId) -> Origin {
    origins.get(&job.0).copied().unwrap_or(NO_ORIGIN)
}

/// Writes the state down.
pub(crate) struct Recorder<'a> {
    now_ps: u64,
    origins: &'a Origins,
    origin: Origin,
    tree: TreeId,
    contents: Vec<u32>,
    /// The state, with moments relative to `now_ps`. Equal records are equal states: every list is preceded by its
    /// length, and every value has its place.
    pub words: Vec<u64>,
    pub counters: Vec<u64>,
    /// By flow.
    pub estimates: Vec<Estimates>,
    /// Shares of marks, in the order of the visit.
    pub shares: Vec<f64>,
}

impl<'a> Recorder<'a> {
    /// A record at `now_ps`.
    pub(crate) fn new(now_ps: u64, origins: &'a Origins) -> Recorder<'a> {
        Recorder {
            now_ps,
            origins,
            origin: NO_ORIGIN,
            tree: FIRST_TREE,
            contents: Vec::new(),
            words: Vec::new(),
            counters: Vec::new(),
            estimates: Vec::new(),
            shares: Vec::new(),
        }
    }
}

impl MachineVisitor for Recorder<'_> {
    #[inline]
    fn same(&mut self, value: u64) {
        self.words.push(value);
    }

    #[cold]
    fn unlike(&mut self) {
        self.words.push(self.now_ps);
    }

    #[inline]
    fn moment(&mut self, at: &mut Time) {
        self.words.push(at.0.wrapping_sub(self.now_ps / 1000));
    }

    fn unread(&mut self, _: &mut Time) {}

    #[inline]
    fn count(&mut self, counter: &mut u64) {
        self.counters.push(*counter);
    }

    #[inline]
    fn share(&mut self, share: &mut f64) {
        self.shares.push(*share);
    }

    fn of_job(&mut self, job: JobId) {
        (self.origin, self.tree) = (origin_of(self.origins, job), FIRST_TREE);
        self.words.push(job.0.into());
    }

    #[inline]
    fn of_tree(&mut self, tree: TreeId) {
        self.tree = tree;
    }

    #[inline]
    fn between_operations(&mut self) {
        if self.origin.within {
            self.unlike();
        }
    }

    #[inline]
    fn number(&mut self, number: &mut u64, counted: Counted) {
        self.words.push(number.wrapping_sub(self.origin.of(self.tree, counted)));
    }

    #[inline]
    fn number_u32(&mut self, number: &mut u32, counted: Counted) {
        let origin = self.origin.of(self.tree, counted) as u32;
        self.words.push(number.wrapping_sub(origin).into());
    }
}

impl Visitor for Recorder<'_> {
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
    fn content(&mut self, handle: u32) {
        self.contents.push(handle);
    }

    fn contents(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.contents)
    }

    fn estimates(&mut self, estimates: Estimates) {
        self.estimates.push(estimates);
    }
}

/// Moves the state by a time, and lets counters grow.
pub(crate) struct Mover<'a> {
    pub by_ps: u64,
    /// What each counter grows by, in the order of the visit.
    growth: std::slice::Iter<'a, u64>,
    /// How often each share decays, likewise.
    decays: std::slice::Iter<'a, u64>,
    /// The share that decayed last, how often, and to what.
    decayed: (f64, u64, f64),
    origins: [&'a Origins; 2],
    /// Before and after the move.
    origin: [Origin; 2],
    tree: TreeId,
    contents: Vec<u32>,
}

impl<'a> Mover<'a> {
    /// Moves from the first of the `origins` to the second.
    pub(crate) fn new(
        by_ps: u64,
        (growth, decays): (&'a [u64], &'a [u64]),
        origins: [&'a Origins; 2],
    ) -> Mover<'a> {
        Mover {
            by_ps,
            growth: growth.iter(),
            decays: decays.iter(),
            decayed: (0.0, 0, 0.0),
            origins,
            origin: [NO_ORIGIN; 2],
            tree: FIRST_TREE,
            contents: Vec::new(),
        }
    }
}

impl MachineVisitor for Mover<'_> {
    fn same(&mut self, _: u64) {}

    fn unlike(&mut self) {}

    fn moment(&mut self, at: &mut Time) {
        at.0 += self.by_ps / 1000;
    }

    fn unread(&mut self, at: &mut Time) {
        self.moment(at);
    }

    fn count(&mut self, counter: &mut u64) {
        *counter += self.growth.next().expect("a visit has as many counters as the one before");
    }

    fn share(&mut self, share: &mut f64) {
        let times = *self.decays.next().expect("a visit has as many shares as the one before");
        if (self.decayed.0, self.decayed.1) != (*share, times) {
            self.decayed = (*share, times, decay(*share, times));
        }
        *share = self.decayed.2;
    }

    fn of_job(&mut self, job: JobId) {
        self.origin = self.origins.map(|origins| origin_of(origins, job));
        self.tree = FIRST_TREE;
    }

    fn of_tree(&mut self, tree: TreeId) {
        self.tree = tree;
    }

    fn between_operations(&mut self) {}

    fn number(&mut self, number: &mut u64, counted: Counted) {
        let [from, to] = self.origin.map(|origin| origin.of(self.tree, counted));
        *number = number.wrapping_sub(from).wrapping_add(to);
    }

    fn number_u32(&mut self, number: &mut u32, counted: Counted) {
        let [from, to] = self.origin.map(|origin| origin.of(self.tree, counted) as u32);
        *number = number.wrapping_sub(from).wrapping_add(to);
    }
}

/// A share after so many windows without marks.
fn decay(mut share: f64, times: u64) -> f64 {
    for _ in 0..times {
        let less = without_marks(share);
        if less == share {
            break;
        }
        share = less;
    }
    share
}

/// After how many windows without marks one share has become the other; `None` if it does not.
pub(crate) fn decays(mut share: f64, to: f64) -> Option<u64> {
    let mut times = 0;
    while share > to {
        let less = without_marks(share);
        if less == share {
            break;
        }
        share = less;
        times += 1;
    }
    (share == to).then_some(times)
}

impl Visitor for Mover<'_> {
    fn time(&mut self, at_ps: &mut u64) {
        if *at_ps != u64::MAX {
            *at_ps += self.by_ps;
        }
    }

    fn moves(&mut self, at_ps: &mut u64) {
        self.time(at_ps);
    }

    fn content(&mut self, handle: u32) {
        self.contents.push(handle);
    }

    fn contents(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.contents)
    }

    fn estimates(&mut self, _: Estimates) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_has_decayed_as_often_as_it_decays() {
        for times in [0, 1, 7, 300] {
            let by_hand = (0..times).fold(1.0, |share, _| without_marks(share));
            assert_eq!(decay(1.0, times), by_hand);
            assert_eq!(decays(1.0, by_hand), Some(times));
        }
        assert_eq!(decays(0.5, 0.6), None);
        assert_eq!(decays(1.0, 0.9), None);
        // It ends with the least share that there is.
        let least = decay(1.0, u64::MAX);
        assert_eq!(without_marks(least), least);
        assert_eq!(decays(least, 0.0), None);
    }
}
