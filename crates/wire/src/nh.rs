//! A message authentication code for processors, and programs in the kernel, that have neither AES nor the high half of
//! a product: an almost universal hash modulo 2^64, then SipHash-2-4 over the hash and the packet number.
//!
//! The hash is of the family NH (Black, Halevi, Krawczyk, Krovetz, Rogaway: UMAC, 1999), with products of 64-bit words
//! of which the low half is kept. Such a product hides differences in low bits well and in high bits badly; therefore a
//! second pass takes the same words with their bytes in reverse order. Two messages have the same hash with a
//! probability of at most 2^-58 over the keys (docs/adr/0038-tags-in-the-kernel.md has the proof).

use std::borrow::Cow;
use std::hash::Hasher;

use siphasher::sip::SipHasher24;

/// Bytes that are hashed before the payload: header, packet number, and the length of the payload in the last two.
pub(crate) const HEAD: usize = 48;
/// Largest payload.
pub(crate) const PAYLOAD_MAX: usize = u16::MAX as usize;

/// A pair of words.
const PAIR: usize = 16;
/// Pairs that are hashed under the same words of the key; a longer message has several such parts, whose hashes are
/// hashed again. A fragment of 1,408 bytes has 91.
const PART: usize = 96;
const PARTS_MAX: usize = (HEAD + PAYLOAD_MAX).div_ceil(PAIR * PART);

/// Words of the second pass are those of the first, one pair later.
const WORDS: usize = 2 * (PART + 1);
const WORDS_OF_PARTS: usize = 2 * (PARTS_MAX + 1);

/// A key, expanded from its 16 secret bytes.
#[derive(Clone)]
pub struct Key(Box<Expanded>);

#[derive(Clone)]
struct Expanded {
    finish: [u64; 2],
    words: [u64; WORDS],
    words_of_parts: [u64; WORDS_OF_PARTS],
}

impl Key {
    /// Expands a key: word i is SipHash-2-4 of i (eight bytes, little-endian) under the secret. The first two are the
    /// key of the last step, the others those of the hash.
    pub fn new(secret: &[u8; 16]) -> Key {
        let generator = SipHasher24::new_with_key(secret);
        let word = |i: usize| generator.hash(&(i as u64).to_le_bytes());
        Key(Box::new(Expanded {
            finish: std::array::from_fn(word),
            words: std::array::from_fn(|i| word(2 + i)),
            words_of_parts: std::array::from_fn(|i| word(2 + WORDS + i)),
        }))
    }

    /// The key of the last step: the two words of SipHash's key.
    pub fn finish(&self) -> [u64; 2] {
        self.0.finish
    }

    /// The words for messages of up to `payload` bytes after the header; `None`: such messages have several parts.
    pub fn words(&self, payload: usize) -> Option<&[u64]> {
        let pairs = (HEAD + payload).div_ceil(PAIR);
        (pairs <= PART).then(|| &self.0.words[..2 * (pairs + 1)])
    }

    /// The tag of a message. `head`: header and packet number, at most 46 bytes; `payload`: in two parts, together at
    /// most `PAYLOAD_MAX` bytes.
    pub(crate) fn tag(&self, number: u64, head: &[u8], payload: [&[u8]; 2]) -> u64 {
        let mut first = [0; HEAD];
        first[..head.len()].copy_from_slice(head);
        let len = payload[0].len() + payload[1].len();
        assert!(len <= PAYLOAD_MAX, "a payload of {len} bytes fits into no datagram");
        first[HEAD - 2..].copy_from_slice(&(len as u16).to_le_bytes());
        let [a, b] = self.hash(&first, &joined(payload));
        let mut last = SipHasher24::new_with_key(&bytes(self.0.finish));
        last.write(&bytes([a, b]));
        // With seven bytes, SipHash has one word less to mix than with eight. Numbers start at 0 and end long before.
        last.write(&number.to_le_bytes()[..7]);
        last.finish()
    }

