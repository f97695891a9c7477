// Slots: owner, sum, and release.
#pragma once

#include "leave.h"
#include "lock.h"
#include "numbers.h"

// Whether a packet belongs to the same number of the same job.
static __always_inline _Bool has_number_of(const struct slot *slot, const struct header *h)
{
	const struct header *f = &slot->first;
	return slot->state != EMPTY && f->sequence == h->sequence && f->job == h->job && f->tree == h->tree &&
	       f->epoch == h->epoch;
}

// Whether a packet is another member of the fragment that has the slot.
static __always_inline _Bool is_of(const struct slot *slot, const struct header *h)
{
	const struct header *f = &slot->first;
	return slot->state == HELD && has_number_of(slot, h) && f->chunk == h->chunk &&
	       f->flags >> 4 == h->flags >> 4 && f->n_elems == h->n_elems && f->parties == h->parties &&
	       f->rank == h->rank;
}

// Empties a slot.
static __always_inline void free_slot(struct slot *slot, __u8 state)
{
	if (slot->state == HELD) {
		__u32 index = slot->lease;
		struct lease_state *holder = bpf_map_lookup_elem(&lease_states, &index);
		if (holder)
			__sync_fetch_and_add(&holder->held, -1);
	}
	slot->state = state;
}

static __always_inline _Bool may_take(const struct lease *lease, const struct lease_state *state)
{
	return *(volatile __u32 *)&state->held < lease->limit;
}

// Writes a slot's sum into the frame. False if the lengths differ.
static __always_inline _Bool write_sum(struct packet *p, const struct lease *lease, struct slot *slot, __u8 flags)
{
	void *data = frame(p->ctx);
	if (!CHECKED(data, PACKET_OFFSET + HEADER_LEN, frame_end(p->ctx)))
		return 0;
	struct header *h = data + PACKET_OFFSET;
	*h = slot->first;
	h->version = p->head == SEALED_LEN ? SEALED : UNSEALED;
	h->kind = CONTRIBUTION | LEVEL_BIT;
	h->flags = (slot->first.flags & 0xf0) | flags | (slot->overflow ? OVERFLOW : 0) | (slot->ecn ? ECN : 0);
	__u32 arrived = slot->arrived;
	if (!(lease->flags & AT_SERVER)) {
		h->workers = bpf_htonl(arrived);
		h->racks = bpf_htonl(1u << (lease->rack & 31));
	} else {
		if (arrived & (arrived - 1))
			h->workers = 0;
		h->racks = bpf_htonl(arrived);
	}
	return write_values(p, slot->values, slot->bytes);
}

// Sets a slot's owner; its values are written by the caller.
static __always_inline void begin(struct packet *p, struct slot *slot, const struct header *h, __u8 flags)
{
	__sync_fetch_and_add(&p->state->held, 1);
	slot->first = *h;
	slot->state = HELD;
	slot->arrived = 1u << (p->child & 31);
	slot->complete = p->lease->everyone == slot->arrived;
	slot->overflow = !!(flags & OVERFLOW);
	slot->ecn = p->ce || flags & ECN;
	slot->lease = p->lease_index;
	slot->bytes = p->bytes;
	slot->touched_ns = shared.now_ns;
	count_for(p->lease_index, ADDED);
}

// The first member of a fragment takes a free slot. The slot is locked on entry, and unlocked on return.
static __always_inline int take(struct packet *p, struct slot *slot)
{
	__u8 flags = p->header->flags;
	if (flags & RESEND || !may_take(p->lease, p->state)) {
		unlock(&slot->lock);
		return pass_up(p, 0);
	}
	if (!read_values(p, slot->values)) {
		unlock(&slot->lock);
		return XDP_ABORTED;
	}
	begin(p, slot, p->header, flags);
	unlock(&slot->lock);
	return XDP_DROP;
}

// Combines element by element. A separate function, which the verifier checks once.
__noinline int combine_slowly(struct xdp_md *ctx, __u32 row, __u32 arithmetic, __u32 head)
{
	void *data = payload_of(ctx, head == SEALED_LEN ? SEALED_LEN : UNSEALED_LEN), *end = frame_end(ctx);
	struct slot *slot = bpf_map_lookup_elem(&slots, &row);
	if (!slot)
		return 0;
	__u32 count = slot->bytes / 4;
	if (arithmetic == MIN) {
		EACH(slot->values, data, end, count, LESS);
	} else {
		EACH(slot->values, data, end, count, GREATER);
	}
	return 0;
}

