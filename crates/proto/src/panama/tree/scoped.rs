//! Fragments that not all ranks contribute to or take: empty contributions, and completion without elements.
//!
//! Every rank takes part in every fragment. Whoever contributes no elements sends an *empty contribution*: it is ready
//! for the result, and without it nothing is released, so windows bound a slow receiver as they bound a slow sender.
//! Whoever takes no elements hears that the fragment is *complete*, which frees its window. Neither has a payload, so
//! one packet says it of up to 64 vids (`Header::others`), where possible a packet that is sent anyway.
//!
//! A switch may keep news of completed fragments for a child until it sends that child something. It must not where
//! the child waits for them: if the child asks at that vid, sends again, or has heard of a later vid already.

use netsum_wire::Parties;
use netsum_wire::panama::{Header, Kind};
use netsum_wire::{Dtype, Format, ReduceOp, Vid};

use super::vid_set::VidSet;
use super::{Phase, Shape, Slot, Tree};
use crate::children::ChildSet;
use crate::panama::memory::Memory;
use crate::panama::switch::TransmitQueue;
use crate::sequence::{distance, raise_to};
use crate::{DropReason, PortId};

/// Bits of [`Header::others`].
const OTHERS: u32 = u64::BITS;

/// What children have not been told of completed fragments, and what they have.
#[derive(Clone, Debug, Hash)]
pub(super) struct News {
    /// By child, the marks of fragments of whose completion it has not heard.
    pub(super) marks: Vec<u32>,
    /// Children some of whose unheard fragments met congestion on the way down.
    pub(super) down: ChildSet,
    /// By child, one past the highest vid of a result that it was sent.
    pub(super) answered: Vec<u32>,
    /// One past the highest completed vid that not all contribute to and take.
    pub(super) below: Option<u32>,
    /// The retained ones of these, unless their shape is unknown.
    pub(super) complete: VidSet,
}

impl News {
    /// `ring`: slots of the tree.
    pub(super) fn new(children: usize, first: u32, ring: usize) -> News {
        News {
            marks: vec![0; children],
            down: 0,
            answered: vec![first; children],
            below: None,
            complete: VidSet::new(ring),
        }
    }

    fn heard(&mut self, child: usize, vid: u32) {
        self.marks[child] = 0;
        self.down &= !(1 << child);
        raise_to(&mut self.answered[child], vid.wrapping_add(1));
    }

    fn unheard(&mut self, child: usize, marks: u32, down: bool) {
        self.marks[child] |= marks;
        self.down |= ChildSet::from(down) << child;
    }
}

impl<B: Copy> Tree<B> {
    /// Checks that a child sends elements if, and only if, a rank beneath it contributes.
    #[inline]
    pub(super) fn check_parties(&self, child: usize, header: &Header) -> Result<(), DropReason> {
        if header.parties == Parties::All {
            return Ok(());
        }
        if self.lease.is_partial() {
            return Err(DropReason::Unexpected);
        }
        match header.parties.contributes(self.lease.children[child].ranks) == header.empty {
            true => Err(DropReason::Members),
            false => Ok(()),
        }
    }

    /// Handles the empty contributions of a child in a packet of another vid.
    #[inline]
    pub(super) fn take_others<M: Memory<Buffer = B>>(
        &mut self,
        child: usize,
        ce: bool,
        header: &Header,
        memory: &mut M,
        out: &mut TransmitQueue<B>,
    ) {
        if header.others == 0 || self.lease.is_partial() {
            return;
        }
        for vid in others(header) {
            self.take_empty(child, ce, vid, header, memory, out);
        }
    }

    /// Handles a packet that has nothing but empty contributions of other vids.
    pub(crate) fn take_empties<M: Memory<Buffer = B>>(
        &mut self,
        child: usize,
        ce: bool,
        header: &Header,
        memory: &mut M,
        out: &mut TransmitQueue<B>,
    ) -> Result<(), DropReason> {
        if self.lease.is_partial() {
            return Err(DropReason::Unexpected);
        }
        self.take_others(child, ce, header, memory, out);
        self.send_empties(out);
        Ok(())
    }

