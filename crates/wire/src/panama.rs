//! Wire format of protocol `panama`: a 38-byte header in network byte order, then little-endian elements.
//!
//! With Ethernet, IPv4 and UDP in front (42 bytes) the payload starts at byte 80, a multiple of 16, so that it is
//! aligned for a bus or a vector unit; in a sealed packet (version 2, [`crate::seal`]) it starts at byte 96. The IP
//! header carries ECN; docs/protocol-panama.md has the table and the reasons.

use crate::extension::{self, encrypted_version, sealed_version};
use crate::field::{be16, be32};
use crate::format::{Encoding, Format};
use crate::ids::{Epoch, JobId, TreeId, Vid};
use crate::packet::packet_header;
use crate::parties::Parties;

pub use crate::field::DecodeError;

/// Bytes before the payload.
pub const HEADER_LEN: usize = 38;
/// Where the byte of the tree is, in sealed and encrypted packets, too.
pub const TREE_AT: usize = 2;
/// First byte of an unsealed packet: protocol 1, version 1.
pub const VERSION: u8 = 0x11;
/// First byte of a sealed packet: protocol 1, version 2.
pub const SEALED_VERSION: u8 = sealed_version(VERSION);
/// First byte of an encrypted packet: protocol 1, version 3.
pub const ENCRYPTED_VERSION: u8 = encrypted_version(VERSION);
/// A `window_cap` without a limit: "as much as the aggregators allow".
pub const NO_CAP: u16 = u16::MAX;

/// Kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Up, worker to switch: one worker's fragment.
    Contribution = 0,
    /// Up, switch to switch: a partial sum.
    Partial = 1,
    /// Down: the sum of all (or of all but `missing`); acknowledges the contribution.
    Result = 2,
    /// Down: "your contribution is here; these ranks' are not" (`missing`). No payload.
    Waiting = 3,
    /// Up and down, to every worker: children disagree on the fragment's shape, format or position in the job. No
    /// payload.
    Mismatch = 4,
    /// Up: everything below `vid` has been received; contains no contribution. No payload.
    Acknowledgement = 5,
    /// Up: the child will send nothing more in this epoch. No payload.
    Fin = 6,
    /// Up, switch to switch: empty partials of the vids in `others` alone. No payload.
    Empties = 7,
}

impl Kind {
    const ALL: [Kind; 8] = [
        Kind::Contribution,
        Kind::Partial,
        Kind::Result,
        Kind::Waiting,
        Kind::Mismatch,
        Kind::Acknowledgement,
        Kind::Fin,
        Kind::Empties,
    ];

    /// Whether packets of the kind concern one fragment's elements, with or without them.
    const fn carries(self) -> bool {
        matches!(self, Kind::Contribution | Kind::Partial | Kind::Result)
    }
}

/// The decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind of the packet.
    pub kind: Kind,
    /// Sent before under the same vid, or its result was missed: the sender requests an answer.
    pub resent: bool,
    /// A result met congestion on its way down (a switch saw CE; the last hop's CE is in the IP header).
    pub congested_down: bool,
    /// Tree of the job.
    pub tree: TreeId,
    /// Dtype and operation.
    pub format: Format,
    /// Job.
    pub job: JobId,
    /// Packet number on the tree.
    pub vid: Vid,
    /// Fingerprint of the operation and of the fragment's position in it: equal at every worker, or the ranks disagree
    /// on what they reduce.
    pub chunk: u32,
    /// Version of the plan.
    pub epoch: Epoch,
    /// Maximum number of fragments in flight that the aggregators on the path allow.
    pub window_cap: u16,
    /// Elements in the fragment.
    pub n_elems: u16,
    /// Branches of the tree that marked ECN on the way up, one bit each.
    pub marks: u32,
    /// Ranks (mod 64) whose contribution is missing in the sum.
    pub missing: u64,
    /// Who contributes, and who takes the result.
    pub parties: Parties,
    /// A contribution or partial without elements, because nobody beneath contributes any; or a result without its
    /// elements, because nobody beneath takes them.
    pub empty: bool,
    /// The child waits for the answer: an empty result must not wait for the next packet to this child.
    pub asks: bool,
    /// Other vids of which the packet says the same without elements: bit i is vid − 1 − i. Up: empty contributions.
    /// Down: fragments that are complete, for those who do not take them. Excludes `missing`.
    pub others: u64,
}

