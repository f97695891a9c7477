//! The keyed tag of a packet: SipHash-2-4 under the job's key over the header and the payload.
//!
//! Fields that switches may change without adding are excluded: in `atp` the level, and the bits for ECN and collision.
//! An attacker that forges those can slow a job down, as can one that drops its packets; no sum changes.

use siphasher::sip::SipHasher24;
use std::hash::Hasher;

use crate::{Protocol, atp};

/// A job's key: known to its workers, and to the switches and servers that hold its leases.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct JobKey([u8; 16]);

/// Header bytes that are hashed first: those before the tag and then zeros; a multiple of a hash's word. Everything
/// after the tag in a header is 0.
const HEAD: usize = 40;

impl JobKey {
    /// A key of these bytes, which must not be guessable.
    pub const fn new(bytes: [u8; 16]) -> JobKey {
        JobKey(bytes)
    }

    /// The bytes.
    pub const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Writes the tag into a header. `head`: a whole header, and all bytes between it and `payload`; headers of
    /// protocols without tags are unchanged.
    pub fn seal(&self, head: &mut [u8], payload: &[u8]) {
        if let Some((place, tag)) = self.tag(head, payload) {
            head[place..place + 8].copy_from_slice(&tag.to_be_bytes());
        }
    }

    /// Whether a packet has a valid tag; false for protocols without tags.
    pub fn has_sealed(&self, packet: &[u8]) -> bool {
        self.tag(packet, &[]).is_some_and(|(place, tag)| {
            // The result is known only after all of the tag was compared.
            packet[place..place + 8] == tag.to_be_bytes()
        })
    }

    fn tag(&self, head: &[u8], payload: &[u8]) -> Option<(usize, u64)> {
        let mut first = [0; HEAD];
        let protocol = Protocol::of_version(*head.first()?)?;
        let layout = protocol.layout();
        let place = layout.tag?;
        let (header, rest) = head.split_at_checked(layout.header_len)?;
        first[..place].copy_from_slice(&header[..place]);
        if protocol == Protocol::Atp {
            first[1] &= !atp::LEVEL_BIT;
            first[2] &= !(atp::COLLISION | atp::ECN);
        }
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(&first);
        hasher.write(rest);
        hasher.write(payload);
        Some((place, hasher.finish()))
    }
}

/// Omits the key, so that it does not appear in logs.
impl std::fmt::Debug for JobKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JobKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: JobKey = JobKey::new([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);

    fn packet(version: u8, header_len: usize) -> Vec<u8> {
        let mut packet: Vec<u8> = (0..header_len as u8 + 12).collect();
        packet[0] = version;
        let (head, payload) = packet.split_at_mut(header_len);
        KEY.seal(head, payload);
        packet
    }

    #[test]
    fn every_bit_counts_except_those_that_switches_set() {
        let versions = (0..=u8::MAX).filter_map(|v| Some((v, Protocol::of_version(v)?.layout())));
        let tagged = versions.filter_map(|(v, layout)| Some((v, layout.header_len, layout.tag?)));
        for (version, header_len, tag) in tagged {
            let good = packet(version, header_len);
            assert!(KEY.has_sealed(&good));
            let free: &[(usize, u8)] = match version {
                atp::VERSION => &[(1, 0x10), (2, 0x02), (2, 0x08)],
                // After the tag there are zeros, which the decoder checks.
                _ => &[],
            };
            for at in 0..good.len() {
                for bit in 0..8 {
                    let mut other = good.clone();
                    other[at] ^= 1 << bit;
                    let reserved = (tag + 8..header_len).contains(&at);
                    let same = free.contains(&(at, 1 << bit)) || reserved;
                    assert_eq!(KEY.has_sealed(&other), same, "byte {at} bit {bit} of {version:x}");
                }
            }
            assert!(!JobKey::new([7; 16]).has_sealed(&good));
            for len in 0..good.len() {
                assert!(!KEY.has_sealed(&good[..len]), "{len} bytes of {version:x}");
            }
        }
    }

    #[test]
    fn other_protocols_have_no_tag() {
        let mut head = [0x11; 60];
        KEY.seal(&mut head, &[]);
        assert_eq!(head, [0x11; 60]);
        assert!(!KEY.has_sealed(&head) && !KEY.has_sealed(&[]));
        assert_eq!(format!("{KEY:?}"), "JobKey(..)");
    }

    /// The first 40 bytes of the message are the masked header: the reference hash of just these.
    #[test]
    fn the_tag_is_siphash_of_the_masked_header_and_the_payload() {
        let good = packet(atp::VERSION, atp::HEADER_LEN);
        let mut message = good[..38].to_vec();
        message[1] &= !0x10;
        message[2] &= !0x0a;
        message.extend([0, 0]);
        message.extend(&good[46..]);
        let tag = SipHasher24::new_with_key(KEY.bytes()).hash(&message);
        assert_eq!(good[38..46], tag.to_be_bytes());
    }
}