    /// Handles the empty contribution to `vid` in a packet with this header.
    fn take_empty<M: Memory<Buffer = B>>(
        &mut self,
        child: usize,
        ce: bool,
        vid: u32,
        header: &Header,
        memory: &mut M,
        out: &mut TransmitQueue<B>,
    ) {
        if !self.is_in_range(vid) {
            return;
        }
        let (index, bit) = (self.index(vid), (1 as ChildSet) << child);
        let from = self.lease.children[child];
        let cap = self.cap.announced;
        let slot = self.slots[index].get_or_insert_with(|| Slot::new(cap));
        let asks_again = header.resent && header.kind == Kind::Empties;
        if slot.phase != Phase::Filling {
            if asks_again {
                let header = &Header { vid: Vid(vid), ..*header };
                self.answer_released(index, child, header, memory, out);
            }
            return;
        }
        if slot.arrived & bit != 0 {
            if asks_again {
                self.answer_waiting(index, child, &Header { vid: Vid(vid), ..*header }, out);
            }
            return;
        }
        if slot.shape.is_some_and(|shape| shape.parties.contributes(from.ranks)) {
            return;
        }
        let first = slot.arrived == 0;
        slot.arrived |= bit;
        slot.marks |= header.marks | u32::from(ce) << from.branch;
        slot.cap = slot.cap.min(header.window_cap);
        let placed = match self.is_releasable(vid) {
            true => self.release(vid, None, memory, out),
            false => Ok(()),
        };
        match (placed, self.slots[index].as_mut()) {
            // It is not counted, and will be sent again.
            (Err(_), Some(slot)) => slot.arrived &= !bit,
            _ => {
                self.counters.contributions += 1;
                self.measure(index, child, first);
            }
        }
    }

    /// Takes the shape of a fragment from the first packet of its own. Who has sent an empty contribution in a packet
    /// of another vid, and should have sent elements, disagrees.
    #[inline]
    pub(super) fn adopt(&mut self, index: usize, header: &Header, out: &mut TransmitQueue<B>) {
        let slot = self.slots[index].as_mut();
        let unknown = |slot: &&mut Slot<B>| slot.phase == Phase::Filling && slot.shape.is_none();
        let Some(slot) = slot.filter(unknown) else { return };
        slot.shape = Some(Shape::of(header));
        let children = self.lease.children.iter().enumerate();
        let contributing = children.filter(|(_, c)| header.parties.contributes(c.ranks));
        let wrong = slot.arrived & contributing.fold(0, |bits, (i, _)| bits | (1 as ChildSet) << i);
        slot.arrived &= !wrong;
        if wrong != 0 {
            self.counters.mismatches += 1;
            let (missing, n_elems) = (self.ranks(wrong), header.n_elems);
            let notice = Header { missing, n_elems, ..header.notice(Kind::Mismatch, header.vid) };
            self.spread_mismatch(&notice, None, out);
        }
    }

    /// Whether the elements of a fragment without absent children come from beneath this node, or may come from
    /// elsewhere.
    #[inline]
    pub(super) fn has_source(&self, slot: &Slot<B>) -> bool {
        match slot.shape.map(|shape| shape.parties) {
            Some(Parties::All | Parties::ToOne(_) | Parties::Nobody) => true,
            Some(parties @ Parties::FromOne(_)) => {
                self.lease.parent.is_some() || parties.contributes(self.ranks(ChildSet::MAX))
            }
            None => self.lease.parent.is_some(),
        }
    }

    /// Releases a fragment to which nobody beneath contributes elements.
    pub(super) fn release_empty<M: Memory<Buffer = B>>(
        &mut self,
        vid: u32,
        memory: &mut M,
        out: &mut TransmitQueue<B>,
    ) {
        let index = self.index(vid);
        self.counters.released += 1;
        let slot = self.slots[index].as_mut().expect("a releasable slot");
        self.counters.marked += u64::from(slot.marks != 0);
        match self.lease.parent {
            None => {
                slot.phase = Phase::Result;
                self.hand_down(index, vid, out);
            }
            Some(parent) => {
                slot.phase = Phase::Partial;
                match self.empty_partial(index, vid) {
                    Some(partial) => out.control(parent, partial),
                    None => self.empties.push(vid),
                }
            }
        }
        self.advance(vid, memory);
    }

