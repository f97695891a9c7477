//! Wire format of protocol `atp`: a header in network byte order, then little-endian elements.
//!
//! The header has 38 bytes. Unsealed packets have eight zeros after it; sealed ones have an extension ([`crate::seal`]).
//!
//! The fields are the paper's (ATP, NSDI 2021, figure of the packet format), wider where a training run
//! outgrows them: identity is 32 + 16 + 8 + 32 bits of job, epoch, tree and sequence number (the paper has
//! 32 for job and sequence number), the slot 32 (16), each fan-in 8 (5). docs/protocol-atp.md has the table.

use crate::arithmetic::Arithmetic;
use crate::extension;
use crate::field::{DecodeError, be16, be32, put16, put32};
use crate::ids::{Epoch, JobId, Sequence, SlotIndex, TreeId};
use crate::packet::packet_header;
use crate::parties::Parties;

/// Bytes before the payload of an unsealed packet.
pub const HEADER_LEN: usize = 46;
/// First byte of unsealed packets: protocol 2, version 1.
pub const VERSION: u8 = 0x21;
/// First byte of sealed packets.
pub const SEALED_VERSION: u8 = extension::sealed_version(VERSION);
/// First byte of an encrypted packet: protocol 2, version 3.
pub const ENCRYPTED_VERSION: u8 = extension::encrypted_version(VERSION);
/// Most workers of a rack and racks of a job: the width of a bitmap.
pub const MAX_FAN_IN: u8 = 32;

/// Kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Up: one worker's fragment, or the sum of those in the bitmaps.
    Contribution = 0,
    /// Down: the sum of all. Acknowledges the contribution and frees the slot.
    Result = 1,
    /// Down: "your contribution is here; others' are not". No payload.
    Waiting = 2,
    /// Down: "send this fragment as float32". No payload; it frees the slot.
    FloatRequest = 3,
    /// Down: the workers disagree on the properties of the fragment. No payload.
    Mismatch = 4,
    /// Up, worker to switch and server: nothing more will be sent in this epoch. No payload.
    Fin = 5,
    /// Up, worker to server: its part in fragments to which it contributes no elements. No payload.
    Ready = 6,
    /// Down: the fragment is complete, for those who do not take its result. Acknowledges the contribution and frees
    /// the slot. No payload.
    Done = 7,
    /// Down: "your contributions to this fragment and others are not here". They are then sent past the slots. No payload.
    Missing = 8,
}

impl Kind {
    const ALL: [Kind; 9] = [
        Kind::Contribution,
        Kind::Result,
        Kind::Waiting,
        Kind::FloatRequest,
        Kind::Mismatch,
        Kind::Fin,
        Kind::Ready,
        Kind::Done,
        Kind::Missing,
    ];

    /// Whether elements follow the header.
    pub const fn has_payload(self) -> bool {
        matches!(self, Kind::Contribution | Kind::Result)
    }

    /// Whether the packet travels from the server to the workers (the paper's `isAck`).
    pub const fn is_down(self) -> bool {
        !matches!(self, Kind::Contribution | Kind::Fin | Kind::Ready)
    }

    /// Whether packets of the kind are about several fragments, and name none's slot.
    const fn has_others(self) -> bool {
        matches!(self, Kind::Ready | Kind::Missing)
    }

    /// Whether packets of the kind go up and can belong to fragments with these parties.
    const fn fits(self, parties: Parties) -> bool {
        match self {
            Kind::Contribution => !matches!(parties, Parties::Nobody),
            Kind::Ready => matches!(parties, Parties::FromOne(_) | Parties::Nobody),
            _ => matches!(parties, Parties::All),
        }
    }
}

/// The aggregating switch that a packet is for next (the paper's `edgeSwitchIdentifier`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// The switch of the workers' rack.
    Rack,
    /// The switch of the server's rack; then the server.
    Server,
}

/// Flags, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags {
    /// Sent before: partial sums may exist and must be released.
    pub resend: bool,
    /// The slot held another fragment.
    pub collision: bool,
    /// The integers must not be used: one saturated, or would in some order of additions.
    pub overflow: bool,
    /// Some node on the way was congested.
    pub ecn: bool,
}