/// Bits of the byte that also has the code of [`Parties`].
const PARTIES_BITS: u8 = 0x0f;
const EMPTY: u8 = 0x10;
const ASKS: u8 = 0x20;
const OTHERS: u8 = 0x40;

const RESENT: u8 = 0x10;
const CONGESTED_DOWN: u8 = 0x20;
const FLAG_BITS: u8 = RESENT | CONGESTED_DOWN;
const KIND_BITS: u8 = 0x0f;

impl Header {
    /// Splits a packet, sealed or not, into header and payload, and validates it: packets may come from attackers. It
    /// leaves the tag of a sealed packet to [`crate::seal::SealKey::open`].
    #[inline]
    pub fn decode(packet: &[u8]) -> Result<(Header, &[u8]), DecodeError> {
        let (h, payload) = extension::split(VERSION, HEADER_LEN, packet)?;
        let kind = Kind::ALL.get(usize::from(h[1] & KIND_BITS)).copied();
        let kind = kind.filter(|_| h[1] & !(KIND_BITS | FLAG_BITS) == 0);
        let kind = kind.ok_or(DecodeError::UnknownKind)?;
        let format = Format::from_code(h[3]).ok_or(DecodeError::UnknownFormat)?;
        let parties = Parties::from_codes(h[35] & PARTIES_BITS, h[34]);
        let parties = parties.filter(|_| h[35] & 0x80 == 0 && h[36..38] == [0; 2]);
        let parties = parties.ok_or(DecodeError::Reserved)?;
        let ranks_or_vids = u64::from(be32(h, 26)) << 32 | u64::from(be32(h, 30));
        let (missing, others) = match h[35] & OTHERS {
            0 => (ranks_or_vids, 0),
            _ => (0, ranks_or_vids),
        };
        let header = Header {
            kind,
            resent: h[1] & RESENT != 0,
            congested_down: h[1] & CONGESTED_DOWN != 0,
            tree: TreeId(h[TREE_AT]),
            format,
            job: JobId(be32(h, 4)),
            vid: Vid(be32(h, 8)),
            chunk: be32(h, 12),
            epoch: Epoch(be16(h, 16)),
            window_cap: be16(h, 18),
            n_elems: be16(h, 20),
            marks: be32(h, 22),
            missing,
            parties,
            empty: h[35] & EMPTY != 0,
            asks: h[35] & ASKS != 0,
            others,
        };
        if !header.is_consistent(h[35]) {
            return Err(DecodeError::Reserved);
        }
        match header.encoding() {
            Some(_) if header.n_elems == 0 => Err(DecodeError::EmptyFragment),
            _ if payload.len() != header.payload_len() => Err(DecodeError::PayloadLength),
            _ => Ok((header, payload)),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn encode(&self, h: &mut [u8; HEADER_LEN]) {
        h[0] = VERSION;
        h[1] = self.kind as u8
            | if self.resent { RESENT } else { 0 }
            | if self.congested_down { CONGESTED_DOWN } else { 0 };
        h[TREE_AT] = self.tree.0;
        h[3] = self.format.code();
        h[4..8].copy_from_slice(&self.job.0.to_be_bytes());
        h[8..12].copy_from_slice(&self.vid.0.to_be_bytes());
        h[12..16].copy_from_slice(&self.chunk.to_be_bytes());
        h[16..18].copy_from_slice(&self.epoch.0.to_be_bytes());
        h[18..20].copy_from_slice(&self.window_cap.to_be_bytes());
        h[20..22].copy_from_slice(&self.n_elems.to_be_bytes());
        h[22..26].copy_from_slice(&self.marks.to_be_bytes());
        let (others, ranks_or_vids) = match self.others {
            0 => (0, self.missing),
            vids => (OTHERS, vids),
        };
        h[26..34].copy_from_slice(&ranks_or_vids.to_be_bytes());
        h[34] = self.parties.rank();
        h[35] = self.parties.code()
            | if self.empty { EMPTY } else { 0 }
            | if self.asks { ASKS } else { 0 }
            | others;
        h[36..38].fill(0);
    }

    /// Whether flags and kind go together; `byte` has the flags.
    fn is_consistent(&self, byte: u8) -> bool {
        let Header { kind, parties, empty, asks, others, .. } = *self;
        let batches = kind.carries() || kind == Kind::Empties;
        let has_others = byte & OTHERS != 0;
        let empty_fits = match (kind.carries(), parties) {
            (true, Parties::All) => !empty,
            (true, Parties::Nobody) => empty,
            (true, _) => !empty || kind == Kind::Result || matches!(parties, Parties::FromOne(_)),
            (false, _) => !empty,
        };
        empty_fits
            && has_others == (others != 0)
            && (!has_others || batches)
            && (has_others || kind != Kind::Empties)
            && (!asks || matches!(kind, Kind::Contribution | Kind::Partial))
    }

    /// Encoding of the payload; `None` if there is none.
    #[inline]
    pub const fn encoding(&self) -> Option<Encoding> {
        match self.kind {
            _ if self.empty => None,
            Kind::Result => Some(Encoding::Element),
            // What one rank contributes is copied, not added.
            Kind::Contribution | Kind::Partial if matches!(self.parties, Parties::FromOne(_)) => {
                Some(Encoding::Element)
            }
            Kind::Contribution => Some(Encoding::of_contribution(self.format.dtype)),
            Kind::Partial => Some(Encoding::Accumulator),
            _ => None,
        }
    }

    /// The header of a notice without elements about this packet's fragment, at `vid`.
    #[inline]
    pub const fn notice(&self, kind: Kind, vid: Vid) -> Header {
        Header { kind, vid, n_elems: 0, empty: false, asks: false, others: 0, ..*self }
    }

    /// The job in an encoded header.
    #[inline]
    pub fn job_of(h: &[u8; HEADER_LEN]) -> JobId {
        JobId(be32(h, 4))
    }

    /// The tree in an encoded header.
    #[inline]
    pub fn tree_of(h: &[u8; HEADER_LEN]) -> TreeId {
        TreeId(h[TREE_AT])
    }

    /// Number of bytes after the header.
    #[inline]
    pub fn payload_len(&self) -> usize {
        self.encoding().map_or(0, |e| usize::from(self.n_elems) * e.size(self.format.dtype))
    }
}

packet_header!(Header, tree: |h| h.tree, missing: |h| h.missing);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Dtype, ReduceOp};
    use crate::seal::{EXTENSION_LEN, SEALED_HEADER_LEN};
    use proptest::prelude::*;

