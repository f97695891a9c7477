// The message authentication code of crates/wire/src/nh.rs, for a packet of one part: a hash of the family NH modulo
// 2^64, and SipHash-2-4 (Aumasson and Bernstein, 2012) over the hash and the packet number.
#pragma once

#include "packet.h"

#define PAIR 16
// Pairs that are processed without a check in between.
#define PAIRS 16

struct sums {
	__u64 first, second;
};

// Adds a pair of words to both sums. The words must not be kept for the next pair, which uses two of them again: the
// compiler would run out of registers.
static __always_inline void add_pair(struct sums *sums, __u64 a, __u64 b, const __u64 *words)
{
	__u64 first = sums->first, second = sums->second;
	first += (a + words[0]) * (b + words[1]);
	second += (bpf_be64_to_cpu(a) + words[2]) * (bpf_be64_to_cpu(b) + words[3]);
	asm volatile("" : "+r"(first), "+r"(second)::"memory");
	sums->first = first;
	sums->second = second;
}

// Header, packet number, and length of the payload.
static __always_inline void add_head(struct sums *sums, const __u64 *head, __u32 payload, const __u64 *words)
{
	__u64 last = (head[5] & 0x0000ffffffffffffULL) | (__u64)payload << 48;
	add_pair(sums, head[0], head[1], words);
	add_pair(sums, head[2], head[3], words + 2);
	add_pair(sums, head[4], last, words + 4);
}

// Adds `pairs` pairs that are `at` bytes behind the beginning of a payload, if they are all there.
static __always_inline void add_pairs(struct sums *sums, void *data, void *end, const __u64 *words, __u32 at, int pairs)
{
	// The verifier must see the limit of this very value.
	asm volatile("" : "+r"(at));
	if (at > ROW_BYTES - pairs * PAIR)
		return;
	const __u64 *packet = data + at, *key = (const void *)words + at;
	if (!CHECKED(packet, pairs * PAIR, end))
		return;
#pragma unroll
	for (int i = 0; i < PAIRS; i++)
		if (i < pairs)
			add_pair(sums, packet[2 * i], packet[2 * i + 1], key + 2 * i);
}

// `data`: a payload of `bytes`, a multiple of 4; `words`: of its first pair. Places follow from `bytes` alone, so that
// the verifier need not tell the ways apart on which they are reached.
static __always_inline void add_payload(struct sums *sums, void *data, void *end, __u32 bytes, const __u64 *words)
{
	for (__u32 block = 0; block < ROW_BYTES / (PAIR * PAIRS); block++) {
		if ((block + 1) * PAIR * PAIRS > bytes)
			break;
		add_pairs(sums, data, end, words, block * PAIR * PAIRS, PAIRS);
	}
	if (bytes & 8 * PAIR)
		add_pairs(sums, data, end, words, bytes & ~(16 * PAIR - 1), 8);
	if (bytes & 4 * PAIR)
		add_pairs(sums, data, end, words, bytes & ~(8 * PAIR - 1), 4);
	if (bytes & 2 * PAIR)
		add_pairs(sums, data, end, words, bytes & ~(4 * PAIR - 1), 2);
	if (bytes & PAIR)
		add_pairs(sums, data, end, words, bytes & ~(2 * PAIR - 1), 1);
	// The last pair is filled up with zeros.
	__u64 a = 0, b = 0;
	__u32 at = bytes & ~(PAIR - 1);
	asm volatile("" : "+r"(at));
	if (!(bytes & (PAIR - 1)) || at > ROW_BYTES - PAIR)
		return;
	const __u32 *packet = data + at;
	if (!CHECKED(packet, 4, end))
		return;
	a = packet[0];
	if (bytes & 8 && CHECKED(packet, 8, end))
		a |= (__u64)packet[1] << 32;
	if ((bytes & 12) == 12 && CHECKED(packet, 12, end))
		b = packet[2];
	add_pair(sums, a, b, (const void *)words + at);
}

struct sip {
	__u64 a, b, c, d;
};

#define ROTATE(word, bits) ((word) << (bits) | (word) >> (64 - (bits)))

static __always_inline void sip_round(struct sip *s)
{
	s->a += s->b;
	s->b = ROTATE(s->b, 13) ^ s->a;
	s->a = ROTATE(s->a, 32);
	s->c += s->d;
	s->d = ROTATE(s->d, 16) ^ s->c;
	s->a += s->d;
	s->d = ROTATE(s->d, 21) ^ s->a;
	s->c += s->b;
	s->b = ROTATE(s->b, 17) ^ s->c;
	s->c = ROTATE(s->c, 32);
}

static __always_inline void sip_word(struct sip *s, __u64 word)
{
	s->d ^= word;
	sip_round(s);
	sip_round(s);
	s->a ^= word;
}

// SipHash-2-4 of 23 bytes: the hash, and seven bytes of the packet number.
static __always_inline __u64 finished(const __u64 *key, const struct sums *sums, __u64 number)
{
	struct sip s = {
		key[0] ^ 0x736f6d6570736575ULL,
		key[1] ^ 0x646f72616e646f6dULL,
		key[0] ^ 0x6c7967656e657261ULL,
		key[1] ^ 0x7465646279746573ULL,
	};
	sip_word(&s, sums->first);
	sip_word(&s, sums->second);
	sip_word(&s, (number & 0x00ffffffffffffffULL) | 23ULL << 56);
	s.c ^= 0xff;
	sip_round(&s);
	sip_round(&s);
	sip_round(&s);
	sip_round(&s);
	return s.a ^ s.b ^ s.c ^ s.d;
}

// The tag of the packet in a frame, whose number is there already; `key`: hop and direction. A separate function, which
// the verifier checks once.
__noinline __u64 tag_of(struct xdp_md *ctx, __u32 key_index, __u32 payload)
{
	void *data = frame(ctx), *end = frame_end(ctx);
	const struct hop_key *key = bpf_map_lookup_elem(&hop_keys, &key_index);
	if (!key || payload > ROW_BYTES || !CHECKED(data, PACKET_OFFSET + SEALED_LEN, end))
		return 0;
	const struct extension *extension = data + PACKET_OFFSET + HEADER_LEN;
	struct sums sums = {};
	add_head(&sums, data + PACKET_OFFSET, payload, key->words);
	add_payload(&sums, data + PACKET_OFFSET + SEALED_LEN, end, payload, key->words + 6);
	return finished(key->finish, &sums, bpf_be64_to_cpu(extension->number));
}
