// The keyed tag of docs/protocol-atp.md: SipHash-2-4 (Aumasson and Bernstein, 2012) over the header but its tag and the
// bits that switches set, two zeros, and the payload. crates/wire/src/tag.rs is the same with a library's SipHash.
#pragma once

#include <linux/types.h>

#include "format.h"

#define HASHED_HEADER 40

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

// `data`: a frame of at least PAYLOAD_OFFSET bytes; `payload`: bytes after that, a multiple of 4.
static __always_inline __u64 keyed_hash(const __u64 *key, void *data, void *end, __u32 payload)
{
	struct sip s = {
		key[0] ^ 0x736f6d6570736575ULL,
		key[1] ^ 0x646f72616e646f6dULL,
		key[0] ^ 0x6c7967656e657261ULL,
		key[1] ^ 0x7465646279746573ULL,
	};
	const __u64 *header = data + PACKET_OFFSET;
	// Level in the second byte, ECN and collision in the third; the tag begins in the fifth word.
	sip_word(&s, header[0] & ~((__u64)LEVEL_BIT << 8 | (__u64)(COLLISION | ECN) << 16));
	sip_word(&s, header[1]);
	sip_word(&s, header[2]);
	sip_word(&s, header[3]);
	sip_word(&s, header[4] & 0x0000ffffffffffffULL);
	for (int i = 0; i < ROW_BYTES / 8; i++) {
		__u64 *word = data + PAYLOAD_OFFSET + i * 8;
		if ((__u32)i >= payload / 8 || (void *)(word + 1) > end)
			break;
		sip_word(&s, *word);
	}
	__u64 last = (__u64)(HASHED_HEADER + payload) << 56;
	if (payload & 4 && payload <= ROW_BYTES) {
		__u32 *rest = data + PAYLOAD_OFFSET + (payload & ~7u & 0x7ff);
		if ((void *)(rest + 1) <= end)
			last |= *rest;
	}
	sip_word(&s, last);
	s.c ^= 0xff;
	sip_round(&s);
	sip_round(&s);
	sip_round(&s);
	sip_round(&s);
	return s.a ^ s.b ^ s.c ^ s.d;
}
