//! State of one tree node: from the children's fragments to one sum, exactly once.
//!
//! Vids are stored in a ring. Below `released` (PANAMA's expected vid: the lowest not yet summed) are the last `cap`
//! sums, retained because a child may still lack them; from `released` up to `cap` ahead are the port buffers being
//! filled. A complete vid is released even if an earlier one is not: the workers detect the hole and send that fragment
//! again.
//!
//! Why `cap` sums suffice: a child sends vid v only while its lowest missing result is above v − cap. So
//! once v is released, every child that contributed to it has all results up to v − cap.

mod scoped;
mod vid_set;
mod visit;

use std::hash::{Hash, Hasher};

use netsum_wire::Parties;
use netsum_wire::panama::{Header, Kind};
use netsum_wire::{Epoch, Format, Vid};

use super::lease::{Lease, first_window};
use super::memory::Memory;
use super::switch::TransmitQueue;
use crate::children::ChildSet;
use crate::lateness::{Began, Meter};
use crate::lease::Tenancy;
use crate::sequence::{distance, raise_to};
use crate::{DropReason, PortId, Time};

/// Counters of one tree at one switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeCounters {
    /// Children's fragments that were counted.
    pub contributions: u64,
    /// Sums released (upward, or at the root downward).
    pub released: u64,
    /// Sums released without all children.
    pub released_partially: u64,
    /// Results that passed on their way down.
    pub results: u64,
    /// Fragments that had already been counted.
    pub duplicates: u64,
    /// Duplicates that were answered with the retained sum.
    pub answered: u64,
    /// Duplicates that were answered with "waiting for others".
    pub waiting: u64,
    /// Fragments that arrived after their sum was released without them.
    pub late: u64,
    /// Sums whose inputs had a congestion mark.
    pub marked: u64,
    /// Fragments on which children disagreed.
    pub mismatches: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// No contribution.
    Empty,
    /// Some contributions.
    Filling,
    /// The partial was sent up, the result has not arrived.
    Partial,
    /// The result has arrived.
    Result,
}

#[derive(Clone, Debug, Hash)]
struct Slot<B> {
    phase: Phase,
    /// Children that have contributed.
    arrived: ChildSet,
    /// Children that sent again before the result arrived.
    asked: ChildSet,
    /// Children that sent again, and not the same. The sum is never released, so that all ranks learn of it.
    contradicted: ChildSet,
    marks: u32,
    cap: u16,
    missing: u64,
    /// Children that wait for an answer at this vid, though they may not take the result.
    asking: ChildSet,
    /// Whether the result met congestion on its way down to this node.
    down: bool,
    /// Shape of the fragment, by its first contribution; `None` if there are only empty contributions that came in
    /// packets of other vids.
    shape: Option<Shape>,
    /// The sum, from `Partial` on, if anybody beneath (for a result: takes, else) contributes elements.
    sum: Option<B>,
}

/// What all contributions to a fragment must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    chunk: u32,
    format: Format,
    n_elems: u16,
    parties: Parties,
}

/// State of one (job, tree) at one switch.
#[derive(Clone)]
pub(crate) struct Tree<B> {
    pub(crate) lease: Lease,
    pub(crate) counters: TreeCounters,
    slots: Vec<Option<Slot<B>>>,
    /// Stored fragments, by slot and child.
    port_buffers: Vec<Option<B>>,
    released: u32,
    retained_from: u32,
    cap: Cap,
    /// By child, the vid below which it is known to have every result (used with partial synchronisation).
    has_results_below: Vec<u32>,
    /// The vid below which every result is here, and the value last sent to the parent (likewise).
    results_below: u32,
    told_parent: u32,
    /// The vid below which results may have been refused (likewise).
    refused_below: u32,
    finished: ChildSet,
    /// What children do not know of completed fragments that they do not take.
    news: scoped::News,
    /// Vids whose empty partials have not been sent.
    empties: Vec<u32>,
    /// By slot, the vid of the last notices "mismatch" that were passed on, and the ranks that these named.
    told: Vec<Option<(u32, u64)>>,
    /// How late children are.
    pub(crate) meter: Meter,
    /// By slot, when its fragment began, for the meter.
    began: Vec<Began>,
    /// When a neighbour was last heard from.
    pub(crate) last_seen: Time,
}

