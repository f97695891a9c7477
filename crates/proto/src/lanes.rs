//! Operations on a job's trees, and on the copies of these: each half of the trees numbers its fragments apart.
//!
//! Operations that copy what one rank sends to all others travel on the copies, so that they overlap with sums. A number
//! of a tree is the fragment's among those of the tree, the number `n` is the one among those of the tree's half, and
//! `g` is the one among those of all trees, by which ranks name it to each other.

use std::hash::{Hash, Hasher};
use std::ops::Range;

use netsum_wire::{Parties, TreeId};

use crate::handover::Finished;
use crate::operations::{ActiveOperation, Operations, Submission};
use crate::visit::Visitor;

/// Operations by half of the trees; `S` is the protocol's state of each.
#[derive(Clone, Debug)]
pub(crate) struct Lanes<S> {
    lanes: Vec<Operations<S>>,
    per_lane: usize,
}

impl<S> Lanes<S> {
    /// `trees`: with the copies; `first`: the first number of every tree.
    pub(crate) fn new(trees: usize, copies: bool, first: u64) -> Lanes<S>
    where
        S: Clone,
    {
        let lanes = if copies { 2 } else { 1 };
        assert!(trees.is_multiple_of(lanes), "every tree has a copy");
        let per_lane = trees / lanes;
        Lanes { lanes: vec![Operations::new(first * per_lane as u64); lanes], per_lane }
    }

    /// Trees without copies.
    pub(crate) fn per_lane(&self) -> usize {
        self.per_lane
    }

    /// Operations on the trees themselves, not on their copies.
    pub(crate) fn first(&self) -> &Operations<S> {
        &self.lanes[0]
    }

    /// As `first`.
    pub(crate) fn first_mut(&mut self) -> &mut Operations<S> {
        &mut self.lanes[0]
    }

    /// The operations among which one is numbered: those on the copies, if it copies.
    pub(crate) fn of_operation(&mut self, what: &Submission) -> &mut Operations<S> {
        &mut self.lanes[usize::from(what.pattern.copies())]
    }

    /// The operations on a tree and on the others of its half.
    pub(crate) fn of_tree(&self, tree: usize) -> &Operations<S> {
        &self.lanes[tree / self.per_lane]
    }

    /// As `of_tree`.
    pub(crate) fn of_tree_mut(&mut self, tree: usize) -> &mut Operations<S> {
        &mut self.lanes[tree / self.per_lane]
    }

    /// All operations that are not done.
    pub(crate) fn outstanding(&self) -> impl Iterator<Item = &ActiveOperation<S>> {
        self.lanes.iter().flat_map(Operations::outstanding)
    }

    /// Number of a tree's fragment among those of its half.
    pub(crate) fn n(&self, tree: usize, number: u64) -> u64 {
        number * self.per_lane as u64 + (tree % self.per_lane) as u64
    }

    /// Number of a tree's fragment among those of all trees.
    pub(crate) fn g(&self, tree: usize, number: u64) -> u64 {
        number * self.trees() as u64 + tree as u64
    }

    /// The tree and its number of a fragment among those of all trees.
    pub(crate) fn place(&self, g: u64) -> (usize, u64) {
        let trees = self.trees() as u64;
        ((g % trees) as usize, g / trees)
    }

    /// The operation, the parties and the elements of a tree's number.
    pub(crate) fn fragment(
        &self,
        tree: usize,
        number: u64,
    ) -> Option<(&ActiveOperation<S>, Parties, Range<u64>)> {
        let n = self.n(tree, number);
        let operation = self.of_tree(tree).find(n)?;
        let (_, parties, elements) = operation.scoped_fragment(n);
        Some((operation, parties, elements))
    }

    /// One past the largest `g` of a fragment.
    pub(crate) fn submitted(&self) -> u64 {
        let of = |lane: usize| {
            let last = self.lanes[lane].submitted().checked_sub(1);
            last.map_or(0, |n| self.g_of_lane(lane, n) + 1)
        };
        (0..self.lanes.len()).map(of).max().unwrap_or(0)
    }

    /// The operations that are done, that have given elements away and that must contribute again, given `finished`: by
    /// fragment, `g`, the operation and the elements.
    pub(crate) fn to_repeat(
        &self,
        finished: &Finished,
    ) -> impl Iterator<Item = (u64, &ActiveOperation<S>, Range<u64>)> {
        // Operations that give elements away are on the trees, not on the copies.
        let given = self.first().given_away().flat_map(move |operation| {
            let place = move |n| (self.g_of_lane(0, n), operation, operation.fragment(n).1);
            operation.fragments().map(place)
        });
        given.filter(|(g, ..)| !finished.contains(*g))
    }

    /// The rest of each operation, given `finished`, in order; without the operations that are complete.
    pub(crate) fn remaining(self, finished: &Finished) -> impl Iterator<Item = (Submission, S)> {
        let per_lane = self.per_lane as u64;
        let trees = per_lane * self.lanes.len() as u64;
        self.lanes.into_iter().enumerate().flat_map(move |(lane, operations)| {
            let g = move |n: u64| n / per_lane * trees + lane as u64 * per_lane + n % per_lane;
            operations.remaining(move |n| finished.contains(g(n)))
        })
    }

    /// Visits the state; `state` visits the protocol's state of an operation.
    pub(crate) fn visit<V: Visitor>(&mut self, v: &mut V, state: impl Fn(&mut V, &mut S)) {
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            v.of_tree(TreeId((number * self.per_lane) as u8));
            lane.visit(v, &state);
        }
    }

    /// Hashes what was submitted.
    pub(crate) fn digest(&self, state: &mut impl Hasher) {
        self.lanes.iter().for_each(|lane| lane.submitted().hash(state));
    }

    fn trees(&self) -> usize {
        self.per_lane * self.lanes.len()
    }

    fn g_of_lane(&self, lane: usize, n: u64) -> u64 {
        let per_lane = self.per_lane as u64;
        self.g(lane * self.per_lane + (n % per_lane) as usize, n / per_lane)
    }
}
