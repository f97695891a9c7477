//! AEGIS-128L over four packets at once, where the processor has vector instructions of AES (VAES, AVX-512).
//!
//! One packet alone waits for the latency of each round of AES, and one lane of a vector does what the vector could do
//! for four. A lane is a packet: its tag is the same as if it were computed alone.

#![allow(unsafe_code)]

use netsum_wire::seal::FourPackets;
#[cfg(target_arch = "x86_64")]
use netsum_wire::seal::{AegisState, Four, Head, WholeTag};

/// This processor's code, if it has the instructions.
pub(crate) fn detect() -> Option<&'static dyn FourPackets> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("vaes")
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("aes")
    {
        return Some(&Vaes);
    }
    None
}

/// Made by [`detect`] alone: the processor has the instructions.
#[cfg(target_arch = "x86_64")]
#[derive(Debug)]
struct Vaes;

#[cfg(target_arch = "x86_64")]
impl FourPackets for Vaes {
    fn state(&self, key: &[u8; 16]) -> AegisState {
        // SAFETY: the processor has AES instructions, or there would be no `Vaes`.
        unsafe { x86::state(key) }
    }

    fn tags(&self, states: [&AegisState; 4], heads: [&Head; 4], payloads: [&[u8]; 4]) -> [u64; 4] {
        // SAFETY: the processor has VAES and AVX-512F, or there would be no `Vaes`.
        unsafe { x86::tags(states, heads, payloads) }
    }

    fn encrypt(&self, packets: Four<'_>) -> [WholeTag; 4] {
        // SAFETY: as above.
        unsafe { x86::crypt::<true>(packets) }
    }

    fn decrypt(&self, packets: Four<'_>) -> [WholeTag; 4] {
        // SAFETY: as above.
        unsafe { x86::crypt::<false>(packets) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use netsum_wire::seal::{AegisState, Four, Head, NUMBERED_LEN, WholeTag, nonce};

    /// Bytes of a message that one update of the state takes.
    const RATE: usize = 32;
    const C0: [u8; 16] = [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 121, 98];
    const C1: [u8; 16] = [219, 61, 24, 85, 109, 194, 47, 241, 32, 17, 49, 66, 115, 181, 40, 221];

    /// The state after a key and a nonce of zeros.
    #[target_feature(enable = "aes")]
    pub(super) fn state(key: &[u8; 16]) -> AegisState {
        let (key, c0, c1) = (block(key), block(&C0), block(&C1));
        let [with_c0, with_c1] = [c0, c1].map(|c| _mm_xor_si128(key, c));
        let mut s = [key, c1, c0, c1, key, with_c0, with_c1, with_c0];
        for _ in 0..10 {
            let last = s[7];
            for i in (1..8).rev() {
                s[i] = _mm_aesenc_si128(s[i - 1], s[i]);
            }
            s[0] = _mm_aesenc_si128(last, s[0]);
            s[4] = _mm_xor_si128(s[4], key);
        }
        s.map(|block| bytes(block))
    }

    /// Takes 16 bytes of each packet twice. A macro: the state must stay in registers, and a compiler may leave a function
    /// with `target_feature` out of line.
    macro_rules! update {
        ($s:ident, $first:expr, $second:expr) => {{
            let last = $s[7];
            $s[7] = _mm512_aesenc_epi128($s[6], $s[7]);
            $s[6] = _mm512_aesenc_epi128($s[5], $s[6]);
            $s[5] = _mm512_aesenc_epi128($s[4], $s[5]);
            $s[4] = _mm512_xor_si512(_mm512_aesenc_epi128($s[3], $s[4]), $second);
            $s[3] = _mm512_aesenc_epi128($s[2], $s[3]);
            $s[2] = _mm512_aesenc_epi128($s[1], $s[2]);
            $s[1] = _mm512_aesenc_epi128($s[0], $s[1]);
            $s[0] = _mm512_xor_si512(_mm512_aesenc_epi128(last, $s[0]), $first);
        }};
    }

    /// 32 bytes of each packet: the first halves, and the second ones.
    macro_rules! gather {
        ($a:expr, $b:expr, $c:expr, $d:expr) => {{
            let low = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(row($a)), row($b));
            let high = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(row($c)), row($d));
            let first = _mm512_shuffle_i64x2::<0b10_00_10_00>(low, high);
            (first, _mm512_shuffle_i64x2::<0b11_01_11_01>(low, high))
        }};
    }

