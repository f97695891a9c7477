// Protocol atp's switch in the driver's hook: both levels. A second implementation of the table in
// docs/protocol-atp.md, held to the first (crates/proto/src/atp) by the golden vectors in vectors/atp.
//
// A packet goes through the steps of `switch_packet`: classification, sender, validation, consistency with the lease;
// then up into a slot or past it, or down to the children. Cases that need more than one packet out per packet in, or a
// socket, are left to user space (XDP_PASS): the end of an epoch, and results for children that share an interface.

#include "admit.h"
#include "down.h"
#include "leave.h"
#include "slots.h"
#include "up.h"

char _license[] SEC("license") = "Dual BSD/GPL";

// `head`: bytes before the payload, UNSEALED_LEN or SEALED_LEN.
static __always_inline int process(struct xdp_md *ctx, __u32 head)
{
	_Bool sealed = head == SEALED_LEN;
	void *data = frame(ctx), *end = frame_end(ctx);
	struct iphdr *ip = data + IP_OFFSET;
	struct udphdr *udp = data + UDP_OFFSET;
	if (!CHECKED(data, PACKET_OFFSET, end))
		return XDP_ABORTED;
	__be32 from = ip->saddr;
	__be16 port = udp->source;
	__u32 len = bpf_ntohs(udp->len) - sizeof(*udp);
	if (len > 0xffff || !CHECKED(data, PACKET_OFFSET + head, end) || len < head ||
	    len > (__u32)(end - data) - PACKET_OFFSET) {
		struct known_key who = { .address = from, .port = port };
		return drop(bpf_map_lookup_elem(&known, &who) ? TRUNCATED_HEADER : UNKNOWN_SENDER);
	}
	struct header *h = data + PACKET_OFFSET;
	struct sender sender;
	if (!find_sender(h, (struct address){ from, port }, &sender))
		return strange(h, len - head, from, port);
	int wrong = malformed(h, len - head);
	if (wrong != FINE)
		return drop(wrong);
	__u32 index = sender.lease;
	struct packet p = {
		.ctx = ctx,
		.header = h,
		.lease = bpf_map_lookup_elem(&leases, &index),
		.state = bpf_map_lookup_elem(&lease_states, &index),
		.lease_index = index,
		.child = sender.child,
		.bytes = len - head,
		.head = head,
		.ce = (ip->tos & 3) == 3,
	};
	if (!p.lease || !p.state)
		return XDP_ABORTED;
	if (sealed != !!(p.lease->flags & HAS_KEYS))
		return drop(BAD_TAG);
	if (p.bytes > ROW_BYTES)
		return drop(TOO_LARGE);
	__u8 kind = h->kind & KIND_BITS;
	if (sealed) {
		// User space checks what is passed to it itself, and notes the number.
		_Bool passes = kind == FIN;
		if (p.child == PARENT && !(p.lease->flags & FAN_OUT))
			passes = addressed(p.lease, h) != 0;
		__u32 hop = p.child == PARENT ? p.lease->parent.hop : p.lease->child[p.child & (MAX_FAN_IN - 1)].hop;
		wrong = open_sealed(ctx, hop, p.bytes, !passes);
		if (wrong != FINE)
			return drop(wrong);
	}
	wrong = other_epoch(p.lease, h);
	if (wrong != FINE)
		return drop(wrong);
	if (p.bytes > p.lease->fragment_bytes)
		return drop(TOO_LARGE);
	if (p.child == PARENT ? !is_down(kind) : is_down(kind))
		return drop(WRONG_DIRECTION);
	if (p.child != PARENT && !agrees(&p))
		return drop(MEMBERS);
	p.state->heard_ns = shared.now_ns;
	if (kind == FIN)
		return XDP_PASS;
	wrong = out_of_window(&p);
	if (wrong != FINE)
		return drop(wrong);
	if (p.child == PARENT)
		return pass_down(&p);
	return kind == READY ? pass_up(&p, 0) : contribute(&p);
}

// Separate functions, each of which the verifier checks once.
__noinline int process_unsealed(struct xdp_md *ctx)
{
	return process(ctx, UNSEALED_LEN);
}

__noinline int process_sealed(struct xdp_md *ctx)
{
	return process(ctx, SEALED_LEN);
}

static __always_inline int switch_packet(struct xdp_md *ctx)
{
	void *data = frame(ctx), *end = frame_end(ctx);
	struct ethhdr *ethernet = data;
	struct iphdr *ip = data + IP_OFFSET;
	struct udphdr *udp = data + UDP_OFFSET;
	if (!CHECKED(data, PACKET_OFFSET + 1, end) || ethernet->h_proto != bpf_htons(ETH_P_IP) || ip->version != 4 ||
	    ip->ihl != 5 || ip->protocol != IPPROTO_UDP || ip->frag_off & bpf_htons(0x3fff) ||
	    ip->daddr != config.address || udp->dest != config.port)
		return XDP_PASS;
	switch (*(__u8 *)(data + PACKET_OFFSET)) {
	case UNSEALED:
		return process_unsealed(ctx);
	case SEALED:
		return process_sealed(ctx);
	default:
		// Other protocols use the same socket.
		return XDP_PASS;
	}
}