    fn hash(&self, head: &[u8; HEAD], payload: &[u8]) -> [u64; 2] {
        let Expanded { words, words_of_parts, .. } = &*self.0;
        let mut sums = pairs([0; 2], words, head);
        let (first, rest) = payload.split_at_checked(PART * PAIR - HEAD).unwrap_or((payload, &[]));
        sums = padded(sums, &words[HEAD / 8..], first);
        if rest.is_empty() {
            return sums;
        }
        let others = rest.chunks(PART * PAIR).map(|part| padded([0; 2], words, part));
        let parts = std::iter::once(sums).chain(others).zip(words_of_parts.windows(4).step_by(2));
        parts.fold([0; 2], |sums, (part, words)| add_pair(sums, words, part))
    }
}

/// Omits the key, so that it does not appear in logs.
impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

/// A payload in one piece. Two pieces that are not empty are rare.
fn joined<'a>([a, b]: [&'a [u8]; 2]) -> Cow<'a, [u8]> {
    match (a.is_empty(), b.is_empty()) {
        (_, true) => Cow::Borrowed(a),
        (true, _) => Cow::Borrowed(b),
        _ => Cow::Owned([a, b].concat()),
    }
}

fn bytes(words: [u64; 2]) -> [u8; 16] {
    std::array::from_fn(|i| words[i / 8].to_le_bytes()[i % 8])
}

/// Adds the pairs of a message to the sums of both passes; a last pair is filled up with zeros.
#[inline]
fn padded(sums: [u64; 2], words: &[u64], message: &[u8]) -> [u64; 2] {
    let (whole, rest) = message.split_at(message.len() / PAIR * PAIR);
    let sums = pairs(sums, words, whole);
    if rest.is_empty() {
        return sums;
    }
    let mut last = [0; PAIR];
    last[..rest.len()].copy_from_slice(rest);
    pairs(sums, &words[whole.len() / 8..], &last)
}

/// The same for whole pairs.
#[inline]
fn pairs(sums: [u64; 2], words: &[u64], message: &[u8]) -> [u64; 2] {
    let message = message.as_chunks::<8>().0.as_chunks::<2>().0;
    let words = words.as_chunks::<2>().0;
    let (now, next) = (words, &words[1..]);
    message.iter().zip(now).zip(next).fold(sums, |sums, ((&[a, b], now), next)| {
        let pair = [u64::from_le_bytes(a), u64::from_le_bytes(b)];
        add_pair(sums, &[now[0], now[1], next[0], next[1]], pair)
    })
}

