// The switches of protocols atp (both levels) and switchml in the driver's hook. A second implementation of the tables
// in docs/protocol-atp.md and docs/protocol-switchml.md, held to the first (crates/proto) by the golden vectors.
//
// A packet goes through the steps of `switch_packet`: classification, sender, validation, consistency with the lease;
// then, of atp, up into a slot or past it, or down to the children. Cases that need more than one packet out per packet
// in, or a socket, are left to user space (XDP_PASS): the end of an epoch, and results for children that share an
// interface.

#include "admit.h"
#include "down.h"
#include "leave.h"
#include "pool.h"
#include "slots.h"
#include "up.h"

char _license[] SEC("license") = "Dual BSD/GPL";

// A packet too short for its header.
static __always_inline int truncated(const struct datagram *d)
{
	struct known_key who = { .address = d->from.ip, .port = d->from.port };
	return drop(bpf_map_lookup_elem(&known, &who) ? TRUNCATED_HEADER : UNKNOWN_SENDER);
}

// `head`: bytes before the payload, UNSEALED_LEN or SEALED_LEN.
static __always_inline int process(struct xdp_md *ctx, __u32 head)
{
	_Bool sealed = head == SEALED_LEN;
	struct datagram d;
	if (!read_datagram(ctx, head, &d))
		return XDP_ABORTED;
	void *data = frame(ctx);
	if (!d.whole || !CHECKED(data, PACKET_OFFSET + head, frame_end(ctx)))
		return truncated(&d);
	struct header *h = data + PACKET_OFFSET;
	struct sender sender;
	if (!find_sender(h->job, h->tree, d.from, &sender))
		return strange(h, d.bytes, d.from);
	int wrong = malformed(h, d.bytes);
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
		.bytes = d.bytes,
		.head = head,
		.ce = d.ce,
	};
	if (!p.lease || !p.state)
		return XDP_ABORTED;
	// User space knows why it drops a packet of another protocol than its lease.
	if (p.lease->flags & POOL)
		return XDP_PASS;
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
	wrong = other_epoch(p.lease, h->epoch);
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

// The same of switchml; `head`: POOL_UNSEALED_LEN or SEALED_LEN.
static __always_inline int process_pool(struct xdp_md *ctx, __u32 head)
{
	_Bool sealed = head == SEALED_LEN;
	struct datagram d;
	if (!read_datagram(ctx, head, &d))
		return XDP_ABORTED;
	void *data = frame(ctx);
	if (!d.whole || !CHECKED(data, PACKET_OFFSET + head, frame_end(ctx)))
		return truncated(&d);
	struct pool_header *h = data + PACKET_OFFSET;
	struct sender sender;
	int wrong = malformed_in_pool(h, d.bytes);
	if (!find_sender(h->job, h->tree, d.from, &sender))
		return strange_to_pool(h, d.from, wrong);
	if (wrong != FINE)
		return drop(wrong);
	__u32 index = sender.lease;
	struct packet p = {
		.ctx = ctx,
		.pool = h,
		.lease = bpf_map_lookup_elem(&leases, &index),
		.state = bpf_map_lookup_elem(&lease_states, &index),
		.lease_index = index,
		.child = sender.child,
		.bytes = d.bytes,
		.head = head,
	};
	if (!p.lease || !p.state)
		return XDP_ABORTED;
	if (!(p.lease->flags & POOL))
		return XDP_PASS;
	if (sealed != !!(p.lease->flags & HAS_KEYS))
		return drop(BAD_TAG);
	if (p.bytes > ROW_BYTES)
		return drop(TOO_LARGE);
	if (sealed) {
		wrong = open_sealed(ctx, p.lease->child[p.child & (MAX_FAN_IN - 1)].hop, p.bytes, 1);
		if (wrong != FINE)
			return drop(wrong);
	}
	wrong = other_epoch(p.lease, h->epoch);
	if (wrong != FINE)
		return drop(wrong);
	if (h->worker != p.child || bpf_ntohs(h->slot) >= p.lease->slots)
		return drop(MEMBERS);
	if (p.bytes > p.lease->fragment_bytes)
		return drop(TOO_LARGE);
	p.state->heard_ns = shared.now_ns;
	switch (h->kind & KIND_BITS) {
	case POOL_CONTRIBUTION:
	case POOL_READY:
		return take_part(&p);
	case POOL_FIN:
		// The memory stays reserved until the lease is removed.
		return XDP_DROP;
	default:
		return drop(WRONG_DIRECTION);
	}
}

__noinline int process_pool_unsealed(struct xdp_md *ctx)
{
	return process_pool(ctx, POOL_UNSEALED_LEN);
}

