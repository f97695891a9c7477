// Transmission: headers for a neighbour, and the keyed tag of new packets.
#pragma once

#include "packet.h"
#include "tag.h"

// The expected tag of the packet in a frame. A separate function, which the verifier checks once.
__noinline __u64 tag_of(struct xdp_md *ctx, __u32 lease_index, __u32 payload)
{
	void *data = frame(ctx), *end = frame_end(ctx);
	const struct lease *lease = bpf_map_lookup_elem(&leases, &lease_index);
	if (!lease || !CHECKED(data, PAYLOAD_OFFSET, end))
		return 0;
	return keyed_hash(lease->key, data, end, payload);
}

// Addresses a frame of `bytes` of payload to a neighbour. False if the frame is too short for that.
static __always_inline _Bool address(struct xdp_md *ctx, const struct endpoint *to, __u32 bytes)
{
	void *data = frame(ctx);
	if (!CHECKED(data, PAYLOAD_OFFSET, frame_end(ctx)))
		return 0;
	__builtin_memcpy(data, to->frame, PACKET_OFFSET);
	struct iphdr *ip = data + IP_OFFSET;
	struct udphdr *udp = data + UDP_OFFSET;
	__u32 datagram = sizeof(*udp) + HEADER_LEN + bytes;
	ip->tot_len = bpf_htons(sizeof(*ip) + datagram);
	__u32 sum = to->ip_sum + ip->tot_len;
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = ~sum;
	udp->len = bpf_htons(datagram);
	return 1;
}

static __always_inline int send(struct xdp_md *ctx, const struct endpoint *to, __u32 bytes)
{
	if (!address(ctx, to, bytes))
		return XDP_ABORTED;
	return to->ifindex == ctx->ingress_ifindex ? XDP_TX : bpf_redirect(to->ifindex, 0);
}

static __always_inline int pass_up(struct packet *p, __u8 flags)
{
	count_for(p->lease_index, PASSED);
	p->header->kind |= LEVEL_BIT;
	p->header->flags |= flags | (p->ce ? ECN : 0);
	return send(p->ctx, &p->lease->parent, p->bytes);
}
