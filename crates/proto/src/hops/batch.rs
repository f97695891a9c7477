//! Packets that are sealed and opened four at once: those that arrive as a train, and those that a switch sends together.
//!
//! The result is the same as one after the other; a driver whose processor is faster so passes its code to
//! [`Hops::use_lanes`]. Without that, every packet is sealed and opened when its turn comes.

use netsum_wire::seal::{
    self, AegisState, Encrypted, Four, FourPackets, SEALED_HEADER_LEN, TRAILER_LEN, is_encrypted,
};
use netsum_wire::{JobId, TreeId};

use super::{Hop, Hops};
use crate::{DropReason, PortId};

/// Packets at once.
pub const AT_ONCE: usize = 4;

/// What was found of a packet before its turn: its number, if its tag is right. It is decrypted.
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
    payload: Place<P>,
}

#[derive(Clone, Copy, Debug)]
enum Place<P> {
    /// Not beside the header.
    Elsewhere(Option<P>),
    /// Beside the header, to be encrypted there: its length.
    Here(usize),
}

/// Packets to be sent that wait for their tags.
#[derive(Debug)]
pub struct Unsealed<P>(Vec<Waiting<P>>);

impl<P> Default for Unsealed<P> {
    fn default() -> Unsealed<P> {
        Unsealed(Vec::new())
    }
}

/// A hop's keys for [`FourPackets`].
#[derive(Clone, Debug)]
pub(super) enum Lanes {
    /// States of the MAC, of packets sent and received.
    Tags(Box<[AegisState; 2]>),
    /// Packets are encrypted.
    Cipher,
}

impl Lanes {
    fn new(hop: &Hop, code: &dyn FourPackets) -> Option<Lanes> {
        if hop.send.encrypts() {
            return Some(Lanes::Cipher);
        }
        let [send, receive] = [hop.send.aegis()?, hop.receive.aegis()?];
        Some(Lanes::Tags(Box::new([code.state(send), code.state(receive)])))
    }

    fn sends(&self) -> Option<&AegisState> {
        match self {
            Lanes::Tags(states) => Some(&states[0]),
            Lanes::Cipher => None,
        }
    }
}

impl Hop {
    /// Seals the last packet in `heads`, which begins at `start`, or puts it into `waiting`. `to`: this hop; `at`: where
    /// the payload is, when the packet gets its tag. Returns whether the payload has gone to `heads`, encrypted.
    #[inline]
    pub fn seal_or_wait<P>(
        &mut self,
        to: (JobId, TreeId, PortId),
        heads: &mut Vec<u8>,
        start: usize,
        (payload, at): (&[u8], Option<P>),
        waiting: &mut Unsealed<P>,
    ) -> bool {
        match self.lanes {
            None => self.seal_last(heads, start, payload),
            Some(Lanes::Tags(_)) => {
                seal::put_number(self.numbers.next(), &mut heads[start..]);
                waiting.0.push(Waiting { hop: to, start, payload: Place::Elsewhere(at) });
                false
            }
            Some(Lanes::Cipher) => {
                seal::put_number_to_encrypt(self.numbers.next(), &mut heads[start..]);
                heads.reserve(payload.len() + TRAILER_LEN);
                heads.extend_from_slice(payload);
                heads.extend_from_slice(&[0; TRAILER_LEN]);
                waiting.0.push(Waiting { hop: to, start, payload: Place::Here(payload.len()) });
                true
            }
        }
    }
}

impl Hops {
    /// Seals and opens by this code where several packets can be had; `None`: one after the other.
    pub fn use_lanes(&mut self, lanes: Option<&'static dyn FourPackets>) {
        self.lanes = lanes;
    }

    pub(super) fn prepare(&self, hop: Hop) -> Hop {
        let lanes = self.lanes.and_then(|code| Lanes::new(&hop, code));
        Hop { lanes, ..hop }
    }