#[inline]
fn add_pair([first, second]: [u64; 2], words: &[u64], [a, b]: [u64; 2]) -> [u64; 2] {
    let product = |a: u64, b: u64, words: &[u64]| {
        a.wrapping_add(words[0]).wrapping_mul(b.wrapping_add(words[1]))
    };
    [
        first.wrapping_add(product(a, b, &words[..2])),
        second.wrapping_add(product(a.swap_bytes(), b.swap_bytes(), &words[2..4])),
    ]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECRET: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

    /// Word i of a key, as the documentation says.
    fn word(secret: &[u8; 16], i: usize) -> u128 {
        SipHasher24::new_with_key(secret).hash(&(i as u64).to_le_bytes()).into()
    }

    /// The hash of one part, in wide integers and one product after the other. `first`: number of the first word.
    fn slow_part(secret: &[u8; 16], first: usize, part: &[u8]) -> [u64; 2] {
        let word_at = |at: usize, reversed: bool| {
            let mut bytes: Vec<u8> =
                (at..at + 8).map(|i| part.get(i).copied().unwrap_or(0)).collect();
            if reversed {
                bytes.reverse();
            }
            bytes.iter().rev().fold(0u128, |word, &byte| word << 8 | u128::from(byte))
        };
        let pass = |reversed: bool| {
            let shift = if reversed { 2 } else { 0 };
            (0..part.len()).step_by(16).fold(0u128, |sum, at| {
                let key = |i| word(secret, first + at / 8 + shift + i);
                let left = (word_at(at, reversed) + key(0)) & u128::from(u64::MAX);
                let right = (word_at(at + 8, reversed) + key(1)) & u128::from(u64::MAX);
                (sum + ((left * right) & u128::from(u64::MAX))) & u128::from(u64::MAX)
            }) as u64
        };
        [pass(false), pass(true)]
    }

    fn slow_tag(secret: &[u8; 16], number: u64, head: &[u8], payload: &[u8]) -> u64 {
        let mut message = head.to_vec();
        message.resize(46, 0);
        message.extend((payload.len() as u16).to_le_bytes());
        message.extend(payload);
        let parts: Vec<[u64; 2]> =
            message.chunks(1536).map(|part| slow_part(secret, 2, part)).collect();
        let hash = match parts.as_slice() {
            [only] => *only,
            parts => {
                let sums = parts.iter().flat_map(|part| bytes(*part)).collect::<Vec<_>>();
                slow_part(secret, 2 + 194, &sums)
            }
        };
        let mut last = [0; 23];
        last[..16].copy_from_slice(&bytes(hash));
        last[16..].copy_from_slice(&number.to_le_bytes()[..7]);
        let finish = [word(secret, 0) as u64, word(secret, 1) as u64];
        SipHasher24::new_with_key(&bytes(finish)).hash(&last)
    }

    proptest! {
        #[test]
        fn the_tag_is_that_of_the_definition(
            secret in any::<[u8; 16]>(),
            number in 0u64..1 << 56,
            head in prop::collection::vec(any::<u8>(), 0..=46),
            payload in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..100),
                prop::collection::vec(any::<u8>(), 1400..1600),
                prop::collection::vec(any::<u8>(), 3000..10_000),
            ],
            cut in any::<prop::sample::Index>(),
        ) {
            let key = Key::new(&secret);
            let expected = slow_tag(&secret, number, &head, &payload);
            prop_assert_eq!(key.tag(number, &head, [&payload, &[]]), expected);
            let (a, b) = payload.split_at(cut.index(payload.len() + 1));
            prop_assert_eq!(key.tag(number, &head, [a, b]), expected);
        }
    }

    /// Computed by a program in Python that shares no code with this one.
    #[test]
    fn known_tags() {
        let head: Vec<u8> = (0..46).collect();
        for (len, number, tag) in [
            (0, 0, 0xce33_59b4_a8fd_75e1),
            (4, 1, 0xfa5a_283d_7d6d_b17b),
            (1408, 0x0102_0304_0506_0708, 0x5b88_150b_b845_54a7),
            (5000, 2, 0x168d_c392_c114_2aed),
        ] {
            let payload: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
            assert_eq!(Key::new(&SECRET).tag(number, &head, [&payload, &[]]), tag, "{len} bytes");
        }
    }

    #[test]
    fn the_largest_datagram_has_a_tag() {
        let payload: Vec<u8> = (0..PAYLOAD_MAX).map(|i| (i * 7) as u8).collect();
        let tag = Key::new(&SECRET).tag(3, &[5; 46], [&payload, &[]]);
        assert_eq!(tag, slow_tag(&SECRET, 3, &[5; 46], &payload));
    }

    #[test]
    fn every_bit_counts_also_the_number_and_the_length() {
        let (key, head, payload) = (Key::new(&SECRET), [7; 46], [9; 44]);
        let good = key.tag(5, &head, [&payload, &[]]);
        for bit in 0..payload.len() * 8 {
            let mut other = payload;
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(key.tag(5, &head, [&other, &[]]), good, "bit {bit} of the payload");
        }
        for bit in 0..head.len() * 8 {
            let mut other = head;
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(key.tag(5, &other, [&payload, &[]]), good, "bit {bit} of the header");
        }
        for bit in 0..56 {
            assert_ne!(
                key.tag(5 ^ 1 << bit, &head, [&payload, &[]]),
                good,
                "bit {bit} of the number"
            );
        }
        let longer = [&payload[..], &[0; 4]].concat();
        assert_ne!(key.tag(5, &head, [&longer, &[]]), good, "zeros at the end");
    }

    /// Pairs of the same difference in many words are what breaks a sum of products that is not keyed well.
    #[test]
    fn differences_in_the_highest_bits_of_many_words_are_seen() {
        let zeros = [0; 1408];
        for secret in 0..200u8 {
            let key = Key::new(&[secret; 16]);
            let good = key.hash(&[0; HEAD], &zeros);
            for step in [1, 2, 3, 8] {
                let mut other = zeros;
                other.chunks_mut(8).step_by(step).for_each(|word| word[7] ^= 0x80);
                assert_ne!(key.hash(&[0; HEAD], &other), good, "every {step} words");
            }
        }
    }
}