    fn header() -> Header {
        Header {
            kind: Kind::Partial,
            resent: true,
            congested_down: false,
            tree: TreeId(3),
            format: Format { dtype: Dtype::Bf16, op: ReduceOp::Sum },
            job: JobId(0x0102_0304),
            vid: Vid(0x0506_0708),
            chunk: 0x090a_0b0c,
            epoch: Epoch(0x0d0e),
            window_cap: 0x0f10,
            n_elems: 2,
            marks: 0x1112_1314,
            missing: 0x1516_1718_191a_1b1c,
            parties: Parties::All,
            empty: false,
            asks: false,
            others: 0,
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
            0x11, 0x11, 3, 0x20, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 0, 2, 0x11,
            0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0, 0, 0, 0,
        ];
        let packet = packet(&header());
        assert_eq!(packet[..HEADER_LEN], expected);
        assert_eq!(packet.len(), HEADER_LEN + 8, "a bfloat16 partial travels as float32");
        assert_eq!(Header::decode(&packet).unwrap().0, header());
        assert_eq!(crate::job_of(&packet), Some(header().job));
    }

    #[test]
    fn parties_and_other_vids_have_their_places() {
        let scoped = |parties, empty, asks, others| {
            let kind = Kind::Contribution;
            Header { kind, parties, empty, asks, others, missing: 0, ..header() }
        };
        let one = scoped(Parties::ToOne(7), false, true, 0);
        let packet_of = packet;
        assert_eq!(packet_of(&one)[34..38], [7, 0x21, 0, 0]);
        let empty = scoped(Parties::FromOne(63), true, false, 1 << 63 | 1);
        let packet = packet_of(&empty);
        assert_eq!(packet[26..38], [0x80, 0, 0, 0, 0, 0, 0, 1, 63, 0x52, 0, 0]);
        assert_eq!((packet.len(), Header::decode(&packet).unwrap().0), (HEADER_LEN, empty));
        let barrier = Header { n_elems: 0, ..scoped(Parties::Nobody, true, true, 0) };
        assert_eq!(packet_of(&barrier)[34..38], [0, 0x33, 0, 0]);
        assert_eq!(Header::decode(&packet_of(&barrier)).unwrap().0, barrier);
        let copied = Header { kind: Kind::Partial, ..scoped(Parties::FromOne(1), false, false, 0) };
        assert_eq!(packet_of(&copied).len(), HEADER_LEN + 4, "bfloat16 is copied, not added");
    }

