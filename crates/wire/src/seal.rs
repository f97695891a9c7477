//! Sealed packets: version 2 of a protocol's packets, with a packet number and a tag between header and payload; and
//! version 3, whose payload is encrypted and followed by the second half of the tag.
//!
//! The header is that of version 1, but for its first byte and for zeros at its end. A key is of one hop and direction,
//! and no number occurs twice under a key, as in ESP (RFC 4303, sections 2.2 and 3.4.3): a recorded packet is never
//! accepted again.

use std::borrow::Cow;
use std::hash::Hasher;

use aegis::aegis128l::{Aegis128L, Aegis128LMac};
use siphasher::sip::SipHasher24;

use crate::extension::{HEADER_LEN, UNSEALED, encrypted_version, sealed_version};
use crate::nh;
use crate::tag::{JobKey, Mac};
use crate::{JobId, Protocol, TreeId, atp, job_of, panama, switchml};

pub use crate::extension::{
    EXTENSION_LEN, SEALED_HEADER_LEN, TRAILER_LEN, is_encrypted, is_sealed,
};

/// Header and number are authenticated in a block of this many bytes, padded with zeros, so that the payload begins at
/// a block of the MAC.
const HEAD: usize = 64;
/// Bytes of the header and the packet number.
pub const NUMBERED_LEN: usize = HEADER_LEN + 8;

/// The keys of one hop between a node of a tree and one of its children, by direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HopKeys {
    /// Child to parent.
    pub up: JobKey,
    /// Parent to child.
    pub down: JobKey,
}

impl HopKeys {
    /// Bytes of [`HopKeys::to_bytes`].
    pub const LEN: usize = 33;

    /// Keys for a MAC; `secret` holds both directions' and must not be guessable.
    pub fn new(mac: Mac, secret: [u8; 32]) -> HopKeys {
        let (up, down) = secret.split_first_chunk().expect("16 of 32 bytes");
        let down = *down.first_chunk().expect("16 of 16 bytes");
        HopKeys { up: JobKey::new(mac, *up), down: JobKey::new(mac, down) }
    }

    /// The keys as bytes for [`HopKeys::from_bytes`]: the code of their MAC, then 32 secret ones.
    pub fn to_bytes(self) -> [u8; HopKeys::LEN] {
        let mut bytes = [0; HopKeys::LEN];
        bytes[..17].copy_from_slice(&self.up.to_bytes());
        bytes[17..].copy_from_slice(self.down.secret());
        bytes
    }

    /// Keys from bytes. `None`: another length, or an unknown MAC.
    pub fn from_bytes(bytes: &[u8]) -> Option<HopKeys> {
        let (up, down) = bytes.split_first_chunk::<17>()?;
        let up = JobKey::from_bytes(up)?;
        Some(HopKeys { up, down: JobKey::new(up.mac(), down.try_into().ok()?) })
    }
}

/// A key of one hop and direction, ready for packets.
#[derive(Clone)]
pub struct SealKey(State);

/// The state of a MAC after its key, which is made once per key and not once per packet, or the key of a cipher.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "all keys of a process have the same MAC")]
enum State {
    SipHash(SipHasher24),
    Aegis(Aegis128LMac<16>, [u8; 16]),
    Nh(nh::Key),
    AegisAead([u8; 16]),
}

/// The state of AEGIS-128L, eight blocks of AES.
pub type AegisState = [[u8; 16]; 8];

/// What a MAC takes before the payload: header, packet number, and zeros.
pub type Head = [u8; HEAD];

/// A tag of AEGIS-128L as a cipher.
pub type WholeTag = [u8; 2 * TRAILER_LEN];

/// A processor's code for AEGIS-128L of four packets at once. All payloads have one length.
pub trait FourPackets: std::fmt::Debug + Send + Sync {
    /// The state of the MAC after a key.
    fn state(&self, key: &[u8; 16]) -> AegisState;

    /// The packets' tags.
    fn tags(&self, states: [&AegisState; 4], heads: [&Head; 4], payloads: [&[u8]; 4]) -> [u64; 4];