    /// The reverse of `gather`.
    macro_rules! scatter {
        ($first:expr, $second:expr, $a:expr, $b:expr, $c:expr, $d:expr) => {{
            let low = _mm512_shuffle_i64x2::<0b01_00_01_00>($first, $second);
            let high = _mm512_shuffle_i64x2::<0b11_10_11_10>($first, $second);
            let low = _mm512_shuffle_i64x2::<0b11_01_10_00>(low, low);
            let high = _mm512_shuffle_i64x2::<0b11_01_10_00>(high, high);
            put_row($a, _mm512_castsi512_si256(low));
            put_row($b, _mm512_extracti64x4_epi64::<1>(low));
            put_row($c, _mm512_castsi512_si256(high));
            put_row($d, _mm512_extracti64x4_epi64::<1>(high));
        }};
    }

    /// Takes 32 bytes of each packet.
    macro_rules! absorb {
        ($s:ident, $a:expr, $b:expr, $c:expr, $d:expr) => {{
            let (first, second) = gather!($a, $b, $c, $d);
            update!($s, first, second);
        }};
    }

    /// Encrypts or decrypts 32 bytes of each packet, given as halves; the state takes the plain ones next.
    macro_rules! crypt {
        ($s:ident, $halves:expr) => {{
            let (first, second) = $halves;
            let one = _mm512_xor_si512(_mm512_and_si512($s[2], $s[3]), $s[1]);
            let two = _mm512_xor_si512(_mm512_and_si512($s[6], $s[7]), $s[5]);
            let first = _mm512_xor_si512(_mm512_xor_si512(one, $s[6]), first);
            (first, _mm512_xor_si512(_mm512_xor_si512(two, $s[2]), second))
        }};
    }

    /// The tags, once everything is taken: bits of what was taken before the payload, and of the payload or the tag.
    macro_rules! finish {
        ($s:ident, $first_bits:expr, $second_bits:expr) => {{
            let (low, high) = ($first_bits as i64, $second_bits as i64);
            let sizes = _mm512_set_epi64(high, low, high, low, high, low, high, low);
            let sizes = _mm512_xor_si512($s[2], sizes);
            for _ in 0..7 {
                update!($s, sizes, sizes);
            }
            let mut tag = $s[0];
            for block in &$s[1..7] {
                tag = _mm512_xor_si512(tag, *block);
            }
            [
                bytes(_mm512_extracti32x4_epi32::<0>(tag)),
                bytes(_mm512_extracti32x4_epi32::<1>(tag)),
                bytes(_mm512_extracti32x4_epi32::<2>(tag)),
                bytes(_mm512_extracti32x4_epi32::<3>(tag)),
            ]
        }};
    }

    /// The first 64 bits of each packet's tag. All payloads have one length.
    #[target_feature(enable = "avx512f,vaes")]
    pub(super) fn tags(
        states: [&AegisState; 4],
        heads: [&Head; 4],
        payloads: [&[u8]; 4],
    ) -> [u64; 4] {
        let [p, q, r, t] = states;
        let mut s = [
            lanes(&p[0], &q[0], &r[0], &t[0]),
            lanes(&p[1], &q[1], &r[1], &t[1]),
            lanes(&p[2], &q[2], &r[2], &t[2]),
            lanes(&p[3], &q[3], &r[3], &t[3]),
            lanes(&p[4], &q[4], &r[4], &t[4]),
            lanes(&p[5], &q[5], &r[5], &t[5]),
            lanes(&p[6], &q[6], &r[6], &t[6]),
            lanes(&p[7], &q[7], &r[7], &t[7]),
        ];
        let [a, b, c, d] = heads.map(|head| head.as_chunks::<RATE>().0);
        for i in 0..2 {
            absorb!(s, &a[i], &b[i], &c[i], &d[i]);
        }
        let len = payloads[0].len();
        let [a, b, c, d] = payloads.map(|payload| payload[..len].as_chunks::<RATE>());
        for (((a, b), c), d) in a.0.iter().zip(b.0).zip(c.0).zip(d.0) {
            absorb!(s, a, b, c, d);
        }
        if !len.is_multiple_of(RATE) {
            let [a, b, c, d] = [a.1, b.1, c.1, d.1].map(|rest| {
                let mut last = [0; RATE];
                last[..rest.len()].copy_from_slice(rest);
                last
            });
            absorb!(s, &a, &b, &c, &d);
        }
        let bits = 8 * (heads[0].len() + len);
        finish!(s, bits, 128).map(|tag: [u8; 16]| {
            u64::from_be_bytes(*tag.first_chunk().expect("the tag has 16 bytes"))
        })
    }