// Combines the frame's values into a slot's. Returns whether an element saturated.
static __always_inline _Bool combine(struct packet *p, struct slot *slot, __u8 arithmetic)
{
	void *data = payload_of(p->ctx, p->head), *end = frame_end(p->ctx);
	__u32 count = p->bytes / 4;
	switch (arithmetic) {
	case SATURATING:
		return add_all(slot->values, data, end, count, 1);
	case WRAPPING:
		return add_all(slot->values, data, end, count, 0);
	default:
		combine_slowly(p->ctx, p->row, arithmetic, p->head);
		return 0;
	}
}

// Adds another member of the fragment that owns the slot. The slot is locked on entry, and unlocked on return.
static __always_inline int add(struct packet *p, struct slot *slot)
{
	__u8 flags = p->header->flags;
	__u32 bit = 1u << (p->child & 31);
	_Bool known = slot->arrived & bit;
	slot->ecn |= p->ce || flags & ECN;
	if (!known) {
		slot->overflow |= combine(p, slot, flags >> 4) || flags & OVERFLOW;
		slot->arrived |= bit;
		slot->touched_ns = shared.now_ns;
		count_for(p->lease_index, ADDED);
	}
	if (flags & RESEND) {
		count_for(p->lease_index, RELEASED);
		_Bool written = write_sum(p, p->lease, slot, RESEND);
		free_slot(slot, VACATED);
		unlock(&slot->lock);
		return written ? send(p, &p->lease->parent, p->bytes) : XDP_ABORTED;
	}
	if (known) {
		unlock(&slot->lock);
		count_for(p->lease_index, DUPLICATES);
		return drop(DUPLICATE);
	}
	if (slot->arrived != p->lease->everyone) {
		unlock(&slot->lock);
		return XDP_DROP;
	}
	slot->complete = 1;
	_Bool written = write_sum(p, p->lease, slot, 0);
	unlock(&slot->lock);
	count_for(p->lease_index, COMPLETED);
	return written ? send(p, &p->lease->parent, p->bytes) : XDP_ABORTED;
}

// Whether a slot's owner yields it to a packet: crates/proto/src/atp/policy.rs.
static __always_inline _Bool yields(struct packet *p, const struct slot *slot)
{
	if (config.policy != PREEMPT || p->header->flags & RESEND || !may_take(p->lease, p->state))
		return 0;
	__u32 index = slot->lease;
	const struct lease *holder = bpf_map_lookup_elem(&leases, &index);
	const struct lease_state *holds = bpf_map_lookup_elem(&lease_states, &index);
	if (!holder || !holds || holds->held <= holder->guaranteed)
		return 0;
	if (p->state->held < p->lease->guaranteed / (slot->complete ? 1 : 2))
		return 1;
	__u64 idle = shared.now_ns - slot->touched_ns;
	return holder->priority < p->lease->priority ||
	       (holder->priority == p->lease->priority && idle >= config.patience_ns);
}

// The owner's sum is sent in the frame, whose own values replace it. The slot is locked on entry, and unlocked on
// return.
static __always_inline int preempt(struct packet *p, struct slot *slot)
{
	__u32 zero = 0, index = slot->lease, bytes = slot->bytes;
	const struct lease *holder = bpf_map_lookup_elem(&leases, &index);
	struct scratch *kept = bpf_map_lookup_elem(&scratch, &zero);
	struct header own = *p->header;
	_Bool complete = slot->complete, written = 0;
	if (!holder || !kept || !read_values(p, kept->values)) {
		unlock(&slot->lock);
		return XDP_ABORTED;
	}
	count_for(index, PREEMPTED);
	// If the owner's packets have another header, or the frame's tail cannot grow, the owner's partial sum is lost, and
	// its workers resend.
	_Bool alike = !(holder->flags & HAS_KEYS) == (p->head == UNSEALED_LEN);
	if (!complete && alike && bpf_xdp_adjust_tail(p->ctx, (int)bytes - (int)p->bytes) == 0)
		written = write_sum(p, holder, slot, 0);
	free_slot(slot, VACATED);
	__u32 mine = p->bytes;
	if (mine == 0 || mine > ROW_BYTES || bpf_probe_read_kernel(slot->values, mine, kept->values) != 0) {
		unlock(&slot->lock);
		return XDP_ABORTED;
	}
	begin(p, slot, &own, own.flags);
	unlock(&slot->lock);
	return written ? send(p, &holder->parent, bytes) : XDP_DROP;
}
