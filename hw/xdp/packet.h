// Definitions shared by all steps of packet processing.
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "format.h"
#include "state.h"

// No reason to drop a packet.
#define FINE -1

// A packet being processed.
struct packet {
	struct xdp_md *ctx;
	struct header *header;
	const struct lease *lease;
	struct lease_state *state;
	__u32 lease_index;
	__u32 child;
	__u32 row; // of its slot
	__u32 bytes; // of payload
	__u32 head; // bytes before it: UNSEALED_LEN or SEALED_LEN
	_Bool ce;
};

static __always_inline void *frame(struct xdp_md *ctx)
{
	return (void *)(long)ctx->data;
}

// What follows `head` bytes of a packet.
static __always_inline void *payload_of(struct xdp_md *ctx, __u32 head)
{
	return frame(ctx) + PACKET_OFFSET + head;
}

static __always_inline void *frame_end(struct xdp_md *ctx)
{
	return (void *)(long)ctx->data_end;
}

static __always_inline int drop(enum drop reason)
{
	__u32 key = reason;
	__u64 *count = bpf_map_lookup_elem(&drops, &key);
	if (count)
		*count += 1;
	return XDP_DROP;
}

static __always_inline void count_for(__u32 lease, enum counter what)
{
	struct counters *counters = bpf_map_lookup_elem(&lease_counters, &lease);
	if (counters)
		counters->count[what] += 1;
}
