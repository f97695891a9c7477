//! The keyed tag of a packet: a message authentication code under the job's key over the header and the payload.
//!
//! Fields that switches may change without adding are excluded: in `atp` the level, and the bits for ECN and collision.
//! An attacker that forges those can slow a job down, as can one that drops its packets; no sum changes.

use std::hash::Hasher;

use aegis::aegis128l::Aegis128LMac;
use siphasher::sip::SipHasher24;

use crate::{Protocol, atp};

/// A message authentication code for packets. All are computed everywhere; their cost depends on the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum Mac {
    /// SipHash-2-4: 64-bit additions, rotations and XORs, which the kernel's instructions for programs have, too.
    #[default]
    SipHash = 0,
    /// AEGIS-128L as a MAC (draft-irtf-cfrg-aegis-aead, section 5.4), of whose 128 bits a packet carries 64. With AES
    /// instructions it takes a fifth of the time of SipHash, without them a multiple.
    Aegis = 1,
}

impl Mac {
    const ALL: [Mac; 2] = [Mac::SipHash, Mac::Aegis];

    /// The fastest on this processor.
    pub fn fastest() -> Mac {
        if has_aes() { Mac::Aegis } else { Mac::SipHash }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_aes() -> bool {
    std::arch::is_x86_feature_detected!("aes")
}

#[cfg(target_arch = "aarch64")]
fn has_aes() -> bool {
    std::arch::is_aarch64_feature_detected!("aes")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn has_aes() -> bool {
    false
}

/// A job's key: known to its workers, and to the switches and servers that hold its leases.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct JobKey {
    mac: Mac,
    bytes: [u8; 16],
}

/// Header bytes that are hashed first: those before the tag and then zeros; a multiple of a hash's word. Everything
/// after the tag in a header is 0.
const HEAD: usize = 40;

impl JobKey {
    /// A key of these bytes, which must not be guessable.
    pub const fn new(mac: Mac, bytes: [u8; 16]) -> JobKey {
        JobKey { mac, bytes }
    }

    /// The same secret for another MAC.
    pub const fn with_mac(self, mac: Mac) -> JobKey {
        JobKey { mac, ..self }
    }

    /// The message authentication code.
    pub const fn mac(&self) -> Mac {
        self.mac
    }

    /// The key as bytes for [`JobKey::from_bytes`]: the code of its MAC, and 16 secret ones.
    pub fn to_bytes(self) -> [u8; 17] {
        let mut bytes = [self.mac as u8; 17];
        bytes[1..].copy_from_slice(&self.bytes);
        bytes
    }

    /// A key from bytes; 16 are a key of SipHash. `None`: another length, or an unknown MAC.
    pub fn from_bytes(bytes: &[u8]) -> Option<JobKey> {
        if let Ok(bytes) = bytes.try_into() {
            return Some(JobKey::new(Mac::SipHash, bytes));
        }
        let (&code, secret) = bytes.split_first()?;
        let mac = Mac::ALL.into_iter().find(|mac| *mac as u8 == code)?;
        Some(JobKey::new(mac, secret.try_into().ok()?))
    }

    /// The 16 secret bytes.
    pub const fn secret(&self) -> &[u8; 16] {
        &self.bytes
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
        let parts = [&first[..], rest, payload];
        let tag = match self.mac {
            Mac::SipHash => sip_hash(&self.bytes, parts),
            Mac::Aegis => aegis(&self.bytes, parts),
        };
        Some((place, tag))
    }
}

fn sip_hash(key: &[u8; 16], parts: [&[u8]; 3]) -> u64 {
    let mut hasher = SipHasher24::new_with_key(key);
    parts.iter().for_each(|part| hasher.write(part));
    hasher.finish()
}

fn aegis(key: &[u8; 16], parts: [&[u8]; 3]) -> u64 {
    let mut mac = Aegis128LMac::<16>::new(key);
    parts.iter().filter(|part| !part.is_empty()).for_each(|part| mac.update(part));
    let tag = mac.finalize();
    u64::from_be_bytes(*tag.first_chunk().expect("the tag has 16 bytes"))
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

    const SECRET: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
    const KEY: JobKey = JobKey::new(Mac::SipHash, SECRET);

    fn packet(key: JobKey, version: u8, header_len: usize) -> Vec<u8> {
        let mut packet: Vec<u8> = (0..header_len as u8 + 12).collect();
        packet[0] = version;
        let (head, payload) = packet.split_at_mut(header_len);
        key.seal(head, payload);
        packet
    }

    #[test]
    fn every_bit_counts_except_those_that_switches_set() {
        let versions = (0..=u8::MAX).filter_map(|v| Some((v, Protocol::of_version(v)?.layout())));
        let tagged = versions.filter_map(|(v, layout)| Some((v, layout.header_len, layout.tag?)));
        for (version, header_len, tag) in tagged {
            for mac in Mac::ALL {
                every_bit_counts(JobKey::new(mac, SECRET), version, header_len, tag);
            }
        }
    }

    fn every_bit_counts(key: JobKey, version: u8, header_len: usize, tag: usize) {
        let good = packet(key, version, header_len);
        assert!(key.has_sealed(&good));
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
                assert_eq!(key.has_sealed(&other), same, "byte {at} bit {bit} of {version:x}");
            }
        }
        assert!(!JobKey::new(key.mac(), [7; 16]).has_sealed(&good));
        for len in 0..good.len() {
            assert!(!key.has_sealed(&good[..len]), "{len} bytes of {version:x}");
        }
        let other = Mac::ALL.into_iter().find(|&mac| mac != key.mac()).unwrap();
        assert!(!JobKey::new(other, SECRET).has_sealed(&good));
    }

    #[test]
    fn keys_come_back_from_bytes() {
        for mac in Mac::ALL {
            let key = JobKey::new(mac, SECRET);
            assert!(JobKey::from_bytes(&key.to_bytes()) == Some(key));
        }
        assert!(JobKey::from_bytes(&SECRET) == Some(KEY), "as written by earlier versions");
        assert!(JobKey::from_bytes(&[2; 17]).is_none() && JobKey::from_bytes(&[0; 18]).is_none());
        assert!(JobKey::from_bytes(&[]).is_none() && JobKey::from_bytes(&[0; 15]).is_none());
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
        let good = packet(KEY, atp::VERSION, atp::HEADER_LEN);
        let tag = SipHasher24::new_with_key(&SECRET).hash(&message(&good));
        assert_eq!(good[38..46], tag.to_be_bytes());
    }

    /// As above; the same message in one piece.
    #[test]
    fn the_tag_is_half_of_the_aegis_mac_of_the_masked_header_and_the_payload() {
        let good = packet(JobKey::new(Mac::Aegis, SECRET), atp::VERSION, atp::HEADER_LEN);
        let mut mac = Aegis128LMac::<16>::new(&SECRET);
        mac.update(&message(&good));
        assert_eq!(good[38..46], mac.finalize()[..8]);
    }

    fn message(good: &[u8]) -> Vec<u8> {
        let mut message = good[..38].to_vec();
        message[1] &= !0x10;
        message[2] &= !0x0a;
        message.extend([0, 0]);
        message.extend(&good[46..]);
        message
    }
}