/// Limits of the fragments in flight and retained here.
#[derive(Clone, Copy, Debug, Hash)]
struct Cap {
    /// Window cap that workers are told.
    announced: u16,
    /// Window that is accepted: port buffers are reserved for it.
    accepted: u16,
    /// Sums retained for children that may lack them.
    retained: u16,
    /// Once `released` has reached this, every worker obeys the announced cap.
    obeyed_from: u32,
}

impl<B: Copy> Tree<B> {
    /// `first`: the first vid.
    pub(crate) fn new(lease: Lease, now: Time, first: u32) -> Self {
        let ring = usize::from(lease.slots).next_power_of_two() * 2;
        let children = lease.children.len();
        Tree {
            counters: TreeCounters::default(),
            slots: std::iter::repeat_with(|| None).take(ring).collect(),
            port_buffers: vec![None; ring * children],
            released: first,
            retained_from: first,
            cap: Cap { announced: 0, accepted: 0, retained: 0, obeyed_from: first },
            has_results_below: vec![first; children],
            results_below: first,
            told_parent: first,
            refused_below: first,
            finished: 0,
            news: scoped::News::new(children, first, ring),
            empties: Vec::new(),
            told: vec![None; ring],
            meter: Meter::new(children),
            began: vec![Began::UNMEASURED; ring],
            last_seen: now,
            lease,
        }
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.lease.epoch
    }

    /// Maximum number of fragments in flight that are accepted.
    pub(crate) fn accepted_cap(&self) -> u16 {
        self.cap.accepted
    }

    /// Buffers that the tree may need: for each fragment in flight one per child and one for the sum under way, and the
    /// retained sums.
    pub(crate) fn reserved_buffers(&self) -> u64 {
        let per_fragment = self.lease.children.len() as u64 + 1;
        u64::from(self.cap.accepted) * per_fragment + u64::from(self.kept_sums())
    }

    /// Number of retained sums: the largest window that any worker may have.
    fn kept_sums(&self) -> u16 {
        self.cap.retained.max(first_window(self.lease.slots))
    }

    /// Accepts and announces a larger window.
    pub(crate) fn raise_cap(&mut self, cap: u16) {
        let retained = cap.max(self.cap.retained);
        self.cap = Cap { announced: cap, accepted: cap, retained, ..self.cap };
        if retained == cap {
            self.cap.obeyed_from = self.released;
        }
    }

    /// Announces a smaller window. A busy tree keeps its memory until every worker must have seen the new cap: results
    /// up to `released + accepted` may carry the old one, and a worker sends that much beyond the last of them before
    /// it must have seen the next. An idle tree frees its port buffers at once; if a worker still sends by the old cap,
    /// the excess is dropped and sent again.
    pub(crate) fn lower_cap(&mut self, cap: u16) {
        if cap < self.cap.announced {
            self.cap.announced = cap;
            self.cap.obeyed_from = self.released.wrapping_add(2 * u32::from(self.kept_sums()));
        }
        if self.port_buffers.iter().all(Option::is_none) {
            self.cap.accepted = self.cap.announced;
        }
        if self.is_fresh() {
            self.cap.obeyed_from = self.released;
        }
    }

    /// Whether no worker can have learned a cap yet.
    fn is_fresh(&self) -> bool {
        self.counters.contributions == 0 && self.counters.results == 0
    }

    /// Frees what the old cap needed once no worker can use it; true if memory became free. With partial
    /// synchronisation a worker that lags may obey the old cap for any time: the number of retained sums then stays.
    pub(crate) fn settle_cap(&mut self) -> bool {
        let obeyed = distance(self.released, self.cap.obeyed_from) >= 0;
        let Cap { announced, accepted, retained, .. } = self.cap;
        let least = if self.lease.is_partial() && !self.is_fresh() { retained } else { announced };
        let settles = obeyed && (announced < accepted || least < retained);
        if settles {
            self.cap.accepted = announced;
            self.cap.retained = least;
        }
        settles
    }