    #[test]
    fn flags_that_do_not_go_together_are_refused() {
        let refused = |header: Header| {
            let decoded = Header::decode(&packet(&header)).map(|_| ());
            assert_eq!(decoded, Err(DecodeError::Reserved), "{header:?}");
        };
        let plain = Header { missing: 0, ..header() };
        refused(Header { empty: true, ..plain });
        refused(Header { parties: Parties::Nobody, ..plain });
        refused(Header { parties: Parties::ToOne(1), empty: true, ..plain });
        refused(Header { parties: Parties::ToOne(64), ..plain });
        refused(Header { kind: Kind::Result, asks: true, ..plain });
        refused(Header { kind: Kind::Waiting, others: 1, ..plain });
        refused(Header { kind: Kind::Empties, ..plain });
        for (at, value) in [(34, 1), (35, 4), (35, 0x80), (35, 0x40), (36, 1), (37, 1)] {
            let mut bytes = packet(&plain);
            bytes[at] = value;
            assert_eq!(Header::decode(&bytes).unwrap_err(), DecodeError::Reserved, "{at} {value}");
        }
    }

    #[test]
    fn parties_say_who_contributes_and_who_takes() {
        let of = |parties: Parties| (parties.contributes(0b110), parties.takes(0b110));
        assert_eq!(of(Parties::All), (true, true));
        assert_eq!(of(Parties::ToOne(2)), (true, true));
        assert_eq!(of(Parties::ToOne(0)), (true, false));
        assert_eq!(of(Parties::FromOne(2)), (true, true));
        assert_eq!(of(Parties::FromOne(0)), (false, true));
        assert_eq!(of(Parties::Nobody), (false, false));
        assert!(!Parties::FromOne(3).takes(1 << 3));
    }

    #[test]
    fn a_sealed_packet_has_the_same_header() {
        let mut sealed = packet(&header());
        sealed[0] = SEALED_VERSION;
        let payload = sealed.split_off(HEADER_LEN);
        sealed.extend([0xff; EXTENSION_LEN]);
        assert_eq!(sealed.len(), SEALED_HEADER_LEN);
        sealed.extend(&payload);
        assert_eq!(Header::decode(&sealed), Ok((header(), &payload[..])));
        assert_eq!(Header::decode(&sealed[..50]), Err(DecodeError::TruncatedHeader));
    }

    #[test]
    fn each_fault_has_its_reason() {
        let good = packet(&header());
        let with = |at: usize, value: u8| {
            let mut p = good.clone();
            p[at] = value;
            Header::decode(&p).map(|_| ()).unwrap_err()
        };
        assert_eq!(Header::decode(&good[..37]).unwrap_err(), DecodeError::TruncatedHeader);
        assert_eq!(with(0, 0x14), DecodeError::UnknownVersion);
        assert_eq!(with(0, SEALED_VERSION), DecodeError::TruncatedHeader, "8 bytes of payload");
        assert_eq!(with(1, 0x08), DecodeError::UnknownKind);
        assert_eq!(with(1, 0x81), DecodeError::UnknownKind);
        assert_eq!(with(3, 0x50), DecodeError::UnknownFormat);
        assert_eq!(with(3, 0x03), DecodeError::UnknownFormat);
        assert_eq!(with(21, 3), DecodeError::PayloadLength);
        assert_eq!(with(21, 0), DecodeError::EmptyFragment);
        assert_eq!(with(36, 1), DecodeError::Reserved);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail_with_a_reason(bytes in prop::collection::vec(any::<u8>(), 0..128)) {
            if let Ok((header, payload)) = Header::decode(&bytes) {
                let mut again = [0; HEADER_LEN];
                header.encode(&mut again);
                again[0] = bytes[0];
                prop_assert_eq!(&bytes[..HEADER_LEN], &again);
                prop_assert_eq!(payload.len(), header.payload_len());
            }
        }
    }
}
