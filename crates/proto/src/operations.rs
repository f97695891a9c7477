//! Active operations and the numbering of their fragments, the same for every protocol.
//!
//! The fragments of all operations of an epoch are numbered g = 0, 1, 2, … in the order of the calls. Fragment g
//! travels on tree g mod T as that tree's number ⌊g / T⌋.

use std::collections::VecDeque;
use std::ops::Range;

use netsum_wire::{Dtype, Format};

use crate::pattern::{Cut, Pattern};
use crate::visit::{Counted, Visitor};
use netsum_wire::Parties;

/// A collective operation, or the rest of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// Id chosen by the caller.
    pub id: u64,
    /// Dtype and operation.
    pub format: Format,
    /// Elements of the whole buffer, at least 1 unless it is a barrier.
    pub numel: u64,
    /// Equal at every worker if they agree on what is reduced.
    pub fingerprint: u32,
    /// The fragments of the buffer to be reduced.
    pub fragments: Fragments,
    /// Who contributes and who takes.
    pub pattern: Pattern,
}

/// A set of a buffer's fragments, in the order of sending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fragments {
    /// All of them.
    All,
    /// These fragments.
    Some(Vec<u32>),
}

/// Maps a fragment's index to the header's `chunk` (2³² divided by the golden ratio).
pub(crate) const CHUNK_STEP: u32 = 0x9e37_79b1;

/// Elements in a fragment of at most `fragment_bytes`; partials of 16-bit floats travel as float32.
pub fn elements_per_fragment(fragment_bytes: u16, dtype: Dtype) -> u64 {
    u64::from(fragment_bytes) / dtype.accumulator_size() as u64
}

/// Fragments of a buffer of `numel` elements.
pub fn fragments_of(numel: u64, fragment_bytes: u16, dtype: Dtype) -> u64 {
    numel.div_ceil(elements_per_fragment(fragment_bytes, dtype))
}

/// Operations in the order of the calls; `S` is the protocol's state of each.
#[derive(Clone, Debug)]
pub(crate) struct Operations<S> {
    queue: VecDeque<ActiveOperation<S>>,
    /// One past the last fragment submitted in this epoch.
    submitted: u64,
}

/// One operation.
#[derive(Clone, Debug)]
pub(crate) struct ActiveOperation<S> {
    pub(crate) submission: Submission,
    pub(crate) state: S,
    cut: Cut,
    first_g: u64,
    /// Number of packets before the first fragment.
    leads: u64,
    count: u64,
    open: u64,
}

impl<S> Operations<S> {
    /// `first_g`: number of the first fragment.
    pub(crate) fn new(first_g: u64) -> Self {
        Operations { queue: VecDeque::new(), submitted: first_g }
    }

    /// Adds an operation; false if it has no fragments and is therefore done.
    pub(crate) fn submit(
        &mut self,
        submission: Submission,
        elements_per_fragment: u64,
        state: S,
    ) -> bool {
        self.submit_with_leads(submission, elements_per_fragment, 0, state)
    }

    /// Adds an operation whose fragments are preceded by `leads` packets with numbers of their own.
    pub(crate) fn submit_with_leads(
        &mut self,
        submission: Submission,
        elements_per_fragment: u64,
        leads: u64,
        state: S,
    ) -> bool {
        let cut = submission.cut(elements_per_fragment);
        let count = leads + submission.count_of(elements_per_fragment);
        let first_g = self.submitted;
        if count > 0 {
            let open = count;
            self.queue.push_back(ActiveOperation {
                submission,
                state,
                cut,
                first_g,
                leads,
                count,
                open,
            });
        }
        self.submitted += count;
        count > 0
    }

    /// Fragments submitted in this epoch.
    pub(crate) fn submitted(&self) -> u64 {
        self.submitted
    }

    /// End of the numbers of one tree that have been submitted.
    pub(crate) fn end_of_tree(&self, tree: usize, trees: usize) -> u64 {
        tree_end(self.submitted, tree, trees)
    }