    /// Frees all memory of the tree.
    pub(crate) fn clear<M: Memory<Buffer = B>>(&mut self, memory: &mut M) {
        for buffer in self.port_buffers.iter_mut().filter_map(Option::take) {
            memory.free(buffer);
        }
        for slot in self.slots.iter_mut().filter_map(Option::take) {
            if let Some(sum) = slot.sum {
                memory.free(sum);
            }
        }
        self.empties.clear();
        self.news.complete.clear();
        self.retained_from = self.released;
        self.meter.clear();
    }

    /// Hashes the state that determines all future behaviour.
    pub(crate) fn digest(&self, state: &mut impl Hasher)
    where
        B: Hash,
    {
        (self.epoch(), self.released, self.retained_from, self.cap).hash(state);
        (&self.slots, &self.port_buffers, self.finished, &self.told).hash(state);
        (&self.news, &self.empties).hash(state);
        let partial = (self.results_below, self.told_parent, self.refused_below);
        (&self.has_results_below, partial).hash(state);
    }

    /// Index of the child at `port`.
    #[inline]
    pub(crate) fn child(&self, port: PortId) -> Option<usize> {
        self.lease.children.iter().position(|c| c.port == port)
    }

    /// Handles a child's fragment: stores it, and releases the sum if it was the last one awaited.
    pub(crate) fn contribute<M: Memory<Buffer = B>>(
        &mut self,
        child: usize,
        ce: bool,
        header: &Header,
        payload: &M::Payload,
        memory: &mut M,
        out: &mut TransmitQueue<B>,
    ) -> Result<(), DropReason> {
        self.check_parties(child, header)?;
        self.take_others(child, ce, header, memory, out);
        let index = self.admit(header)?;
        let bit = (1 as ChildSet) << child;
        self.adopt(index, header, out);
        if self.lease.is_partial() {
            // The child may have as many fragments in flight as sums are retained.
            let in_flight = u32::from(self.kept_sums()) - 1;
            self.note_results_below(child, header.vid.0.wrapping_sub(in_flight));
        }
        let slot = self.slots[index].as_ref();
        match slot.map_or(Phase::Empty, |s| s.phase) {
            Phase::Partial | Phase::Result => {
                return Err(self.answer_released(index, child, header, memory, out));
            }
            Phase::Filling if slot.is_some_and(|s| s.arrived & bit != 0) => {
                return Err(match self.repeats(index, child, header, payload, memory) {
                    true => self.answer_waiting(index, child, header, out),
                    false => self.contradict(index, child, header, out),
                });
            }
            Phase::Filling => self.check_agreement(index, child, header, out)?,
            Phase::Empty => {
                let shape = Some(Shape::of(header));
                self.slots[index] = Some(Slot { shape, ..Slot::new(self.cap.announced) });
            }
        }
        self.place(index, child, ce, header, payload, memory, out)
    }

    /// Handles "I have every result below `vid`" from a child: a child that contributes nothing must not delay the
    /// others.
    pub(crate) fn acknowledge<M: Memory<Buffer = B>>(
        &mut self,
        child: usize,
        vid: Vid,
        memory: &mut M,
        out: &mut TransmitQueue<B>,
    ) -> Result<(), DropReason> {
        let ahead = distance(vid.0, self.released);
        if !self.lease.is_partial() || ahead > i32::from(self.cap.accepted) {
            return Err(DropReason::Unexpected);
        }
        self.note_results_below(child, vid.0);
        for offset in 0..u32::from(self.cap.accepted) {
            let vid = self.released.wrapping_add(offset);
            if self.is_releasable(vid) {
                self.release(vid, None, memory, out)?;
                self.close(vid);
            }
        }
        Ok(())
    }

    /// Handles a child's fin; true if it was the last one.
    pub(crate) fn finish(&mut self, child: usize) -> bool {
        self.finished |= 1 << child;
        self.finished.count_ones() as usize == self.lease.children.len()
    }

