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

pub use crate::field::DecodeError;

/// Bytes before the payload.
pub const HEADER_LEN: usize = 38;
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
}

impl Kind {
    const ALL: [Kind; 7] = [
        Kind::Contribution,
        Kind::Partial,
        Kind::Result,
        Kind::Waiting,
        Kind::Mismatch,
        Kind::Acknowledgement,
        Kind::Fin,
    ];

    /// Encoding of the payload; `None` if there is none.
    pub const fn encoding(self) -> Option<Encoding> {
        match self {
            Kind::Contribution | Kind::Result => Some(Encoding::Element),
            Kind::Partial => Some(Encoding::Accumulator),
            _ => None,
        }
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
}

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
        if h[34..38] != [0; 4] {
            return Err(DecodeError::Reserved);
        }
        let header = Header {
            kind,
            resent: h[1] & RESENT != 0,
            congested_down: h[1] & CONGESTED_DOWN != 0,
            tree: TreeId(h[2]),
            format,
            job: JobId(be32(h, 4)),
            vid: Vid(be32(h, 8)),
            chunk: be32(h, 12),
            epoch: Epoch(be16(h, 16)),
            window_cap: be16(h, 18),
            n_elems: be16(h, 20),
            marks: be32(h, 22),
            missing: u64::from(be32(h, 26)) << 32 | u64::from(be32(h, 30)),
        };
        match kind.encoding() {
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
        h[2] = self.tree.0;
        h[3] = self.format.code();
        h[4..8].copy_from_slice(&self.job.0.to_be_bytes());
        h[8..12].copy_from_slice(&self.vid.0.to_be_bytes());
        h[12..16].copy_from_slice(&self.chunk.to_be_bytes());
        h[16..18].copy_from_slice(&self.epoch.0.to_be_bytes());
        h[18..20].copy_from_slice(&self.window_cap.to_be_bytes());
        h[20..22].copy_from_slice(&self.n_elems.to_be_bytes());
        h[22..26].copy_from_slice(&self.marks.to_be_bytes());
        h[26..34].copy_from_slice(&self.missing.to_be_bytes());
        h[34..38].fill(0);
    }

    /// The job in an encoded header.
    #[inline]
    pub fn job_of(h: &[u8; HEADER_LEN]) -> JobId {
        JobId(be32(h, 4))
    }

    /// The tree in an encoded header.
    #[inline]
    pub fn tree_of(h: &[u8; HEADER_LEN]) -> TreeId {
        TreeId(h[2])
    }

    /// Number of bytes after the header.
    #[inline]
    pub fn payload_len(&self) -> usize {
        let encoding = self.kind.encoding();
        encoding.map_or(0, |e| usize::from(self.n_elems) * e.size(self.format.dtype))
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
        assert_eq!(with(1, 0x07), DecodeError::UnknownKind);
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