    /// The empty partial of a fragment that nobody takes: it needs a packet of its own, because it may ask.
    fn empty_partial(&self, index: usize, vid: u32) -> Option<Header> {
        let slot = self.slots[index].as_ref()?;
        slot.shape.filter(|shape| shape.parties == Parties::Nobody)?;
        Some(Header { empty: true, ..self.header_of(vid, slot, 0) })
    }

    /// The unsent empty partials below `vid` that fit into its packet, with their marks and their window.
    pub(super) fn empties_before(&self, vid: u32) -> (u64, u32, u16) {
        let before = self.empties.iter().filter_map(|&empty| {
            let behind = distance(vid, empty) - 1;
            (0..OTHERS as i32).contains(&behind).then_some((empty, behind))
        });
        before.fold((0, 0, u16::MAX), |(bits, marks, cap), (empty, behind)| {
            let slot = self.slots[self.index(empty)].as_ref();
            let (more, least) = slot.map_or((0, u16::MAX), |s| (s.marks, s.cap));
            (bits | 1 << behind, marks | more, cap.min(least))
        })
    }

    pub(super) fn forget_sent_empties(&mut self, sent: u64, vid: u32) {
        if sent != 0 {
            self.empties.retain(|&empty| {
                let behind = distance(vid, empty) - 1;
                !(0..OTHERS as i32).contains(&behind) || sent >> behind & 1 == 0
            });
        }
    }

    /// Sends the empty partials that no other packet has taken along.
    #[inline]
    pub(super) fn send_empties(&mut self, out: &mut TransmitQueue<B>) {
        while let Some(parent) = self.lease.parent.filter(|_| !self.empties.is_empty()) {
            let from = self.retained_from;
            let ahead = |empty: &&u32| distance(**empty, from);
            let highest = *self.empties.iter().max_by_key(ahead).expect("it is not empty");
            let end = highest.wrapping_add(1);
            let (others, marks, cap) = self.empties_before(end);
            let window_cap = cap.min(self.cap.announced);
            out.control(parent, Header { others, marks, window_cap, ..self.empties(end) });
            self.forget_sent_empties(others, end);
        }
    }

    /// Sends an empty partial again, because a child has asked again.
    pub(super) fn repeat_empty(
        &self,
        index: usize,
        vid: Vid,
        parent: PortId,
        out: &mut TransmitQueue<B>,
    ) {
        let Some(slot) = self.slots[index].as_ref() else { return };
        // The first packet may have been lost, so that this one alone tells the marks and the window.
        let window_cap = slot.cap.min(self.cap.announced);
        let again = match self.empty_partial(index, vid.0) {
            Some(partial) => Header { asks: true, ..partial },
            None => {
                let end = vid.0.wrapping_add(1);
                Header { others: 1, marks: slot.marks, window_cap, ..self.empties(end) }
            }
        };
        out.control(parent, Header { resent: true, ..again });
    }

    fn empties(&self, end: u32) -> Header {
        Header {
            kind: Kind::Empties,
            resent: false,
            congested_down: false,
            tree: self.lease.tree,
            format: Format { dtype: Dtype::F32, op: ReduceOp::Sum },
            job: self.lease.job,
            vid: Vid(end),
            chunk: 0,
            epoch: self.lease.epoch,
            window_cap: self.cap.announced,
            n_elems: 0,
            marks: 0,
            missing: 0,
            parties: Parties::All,
            empty: false,
            asks: false,
            others: 0,
        }
    }

    /// The header of a result as it goes on downward: with the news for those who take it.
    pub(super) fn header_down(&self, header: &Header) -> Header {
        if self.news.below.is_none() && header.others == 0 {
            return *header;
        }
        let (mut marks, mut congested_down) = (header.marks, header.congested_down);
        for (i, child) in self.lease.children.iter().enumerate() {
            if header.parties.takes(child.ranks) {
                marks |= self.news.marks[i];
                congested_down |= self.news.down >> i & 1 == 1;
            }
        }
        let others = self.completed_before(header.vid.0);
        Header { marks, congested_down, others, ..*header }
    }

