//! How states of machines are compared and moved: for a simulator that does not simulate again what repeats itself.
//!
//! A machine visits every value on which its future depends. A visitor either writes the values down, relative to the
//! present, so that equal records are states with the same future, or it moves the machine to a later present. Each
//! type takes itself apart without `..`, so that a new field does not compile until somebody has decided what it is.
//! A value that is passed to `same` without need only prevents repetitions from being found; every other method needs
//! a reason.

use netsum_wire::{Format, JobId};

use crate::Time;
use crate::operations::CHUNK_STEP;

/// What happens to a state on a visit.
pub trait Visitor {
    /// A value that must be the same.
    fn same(&mut self, value: u64);

    /// A state that is not compared: it is like no other.
    fn unlike(&mut self);

    /// A moment, relative to now.
    fn moment(&mut self, at: &mut Time);

    /// A counter on which nothing depends: it grows by as much in every repetition.
    fn count(&mut self, counter: &mut u64);

    /// A share of marked results that has no effect until the next mark, and decays until then
    /// ([`without_marks`](crate::congestion::without_marks)).
    fn share(&mut self, share: &mut f64);

    /// The numbers that follow are those of this job.
    fn of_job(&mut self, job: JobId);

    /// A number, relative to the job's [`Origin`].
    fn number(&mut self, number: &mut u64, counted: Counted);

    /// As `number`, for one that wraps around at 2³².
    fn number_u32(&mut self, number: &mut u32, counted: Counted);

    /// A format.
    fn format(&mut self, format: Format) {
        self.same((format.dtype as u64) << 8 | format.op as u64);
    }

    /// A set of children.
    fn set(&mut self, set: u128) {
        self.same(set as u64);
        self.same((set >> 64) as u64);
    }

    /// A moment, if there is one.
    fn moment_if(&mut self, at: &mut Option<Time>) {
        self.same(at.is_some().into());
        at.iter_mut().for_each(|at| self.moment(at));
    }
}

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Fragments of one tree.
    Vids,
    /// Fragments of all trees.
    Fragments,
    /// Operations, by their ids.
    Operations,
    /// The same, by their fingerprints, which are as far from each other as the ids.
    Fingerprints,
    /// Fragments of all trees before an operation.
    Before,
    /// Fragments of the running operation that have no result.
    Left,
    /// Positions in operations, as `chunk` in headers.
    Chunks,
}

/// From where the numbers of a job are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// A number of a tree.
    pub vid: u64,
    /// Number of trees.
    pub trees: u64,
    /// Id of an operation.
    pub operation: u64,
    /// Whether states within one operation are compared; otherwise states between which operations end.
    pub within: bool,
}

impl Origin {
    /// What is subtracted from a number.
    pub fn of(&self, counted: Counted) -> u64 {
        let fragments = self.trees.wrapping_mul(self.vid);
        match (counted, self.within) {
            (Counted::Vids, _) => self.vid,
            (Counted::Fragments, _) | (Counted::Before, false) => fragments,
            (Counted::Operations | Counted::Fingerprints, _) | (Counted::Chunks, false) => {
                self.operation
            }
            (Counted::Before, true) | (Counted::Left, false) => 0,
            // What is left becomes less.
            (Counted::Left, true) => fragments.wrapping_neg(),
            (Counted::Chunks, true) => u64::from(CHUNK_STEP).wrapping_mul(fragments),
        }
    }
}
