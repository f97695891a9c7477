//! Packets whose tags are computed four at once: those that arrive as a train, and those that a switch sends together.
//!
//! The tags are the same as one after the other; a driver whose processor is faster so passes its code to
//! [`Hops::use_lanes`]. Without that, every packet is sealed and checked when its turn comes.

use netsum_wire::seal::{self, AegisState, FourTags};
use netsum_wire::{JobId, TreeId};

use super::{Hop, Hops};
use crate::{DropReason, PortId};

/// Packets at once.
pub const AT_ONCE: usize = 4;

/// What was found of a packet before its turn: its number, if its tag is right.
#[derive(Clone, Copy, Debug)]
pub struct Checked(Option<u64>);

/// Packets of a train that were checked before their turn, in order.
#[derive(Debug, Default)]
pub struct CheckedAhead {
    found: [Option<Checked>; AT_ONCE],
    next: usize,
}

impl CheckedAhead {
    /// The next packet's, if it was checked. To be called once for each packet of the train.
    #[inline]
    pub fn pop(&mut self) -> Option<Checked> {
        let found = self.found.get(self.next).copied().flatten();
        self.next += 1;
        found
    }
}

/// A packet that waits for its tag: its hop, the first byte of its header, and where its payload is.
#[derive(Clone, Copy, Debug)]
struct Waiting<P> {
    hop: (JobId, TreeId, PortId),
    start: usize,
    payload: Option<P>,
}

/// Packets to be sent that wait for their tags.
#[derive(Debug)]
pub struct Unsealed<P>(Vec<Waiting<P>>);

impl<P> Default for Unsealed<P> {
    fn default() -> Unsealed<P> {
        Unsealed(Vec::new())
    }
}

/// A key's state for [`FourTags`].
#[derive(Clone, Debug)]
pub(super) struct States {
    send: AegisState,
    receive: AegisState,
}

impl States {
    fn new(hop: &Hop, lanes: &dyn FourTags) -> Option<Box<States>> {
        let [send, receive] = [hop.send.aegis()?, hop.receive.aegis()?];
        Some(Box::new(States { send: lanes.state(send), receive: lanes.state(receive) }))
    }
}

impl Hops {
    /// Computes tags by this code where several packets can be had; `None`: one after the other.
    pub fn use_lanes(&mut self, lanes: Option<&'static dyn FourTags>) {
        self.lanes = lanes;
    }

    pub(super) fn prepare(&self, hop: Hop) -> Hop {
        let states = self.lanes.and_then(|lanes| States::new(&hop, lanes));
        Hop { states, ..hop }
    }

    /// Checks the tags of packets of one neighbour, the first of which is next. `None`: that is no faster, or they are
    /// not alike.
    pub fn check_ahead(&self, from: PortId, packets: [&[u8]; AT_ONCE]) -> Option<CheckedAhead> {
        let lanes = self.lanes?;
        let (job, tree) = seal::hop_of(packets[0])?;
        let states = self.hops.get(&(job, tree, from))?.states.as_deref()?;
        let payloads = packets.map(|packet| packet.get(seal::SEALED_HEADER_LEN..));
        let [Some(a), Some(b), Some(c), Some(d)] = payloads else { return None };
        let payloads = [a, b, c, d];
        let alike = |packet: &[u8]| seal::hop_of(packet) == Some((job, tree));
        if !packets.into_iter().all(alike) || payloads.iter().any(|p| p.len() != a.len()) {
            return None;
        }
        let heads = packets.map(seal::head_of);
        let tags = lanes.tags([&states.receive; AT_ONCE], heads.each_ref(), payloads);
        let found =
            std::array::from_fn(|i| Some(Checked(seal::number_if_tagged(packets[i], tags[i]))));
        // The first is next, so it has been asked for already.
        Some(CheckedAhead { found, next: 0 })
    }

    /// Like [`Hops::open`], for a packet that may have been checked ahead.
    #[inline]
    pub fn open_checked(
        &mut self,
        job: JobId,
        tree: TreeId,
        from: PortId,
        checked: Option<Checked>,
        packet: &mut [u8],
    ) -> Result<(), DropReason> {
        match (checked, self.hop(job, tree, from)) {
            (Some(Checked(number)), Some(hop)) => hop.accept(number),
            _ => self.open(job, tree, from, packet),
        }
    }

    /// Seals the last packet in `heads`, which begins at `start`, or puts it into `waiting`. `at`: where its payload is,
    /// when it gets its tag. Returns whether the payload has gone to `heads`, encrypted. The packet is sealed already if
    /// there is no such hop.
    #[inline]
    pub fn seal_or_wait<P>(
        &mut self,
        to: (JobId, TreeId, PortId),
        heads: &mut Vec<u8>,
        start: usize,
        (payload, at): (&[u8], Option<P>),
        waiting: &mut Unsealed<P>,
    ) -> bool {
        let Some(hop) = self.hop(to.0, to.1, to.2) else { return false };
        if hop.states.is_none() {
            return hop.seal_last(heads, start, payload);
        }
        seal::put_number(hop.numbers.next(), &mut heads[start..]);
        waiting.0.push(Waiting { hop: to, start, payload: at });
        false
    }

    /// Gives all packets that wait their tags.
    pub fn seal_waiting<'a, P: Copy>(
        &self,
        heads: &mut [u8],
        waiting: &mut Unsealed<P>,
        payload: impl Fn(P) -> &'a [u8],
    ) {
        for group in waiting.0.chunks(AT_ONCE) {
            self.seal_group(heads, group, &payload);
        }
        waiting.0.clear();
    }

    fn seal_group<'a, P: Copy>(
        &self,
        heads: &mut [u8],
        group: &[Waiting<P>],
        payload: &impl Fn(P) -> &'a [u8],
    ) {
        // A group of fewer than four has its last packet several times.
        let of = |i: usize| &group[i.min(group.len() - 1)];
        let of: [&Waiting<P>; AT_ONCE] = std::array::from_fn(of);
        let hops = of.map(|one| &self.hops[&one.hop]);
        let payloads = of.map(|one| one.payload.map_or(&[][..], payload));
        let alike = payloads.iter().all(|bytes| bytes.len() == payloads[0].len());
        if let Some(lanes) = self.lanes.filter(|_| alike && group.len() > 1)
            && let [Some(a), Some(b), Some(c), Some(d)] = hops.map(|hop| hop.states.as_deref())
        {
            let heads_of = of.map(|one| seal::head_of(&heads[one.start..]));
            let states = [&a.send, &b.send, &c.send, &d.send];
            let tags = lanes.tags(states, heads_of.each_ref(), payloads);
            for (one, tag) in group.iter().zip(tags) {
                seal::put_tag(tag, &mut heads[one.start..]);
            }
            return;
        }
        for ((one, hop), payload) in group.iter().zip(hops).zip(payloads) {
            let tag = hop.send.tag_after(&heads[one.start..], payload);
            seal::put_tag(tag, &mut heads[one.start..]);
        }
    }
}
