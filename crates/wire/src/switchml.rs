//! Wire format of protocol `switchml`: a 38-byte header in network byte order, then little-endian int32.
//!
//! The fields are those of SwitchML's code (p4lang/p4app-switchML: message type, job number, element index,
//! pool index with the version as its highest bit, two exponents). Differs: a full round number takes the
//! place of the version bit, which cannot tell a packet that is two rounds late; the exponents are of all
//! fragments and one per packet; job and epoch as in the other protocols. Parties and a second pool, for
//! collectives other than allreduce, are ours.

use crate::arithmetic::Arithmetic;
use crate::extension;
use crate::field::{DecodeError, be16, be32, put16, put32};
use crate::ids::{Epoch, JobId, TreeId};
use crate::packet::packet_header;
use crate::parties::Parties;

/// Bytes before the payload.
pub const HEADER_LEN: usize = 38;
/// First byte of unsealed packets: protocol 3, version 1.
pub const VERSION: u8 = 0x31;
/// First byte of sealed packets ([`crate::seal`]).
pub const SEALED_VERSION: u8 = extension::sealed_version(VERSION);
/// First byte of an encrypted packet: protocol 3, version 3.
pub const ENCRYPTED_VERSION: u8 = extension::encrypted_version(VERSION);

/// Kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Up: one worker's fragment.
    Contribution = 0,
    /// Down: the sum of all, or what one worker has sent; it is the credit for the slot's next fragment.
    Result = 1,
    /// Down: the workers disagree on the properties of the fragment. No payload.
    Mismatch = 2,
    /// Up: nothing more will be sent in this epoch. No payload.
    Fin = 3,
    /// Up: the worker takes part in a fragment to which it contributes no elements. No payload.
    Ready = 4,
    /// Down: all take part in a fragment whose result is for others; the credit, as a result. No payload.
    Done = 5,
}

impl Kind {
    const ALL: [Kind; 6] =
        [Kind::Contribution, Kind::Result, Kind::Mismatch, Kind::Fin, Kind::Ready, Kind::Done];

    /// Whether elements may follow the header.
    pub const fn has_payload(self) -> bool {
        matches!(self, Kind::Contribution | Kind::Result)
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

/// The decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind of the packet.
    pub kind: Kind,
    /// Sent before in the same round.
    pub resent: bool,
    /// Type of the elements; never `Float`.
    pub arithmetic: Arithmetic,
    /// Number of the contributing child; 255 in a result.
    pub worker: u8,
    /// Job.
    pub job: JobId,
    /// Use of the slot, from 0 in each epoch; its lowest bit is SwitchML's version.
    pub round: u32,
    /// Fingerprint of the operation and of the fragment's position in it.
    pub chunk: u32,
    /// Version of the plan.
    pub epoch: Epoch,
    /// Slot of the job's pool (the paper's pool index).
    pub slot: u16,
    /// Elements in the fragment; 0 in the first batch of an operation, which carries only exponents.
    pub n_elems: u16,
    /// Exponent of the next fragment in this slot; a switch keeps the maximum.
    pub next_exponent: i16,
    /// Pool of the job: 0 for sums, 1 for what one worker sends to all others.
    pub tree: TreeId,
    /// Up: who contributes and who takes, by the workers' numbers.
    pub parties: Parties,
}

/// Replaces a worker's number in packets of a switch.
pub const NOBODY: u8 = u8::MAX;

/// Where the pool is in sealed packets, too.
pub(crate) const TREE_AT: usize = 24;

const RESENT: u8 = 0x10;
const KIND_BITS: u8 = 0x0f;

impl Header {
    /// Splits a packet into header and payload, and validates it: packets may come from attackers.
    #[inline]
    pub fn decode(packet: &[u8]) -> Result<(Header, &[u8]), DecodeError> {
        let (h, payload) = extension::split(VERSION, HEADER_LEN, packet)?;
        let kind = Kind::ALL.get(usize::from(h[1] & KIND_BITS)).copied();
        let kind = kind.filter(|_| h[1] & !(KIND_BITS | RESENT) == 0);
        let kind = kind.ok_or(DecodeError::UnknownKind)?;
        let arithmetic = Arithmetic::from_code(h[2]).filter(|a| a.in_slots());
        let parties = Parties::from_codes(h[25], h[26]).filter(|parties| kind.fits(*parties));
        let header = Header {
            kind,
            resent: h[1] & RESENT != 0,
            arithmetic: arithmetic.ok_or(DecodeError::UnknownFormat)?,
            worker: h[3],
            job: JobId(be32(h, 4)),
            round: be32(h, 8),
            chunk: be32(h, 12),
            epoch: Epoch(be16(h, 16)),
            slot: be16(h, 18),
            n_elems: be16(h, 20),
            next_exponent: be16(h, 22) as i16,
            tree: TreeId(h[TREE_AT]),
            parties: parties.ok_or(DecodeError::Reserved)?,
        };
        if h[27..] != [0; 11] {
            return Err(DecodeError::Reserved);
        }
        if payload.len() != header.payload_len() {
            return Err(DecodeError::PayloadLength);
        }
        Ok((header, payload))
    }