    /// Encrypts payloads in their places; returns the packets' tags.
    fn encrypt(&self, packets: Four<'_>) -> [WholeTag; 4];

    /// Decrypts payloads in their places; returns the tags that the packets should have.
    fn decrypt(&self, packets: Four<'_>) -> [WholeTag; 4];
}

/// Four packets to be encrypted or decrypted.
#[derive(Debug)]
pub struct Four<'a> {
    /// Keys.
    pub keys: [&'a [u8; 16]; 4],
    /// Packet numbers.
    pub numbers: [u64; 4],
    /// What is authenticated alone.
    pub heads: [Head; 4],
    /// Payloads, of one length.
    pub payloads: [&'a mut [u8]; 4],
}

impl<'a> Four<'a> {
    /// The same of packets in parts.
    #[inline]
    pub fn new(keys: [&'a [u8; 16]; 4], parts: &'a mut [Encrypted<'_>; 4]) -> Four<'a> {
        let [a, b, c, d] = parts;
        Four {
            keys,
            numbers: [a.number, b.number, c.number, d.number],
            heads: [a.head, b.head, c.head, d.head],
            payloads: [a.payload, b.payload, c.payload, d.payload],
        }
    }
}

impl SealKey {
    /// Prepares a key.
    pub fn new(key: &JobKey) -> SealKey {
        SealKey(match key.mac() {
            Mac::SipHash => State::SipHash(SipHasher24::new_with_key(key.secret())),
            Mac::Aegis => State::Aegis(Aegis128LMac::new(key.secret()), *key.secret()),
            Mac::Nh => State::Nh(nh::Key::new(key.secret())),
            Mac::AegisAead => State::AegisAead(*key.secret()),
        })
    }

    /// Whether it encrypts payloads.
    #[inline]
    pub fn encrypts(&self) -> bool {
        matches!(self.0, State::AegisAead(_))
    }

    /// Bytes after the payload.
    #[inline]
    pub fn trailer_len(&self) -> usize {
        if self.encrypts() { TRAILER_LEN } else { 0 }
    }

    /// The key of AEGIS-128L as a MAC, if it is one: for [`FourPackets`].
    pub fn aegis(&self) -> Option<&[u8; 16]> {
        match &self.0 {
            State::Aegis(_, secret) => Some(secret),
            _ => None,
        }
    }

    /// The key of AEGIS-128L as a cipher, if it is one: for [`FourPackets`].
    pub fn cipher(&self) -> Option<&[u8; 16]> {
        match &self.0 {
            State::AegisAead(secret) => Some(secret),
            _ => None,
        }
    }

    /// Encrypts a whole packet that has its number ([`put_number_to_encrypt`]). The key encrypts.
    pub fn encrypt_numbered(&self, packet: &mut [u8]) {
        let State::AegisAead(key) = &self.0 else { unreachable!("the key of a MAC") };
        let number = *packet[HEADER_LEN..].first_chunk().expect("the packet has its number");
        encrypt(key, u64::from_be_bytes(number), packet);
    }

    /// The tag of a packet whose head has its number. The key does not encrypt.
    pub fn tag_after(&self, head: &[u8], payload: &[u8]) -> u64 {
        let head = &head[..NUMBERED_LEN];
        let number = u64::from_be_bytes(*head[HEADER_LEN..].first_chunk().expect("eight bytes"));
        self.tag(number, head, [payload, &[]])
    }

    /// Makes a sealed packet of an unsealed one. `head`: the header as in an unsealed packet, room up to
    /// [`SEALED_HEADER_LEN`], and all bytes between these and `payload`; `number`: never used before under this key,
    /// below 2^56. A key that encrypts takes the whole packet as `head`, with room for [`SealKey::trailer_len`]. Panics
    /// if `head` is shorter, if such a key gets a `payload`, or if the payload is longer than any datagram.
    #[inline]
    pub fn seal(&self, number: u64, head: &mut [u8], payload: &[u8]) {
        if let State::AegisAead(key) = &self.0 {
            assert!(payload.is_empty(), "a payload is encrypted where the packet is");
            return encrypt(key, number, head);
        }
        put_number(number, head);
        let (authenticated, rest) = head.split_at(SEALED_HEADER_LEN);
        let tag = self.tag(number, &authenticated[..NUMBERED_LEN], [rest, payload]);
        put_tag(tag, head);
    }

    /// Like [`SealKey::seal`], of the packet that begins at `start` of `out` and is the last there. Returns whether the
    /// payload has gone to `out`, encrypted.
    #[inline]
    pub fn seal_last(&self, number: u64, out: &mut Vec<u8>, start: usize, payload: &[u8]) -> bool {
        if !self.encrypts() {
            self.seal(number, &mut out[start..], payload);
            return false;
        }
        out.reserve(payload.len() + TRAILER_LEN);
        out.extend_from_slice(payload);
        out.extend_from_slice(&[0; TRAILER_LEN]);
        self.seal(number, &mut out[start..], &[]);
        true
    }

    /// The number of a sealed packet; `None`: it is not sealed, or not under this key. An encrypted payload is decrypted
    /// in its place; if the packet is not under this key, it is erased.
    #[inline]
    pub fn open(&self, packet: &mut [u8]) -> Option<u64> {
        if let State::AegisAead(key) = &self.0 {
            return decrypt(key, packet);
        }
        let (head, payload) = packet.split_at_checked(SEALED_HEADER_LEN)?;
        if !is_sealed(packet) || is_encrypted(packet) || payload.len() > nh::PAYLOAD_MAX {
            return None;
        }
        let number = u64::from_be_bytes(*head[HEADER_LEN..].first_chunk()?);
        // The result is known only after all of the tag was compared.
        let tag = self.tag(number, &head[..NUMBERED_LEN], [payload, &[]]).to_be_bytes();
        (head[NUMBERED_LEN..] == tag).then_some(number)
    }

    fn tag(&self, number: u64, head: &[u8], rest: [&[u8]; 2]) -> u64 {
        let first = head_of(head);
        let parts = [&first[..], rest[0], rest[1]].into_iter().filter(|part| !part.is_empty());
        match &self.0 {
            State::Nh(key) => key.tag(number, head, rest),
            State::SipHash(keyed) => {
                let mut hasher = *keyed;
                parts.for_each(|part| hasher.write(part));
                hasher.finish()
            }
            State::Aegis(keyed, _) => {
                let mut mac = keyed.clone();
                parts.for_each(|part| mac.update(part));
                let tag = mac.finalize();
                u64::from_be_bytes(*tag.first_chunk().expect("the tag has 16 bytes"))
            }
            State::AegisAead(_) => unreachable!("its packets are encrypted"),
        }
    }
}

/// Begins a sealed packet: its version and its number.
#[inline]
pub fn put_number(number: u64, head: &mut [u8]) {
    head[0] = sealed_version(head[0]);
    head[HEADER_LEN..NUMBERED_LEN].copy_from_slice(&number.to_be_bytes());
}

/// Ends a sealed packet: its tag.
#[inline]
pub fn put_tag(tag: u64, head: &mut [u8]) {
    head[NUMBERED_LEN..SEALED_HEADER_LEN].copy_from_slice(&tag.to_be_bytes());
}

/// The number of a sealed packet whose tag should be this one; `None`: it is another.
#[inline]
pub fn number_if_tagged(packet: &[u8], tag: u64) -> Option<u64> {
    let (head, _) = packet.split_first_chunk::<SEALED_HEADER_LEN>()?;
    let number = u64::from_be_bytes(*head[HEADER_LEN..].first_chunk()?);
    (head[NUMBERED_LEN..] == tag.to_be_bytes()).then_some(number)
}

/// What is authenticated of a packet's header.
#[inline]
pub fn head_of(packet: &[u8]) -> Head {
    let mut head = [0; HEAD];
    head[..NUMBERED_LEN].copy_from_slice(&packet[..NUMBERED_LEN]);
    head
}

/// Job and tree of an undecoded sealed packet, which say under which key it is; `None`: it is unsealed.
#[inline]
pub fn hop_of(packet: &[u8]) -> Option<(JobId, TreeId)> {
    let tree = match *packet.first()? {
        panama::SEALED_VERSION | panama::ENCRYPTED_VERSION => *packet.get(2)?,
        atp::SEALED_VERSION | atp::ENCRYPTED_VERSION => *packet.get(3)?,
        switchml::SEALED_VERSION | switchml::ENCRYPTED_VERSION => *packet.get(switchml::TREE_AT)?,
        _ => return None,
    };
    Some((job_of(packet)?, TreeId(tree)))
}

/// The parts of a packet that is encrypted, or will be.
#[derive(Debug)]
pub struct Encrypted<'a> {
    /// What is authenticated alone.
    pub head: Head,
    /// The packet number.
    pub number: u64,
    /// The payload.
    pub payload: &'a mut [u8],
    tag: [&'a mut [u8; TRAILER_LEN]; 2],
}

impl<'a> Encrypted<'a> {
    /// The parts of a packet; `None`: it is not encrypted, or truncated.
    #[inline]
    pub fn split(packet: &'a mut [u8]) -> Option<Encrypted<'a>> {
        if !is_encrypted(packet) {
            return None;
        }
        let (head, rest) = packet.split_first_chunk_mut::<SEALED_HEADER_LEN>()?;
        let (payload, second) = rest.split_last_chunk_mut()?;
        let (numbered, first) = head.split_last_chunk_mut()?;
        let number = u64::from_be_bytes(*numbered.last_chunk()?);
        Some(Encrypted { head: head_of(numbered), number, payload, tag: [first, second] })
    }

    /// The packet's tag.
    #[inline]
    pub fn tag(&self) -> WholeTag {
        let mut tag = [0; 2 * TRAILER_LEN];
        tag[..TRAILER_LEN].copy_from_slice(self.tag[0]);
        tag[TRAILER_LEN..].copy_from_slice(self.tag[1]);
        tag
    }

    /// Ends an encrypted packet: its tag.
    #[inline]
    pub fn put_tag(&mut self, tag: &WholeTag) {
        let (halves, _) = tag.as_chunks::<TRAILER_LEN>();
        [*self.tag[0], *self.tag[1]] = [halves[0], halves[1]];
    }

    /// The number of a packet that was decrypted, if its tag should be this one; `None`: it is another, and the payload
    /// is erased.
    #[inline]
    pub fn number_if_tagged(self, tag: &WholeTag) -> Option<u64> {
        // All bytes are compared, whichever differ.
        if u128::from_ne_bytes(*tag) == u128::from_ne_bytes(self.tag()) {
            return Some(self.number);
        }
        self.payload.fill(0);
        None
    }
}

/// Begins an encrypted packet: its version and its number.
#[inline]
pub fn put_number_to_encrypt(number: u64, head: &mut [u8]) {
    head[0] = encrypted_version(head[0]);
    head[HEADER_LEN..NUMBERED_LEN].copy_from_slice(&number.to_be_bytes());
}

/// Encrypts a whole packet with room for number, tag and trailer.
fn encrypt(key: &[u8; 16], number: u64, packet: &mut [u8]) {
    put_number_to_encrypt(number, packet);
    let mut parts = Encrypted::split(packet).expect("room for the trailer");
    let cipher = Aegis128L::<16>::new(key, &nonce(number));
    let tag = cipher.encrypt_in_place(parts.payload, &parts.head[..NUMBERED_LEN]);
    parts.put_tag(&tag);
}

/// Checks a packet and decrypts its payload; returns its number.
fn decrypt(key: &[u8; 16], packet: &mut [u8]) -> Option<u64> {
    let parts = Encrypted::split(packet)?;
    let (tag, cipher) = (parts.tag(), Aegis128L::<16>::new(key, &nonce(parts.number)));
    cipher.decrypt_in_place(parts.payload, &tag, &parts.head[..NUMBERED_LEN]).ok()?;
    Some(parts.number)
}

/// A nonce occurs once under a key, because a packet number does.
pub fn nonce(number: u64) -> [u8; 16] {
    let mut nonce = [0; 16];
    nonce[..8].copy_from_slice(&number.to_be_bytes());
    nonce
}

/// Omits the key, so that it does not appear in logs.
impl std::fmt::Debug for SealKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SealKey(..)")
    }
}

/// An unsealed packet with room for the extension. Panics if it is shorter than its header.
pub fn with_room(packet: &[u8]) -> Vec<u8> {
    let protocol = Protocol::of_version(packet[0]).expect("a packet of a known protocol");
    let payload = &packet[protocol.header_len()..];
    [&packet[..HEADER_LEN], &[0; EXTENSION_LEN], payload].concat()
}

/// A packet without the extension, as an unsealed one; an encrypted one after [`SealKey::open`].
pub fn unsealed(packet: &[u8]) -> Cow<'_, [u8]> {
    let protocol = packet.first().and_then(|&version| Protocol::of_version(version));
    let trailer = if is_encrypted(packet) { TRAILER_LEN } else { 0 };
    let whole = packet.len().checked_sub(trailer).map(|len| &packet[..len]);
    match (protocol, whole.and_then(|whole| whole.split_at_checked(SEALED_HEADER_LEN))) {
        (Some(protocol), Some((head, payload))) if is_sealed(packet) => {
            let reserved = vec![0; protocol.header_len() - HEADER_LEN];
            let mut packet = [&head[..HEADER_LEN], &reserved, payload].concat();
            packet[0] = packet[0] & 0xf0 | UNSEALED;
            Cow::Owned(packet)
        }
        _ => Cow::Borrowed(packet),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [JobKey; 4] = [
        JobKey::new(Mac::SipHash, [3; 16]),
        JobKey::new(Mac::Aegis, [3; 16]),
        JobKey::new(Mac::Nh, [3; 16]),
        JobKey::new(Mac::AegisAead, [3; 16]),
    ];

    fn open(key: &JobKey, packet: &[u8]) -> Option<u64> {
        SealKey::new(key).open(&mut packet.to_vec())
    }

    fn sealed(key: &JobKey, number: u64, payload: &[u8]) -> Vec<u8> {
        let mut packet: Vec<u8> = (0..panama::HEADER_LEN as u8 + 16).collect();
        packet[0] = panama::VERSION;
        if !SealKey::new(key).seal_last(number, &mut packet, 0, payload) {
            packet.extend(payload);
        }
        packet
    }

    #[test]
    fn the_extension_is_the_number_and_the_tag() {
        for key in KEYS.into_iter().filter(|key| !key.mac().encrypts()) {
            let packet = sealed(&key, 0x0102_0304_0506_0708, b"payload");
            assert_eq!(packet[..2], [0x12, 1]);
            assert_eq!(packet[38..46], [1, 2, 3, 4, 5, 6, 7, 8]);
            let mut message = packet[..46].to_vec();
            message.resize(64, 0);
            message.extend(b"payload");
            let tag = match key.mac() {
                Mac::SipHash => SipHasher24::new_with_key(&[3; 16]).hash(&message).to_be_bytes(),
                Mac::Aegis => {
                    let mut mac = Aegis128LMac::<16>::new(&[3; 16]);
                    mac.update(&message);
                    *mac.finalize().first_chunk().unwrap()
                }
                Mac::Nh => {
                    let (number, payload) = (0x0102_0304_0506_0708, b"payload");
                    let tag = nh::Key::new(&[3; 16]).tag(number, &message[..46], [payload, &[]]);
                    tag.to_be_bytes()
                }
                Mac::AegisAead => unreachable!("its packets are encrypted"),
            };
            assert_eq!(packet[46..54], tag);
        }
    }

    #[test]
    fn an_encrypted_packet_is_that_of_the_cipher() {
        let key = KEYS[3];
        let packet = sealed(&key, 0x0102_0304_0506_0708, b"payload");
        assert_eq!((packet.len(), &packet[..2]), (54 + 7 + 8, &[0x13, 1][..]));
        assert_eq!(packet[38..46], [1, 2, 3, 4, 5, 6, 7, 8]);
        let nonce = [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
        let (text, tag) = Aegis128L::<16>::new(&[3; 16], &nonce).encrypt(b"payload", &packet[..46]);
        assert_eq!(
            (&packet[46..54], &packet[54..61], &packet[61..]),
            (&tag[..8], &text[..], &tag[8..])
        );
        let mut opened = packet.clone();
        assert_eq!(SealKey::new(&key).open(&mut opened), Some(0x0102_0304_0506_0708));
        assert_eq!(opened[54..61], *b"payload");
        let other = sealed(&key, 0x0102_0304_0506_0709, b"payload");
        assert_ne!(packet[54..61], other[54..61], "another number");
    }

    #[test]
    fn a_forged_packet_is_not_decrypted() {
        let mut forged = sealed(&KEYS[3], 5, b"gradients");
        forged[60] ^= 1;
        let before = forged.clone();
        assert_eq!(SealKey::new(&KEYS[3]).open(&mut forged), None);
        assert!(forged[54..63] != *b"gradients" && forged[..54] == before[..54]);
    }

    #[test]
    fn every_bit_counts() {
        for key in KEYS {
            let packet = sealed(&key, 77, &[9; 20]);
            assert_eq!(open(&key, &packet), Some(77));
            for bit in 0..packet.len() * 8 {
                let mut other = packet.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(open(&key, &other), None, "bit {bit}");
            }
            for len in 0..packet.len() {
                assert_eq!(open(&key, &packet[..len]), None, "{len} bytes");
            }
            assert_eq!(open(&key, &[&packet[..], &[0]].concat()), None);
            let stranger = JobKey::new(key.mac(), [4; 16]);
            assert_eq!(open(&stranger, &packet), None);
        }
        let packet = sealed(&KEYS[0], 77, &[9; 20]);
        for other in &KEYS[1..] {
            assert_eq!(open(other, &packet), None, "another MAC");
        }
    }

    #[test]
    fn a_payload_may_be_in_two_parts() {
        for key in KEYS.into_iter().filter(|key| !key.mac().encrypts()) {
            let whole = sealed(&key, 5, &[1, 2, 3, 4]);
            let mut head: Vec<u8> = (0..panama::HEADER_LEN as u8 + 16).collect();
            head[0] = panama::VERSION;
            head.extend([1, 2]);
            SealKey::new(&key).seal(5, &mut head, &[3, 4]);
            assert_eq!([&head[..], &[3, 4]].concat(), whole);
        }
    }

    #[test]
    fn the_extension_can_be_removed() {
        let mut plain = vec![7; 50];
        plain[0] = panama::VERSION;
        let mut packet = with_room(&plain);
        SealKey::new(&KEYS[0]).seal(1, &mut packet, &[]);
        assert_eq!((packet.len(), unsealed(&packet)), (66, Cow::Borrowed(&plain[..])));
        assert_eq!(unsealed(&plain), plain);
        assert_eq!(unsealed(&packet[..53]), &packet[..53]);
        assert!(unsealed(&[]).is_empty());
        let (key, mut packet) = (SealKey::new(&KEYS[3]), with_room(&plain));
        packet.extend([0; TRAILER_LEN]);
        key.seal(1, &mut packet, &[]);
        assert_ne!(unsealed(&packet), &plain[..]);
        assert!(key.open(&mut packet).is_some());
        assert_eq!((packet.len(), unsealed(&packet)), (74, Cow::Borrowed(&plain[..])));
        assert_eq!(unsealed(&packet[..61]), &packet[..61]);
    }

    #[test]
    fn unsealed_packets_do_not_open() {
        let mut packet = [0; 60];
        for version in (0..=u8::MAX).filter(|&version| !is_sealed(&[version])) {
            packet[0] = version;
            assert_eq!(open(&KEYS[0], &packet), None);
        }
        assert!(!is_sealed(&[]));
    }

    #[test]
    fn keys_come_back_from_bytes() {
        let secret = std::array::from_fn(|i| i as u8);
        for mac in Mac::ALL {
            let keys = HopKeys::new(mac, secret);
            assert_eq!((keys.up.secret()[0], keys.down.secret()[0]), (0, 16));
            assert_eq!(HopKeys::from_bytes(&keys.to_bytes()), Some(keys));
        }
        let bytes = HopKeys::new(Mac::Aegis, secret).to_bytes();
        assert_eq!(HopKeys::from_bytes(&bytes[..32]), None);
        assert_eq!(HopKeys::from_bytes(&[&[7], &bytes[1..]].concat()), None, "an unknown MAC");
        assert_eq!(HopKeys::from_bytes(&[]), None);
    }
}