/// The decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// Kind of the packet.
    pub kind: Kind,
    /// The switch that adds it next.
    pub level: Level,
    /// Flags.
    pub flags: Flags,
    /// Type of the elements.
    pub arithmetic: Arithmetic,
    /// Server of the job; each has its own sequence numbers.
    pub tree: TreeId,
    /// Job.
    pub job: JobId,
    /// Number of the fragment.
    pub sequence: Sequence,
    /// Fingerprint of the operation and of the fragment's position in it.
    pub chunk: u32,
    /// Version of the plan.
    pub epoch: Epoch,
    /// Elements in the fragment.
    pub n_elems: u16,
    /// Workers in the sender's rack (the paper's `fanInDegree0`).
    pub rack_fan_in: u8,
    /// Racks of the job (the paper's `fanInDegree1`).
    pub server_fan_in: u8,
    /// Slot for the sum; 0 in packets that have none.
    pub slot: SlotIndex,
    /// In `Ready` and `Missing`, at the place of the slot: other fragments of which the packet says the same. Bit i is
    /// the number `sequence` − 1 − i in `Ready`, `sequence` + 1 + i in `Missing`.
    pub others: u32,
    /// Up: workers of the rack whose fragments are included (`bitmap0`), 0 for whole racks. Down: the workers that the
    /// packet is for, 0 for all.
    pub workers: u32,
    /// Up: racks whose fragments are included (`bitmap1`). Down: the racks that the packet is for, 0 for all.
    pub racks: u32,
    /// Down, in a result or in `Done`: the slot of the fragment that uses this one's entry in the table next (the paper
    /// returns it in the unused bitmap).
    pub next_slot: SlotIndex,
    /// Up, at the place of the next slot: who contributes and who takes.
    pub parties: Parties,
}

const LEVEL_BIT: u8 = 0x10;
const KIND_BITS: u8 = 0x0f;
const RESEND: u8 = 0x01;
const COLLISION: u8 = 0x02;
const OVERFLOW: u8 = 0x04;
const ECN: u8 = 0x08;

impl Header {
    /// Splits a packet into header and payload, and validates it: packets may come from attackers.
    #[inline]
    pub fn decode(packet: &[u8]) -> Result<(Header, &[u8]), DecodeError> {
        let (h, payload) = extension::split(VERSION, HEADER_LEN, packet)?;
        let kind = Kind::ALL.get(usize::from(h[1] & KIND_BITS)).copied();
        let kind = kind.filter(|_| h[1] & !(KIND_BITS | LEVEL_BIT) == 0);
        let kind = kind.ok_or(DecodeError::UnknownKind)?;
        let arithmetic = Arithmetic::from_code(h[2] >> 4).ok_or(DecodeError::UnknownFormat)?;
        let parties = match kind.is_down() {
            true => Parties::All,
            false => Parties::from_codes(h[35], h[34])
                .filter(|parties| kind.fits(*parties) && h[36..38] == [0; 2])
                .ok_or(DecodeError::Reserved)?,
        };
        let (slot, others) = (be32(h, 22), kind.has_others());
        let header = Header {
            kind,
            level: if h[1] & LEVEL_BIT == 0 { Level::Rack } else { Level::Server },
            flags: Flags::from_bits(h[2]),
            arithmetic,
            tree: TreeId(h[3]),
            job: JobId(be32(h, 4)),
            sequence: Sequence(be32(h, 8)),
            chunk: be32(h, 12),
            epoch: Epoch(be16(h, 16)),
            n_elems: be16(h, 18),
            rack_fan_in: h[20],
            server_fan_in: h[21],
            slot: SlotIndex(if others { 0 } else { slot }),
            others: if others { slot } else { 0 },
            workers: be32(h, 26),
            racks: be32(h, 30),
            next_slot: SlotIndex(if kind.is_down() { be32(h, 34) } else { 0 }),
            parties,
        };
        if payload.len() != header.payload_len() {
            return Err(DecodeError::PayloadLength);
        }
        if kind.has_payload() && header.n_elems == 0 {
            return Err(DecodeError::EmptyFragment);
        }
        if header.members_are_possible() {
            Ok((header, payload))
        } else {
            Err(DecodeError::Members)
        }
    }

