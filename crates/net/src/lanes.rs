//! AEGIS-128L over four packets at once, where the processor has vector instructions of AES (VAES, AVX-512).
//!
//! One packet alone waits for the latency of each round of AES, and one lane of a vector does what the vector could do
//! for four. A lane is a packet: its tag is the same as if it were computed alone.

#![allow(unsafe_code)]

use netsum_wire::seal::{AegisState, FourTags, Head};

/// This processor's code, if it has the instructions.
pub(crate) fn detect() -> Option<&'static dyn FourTags> {
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
impl FourTags for Vaes {
    fn state(&self, key: &[u8; 16]) -> AegisState {
        // SAFETY: the processor has AES instructions, or there would be no `Vaes`.
        unsafe { x86::state(key) }
    }

    fn tags(&self, states: [&AegisState; 4], heads: [&Head; 4], payloads: [&[u8]; 4]) -> [u64; 4] {
        // SAFETY: the processor has VAES and AVX-512F, or there would be no `Vaes`.
        unsafe { x86::tags(states, heads, payloads) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use netsum_wire::seal::{AegisState, Head};

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
        s.map(|block| {
            let halves = [_mm_cvtsi128_si64(block), _mm_cvtsi128_si64(_mm_srli_si128::<8>(block))];
            std::array::from_fn(|i| halves[i / 8].to_le_bytes()[i % 8])
        })
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

    /// Takes 32 bytes of each packet.
    macro_rules! absorb {
        ($s:ident, $a:expr, $b:expr, $c:expr, $d:expr) => {{
            let low = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(row($a)), row($b));
            let high = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(row($c)), row($d));
            let first = _mm512_shuffle_i64x2::<0b10_00_10_00>(low, high);
            let second = _mm512_shuffle_i64x2::<0b11_01_11_01>(low, high);
            update!($s, first, second);
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
        let bits = 8 * (heads[0].len() + len) as i64;
        let sizes = _mm512_set_epi64(128, bits, 128, bits, 128, bits, 128, bits);
        let sizes = _mm512_xor_si512(s[2], sizes);
        for _ in 0..7 {
            update!(s, sizes, sizes);
        }
        let mut tag = s[0];
        for block in &s[1..7] {
            tag = _mm512_xor_si512(tag, *block);
        }
        [
            first(_mm512_extracti32x4_epi32::<0>(tag)),
            first(_mm512_extracti32x4_epi32::<1>(tag)),
            first(_mm512_extracti32x4_epi32::<2>(tag)),
            first(_mm512_extracti32x4_epi32::<3>(tag)),
        ]
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn first(lane: __m128i) -> u64 {
        _mm_cvtsi128_si64(lane).cast_unsigned().swap_bytes()
    }

    /// 32 bytes of one packet.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn row(bytes: &[u8; RATE]) -> __m256i {
        // SAFETY: the bytes are 32, and any address will do.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
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
    use netsum_wire::seal::SealKey;
    use netsum_wire::tag::{JobKey, Mac};
    use proptest::prelude::*;

    use super::*;

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
            let byte = |packet: usize, i: usize| (packet * 131 + i * 7) as u8 ^ seed;
            let payloads: Vec<Vec<u8>> =
                (0..4).map(|packet| (0..len).map(|i| byte(packet, i)).collect()).collect();
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
    }
}