    /// Encrypts or decrypts payloads of one length in their places; returns the tags.
    #[target_feature(enable = "avx512f,vaes")]
    pub(super) fn crypt<const ENCRYPT: bool>(packets: Four<'_>) -> [WholeTag; 4] {
        let Four { keys, numbers, heads, payloads } = packets;
        let [a, b, c, d] = keys;
        let key = lanes(a, b, c, d);
        let [a, b, c, d] = numbers.map(nonce);
        let nonce = lanes(&a, &b, &c, &d);
        let [c0, c1] = [C0, C1].map(|c| _mm512_broadcast_i32x4(block(&c)));
        let [with_c0, with_c1] = [c0, c1].map(|c| _mm512_xor_si512(key, c));
        let with_nonce = _mm512_xor_si512(key, nonce);
        let mut s = [with_nonce, c1, c0, c1, with_nonce, with_c0, with_c1, with_c0];
        for _ in 0..10 {
            update!(s, nonce, key);
        }
        let [a, b, c, d] = heads.each_ref().map(|head| head.as_chunks::<RATE>().0);
        for i in 0..2 {
            absorb!(s, &a[i], &b[i], &c[i], &d[i]);
        }
        let len = payloads[0].len();
        let [a, b, c, d] = payloads.map(|payload| payload[..len].as_chunks_mut::<RATE>());
        for (((a, b), c), d) in a.0.iter_mut().zip(b.0).zip(c.0).zip(d.0) {
            let before = gather!(a, b, c, d);
            let after = crypt!(s, before);
            let (first, second) = if ENCRYPT { before } else { after };
            update!(s, first, second);
            scatter!(after.0, after.1, a, b, c, d);
        }
        let rest = len % RATE;
        if rest > 0 {
            let mut ends = [a.1, b.1, c.1, d.1];
            let mut last = [[0; RATE]; 4];
            for (last, end) in last.iter_mut().zip(&ends) {
                last[..rest].copy_from_slice(end);
            }
            let [a, b, c, d] = &mut last;
            if ENCRYPT {
                let plain = gather!(a, b, c, d);
                let (first, second) = crypt!(s, plain);
                update!(s, plain.0, plain.1);
                scatter!(first, second, a, b, c, d);
            } else {
                let (first, second) = crypt!(s, gather!(a, b, c, d));
                scatter!(first, second, a, b, c, d);
                // The plain text ends with zeros.
                [&mut *a, b, c, d].into_iter().for_each(|plain| plain[rest..].fill(0));
                absorb!(s, a, b, c, d);
            }
            for (last, end) in last.iter().zip(&mut ends) {
                end.copy_from_slice(&last[..rest]);
            }
        }
        finish!(s, 8 * NUMBERED_LEN, 8 * len)
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn bytes(block: __m128i) -> [u8; 16] {
        let halves = [_mm_cvtsi128_si64(block), _mm_cvtsi128_si64(_mm_srli_si128::<8>(block))];
        std::array::from_fn(|i| halves[i / 8].to_le_bytes()[i % 8])
    }

    /// 32 bytes of one packet.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn row(bytes: &[u8; RATE]) -> __m256i {
        // SAFETY: the bytes are 32, and any address will do.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn put_row(bytes: &mut [u8; RATE], row: __m256i) {
        // SAFETY: the bytes are 32, and any address will do.
        unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), row) }
    }

    /// Four blocks, in the order of the packets.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn lanes(a: &[u8; 16], b: &[u8; 16], c: &[u8; 16], d: &[u8; 16]) -> __m512i {
        let low = _mm256_set_m128i(block(b), block(a));
        let high = _mm256_set_m128i(block(d), block(c));
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn block(bytes: &[u8; 16]) -> __m128i {
        let [low, high] =
            [0, 8].map(|at| i64::from_le_bytes(*bytes[at..].first_chunk().expect("16 bytes")));
        _mm_set_epi64x(high, low)
    }
}