    /// Handles a result on its way down.
    pub(crate) fn pass_result<M: Memory<Buffer = B>>(
        &mut self,
        header: &Header,
        payload: &M::Payload,
        memory: &mut M,
        out: &mut TransmitQueue<B>,
    ) -> Result<(), DropReason> {
        self.take_completed(header, memory, out);
        let index = self.admit(header)?;
        let vid = header.vid.0;
        let phase = self.slots[index].as_ref().map_or(Phase::Empty, |s| s.phase);
        match phase {
            Phase::Result => {
                self.hand_down_to_asked(index, vid, out);
                return Err(DropReason::Duplicate);
            }
            // The nodes above may release a sum without this node only with partial synchronisation.
            Phase::Empty | Phase::Filling if !self.lease.is_partial() => {
                return Err(DropReason::Unexpected);
            }
            _ => {}
        }
        if self.slots[index].as_ref().is_some_and(|s| !s.is_of(header)) {
            self.report_other_result(header, out);
            return Err(DropReason::Mismatch);
        }
        if header.parties.takes(self.ranks(ChildSet::MAX)) == header.empty {
            return Err(DropReason::Members);
        }
        if header.empty {
            self.complete_without_elements(vid, header, memory, out);
            return Ok(());
        }
        // A result that would replace a sum that a child lacks is refused; the partial will request it again.
        let down = self.header_down(header);
        let buffer = match self.all_keep_up(vid) {
            true => memory.store(&down, payload).ok_or(DropReason::NoMemory),
            false => Err(DropReason::BeyondWindow),
        };
        let buffer =
            buffer.inspect_err(|_| raise_to(&mut self.refused_below, vid.wrapping_add(1)))?;
        self.free_port_buffers(index, memory);
        let old = self.slots[index].take();
        self.slots[index] = Some(Slot {
            phase: Phase::Result,
            arrived: old.as_ref().map_or(0, |s| s.arrived),
            asking: old.as_ref().map_or(0, |s| s.asking),
            marks: header.marks,
            missing: header.missing,
            down: header.congested_down,
            shape: Some(Shape::of(header)),
            sum: Some(buffer),
            ..Slot::new(header.window_cap)
        });
        if let Some(filling) = old.as_ref().filter(|s| s.phase == Phase::Filling && s.arrived != 0)
        {
            self.meter.give_up(self.last_seen, self.began[index], !filling.arrived);
        }
        if let Some(partial) = old.and_then(|s| s.sum) {
            memory.free(partial);
        }
        self.counters.results += 1;
        self.hand_down(index, vid, out);
        self.advance(vid, memory);
        if self.lease.is_partial() {
            self.tell_parent(header, out);
        }
        Ok(())
    }

    /// Sends this node's progress to the parent, as a worker does: a node whose children contribute little must not
    /// delay the others either.
    fn tell_parent(&mut self, result: &Header, out: &mut TransmitQueue<B>) {
        let is_here =
            |slot: &Option<Slot<B>>| slot.as_ref().is_some_and(|s| s.phase == Phase::Result);
        while self.results_below != self.released
            && is_here(&self.slots[self.index(self.results_below)])
        {
            self.results_below = self.results_below.wrapping_add(1);
        }
        let news = self.results_below.wrapping_sub(self.told_parent);
        if let Some(parent) = self.lease.parent.filter(|_| news > u32::from(self.cap.accepted / 4))
        {
            self.told_parent = self.results_below;
            let vid = Vid(self.results_below);
            out.control(parent, result.notice(Kind::Acknowledgement, vid));
        }
    }

    /// Every worker of the tree must learn that this sum will never be complete: notifies all neighbours but the one
    /// that reported it.
    fn spread_mismatch(&self, notice: &Header, from: Option<PortId>, out: &mut TransmitQueue<B>) {
        let neighbours = self.lease.children.iter().map(|c| c.port).chain(self.lease.parent);
        for to in neighbours.filter(|&n| Some(n) != from) {
            out.control(to, *notice);
        }
    }

