// A packet from the server: frees the slot, and is forwarded to its children.
#pragma once

#include "slots.h"

static __always_inline __u32 all_if_none(__be32 bits)
{
	return bits ? bpf_ntohl(bits) : 0xffffffff;
}

// The children to which a packet from the server is addressed.
static __always_inline __u32 addressed(const struct lease *lease, const struct header *h)
{
	__u32 racks = bpf_ntohl(h->racks), bits;
	if (lease->flags & AT_SERVER)
		bits = all_if_none(h->racks);
	else if (racks & (racks - 1))
		bits = 0xffffffff;
	else
		bits = all_if_none(h->racks) >> (lease->rack & 31) & 1 ? all_if_none(h->workers) : 0;
	return bits & lease->everyone;
}

static __always_inline int pass_down(struct packet *p)
{
	struct header *h = p->header;
	const struct lease *lease = p->lease;
	__u8 kind = h->kind & KIND_BITS;
	if (kind == RESULT || kind == DONE) {
		__u32 sequence = bpf_ntohl(h->sequence);
		if ((__s32)(sequence - p->state->passed) >= 0)
			p->state->passed = sequence + 1;
		count_for(p->lease_index, RESULTS);
	}
	if ((kind == RESULT || kind == DONE || kind == FLOAT_REQUEST) && !(config.policy == PARTITION && lease->guaranteed == 0)) {
		__u32 index = bpf_ntohl(h->slot);
		__u32 row = config.policy == PARTITION ? lease->first + index % lease->guaranteed : index % config.slots;
		struct slot *slot = bpf_map_lookup_elem(&slots, &row);
		if (slot && lock(&slot->lock)) {
			if (has_number_of(slot, h))
				free_slot(slot, EMPTY);
			unlock(&slot->lock);
		}
	}
	if (!addressed(lease, h))
		return XDP_DROP;
	// User space sees the mark in the IP header; a sealed packet must reach it as it came.
	if (!(lease->flags & FAN_OUT))
		return XDP_PASS;
	if (p->ce)
		h->flags |= ECN;
	__u32 index = p->lease_index;
	void *ports = bpf_map_lookup_elem(&fan_outs, &index);
	return ports ? bpf_redirect_map(ports, 0, BPF_F_BROADCAST) : XDP_DROP;
}