SEC("xdp")
int netsum_switch(struct xdp_md *ctx)
{
	return switch_packet(ctx);
}

// Turns a copy of a result into the one for the child behind this interface.
SEC("xdp/devmap")
int to_child(struct xdp_md *ctx)
{
	void *data = frame(ctx), *end = frame_end(ctx);
	if (!CHECKED(data, PACKET_OFFSET + HEADER_LEN, end))
		return XDP_DROP;
	struct header *h = data + PACKET_OFFSET;
	struct egress_key key = { .ifindex = ctx->egress_ifindex, .job = h->job, .tree = h->tree };
	const struct sender *child = bpf_map_lookup_elem(&egress, &key);
	if (!child)
		return XDP_DROP;
	__u32 index = child->lease, number = child->child;
	const struct lease *lease = bpf_map_lookup_elem(&leases, &index);
	if (!lease || number >= MAX_FAN_IN || !(addressed(lease, h) >> number & 1))
		return XDP_DROP;
	__u32 bytes = (h->kind & KIND_BITS) == RESULT ? bpf_ntohs(h->n_elems) * 4 : 0;
	const struct endpoint *to = &lease->child[number];
	_Bool sealed = lease->flags & HAS_KEYS;
	if (!address(ctx, to, (sealed ? SEALED_LEN : UNSEALED_LEN) + bytes) || (sealed && !seal(ctx, to->hop, bytes)))
		return XDP_DROP;
	return XDP_PASS;
}

// Arguments of `let_go`; they arrive as the frame of a test run and are returned in the same.
struct order {
	__u32 from; // row to begin with
	__u32 to; // row to end before
	__u64 older_than_ns; // slots in which nothing was added for so long; ignored if `release`
	__u32 release; // instead: every slot of this job and server, sums and all
	__be32 job;
	__u32 tree;
};

struct walk {
	struct order order;
	__u32 row;
	_Bool found;
};

static long look(__u32 i, struct walk *walk)
{
	__u32 row = walk->order.from + i;
	if (row >= walk->order.to)
		return 1;
	walk->row = row;
	struct slot *slot = bpf_map_lookup_elem(&slots, &row);
	if (!slot)
		return 1;
	if (walk->order.release) {
		if (slot->state == EMPTY || slot->first.job != walk->order.job || slot->first.tree != walk->order.tree)
			return 0;
		if (lock(slot)) {
			if (slot->first.job == walk->order.job && slot->first.tree == walk->order.tree)
				free_slot(slot, EMPTY);
			unlock(slot);
		}
		return 0;
	}
	walk->found = slot->state == HELD && shared.now_ns - slot->touched_ns >= walk->order.older_than_ns;
	return walk->found;
}

// Looks for a slot to release. XDP_TX: its sum is in the frame, addressed to its parent and not sealed; continue at
// `shared.next_row`.
// XDP_DROP: nothing to send, continue. XDP_PASS: done.
SEC("xdp")
int let_go(struct xdp_md *ctx)
{
	void *data = frame(ctx);
	if (!CHECKED(data, sizeof(struct order), frame_end(ctx)))
		return XDP_ABORTED;
	struct walk walk = { .order = *(struct order *)data };
	walk.row = walk.order.from;
	bpf_loop(1 << 16, look, &walk, 0);
	shared.next_row = walk.row + 1;
	if (!walk.found)
		return walk.row + 1 < walk.order.to ? XDP_DROP : XDP_PASS;
	struct slot *slot = bpf_map_lookup_elem(&slots, &walk.row);
	if (!slot || !lock(slot))
		return XDP_DROP;
	if (slot->state != HELD || shared.now_ns - slot->touched_ns < walk.order.older_than_ns) {
		unlock(slot);
		return XDP_DROP;
	}
	__u32 index = slot->lease, bytes = slot->bytes;
	const struct lease *lease = bpf_map_lookup_elem(&leases, &index);
	struct packet p = { .ctx = ctx, .head = UNSEALED_LEN };
	_Bool send_it = lease && !slot->complete && write_sum(&p, lease, slot, 0);
	free_slot(slot, VACATED);
	unlock(slot);
	count_for(index, EXPIRED);
	return send_it && address(ctx, &lease->parent, UNSEALED_LEN + bytes) ? XDP_TX : XDP_DROP;
}
