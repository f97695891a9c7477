// Sealed packets: docs/protocol-atp.md, and crates/proto/src/hops.rs for the same in user space. Packets of one hop may
// be processed by several processors, and by user space, at the same time.
#pragma once

#include "nh.h"

// Numbers above this are not used: block numbers have 48 bits.
#define NUMBERS_MAX (1ULL << 52)
// Tries to change a cell that others change, too.
#define TRIES 32

static __always_inline __u32 key_of(__u32 hop, enum direction direction)
{
	return 2 * hop + direction;
}

// Checks that a number was not accepted before, and that not so many later ones were that this is unknown; notes it if
// `take`. Returns a reason to drop the packet.
static __always_inline int check_number(__u32 hop, __u64 number, _Bool take)
{
	struct hop_numbers *numbers = bpf_map_lookup_elem(&numbers_of_hops, &hop);
	if (!numbers || number >= NUMBERS_MAX)
		return REPLAY;
	__u64 block = number / 16, bit = 1ULL << (number % 16);
	__u64 *cell = &numbers->cell[block % CELLS];
	for (int i = 0; i < TRIES; i++) {
		__u64 now = *(volatile __u64 *)cell, here = now >> 16;
		if (here > block || (here == block && now & bit))
			return REPLAY;
		if (!take || __sync_val_compare_and_swap(cell, now, (here == block ? now : block << 16) | bit) == now)
			return FINE;
	}
	return BUSY;
}

// Checks a packet whose sender is at the other end of a hop. `take`: nobody else will check its number.
static __always_inline int open_sealed(struct xdp_md *ctx, __u32 hop, __u32 payload, _Bool take)
{
	__u64 tag = tag_of(ctx, key_of(hop, RECEIVE), payload);
	void *data = frame(ctx);
	if (!CHECKED(data, PACKET_OFFSET + SEALED_LEN, frame_end(ctx)))
		return TRUNCATED_HEADER;
	const struct extension *extension = data + PACKET_OFFSET + HEADER_LEN;
	if (extension->tag != bpf_cpu_to_be64(tag))
		return BAD_TAG;
	return check_number(hop, bpf_be64_to_cpu(extension->number), take);
}

// Seals a packet to the other end of a hop. False if the frame is too short.
static __always_inline _Bool seal(struct xdp_md *ctx, __u32 hop, __u32 payload)
{
	void *data = frame(ctx);
	struct hop_numbers *numbers = bpf_map_lookup_elem(&numbers_of_hops, &hop);
	if (!numbers || !CHECKED(data, PACKET_OFFSET + SEALED_LEN, frame_end(ctx)))
		return 0;
	struct extension *extension = data + PACKET_OFFSET + HEADER_LEN;
	extension->number = bpf_cpu_to_be64(__sync_fetch_and_add(&numbers->next, 1));
	__be64 tag = bpf_cpu_to_be64(tag_of(ctx, key_of(hop, SEND), payload));
	data = frame(ctx);
	if (!CHECKED(data, PACKET_OFFSET + SEALED_LEN, frame_end(ctx)))
		return 0;
	extension = data + PACKET_OFFSET + HEADER_LEN;
	extension->tag = tag;
	return 1;
}