    /// The vids before this one that are complete and that not all take.
    fn completed_before(&self, vid: u32) -> u64 {
        self.news.complete.before(vid)
    }

    /// The parties of a complete vid, unless all contribute and take.
    fn completed(&self, vid: u32) -> Option<Parties> {
        let slot = self.slots[self.index(vid)].as_ref()?;
        let parties = slot.shape.map(|shape| shape.parties);
        parties.filter(|p| slot.phase == Phase::Result && *p != Parties::All)
    }

    fn is_in_range(&self, vid: u32) -> bool {
        distance(vid, self.retained_from) >= 0
            && distance(vid, self.released) < i32::from(self.cap.accepted)
    }

    /// Sends a result to the children that take it; the others will be told, at once if they wait for it.
    pub(super) fn hand_down(&mut self, index: usize, vid: u32, out: &mut TransmitQueue<B>) {
        let Some(slot) = self.slots[index].as_ref() else { return };
        let parties = slot.shape.map_or(Parties::All, |shape| shape.parties);
        let (marks, down, sum) = (slot.marks, slot.down, slot.sum);
        let waiting = slot.asking | slot.asked;
        if parties != Parties::All {
            self.news.see(vid);
            self.news.complete.insert(vid);
        }
        for i in 0..self.lease.children.len() {
            let child = &self.lease.children[i];
            if parties.takes(child.ranks) {
                sum.iter().for_each(|&sum| out.data(child.port, sum));
                self.news.heard(i, vid);
            } else {
                self.news.unheard(i, marks, down);
                if waiting >> i & 1 == 1 || self.news.is_late(i, vid) {
                    self.tell(i, vid, out);
                }
            }
        }
    }

    /// Sends a result to the children that have asked again for it.
    pub(super) fn hand_down_to_asked(
        &mut self,
        index: usize,
        vid: u32,
        out: &mut TransmitQueue<B>,
    ) {
        let Some(slot) = self.slots[index].as_mut() else { return };
        let asked = std::mem::take(&mut slot.asked);
        for child in (0..self.lease.children.len()).filter(|child| asked >> child & 1 == 1) {
            self.answer(index, vid, child, out);
        }
    }

    /// Sends a child the result of a complete fragment, or that it is complete.
    pub(super) fn answer(
        &mut self,
        index: usize,
        vid: u32,
        child: usize,
        out: &mut TransmitQueue<B>,
    ) {
        let Some(slot) = self.slots[index].as_ref() else { return };
        let to = self.lease.children[child];
        let parties = slot.shape.map_or(Parties::All, |shape| shape.parties);
        match slot.sum.filter(|_| parties.takes(to.ranks)) {
            Some(sum) => out.data(to.port, sum),
            None => self.tell(child, vid, out),
        }
    }

    /// Tells a child that a fragment that it does not take is complete, with as many others as one packet can name.
    fn tell(&mut self, child: usize, vid: u32, out: &mut TransmitQueue<B>) {
        let to = self.lease.children[child];
        let is_news = |&vid: &u32| {
            self.is_in_range(vid) && self.completed(vid).is_some_and(|p| !p.takes(to.ranks))
        };
        let near = (0..OTHERS).rev().map(|ahead| vid.wrapping_add(ahead));
        let Some(at) = near.into_iter().find(is_news) else { return };
        let slot = self.slots[self.index(at)].as_ref();
        let Some((slot, shape)) = slot.and_then(|slot| Some((slot, slot.shape?))) else { return };
        let header = Header {
            kind: Kind::Result,
            format: shape.format,
            vid: Vid(at),
            chunk: shape.chunk,
            window_cap: slot.cap.min(self.cap.announced),
            n_elems: shape.n_elems,
            marks: self.news.marks[child],
            congested_down: self.news.down >> child & 1 == 1,
            parties: shape.parties,
            empty: true,
            others: self.completed_before(at),
            ..self.empties(at)
        };
        out.control(to.port, header);
        self.news.heard(child, at);
    }