    /// The operation to which fragment `g` belongs.
    pub(crate) fn find(&self, g: u64) -> Option<&ActiveOperation<S>> {
        self.queue.get(self.position(g)?)
    }

    /// The operation to which fragment `g` belongs.
    pub(crate) fn find_mut(&mut self, g: u64) -> Option<&mut ActiveOperation<S>> {
        let position = self.position(g)?;
        self.queue.get_mut(position)
    }

    /// Operations that are not done, in order.
    pub(crate) fn outstanding(&self) -> impl Iterator<Item = &ActiveOperation<S>> {
        self.queue.iter().filter(|o| o.open > 0)
    }

    /// Operations that are done and whose contributions other ranks may need.
    pub(crate) fn given_away(&self) -> impl Iterator<Item = &ActiveOperation<S>> {
        self.queue.iter().filter(|o| o.open == 0 && o.submission.pattern.gives_away())
    }

    /// Removes the first operations that are done, and those whose contributions other ranks may need only if all their
    /// numbers are below `settled`: results of those below have arrived at every rank.
    pub(crate) fn forget_done(&mut self, settled: u64) {
        let is_over = |o: &ActiveOperation<S>| {
            let needed = o.submission.pattern.gives_away() && o.numbers().end > settled;
            o.open == 0 && !needed
        };
        while self.queue.front().is_some_and(is_over) {
            self.queue.pop_front();
        }
    }

    /// The rest of each operation, given which numbers are finished, in order; without the operations that are complete.
    pub(crate) fn remaining<F: Fn(u64) -> bool>(
        self,
        finished: F,
    ) -> impl Iterator<Item = (Submission, S)> + use<S, F> {
        let may_be_left = |o: &ActiveOperation<S>| o.open > 0 || o.submission.pattern.gives_away();
        self.queue.into_iter().filter(may_be_left).filter_map(move |operation| {
            let left = operation.fragments().filter(|&g| !finished(g));
            let left: Vec<u32> = left.map(|g| operation.fragment(g).0).collect();
            let ActiveOperation { submission, state, .. } = operation;
            let rest = Submission { fragments: Fragments::Some(left), ..submission };
            (rest.fragments != Fragments::Some(Vec::new())).then_some((rest, state))
        })
    }

    /// The end of the numbers of the first operation; `None` if there is none.
    pub(crate) fn first_end(&self) -> Option<u64> {
        Some(self.queue.front()?.numbers().end)
    }

    /// Visits the state; `state` visits the protocol's state of an operation.
    pub(crate) fn visit<V: Visitor>(&mut self, v: &mut V, state: impl Fn(&mut V, &mut S)) {
        let Operations { queue, submitted } = self;
        v.number(submitted, Counted::Before);
        v.same(queue.len() as u64);
        for (position, operation) in queue.iter_mut().enumerate() {
            operation.visit(v, position == 0);
            state(v, &mut operation.state);
        }
    }

    fn position(&self, g: u64) -> Option<usize> {
        let after = self.queue.partition_point(|o| o.first_g <= g);
        let position = after.checked_sub(1)?;
        self.queue[position].numbers().contains(&g).then_some(position)
    }
}

/// Visits what an operation does.
fn visit_pattern(pattern: &Pattern, v: &mut impl Visitor) {
    if *pattern == Pattern::Allreduce {
        v.same(0);
        return;
    }
    // Its fragments are not alike.
    v.between_operations();
    match pattern {
        Pattern::Allreduce | Pattern::Barrier => v.same(1),
        Pattern::Reduce(root) => v.same(u64::from(root.0) << 8 | 2),
        Pattern::Broadcast(root) => v.same(u64::from(root.0) << 8 | 3),
        Pattern::ReduceScatter(shards) | Pattern::Allgather(shards) => {
            v.same((shards.len() as u64) << 8 | if pattern.copies() { 4 } else { 5 });
            shards.iter().for_each(|&elements| v.same(elements));
        }
    }
}