    /// Checks the tags of packets of one neighbour, the first of which is next, and decrypts them. `None`: that is no
    /// faster, or they are not alike; then they are as they were.
    pub fn check_ahead(&self, from: PortId, packets: [&mut [u8]; AT_ONCE]) -> Option<CheckedAhead> {
        let code = self.lanes?;
        let (job, tree) = seal::hop_of(packets[0])?;
        let hop = self.hops.get(&(job, tree, from))?;
        let (len, encrypted) = (packets[0].len(), is_encrypted(packets[0]));
        // Of one version, and so of one protocol: each protocol has keys of its own.
        let version = packets[0].first().copied();
        let alike = |packet: &&mut [u8]| {
            let same = packet.len() == len && packet.first().copied() == version;
            same && seal::hop_of(packet) == Some((job, tree))
        };
        if !packets.iter().all(alike) {
            return None;
        }
        let payload = |packet| <[u8]>::split_at(packet, SEALED_HEADER_LEN).1;
        let numbers = match hop.lanes.as_ref()? {
            Lanes::Tags(states) if !encrypted && len >= SEALED_HEADER_LEN => {
                // Not by `map`, which is called as a function.
                let [a, b, c, d] = packets;
                let heads =
                    [seal::head_of(a), seal::head_of(b), seal::head_of(c), seal::head_of(d)];
                let [p, q, r, s] = [&a[..], &b[..], &c[..], &d[..]];
                let payloads = [payload(p), payload(q), payload(r), payload(s)];
                let tags = code.tags([&states[1]; AT_ONCE], heads.each_ref(), payloads);
                [
                    seal::number_if_tagged(p, tags[0]),
                    seal::number_if_tagged(q, tags[1]),
                    seal::number_if_tagged(r, tags[2]),
                    seal::number_if_tagged(s, tags[3]),
                ]
            }
            Lanes::Cipher if encrypted && len >= SEALED_HEADER_LEN + TRAILER_LEN => {
                let key = hop.receive.cipher()?;
                let mut parts = packets.map(|packet| Encrypted::split(packet).expect("its length"));
                let tags = code.decrypt(Four::new([key; AT_ONCE], &mut parts));
                let mut tags = tags.iter();
                parts.map(|part| tags.next().and_then(|tag| part.number_if_tagged(tag)))
            }
            _ => return None,
        };
        // The first is next, so it has been asked for already.
        Some(CheckedAhead { found: numbers.map(|number| Some(Checked(number))), next: 0 })
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

    /// Gives all packets that wait their tags, and encrypts them.
    pub fn seal_waiting<'a, P: Copy>(
        &'a self,
        heads: &mut [u8],
        waiting: &mut Unsealed<P>,
        payload: impl Fn(P) -> &'a [u8],
    ) {
        for group in waiting.0.chunks(AT_ONCE) {
            if !self.encrypt_group(heads, group) {
                self.seal_group(heads, group, &payload);
            }
        }
        waiting.0.clear();
    }

    /// Encrypts four packets; false if they are fewer, or not alike.
    fn encrypt_group<P>(&self, heads: &mut [u8], group: &[Waiting<P>]) -> bool {
        let (Some(code), [a, b, c, d]) = (self.lanes, group) else { return false };
        let of = [a, b, c, d];
        let Place::Here(len) = a.payload else { return false };
        if !of.iter().all(|one| matches!(one.payload, Place::Here(same) if same == len)) {
            return false;
        }
        let keys = of.map(|one| self.hops[&one.hop].send.cipher());
        let [Some(a), Some(b), Some(c), Some(d)] = keys else { return false };
        let packets = of.map(|one| one.start..one.start + packet_len(len));
        let packets = heads.get_disjoint_mut(packets).expect("packets follow each other");
        let mut parts = packets.map(|packet| Encrypted::split(packet).expect("it has a number"));
        let tags = code.encrypt(Four::new([a, b, c, d], &mut parts));
        parts.iter_mut().zip(&tags).for_each(|(part, tag)| part.put_tag(tag));
        true
    }

    fn seal_group<'a, P: Copy>(
        &'a self,
        heads: &mut [u8],
        group: &[Waiting<P>],
        payload: &impl Fn(P) -> &'a [u8],
    ) {
        // A group of fewer than four has its last packet several times.
        let part = |i: usize| self.part(heads, &group[i.min(group.len() - 1)], payload);
        if let Some(code) = self.lanes.filter(|_| group.len() > 1)
            && let [Some(a), Some(b), Some(c), Some(d)] = [part(0), part(1), part(2), part(3)]
            && [&b, &c, &d].iter().all(|part| part.payload.len() == a.payload.len())
        {
            let states = [a.state, b.state, c.state, d.state];
            let payloads = [a.payload, b.payload, c.payload, d.payload];
            let tags = code.tags(states, [&a.head, &b.head, &c.head, &d.head], payloads);
            for (one, tag) in group.iter().zip(tags) {
                seal::put_tag(tag, &mut heads[one.start..]);
            }
            return;
        }
        for one in group {
            let key = &self.hops[&one.hop].send;
            match one.payload {
                Place::Here(len) => {
                    key.encrypt_numbered(&mut heads[one.start..][..packet_len(len)]);
                }
                Place::Elsewhere(at) => {
                    let payload = at.map_or(&[][..], payload);
                    let tag = key.tag_after(&heads[one.start..], payload);
                    seal::put_tag(tag, &mut heads[one.start..]);
                }
            }
        }
    }

    /// What a packet's tag is computed from; `None`: it is encrypted.
    #[inline]
    fn part<'a, P: Copy>(
        &'a self,
        heads: &[u8],
        one: &Waiting<P>,
        payload: &impl Fn(P) -> &'a [u8],
    ) -> Option<Part<'a>> {
        let Place::Elsewhere(at) = one.payload else { return None };
        let state = self.hops[&one.hop].lanes.as_ref()?.sends()?;
        let head = seal::head_of(&heads[one.start..]);
        Some(Part { state, head, payload: at.map_or(&[][..], payload) })
    }
}

/// What the tag of a packet to be sent is computed from.
struct Part<'a> {
    state: &'a AegisState,
    head: seal::Head,
    payload: &'a [u8],
}

/// Length of an encrypted packet.
fn packet_len(payload: usize) -> usize {
    SEALED_HEADER_LEN + payload + TRAILER_LEN
}
