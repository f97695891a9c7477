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
	union {
		struct header *header;
		struct pool_header *pool; // of switchml
	};
	const struct lease *lease;
	struct lease_state *state;
	__u32 lease_index;
	__u32 child;
	__u32 row; // of its slot
	__u32 bytes; // of payload
	__u32 head; // bytes before it: UNSEALED_LEN, POOL_UNSEALED_LEN or SEALED_LEN
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

// Of a neighbour.
struct address {
	__be32 ip;
	__be16 port;
};

// A UDP datagram in a frame.
struct datagram {
	struct address from;
	_Bool ce;
	_Bool whole; // with `head` bytes before the payload
	__u32 bytes; // of payload
};

// False if the frame is too short for headers.
static __always_inline _Bool read_datagram(struct xdp_md *ctx, __u32 head, struct datagram *d)
{
	void *data = frame(ctx), *end = frame_end(ctx);
	const struct iphdr *ip = data + IP_OFFSET;
	const struct udphdr *udp = data + UDP_OFFSET;
	if (!CHECKED(data, PACKET_OFFSET, end))
		return 0;
	__u32 len = bpf_ntohs(udp->len) - sizeof(*udp);
	d->from = (struct address){ ip->saddr, udp->source };
	d->ce = (ip->tos & 3) == 3;
	d->whole = len <= 0xffff && CHECKED(data, PACKET_OFFSET + head, end) && len >= head &&
		   len <= (__u32)(end - data) - PACKET_OFFSET;
	d->bytes = len - head;
	return 1;
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

// Copies a packet's payload from the frame. False if the lengths differ.
static __always_inline _Bool read_values(struct packet *p, void *into)
{
	__u32 bytes = p->bytes;
	if (bytes == 0 || bytes > ROW_BYTES)
		return 0;
	return bpf_xdp_load_bytes(p->ctx, PACKET_OFFSET + p->head, into, bytes) == 0;
}

// Copies a payload into the frame. False if the lengths differ.
static __always_inline _Bool write_values(struct packet *p, void *values, __u32 bytes)
{
	if (bytes == 0 || bytes > ROW_BYTES)
		return 0;
	return bpf_xdp_store_bytes(p->ctx, PACKET_OFFSET + p->head, values, bytes) == 0;
}