    /// Writes the header of an unsealed packet.
    #[inline]
    pub fn encode(&self, h: &mut [u8; HEADER_LEN]) {
        h[0] = VERSION;
        h[1] = self.kind as u8 | if self.level == Level::Server { LEVEL_BIT } else { 0 };
        h[2] = self.flags.bits() | (self.arithmetic as u8) << 4;
        h[3] = self.tree.0;
        put32(h, 4, self.job.0);
        put32(h, 8, self.sequence.0);
        put32(h, 12, self.chunk);
        put16(h, 16, self.epoch.0);
        put16(h, 18, self.n_elems);
        h[20] = self.rack_fan_in;
        h[21] = self.server_fan_in;
        put32(h, 22, if self.kind.has_others() { self.others } else { self.slot.0 });
        put32(h, 26, self.workers);
        put32(h, 30, self.racks);
        if self.kind.is_down() {
            put32(h, 34, self.next_slot.0);
        } else {
            (h[34], h[35]) = (self.parties.rank(), self.parties.code());
            h[36..38].fill(0);
        }
        h[38..].fill(0);
    }

    /// Bytes that follow the header.
    #[inline]
    pub fn payload_len(&self) -> usize {
        if self.kind.has_payload() {
            usize::from(self.n_elems) * Arithmetic::ELEMENT_BYTES
        } else {
            0
        }
    }

    /// The bitmap of `fan_in` members.
    #[inline]
    pub const fn all(fan_in: u8) -> u32 {
        if fan_in >= MAX_FAN_IN { u32::MAX } else { (1 << fan_in) - 1 }
    }

    /// Up, a packet has some workers of one rack, or some whole racks; down, it may be for any of them.
    #[inline]
    fn members_are_possible(&self) -> bool {
        let possible = |fan_in: u8, bits: u32| {
            (1..=MAX_FAN_IN).contains(&fan_in) && bits & !Header::all(fan_in) == 0
        };
        if self.kind.is_down() {
            return true;
        }
        possible(self.server_fan_in, self.racks)
            && match self.racks.count_ones() {
                0 => false,
                1 => self.workers != 0 && possible(self.rack_fan_in, self.workers),
                _ => self.workers == 0 && self.level == Level::Server,
            }
    }
}

impl Flags {
    #[inline]
    fn from_bits(bits: u8) -> Flags {
        Flags {
            resend: bits & RESEND != 0,
            collision: bits & COLLISION != 0,
            overflow: bits & OVERFLOW != 0,
            ecn: bits & ECN != 0,
        }
    }

    #[inline]
    fn bits(self) -> u8 {
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        bit(self.resend, RESEND)
            | bit(self.collision, COLLISION)
            | bit(self.overflow, OVERFLOW)
            | bit(self.ecn, ECN)
    }
}