#[cfg(test)]
mod tests {
    use netsum_proto::hops::Hop;
    use netsum_proto::{DropReason, Hops, Lease, PortId, panama};
    use netsum_wire::seal::{
        Encrypted, HopKeys, SEALED_HEADER_LEN, SealKey, TRAILER_LEN, put_number_to_encrypt,
    };
    use netsum_wire::tag::{JobKey, Mac};
    use netsum_wire::{Epoch, JobId, TreeId};
    use proptest::prelude::*;

    use super::*;

    fn byte(packet: usize, i: usize, seed: u8) -> u8 {
        (packet * 131 + i * 7) as u8 ^ seed
    }

    /// Keys of one hop at both ends: a child's, and its parent's with a train of four packets.
    fn train(code: &'static dyn FourPackets, mac: Mac) -> (Hops, [Vec<u8>; 4]) {
        let keys = HopKeys::new(mac, [7; 32]);
        let lease = panama::Lease {
            job: JobId(1),
            epoch: Epoch(1),
            tree: TreeId(2),
            children: vec![panama::Child { port: PortId(3), ranks: 1, branch: 0 }],
            parent: None,
            slots: 4,
            fragment_bytes: 256,
            release_permille: 1000,
        };
        let mut hops = Hops::default();
        hops.use_lanes(Some(code));
        hops.install(&Lease::Tree(lease), Some(&vec![keys]));
        let mut plain = vec![0; netsum_wire::panama::HEADER_LEN];
        plain[0] = netsum_wire::panama::VERSION;
        plain[2] = 2;
        plain[4..8].copy_from_slice(&1u32.to_be_bytes());
        plain.extend([9; 200]);
        let mut child = Hop::to_parent(keys);
        (hops, std::array::from_fn(|_| child.sealed(&plain)))
    }

    #[test]
    fn a_forged_packet_of_a_train_is_refused_alone() {
        let Some(code) = detect() else {
            println!("skipped: this processor has no vector instructions of AES");
            return;
        };
        for mac in [Mac::Aegis, Mac::AegisAead] {
            let (mut hops, mut packets) = train(code, mac);
            assert_eq!(netsum_wire::seal::hop_of(&packets[0]), Some((JobId(1), TreeId(2))));
            packets[2][SEALED_HEADER_LEN + 70] ^= 1;
            let train = packets.each_mut().map(|packet| packet.as_mut_slice());
            let mut ahead = hops.check_ahead(PortId(3), train).expect("four alike");
            let mut open = |packet: &mut Vec<u8>| {
                let checked = ahead.pop();
                assert!(checked.is_some());
                hops.open_checked(JobId(1), TreeId(2), PortId(3), checked, packet)
            };
            let opened = packets.each_mut().map(&mut open);
            assert_eq!(opened, [Ok(()), Ok(()), Err(DropReason::BadTag), Ok(())]);
            let payload = SEALED_HEADER_LEN..SEALED_HEADER_LEN + 200;
            for packet in [0, 1, 3] {
                assert!(packets[packet][payload.clone()].iter().all(|&byte| byte == 9));
            }
            // What was decrypted under a wrong tag is of no use to anybody.
            let erased = packets[2][payload].iter().all(|&byte| byte == 0);
            assert_eq!(erased, mac == Mac::AegisAead);
        }
    }