/// One past the last number that fragments 0..`submitted` have on a tree.
pub(crate) fn tree_end(submitted: u64, tree: usize, trees: usize) -> u64 {
    (submitted + trees as u64 - 1 - tree as u64) / trees as u64
}

impl<S> ActiveOperation<S> {
    fn visit(&mut self, v: &mut impl Visitor, is_first: bool) {
        let ActiveOperation {
            submission,
            // Its owner visits it.
            state: _,
            // It follows from the submission.
            cut: _,
            first_g,
            leads,
            count,
            open,
        } = self;
        let Submission { id, format, numel, fingerprint, fragments, pattern } = submission;
        v.number(id, Counted::Operations);
        v.format(*format);
        v.same(*numel);
        v.number_u32(fingerprint, Counted::Fingerprints);
        if *fragments != Fragments::All {
            v.unlike();
        }
        visit_pattern(pattern, v);
        v.number(first_g, Counted::Before);
        v.same(*leads);
        v.same(*count);
        match is_first {
            true => v.number(open, Counted::Left),
            false => v.same(*open),
        }
    }

    /// Numbers of its packets in the epoch.
    pub(crate) fn numbers(&self) -> Range<u64> {
        self.first_g..self.first_g + self.count
    }

    /// Those of its fragments, without the leads.
    pub(crate) fn fragments(&self) -> Range<u64> {
        self.first_g + self.leads..self.first_g + self.count
    }

    /// Index in the buffer and elements of fragment `g` of the epoch.
    pub(crate) fn fragment(&self, g: u64) -> (u32, Range<u64>) {
        let (index, _, elements) = self.scoped_fragment(g);
        (index, elements)
    }

    /// Index in the buffer, parties and elements of fragment `g` of the epoch.
    pub(crate) fn scoped_fragment(&self, g: u64) -> (u32, Parties, Range<u64>) {
        let offset = g - self.first_g - self.leads;
        let index = match &self.submission.fragments {
            Fragments::All => offset as u32,
            Fragments::Some(list) => list[offset as usize],
        };
        let (parties, elements) = self.cut.fragment(index.into());
        (index, parties, elements)
    }

    /// Records one more result; true if it was the last.
    pub(crate) fn finish_one(&mut self) -> bool {
        self.open -= 1;
        self.open == 0
    }
}

impl Submission {
    fn cut(&self, elements_per_fragment: u64) -> Cut {
        Cut::new(self.pattern.clone(), self.numel, elements_per_fragment)
    }

    /// Number of its fragments.
    pub fn count(&self, fragment_bytes: u16) -> u64 {
        self.count_of(elements_per_fragment(fragment_bytes, self.format.dtype))
    }

    /// Number of its fragments of so many elements.
    pub(crate) fn count_of(&self, elements_per_fragment: u64) -> u64 {
        match &self.fragments {
            Fragments::All => self.cut(elements_per_fragment).count(),
            Fragments::Some(list) => list.len() as u64,
        }
    }

    /// Whether its fragments are all of the buffer.
    pub fn is_whole(&self, fragment_bytes: u16) -> bool {
        self.count(fragment_bytes) == self.whole().count(fragment_bytes)
    }

    /// The operation of all fragments.
    pub fn whole(&self) -> Submission {
        Submission { fragments: Fragments::All, ..self.clone() }
    }

    /// Parties and elements of its fragments, in order.
    pub fn places(&self, fragment_bytes: u16) -> Vec<(Parties, Range<u64>)> {
        let cut = self.cut(elements_per_fragment(fragment_bytes, self.format.dtype));
        match &self.fragments {
            Fragments::All => (0..cut.count()).map(|index| cut.fragment(index)).collect(),
            Fragments::Some(list) => list.iter().map(|&index| cut.fragment(index.into())).collect(),
        }
    }

    /// The header's `chunk` for a fragment.
    pub(crate) fn chunk(&self, fragment: u32) -> u32 {
        self.fingerprint.wrapping_add(fragment.wrapping_mul(CHUNK_STEP))
    }
}