    /// Passes a neighbour's "mismatch" on, once per vid and rank that it names: where leases form a circle by mistake or
    /// malice, a notice would go round for ever. A child that did not receive it asks for it by sending its fragment
    /// again.
    pub(crate) fn pass_mismatch(
        &mut self,
        notice: &Header,
        from: PortId,
        out: &mut TransmitQueue<B>,
    ) -> Result<(), DropReason> {
        let index = self.admit(notice)?;
        if self.slots[index].as_ref().is_some_and(|slot| slot.phase == Phase::Result) {
            return Err(DropReason::Unexpected);
        }
        let missing = notice.missing & self.nameable(from)?;
        let notice = Header { missing, ..*notice };
        let named = self.named(index, notice.vid);
        if named.is_none_or(|named| missing & !named != 0) {
            self.told[index] = Some((notice.vid.0, named.unwrap_or(0) | missing));
            self.spread_mismatch(&notice, Some(from), out);
            return Ok(());
        }
        match self.lease.parent == Some(from) && self.tell_asked(index, &notice, out) {
            true => Ok(()),
            false => Err(DropReason::Duplicate),
        }
    }

    /// The ranks that a neighbour's notice may name: from a child those beneath it. A single worker sends none, so that
    /// it cannot claim to agree with the others.
    fn nameable(&self, from: PortId) -> Result<u64, DropReason> {
        match self.child(from).map(|child| self.lease.children[child].ranks) {
            None => Ok(u64::MAX),
            Some(ranks) if ranks.count_ones() > 1 => Ok(ranks),
            Some(_) => Err(DropReason::WrongDirection),
        }
    }

    /// The ranks that neighbours have named, if one has reported that this sum will never be complete.
    fn named(&self, index: usize, vid: Vid) -> Option<u64> {
        self.told[index].filter(|(told, _)| *told == vid.0).map(|(_, named)| named)
    }

    /// Passes "waiting" from the parent to the children that asked.
    pub(crate) fn pass_waiting(
        &mut self,
        header: &Header,
        out: &mut TransmitQueue<B>,
    ) -> Result<(), DropReason> {
        let index = self.admit(header)?;
        if self.slots[index].is_none() {
            return Err(DropReason::Unexpected);
        }
        self.tell_asked(index, header, out);
        Ok(())
    }

    /// Sends a notice to the children that sent again since the last one; false if there are none.
    fn tell_asked(&mut self, index: usize, notice: &Header, out: &mut TransmitQueue<B>) -> bool {
        let asked = self.slots[index].as_mut().map_or(0, |slot| std::mem::take(&mut slot.asked));
        for (i, child) in self.lease.children.iter().enumerate() {
            if asked & 1 << i != 0 {
                out.control(child.port, *notice);
            }
        }
        asked != 0
    }

    /// Slot of a packet's vid, if the vid is in the expected range.
    #[inline]
    fn admit(&self, header: &Header) -> Result<usize, DropReason> {
        let bytes = usize::from(header.n_elems) * header.format.dtype.accumulator_size();
        if bytes > usize::from(self.lease.fragment_bytes) {
            return Err(DropReason::TooLarge);
        }
        let vid = header.vid.0;
        if distance(vid, self.released) >= i32::from(self.cap.accepted) {
            return Err(DropReason::BeyondWindow);
        }
        if distance(vid, self.retained_from) < 0 {
            return Err(DropReason::TooOld);
        }
        Ok(self.index(vid))
    }

    #[inline]
    fn index(&self, vid: u32) -> usize {
        vid as usize & (self.slots.len() - 1)
    }

    fn check_agreement(
        &mut self,
        index: usize,
        child: usize,
        header: &Header,
        out: &mut TransmitQueue<B>,
    ) -> Result<(), DropReason> {
        if self.slots[index].as_ref().is_some_and(|s| s.is_of(header)) {
            return Ok(());
        }
        self.counters.mismatches += 1;
        let missing = self.lease.children[child].ranks;
        let n_elems = header.n_elems;
        let notice = Header { missing, n_elems, ..header.notice(Kind::Mismatch, header.vid) };
        self.spread_mismatch(&notice, None, out);
        Err(DropReason::Mismatch)
    }