    #[test]
    fn packets_of_two_protocols_are_not_opened_together() {
        let Some(code) = detect() else {
            println!("skipped: this processor has no vector instructions of AES");
            return;
        };
        let (hops, mut packets) = train(code, Mac::Aegis);
        // Its job and tree are where those of a tree's packet are.
        packets[2][0] = netsum_wire::atp::SEALED_VERSION;
        packets[2][3] = 2;
        assert_eq!(netsum_wire::seal::hop_of(&packets[2]), Some((JobId(1), TreeId(2))));
        let train = packets.each_mut().map(|packet| packet.as_mut_slice());
        assert!(hops.check_ahead(PortId(3), train).is_none());
    }

    proptest! {
        /// The oracle is the library's AEGIS-128L, one packet after the other.
        #[test]
        fn four_tags_are_those_of_each_packet_alone(
            keys in any::<[[u8; 16]; 4]>(),
            heads in prop::collection::vec(prop::collection::vec(any::<u8>(), 46), 4),
            len in 0usize..1500,
            seed in any::<u8>(),
        ) {
            let Some(code) = detect() else {
                println!("skipped: this processor has no vector instructions of AES");
                return Ok(());
            };
            let payloads: Vec<Vec<u8>> =
                (0..4).map(|packet| (0..len).map(|i| byte(packet, i, seed)).collect()).collect();
            let states = keys.map(|key| code.state(&key));
            let padded: [Head; 4] = std::array::from_fn(|i| netsum_wire::seal::head_of(&heads[i]));
            let payload = |i: usize| payloads[i].as_slice();
            let payloads = [payload(0), payload(1), payload(2), payload(3)];
            let tags = code.tags(states.each_ref(), padded.each_ref(), payloads);
            for packet in 0..4 {
                let key = SealKey::new(&JobKey::new(Mac::Aegis, keys[packet]));
                let alone = key.tag_after(&heads[packet], payloads[packet]);
                prop_assert_eq!(tags[packet], alone);
            }
        }

        /// The same oracle for encryption, both ways.
        #[test]
        fn four_packets_are_encrypted_as_each_alone(
            keys in any::<[[u8; 16]; 4]>(),
            numbers in any::<[u64; 4]>(),
            len in 0usize..1500,
            seed in any::<u8>(),
        ) {
            let Some(code) = detect() else {
                println!("skipped: this processor has no vector instructions of AES");
                return Ok(());
            };
            let plain: [Vec<u8>; 4] = std::array::from_fn(|packet| {
                let len = SEALED_HEADER_LEN + len + TRAILER_LEN;
                (0..len).map(|i| byte(packet, i, seed)).collect()
            });
            let alone: [Vec<u8>; 4] = std::array::from_fn(|i| {
                let mut packet = plain[i].clone();
                let key = SealKey::new(&JobKey::new(Mac::AegisAead, keys[i]));
                key.seal(numbers[i], &mut packet, &[]);
                packet
            });
            let mut together = plain.clone();
            for (packet, number) in together.iter_mut().zip(numbers) {
                put_number_to_encrypt(number, packet);
            }
            let mut parts = together.each_mut().map(|packet| Encrypted::split(packet).unwrap());
            let tags = code.encrypt(Four::new(keys.each_ref(), &mut parts));
            parts.iter_mut().zip(&tags).for_each(|(part, tag)| part.put_tag(tag));
            prop_assert_eq!(&together, &alone);

            let mut parts = together.each_mut().map(|packet| Encrypted::split(packet).unwrap());
            let tags = code.decrypt(Four::new(keys.each_ref(), &mut parts));
            for (part, tag) in parts.iter().zip(tags) {
                prop_assert_eq!(part.tag(), tag);
            }
            for (opened, plain) in together.iter().zip(&plain) {
                let payload = SEALED_HEADER_LEN..SEALED_HEADER_LEN + len;
                prop_assert_eq!(&opened[payload.clone()], &plain[payload]);
            }
        }
    }
}