packet_header!(Header, tree: |h| h.tree);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> Header {
        Header {
            kind: Kind::Contribution,
            level: Level::Server,
            flags: Flags { resend: true, collision: false, overflow: true, ecn: false },
            arithmetic: Arithmetic::Wrapping,
            tree: TreeId(3),
            job: JobId(0x0102_0304),
            sequence: Sequence(0x0506_0708),
            chunk: 0x090a_0b0c,
            epoch: Epoch(0x0d0e),
            n_elems: 2,
            rack_fan_in: 4,
            server_fan_in: 32,
            slot: SlotIndex(0x0f10_1112),
            others: 0,
            workers: 0b1010,
            racks: 0x8000_0000,
            next_slot: SlotIndex(0),
            parties: Parties::ToOne(19),
        }
    }

    fn packet(header: &Header) -> Vec<u8> {
        let mut bytes = [0; HEADER_LEN];
        header.encode(&mut bytes);
        let mut packet = bytes.to_vec();
        packet.resize(HEADER_LEN + header.payload_len(), 0);
        packet
    }

    #[test]
    fn layout_is_the_documented_one() {
        let expected = [
            0x21, 0x10, 0x15, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0, 2, 4, 32, 15,
            16, 17, 18, 0, 0, 0, 0x0a, 0x80, 0, 0, 0, 19, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        let packet = packet(&header());
        assert_eq!(packet[..HEADER_LEN], expected);
        assert_eq!(packet.len(), HEADER_LEN + 8);
        assert_eq!(Header::decode(&packet).unwrap().0, header());
        assert_eq!(crate::job_of(&packet), Some(header().job));
        let ready = Header {
            kind: Kind::Ready,
            slot: SlotIndex(0),
            others: 0x0f10_1112,
            parties: Parties::Nobody,
            ..header()
        };
        let result = Header { kind: Kind::Result, next_slot: SlotIndex(0x1300_0016), ..header() };
        let result = Header { parties: Parties::All, ..result };
        for (header, last) in [(ready, [0, 3, 0, 0]), (result, [19, 0, 0, 22])] {
            let packet = super::tests::packet(&header);
            assert_eq!((&packet[22..26], &packet[34..38]), (&[15, 16, 17, 18][..], &last[..]));
            assert_eq!(Header::decode(&packet).unwrap().0, header);
        }
    }

    #[test]
    fn each_fault_has_its_reason() {
        let good = packet(&header());
        let with = |at: usize, value: u8| {
            let mut p = good.clone();
            p[at] = value;
            Header::decode(&p).map(|_| ()).unwrap_err()
        };
        assert_eq!(Header::decode(&good[..45]).unwrap_err(), DecodeError::TruncatedHeader);
        assert_eq!(with(0, 0x11), DecodeError::UnknownVersion);
        assert_eq!(with(1, 0x09), DecodeError::UnknownKind);
        assert_eq!(with(1, 0x30), DecodeError::UnknownKind);
        assert_eq!(with(2, 0x50), DecodeError::UnknownFormat);
        assert_eq!(with(19, 3), DecodeError::PayloadLength);
        assert_eq!(with(20, 3), DecodeError::Members, "worker 3 of a rack of three");
        assert_eq!(with(20, 33), DecodeError::Members);
        assert_eq!(with(21, 31), DecodeError::Members, "rack 31 of 31");
        assert_eq!(with(21, 0), DecodeError::Members);
        assert_eq!(with(29, 0), DecodeError::Members, "nobody's fragment");
        assert_eq!(with(30, 0), DecodeError::Members, "no rack's fragment");
        assert_eq!(with(33, 1), DecodeError::Members, "two racks, and single workers");
        assert_eq!(with(34, 64), DecodeError::Reserved, "a rank beyond those that have a bit");
        assert_eq!(with(35, 3), DecodeError::Reserved, "nobody, but a rank");
        assert_eq!(with(36, 1), DecodeError::Reserved);
        assert_eq!(
            with(1, 0x16),
            DecodeError::Reserved,
            "who contributes is not ready without elements"
        );
        let none = Header { n_elems: 0, ..header() };
        assert_eq!(Header::decode(&packet(&none)).unwrap_err(), DecodeError::EmptyFragment);
    }

    #[test]
    fn whole_racks_come_from_the_server_side_only() {
        let racks = Header { workers: 0, racks: 0b11, ..header() };
        assert_eq!(Header::decode(&packet(&racks)).unwrap().0, racks);
        let early = Header { level: Level::Rack, ..racks };
        assert_eq!(Header::decode(&packet(&early)).unwrap_err(), DecodeError::Members);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail_with_a_reason(
            mut bytes in prop::collection::vec(any::<u8>(), 0..128), plausible: bool,
        ) {
            if plausible && bytes.len() >= HEADER_LEN {
                bytes[0] = VERSION;
                bytes[1] &= 0x17;
                let elements = (bytes.len() - HEADER_LEN) / 4;
                bytes.truncate(HEADER_LEN + elements * 4);
                bytes[18..20].copy_from_slice(&(elements as u16).to_be_bytes());
            }
            if let Ok((header, payload)) = Header::decode(&bytes) {
                let mut again = [0; HEADER_LEN];
                header.encode(&mut again);
                prop_assert_eq!(&bytes[..HEADER_LEN], &again);
                prop_assert_eq!(payload.len(), header.payload_len());
            }
        }
    }
}