    #[allow(clippy::too_many_arguments)] // One step of handling a packet, with all its parameters.
    fn place<M: Memory<Buffer = B>>(
        &mut self,
        index: usize,
        child: usize,
        ce: bool,
        header: &Header,
        payload: &M::Payload,
        memory: &mut M,
        out: &mut TransmitQueue<B>,
    ) -> Result<(), DropReason> {
        let vid = header.vid.0;
        let branch = u32::from(ce) << self.lease.children[child].branch;
        let slot = self.slots[index].as_mut().expect("the caller made it");
        let before = (slot.arrived, slot.marks, slot.cap, slot.missing, slot.asking);
        slot.arrived |= 1 << child;
        slot.asking |= ChildSet::from(header.asks) << child;
        slot.marks |= header.marks | branch;
        slot.cap = slot.cap.min(header.window_cap);
        slot.missing |= header.missing;
        let placed = if self.is_releasable(vid) {
            let arriving = (!header.empty).then_some((child, header, payload));
            self.release(vid, arriving, memory, out)
        } else if header.empty {
            Ok(())
        } else {
            let stored = memory.store(header, payload).ok_or(DropReason::NoMemory);
            stored.map(|b| self.port_buffers[index * self.lease.children.len() + child] = Some(b))
        };
        if placed.is_err() {
            // Nothing was counted: the worker sends it again.
            if let Some(slot) = self.slots[index].as_mut() {
                (slot.arrived, slot.marks, slot.cap, slot.missing, slot.asking) = before;
            }
            return placed;
        }
        self.counters.contributions += 1;
        self.measure(index, child, before.0 == 0);
        self.send_empties(out);
        Ok(())
    }

    /// Tells the meter of a child's fragment that was counted now, in `last_seen`.
    #[inline]
    fn measure(&mut self, index: usize, child: usize, first: bool) {
        let now = self.last_seen;
        let slot = self.slots[index].as_ref();
        let (arrived, released) =
            slot.map_or((0, true), |s| (s.arrived, s.phase != Phase::Filling));
        let complete = released && arrived.count_ones() as usize == self.lease.children.len();
        if first {
            self.began[index] = self.meter.begin(now, child);
        } else {
            self.meter.arrive(now, child, self.began[index], complete);
        }
        if released && !complete {
            self.meter.give_up(now, self.began[index], !arrived);
        }
    }

    /// Tells the meter of a sum that was released without a packet.
    fn close(&mut self, vid: u32) {
        let index = self.index(vid);
        if let Some(slot) = self.slots[index].as_ref().filter(|s| s.arrived != 0) {
            self.meter.give_up(self.last_seen, self.began[index], !slot.arrived);
        }
    }

    /// Whether enough children have contributed, and no other child lags so far that it would lose the result.
    fn is_releasable(&self, vid: u32) -> bool {
        let Some(slot) = &self.slots[self.index(vid)] else {
            return false;
        };
        let children = self.lease.children.len();
        let arrived = slot.arrived.count_ones();
        if slot.phase != Phase::Filling || arrived < self.lease.needed() || !self.has_source(slot) {
            return false;
        }
        slot.contradicted == 0 && (arrived as usize == children || self.all_keep_up(vid))
    }

    /// Whether no child can lack the sum that this one would replace. Always true without partial synchronisation.
    fn all_keep_up(&self, vid: u32) -> bool {
        let kept = i32::from(self.kept_sums());
        let keeps_up = |below: &u32| distance(vid, *below) < kept;
        !self.lease.is_partial() || self.has_results_below.iter().all(keeps_up)
    }

    fn note_results_below(&mut self, child: usize, vid: u32) {
        raise_to(&mut self.has_results_below[child], vid);
    }

