// Combination of a slot's values and a packet's: the four combinations of docs/protocol-atp.md, bit for bit those of
// crates/wire/src/arithmetic.rs.
//
// The values are in a frame, so every block of BLOCK elements is checked against the frame's end once and then
// processed without checks. Elements are little-endian, as is the processor (the loader checks).
#pragma once

#include <linux/types.h>

#include "format.h"

#define BLOCK 32
#define BLOCKS (ROW_BYTES / 4 / BLOCK)

// a + b, clamped, without a branch: the verifier would follow both branches at every element. Sets the top bit of
// `signs` if clamped.
static __always_inline __s32 saturated(__s32 a, __s32 b, __u32 *signs)
{
	__s32 sum = (__s32)((__u32)a + (__u32)b);
	__s32 overflow = (a ^ sum) & (b ^ sum);
	*signs |= overflow;
	overflow >>= 31;
	return (sum & ~overflow) | (((a >> 31) ^ 0x7fffffff) & overflow);
}

// Adds a packet's elements, clamped or modulo 2^32. `data`: as `payload_of` returns it. Returns whether one was
// clamped.
static __always_inline _Bool add_all(__u8 *values, void *data, void *end, __u32 count, _Bool clamp)
{
	__u32 done = 0, signs = 0;
	for (int block = 0; block < BLOCKS; block++) {
		__s32 *packet = data + block * BLOCK * 4, *sum = (void *)values + block * BLOCK * 4;
		if (done + BLOCK > count || !CHECKED(packet, BLOCK * 4, end))
			break;
#pragma unroll
		for (int i = 0; i < BLOCK; i++)
			sum[i] = clamp ? saturated(sum[i], packet[i], &signs) : (__s32)((__u32)sum[i] + (__u32)packet[i]);
		done += BLOCK;
	}
	for (int i = 0; i < BLOCK - 1; i++) {
		__s32 *packet = data + (done + i) * 4, *sum = (void *)values + (done + i) * 4;
		if (done + i >= count || done + i >= ROW_BYTES / 4 || !CHECKED(packet, 4, end))
			break;
		*sum = clamp ? saturated(*sum, *packet, &signs) : (__s32)((__u32)*sum + (__u32)*packet);
	}
	return signs >> 31;
}

// Element by element: rare combinations.
#define EACH(values, data, end, count, combined)                                                                       \
	for (int i = 0; i < ROW_BYTES / 4; i++) {                                                                      \
		__s32 *packet = data + i * 4, *sum = (void *)values + i * 4;                          \
		if (i >= (int)(count) || !CHECKED(packet, 4, end))                                                     \
			break;                                                                                         \
		__s32 a = *sum, b = *packet;                                                                           \
		*sum = combined;                                                                                       \
	}
#define LESS (a < b ? a : b)
#define GREATER (a > b ? a : b)