__noinline int process_pool_sealed(struct xdp_md *ctx)
{
	return process_pool(ctx, SEALED_LEN);
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
	case POOL_UNSEALED:
		return process_pool_unsealed(ctx);
	case POOL_SEALED:
		return process_pool_sealed(ctx);
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

// The lease of a job's child behind the interface of this frame, and the child's number; null if there is none.
static __always_inline const struct lease *lease_behind(struct xdp_md *ctx, __be32 job, __u8 tree, __u32 *number)
{
	struct egress_key key = { .ifindex = ctx->egress_ifindex, .job = job, .tree = tree };
	const struct sender *child = bpf_map_lookup_elem(&egress, &key);
	if (!child)
		return 0;
	__u32 index = child->lease;
	*number = child->child;
	return bpf_map_lookup_elem(&leases, &index);
}

// Turns a copy of a result into the one for the child behind this interface.
SEC("xdp/devmap")
int to_child(struct xdp_md *ctx)
{
	void *data = frame(ctx), *end = frame_end(ctx);
	if (!CHECKED(data, PACKET_OFFSET + HEADER_LEN, end))
		return XDP_DROP;
	struct header *h = data + PACKET_OFFSET;
	__u32 number = 0;
	const struct lease *lease = lease_behind(ctx, h->job, h->tree, &number);
	if (!lease || number >= MAX_FAN_IN || !(addressed(lease, h) >> number & 1))
		return XDP_DROP;
	__u32 bytes = (h->kind & KIND_BITS) == RESULT ? bpf_ntohs(h->n_elems) * 4 : 0;
	const struct endpoint *to = &lease->child[number];
	_Bool sealed = lease->flags & HAS_KEYS;
	if (!address(ctx, to, (sealed ? SEALED_LEN : UNSEALED_LEN) + bytes) || (sealed && !seal(ctx, to->hop, bytes)))
		return XDP_DROP;
	return XDP_PASS;
}

// The same with a result of a pool, or a notice: who takes no result is told that it is done.
SEC("xdp/devmap")
int to_worker(struct xdp_md *ctx)
{
	void *data = frame(ctx), *end = frame_end(ctx);
	if (!CHECKED(data, PACKET_OFFSET + HEADER_LEN, end))
		return XDP_DROP;
	struct pool_header *h = data + PACKET_OFFSET;
	__u32 number = 0;
	const struct lease *lease = lease_behind(ctx, h->job, h->tree, &number);
	if (!lease || number >= MAX_FAN_IN)
		return XDP_DROP;
	__u32 bytes = (h->kind & KIND_BITS) == POOL_RESULT ? bpf_ntohs(h->n_elems) * 4 : 0, left = bytes;
	if ((h->kind & KIND_BITS) == POOL_RESULT && !takes(h->parties, h->rank, number)) {
		h->kind = POOL_DONE;
		left = 0;
	}
	h->parties = h->rank = 0;
	_Bool sealed = lease->flags & HAS_KEYS;
	const struct endpoint *to = &lease->child[number];
	if ((left != bytes && bpf_xdp_adjust_tail(ctx, -(int)bytes) != 0) ||
	    !address(ctx, to, (sealed ? SEALED_LEN : POOL_UNSEALED_LEN) + left) || (sealed && !seal(ctx, to->hop, left)))
		return XDP_DROP;
	return XDP_PASS;
}

// Rows of `forget_rounds`.
struct rows {
	__u32 from; // to begin with
	__u32 to; // to end before
};

static long forget_slot(__u32 i, struct rows *rows)
{
	__u32 row = rows->from + i;
	struct pool_slot *slot = row < rows->to ? bpf_map_lookup_elem(&pool_slots, &row) : 0;
	if (!slot)
		return 1;
	// Without the lock, too: nobody who holds it for so long will use what it finds.
	_Bool locked = lock(&slot->lock);
	slot->round[0].begun = slot->round[1].begun = 0;
	if (locked)
		unlock(&slot->lock);
	return 0;
}

// Empties slots of a pool that is removed; the rows arrive as the frame of a test run.
SEC("xdp")
int forget_rounds(struct xdp_md *ctx)
{
	void *data = frame(ctx);
	if (!CHECKED(data, sizeof(struct rows), frame_end(ctx)))
		return XDP_ABORTED;
	struct rows rows = *(struct rows *)data;
	bpf_loop(1 << 16, forget_slot, &rows, 0);
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
		if (lock(&slot->lock)) {
			if (slot->first.job == walk->order.job && slot->first.tree == walk->order.tree)
				free_slot(slot, EMPTY);
			unlock(&slot->lock);
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
	if (!slot || !lock(&slot->lock))
		return XDP_DROP;
	if (slot->state != HELD || shared.now_ns - slot->touched_ns < walk.order.older_than_ns) {
		unlock(&slot->lock);
		return XDP_DROP;
	}
	__u32 index = slot->lease, bytes = slot->bytes;
	const struct lease *lease = bpf_map_lookup_elem(&leases, &index);
	struct packet p = { .ctx = ctx, .head = UNSEALED_LEN };
	_Bool send_it = lease && !slot->complete && write_sum(&p, lease, slot, 0);
	free_slot(slot, VACATED);
	unlock(&slot->lock);
	count_for(index, EXPIRED);
	return send_it && address(ctx, &lease->parent, UNSEALED_LEN + bytes) ? XDP_TX : XDP_DROP;
}