    /// Adds the contributions and sends the sum on.
    fn release<M: Memory<Buffer = B>>(
        &mut self,
        vid: u32,
        arriving: Option<(usize, &Header, &M::Payload)>,
        memory: &mut M,
        out: &mut TransmitQueue<B>,
    ) -> Result<(), DropReason> {
        let index = self.index(vid);
        let children = self.lease.children.len();
        let slot = self.slots[index].as_ref().expect("a releasable slot");
        let absent = self.ranks(!slot.arrived);
        let stored = &self.port_buffers[index * children..(index + 1) * children];
        let has_elements = arriving.is_some() || stored.iter().any(Option::is_some);
        if !has_elements {
            self.release_empty(vid, memory, out);
            return Ok(());
        }
        let header = self.header_of(vid, slot, absent);
        let sum = memory.reduce(&header, stored, arriving).ok_or(DropReason::NoMemory)?;
        self.free_port_buffers(index, memory);
        let slot = self.slots[index].as_mut().expect("a releasable slot");
        let root = self.lease.parent.is_none();
        slot.phase = if root { Phase::Result } else { Phase::Partial };
        slot.sum = Some(sum);
        self.counters.released += 1;
        self.counters.released_partially += u64::from(absent != 0);
        self.counters.marked += u64::from(slot.marks != 0);
        match self.lease.parent {
            Some(parent) => {
                self.forget_sent_empties(header.others, vid);
                out.data(parent, sum);
            }
            None => self.hand_down(index, vid, out),
        }
        self.advance(vid, memory);
        Ok(())
    }

    /// Header of the sum of a slot, upward or at the root downward.
    fn header_of(&self, vid: u32, slot: &Slot<B>, absent: u64) -> Header {
        let shape = slot.shape.expect("some contribution has elements");
        let root = self.lease.parent.is_none();
        let header = Header {
            kind: if root { Kind::Result } else { Kind::Partial },
            resent: distance(vid, self.refused_below) < 0,
            congested_down: false,
            tree: self.lease.tree,
            format: shape.format,
            job: self.lease.job,
            vid: Vid(vid),
            chunk: shape.chunk,
            epoch: self.lease.epoch,
            window_cap: slot.cap.min(self.cap.announced),
            n_elems: shape.n_elems,
            marks: slot.marks,
            missing: slot.missing | absent,
            parties: shape.parties,
            empty: false,
            asks: slot.asking != 0 && !root,
            others: 0,
        };
        if root {
            return self.header_down(&header);
        }
        let (others, marks, cap) = self.empties_before(vid);
        let window_cap = header.window_cap.min(cap);
        Header { others, marks: header.marks | marks, window_cap, ..header }
    }

    fn free_port_buffers<M: Memory<Buffer = B>>(&mut self, index: usize, memory: &mut M) {
        let children = self.lease.children.len();
        let buffers = &mut self.port_buffers[index * children..(index + 1) * children];
        buffers.iter_mut().filter_map(Option::take).for_each(|b| memory.free(b));
    }

    /// Advances past released vids and frees sums that every child has.
    fn advance<M: Memory<Buffer = B>>(&mut self, vid: u32, memory: &mut M) {
        if vid != self.released {
            return;
        }
        let is_released = |slot: &Option<Slot<B>>| {
            slot.as_ref().is_some_and(|s| matches!(s.phase, Phase::Partial | Phase::Result))
        };
        while is_released(&self.slots[self.index(self.released)]) {
            self.released = self.released.wrapping_add(1);
            let keep = u32::from(self.kept_sums());
            while self.released.wrapping_sub(self.retained_from) > keep {
                let index = self.index(self.retained_from);
                if let Some(sum) = self.slots[index].take().and_then(|s| s.sum) {
                    memory.free(sum);
                }
                self.news.complete.remove(self.retained_from);
                self.retained_from = self.retained_from.wrapping_add(1);
            }
        }
        // Keeps it less than half the range of vids behind.
        raise_to(&mut self.refused_below, self.retained_from);
    }

    /// Answers a fragment whose sum was released with the result, if that has arrived.
    fn answer_released<M: Memory<Buffer = B>>(
        &mut self,
        index: usize,
        child: usize,
        header: &Header,
        memory: &mut M,
        out: &mut TransmitQueue<B>,
    ) -> DropReason {
        let bit = (1 as ChildSet) << child;
        let slot = self.slots[index].as_mut().expect("a released slot");
        let counted = slot.arrived & bit != 0;
        slot.arrived |= bit;
        self.counters.duplicates += u64::from(counted);
        self.counters.late += u64::from(!counted);
        if header.resent {
            self.counters.answered += 1;
            if slot.phase == Phase::Result {
                self.answer(index, header.vid.0, child, out);
            } else if let Some(parent) = self.lease.parent {
                slot.asked |= bit;
                match slot.sum {
                    Some(sum) => {
                        memory.mark_resent(sum);
                        out.data(parent, sum);
                    }
                    None => self.repeat_empty(index, header.vid, parent, out),
                }
            }
        }
        if counted { DropReason::Duplicate } else { DropReason::Late }
    }

