// Transmission: headers for a neighbour, and the seal of new packets.
#pragma once

#include "packet.h"
#include "seal.h"

// Addresses a packet of `bytes` to a neighbour. False if the frame is too short for that.
static __always_inline _Bool address(struct xdp_md *ctx, const struct endpoint *to, __u32 bytes)
{
	void *data = frame(ctx);
	if (!CHECKED(data, PACKET_OFFSET, frame_end(ctx)))
		return 0;
	__builtin_memcpy(data, to->frame, PACKET_OFFSET);
	struct iphdr *ip = data + IP_OFFSET;
	struct udphdr *udp = data + UDP_OFFSET;
	__u32 datagram = sizeof(*udp) + bytes;
	ip->tot_len = bpf_htons(sizeof(*ip) + datagram);
	__u32 sum = to->ip_sum + ip->tot_len;
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = ~sum;
	udp->len = bpf_htons(datagram);
	return 1;
}

static __always_inline int send(struct packet *p, const struct endpoint *to, __u32 bytes)
{
	if (!address(p->ctx, to, p->head + bytes))
		return XDP_ABORTED;
	if (p->head == SEALED_LEN && !seal(p->ctx, to->hop, bytes))
		return XDP_ABORTED;
	return to->ifindex == p->ctx->ingress_ifindex ? XDP_TX : bpf_redirect(to->ifindex, 0);
}

static __always_inline int pass_up(struct packet *p, __u8 flags)
{
	count_for(p->lease_index, PASSED);
	p->header->kind |= LEVEL_BIT;
	p->header->flags |= flags | (p->ce ? ECN : 0);
	return send(p, &p->lease->parent, p->bytes);
}