    /// Handles the news in a packet from the parent: other vids that are complete.
    #[inline]
    pub(super) fn take_completed<M: Memory<Buffer = B>>(
        &mut self,
        header: &Header,
        memory: &mut M,
        out: &mut TransmitQueue<B>,
    ) {
        if header.others == 0 {
            return;
        }
        let new: Vec<u32> =
            others(header).filter(|&vid| self.complete(vid, header, memory)).collect();
        for child in 0..self.lease.children.len() {
            // The result of this packet will tell those who take it.
            let ranks = self.lease.children[child].ranks;
            if header.empty || !header.parties.takes(ranks) {
                self.tell_if_waiting(child, &new, out);
            }
        }
    }

    /// Handles the parent's word that a fragment which nobody beneath takes is complete.
    pub(super) fn complete_without_elements<M: Memory<Buffer = B>>(
        &mut self,
        vid: u32,
        header: &Header,
        memory: &mut M,
        out: &mut TransmitQueue<B>,
    ) {
        if self.complete(vid, header, memory) {
            for child in 0..self.lease.children.len() {
                self.tell_if_waiting(child, &[vid], out);
            }
        }
    }

    fn tell_if_waiting(&mut self, child: usize, new: &[u32], out: &mut TransmitQueue<B>) {
        let waits = |&&vid: &&u32| {
            let slot = self.slots[self.index(vid)].as_ref();
            let asks = slot.is_some_and(|s| (s.asking | s.asked) >> child & 1 == 1);
            asks || self.news.is_late(child, vid)
        };
        if let Some(&vid) = new.iter().find(waits) {
            self.tell(child, vid, out);
        }
    }

    /// Records that a fragment which nobody beneath takes is complete; false if that is no news here.
    fn complete<M: Memory<Buffer = B>>(
        &mut self,
        vid: u32,
        header: &Header,
        memory: &mut M,
    ) -> bool {
        let everyone = self.ranks(ChildSet::MAX);
        let index = self.index(vid);
        let in_range = self.is_in_range(vid);
        let slot = self.slots[index].as_mut().filter(|_| in_range);
        let untaken = |slot: &&mut Slot<B>| {
            let taken = slot.shape.is_none_or(|shape| shape.parties.takes(everyone));
            slot.phase == Phase::Partial && !taken
        };
        let Some(slot) = slot.filter(untaken) else { return false };
        slot.phase = Phase::Result;
        slot.marks = header.marks;
        slot.cap = header.window_cap;
        slot.down = header.congested_down;
        if let Some(partial) = slot.sum.take() {
            memory.free(partial);
        }
        self.counters.results += 1;
        self.news.see(vid);
        if slot.shape.is_some() {
            self.news.complete.insert(vid);
        }
        for child in 0..self.lease.children.len() {
            self.news.unheard(child, header.marks, header.congested_down);
        }
        true
    }

    /// Tells the children that a result is of another operation than theirs: empty contributions alone do not reveal
    /// it.
    pub(super) fn report_other_result(&self, header: &Header, out: &mut TransmitQueue<B>) {
        if header.parties == Parties::All {
            return;
        }
        let n_elems = header.n_elems;
        let notice = Header { n_elems, missing: 0, ..header.notice(Kind::Mismatch, header.vid) };
        for child in &self.lease.children {
            out.control(child.port, notice);
        }
    }
}

impl News {
    fn see(&mut self, vid: u32) {
        let end = vid.wrapping_add(1);
        raise_to(self.below.get_or_insert(end), end);
    }

    /// Whether a child has heard of a later vid, and so waits for this one.
    fn is_late(&self, child: usize, vid: u32) -> bool {
        distance(self.answered[child], vid) > 0
    }
}

/// The vids in [`Header::others`], in order.
fn others(header: &Header) -> impl Iterator<Item = u32> + use<> {
    let (vid, mut others) = (header.vid.0, header.others);
    std::iter::from_fn(move || {
        let i = others.checked_ilog2()?;
        others ^= 1 << i;
        Some(vid.wrapping_sub(1 + i))
    })
}