    /// Whether a child's fragment is the one that it has sent before. Comparing costs nothing unless a fragment comes
    /// again, and is no longer possible once it is summed: then the first one counts, whatever comes later.
    fn repeats<M: Memory<Buffer = B>>(
        &self,
        index: usize,
        child: usize,
        header: &Header,
        payload: &M::Payload,
        memory: &M,
    ) -> bool {
        let stored = self.port_buffers[index * self.lease.children.len() + child];
        let same = self.slots[index].as_ref().is_some_and(|slot| slot.is_of(header));
        same && stored.is_none_or(|stored| memory.holds(stored, payload))
    }

    /// Handles a fragment that is not the one that its child has sent before: tells all neighbours, once.
    fn contradict(
        &mut self,
        index: usize,
        child: usize,
        header: &Header,
        out: &mut TransmitQueue<B>,
    ) -> DropReason {
        let slot = self.slots[index].as_mut().expect("a slot with the first one");
        let first = slot.contradicted & 1 << child == 0;
        slot.contradicted |= 1 << child;
        if first {
            let missing = self.lease.children[child].ranks;
            let notice = Header { missing, ..header.notice(Kind::Mismatch, header.vid) };
            self.spread_mismatch(&notice, None, out);
        }
        DropReason::Contradiction
    }

    /// Ranks beneath the children of that bitmap.
    fn ranks(&self, children: ChildSet) -> u64 {
        let chosen = self.lease.children.iter().enumerate().filter(|(i, _)| children & 1 << i != 0);
        chosen.fold(0, |ranks, (_, child)| ranks | child.ranks)
    }

    /// Answers a fragment that is stored and whose sum is incomplete: tells the child which ranks are awaited, that ranks
    /// disagree, or which contradict themselves.
    fn answer_waiting(
        &mut self,
        index: usize,
        child: usize,
        header: &Header,
        out: &mut TransmitQueue<B>,
    ) -> DropReason {
        self.counters.duplicates += 1;
        if header.resent {
            let slot = self.slots[index].as_ref();
            let (arrived, contradicted) = slot.map_or((0, 0), |s| (s.arrived, s.contradicted));
            let told = self.named(index, header.vid).is_some();
            let (kind, missing) = match contradicted {
                0 if told => (Kind::Mismatch, 0),
                0 => (Kind::Waiting, self.ranks(!arrived)),
                _ => (Kind::Mismatch, self.ranks(contradicted)),
            };
            let notice = Header { missing, ..header.notice(kind, header.vid) };
            self.counters.waiting += 1;
            out.control(self.lease.children[child].port, notice);
        }
        DropReason::Duplicate
    }
}

impl<B> Tenancy for Tree<B> {
    type Lease = Lease;

    fn lease(&self) -> &Lease {
        &self.lease
    }

    fn last_seen(&self) -> Time {
        self.last_seen
    }
}

impl<B> Slot<B> {
    /// `cap`: window that the node allows.
    fn new(cap: u16) -> Slot<B> {
        Slot {
            phase: Phase::Filling,
            arrived: 0,
            asked: 0,
            contradicted: 0,
            marks: 0,
            cap,
            missing: 0,
            asking: 0,
            down: false,
            shape: None,
            sum: None,
        }
    }

    fn is_of(&self, header: &Header) -> bool {
        self.shape.is_none_or(|shape| shape == Shape::of(header))
    }
}

impl Shape {
    fn of(header: &Header) -> Shape {
        let Header { chunk, format, n_elems, parties, .. } = *header;
        Shape { chunk, format, n_elems, parties }
    }
}