    /// Writes the header of an unsealed packet.
    #[inline]
    pub fn encode(&self, h: &mut [u8; HEADER_LEN]) {
        h[0] = VERSION;
        h[1] = self.kind as u8 | if self.resent { RESENT } else { 0 };
        h[2] = self.arithmetic as u8;
        h[3] = self.worker;
        put32(h, 4, self.job.0);
        put32(h, 8, self.round);
        put32(h, 12, self.chunk);
        put16(h, 16, self.epoch.0);
        put16(h, 18, self.slot);
        put16(h, 20, self.n_elems);
        put16(h, 22, self.next_exponent as u16);
        h[TREE_AT] = self.tree.0;
        h[25] = self.parties.code();
        h[26] = self.parties.rank();
        h[27..].fill(0);
    }

    /// Number of bytes after the header.
    #[inline]
    pub fn payload_len(&self) -> usize {
        let elements = if self.kind.has_payload() { self.n_elems } else { 0 };
        usize::from(elements) * Arithmetic::ELEMENT_BYTES
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
            resent: true,
            arithmetic: Arithmetic::Max,
            worker: 5,
            job: JobId(0x0102_0304),
            round: 0x0506_0708,
            chunk: 0x090a_0b0c,
            epoch: Epoch(0x0d0e),
            slot: 0x0f10,
            n_elems: 2,
            next_exponent: -2,
            tree: TreeId(1),
            parties: Parties::ToOne(9),
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
            0x31, 0x10, 3, 5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 0, 2, 0xff,
            0xfe, 1, 1, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        let packet = packet(&header());
        assert_eq!(packet[..HEADER_LEN], expected);
        assert_eq!(packet.len(), HEADER_LEN + 8);
        assert_eq!(Header::decode(&packet).unwrap().0, header());
        assert_eq!(crate::job_of(&packet), Some(header().job));
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
        assert_eq!(with(0, 0x21), DecodeError::UnknownVersion);
        assert_eq!(with(1, 0x06), DecodeError::UnknownKind);
        assert_eq!(with(1, 0x04), DecodeError::Reserved, "every rank contributes to a sum");
        assert_eq!(with(1, 0x01), DecodeError::Reserved, "results name no parties");
        assert_eq!(with(25, 4), DecodeError::Reserved);
        assert_eq!(with(26, 64), DecodeError::Reserved);
        assert_eq!(with(1, 0x20), DecodeError::UnknownKind);
        assert_eq!(with(2, 4), DecodeError::UnknownFormat, "floats have no place in a slot");
        assert_eq!(with(21, 3), DecodeError::PayloadLength);
        assert_eq!(with(37, 1), DecodeError::Reserved);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail_with_a_reason(
            mut bytes in prop::collection::vec(any::<u8>(), 0..96), plausible: bool,
        ) {
            if plausible && bytes.len() >= HEADER_LEN {
                bytes[0] = VERSION;
                bytes[1] &= 0x17;
                bytes[2] &= 3;
                bytes[25] &= 3;
                bytes[26] &= 0x3f;
                bytes[27..38].fill(0);
                let elements = (bytes.len() - HEADER_LEN) / 4;
                bytes.truncate(HEADER_LEN + elements * 4);
                bytes[20..22].copy_from_slice(&(elements as u16).to_be_bytes());
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
