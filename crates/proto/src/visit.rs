//! How states of machines are compared and moved: for a simulator that does not simulate again what repeats itself.
//!
//! A machine visits every value on which its future depends. A visitor either writes the values down, relative to the
//! present, so that equal records are states with the same future, or it moves the machine to a later present. Each
//! type takes itself apart without `..`, so that a new field does not compile until somebody has decided what it is.
//! A value that is passed to `same` without need only prevents repetitions from being found; every other method needs
//! a reason.

use netsum_wire::{Format, JobId, TreeId};

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

    /// A moment on which nothing depends until it is set anew: it moves with the others.
    fn unread(&mut self, at: &mut Time);

    /// A counter on which nothing depends: it grows by as much in every repetition.
    fn count(&mut self, counter: &mut u64);

    /// A share of marked results that has no effect until the next mark, and decays until then
    /// ([`without_marks`](crate::congestion::without_marks)).
    fn share(&mut self, share: &mut f64);

    /// The numbers that follow are those of this job, and of its first tree.
    fn of_job(&mut self, job: JobId);

    /// The numbers that follow are those of this tree of the job, and of all with the same operations.
    fn of_tree(&mut self, tree: TreeId);

    /// A state that is compared between operations, and is like no other within one.
    fn between_operations(&mut self);

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
    /// Operations, by their ids.
    Operations,
    /// The same, by their fingerprints, which are as far from each other as the ids.
    Fingerprints,
    /// Fragments of all trees with the same operations, before an operation.
    Before,
    /// Fragments of the running operation that have no result.
    Left,
    /// Positions in operations, as `chunk` in headers.
    Chunks,
}

/// From where the numbers of a job are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// A number of the trees, and one of their copies.
    pub vids: [u64; 2],
    /// Number of trees without copies.
    pub trees: u64,
    /// Id of an operation.
    pub operation: u64,
    /// Whether states within one operation are compared, of which all ranks contribute to and take every fragment;
    /// otherwise states between which operations end.
    pub within: bool,
}

impl Origin {
    /// What is subtracted from a number of a tree.
    pub fn of(&self, tree: TreeId, counted: Counted) -> u64 {
        let vid = self.vids[usize::from(u64::from(tree.0) >= self.trees)];
        let fragments = self.trees.wrapping_mul(vid);
        match (counted, self.within) {
            (Counted::Vids, _) => vid,
            (Counted::Before, false) => fragments,
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
