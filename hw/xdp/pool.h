// Slots of pools: protocol switchml, whose table is in docs/protocol-switchml.md. A slot has memory for two rounds:
// round r begins once r − 1 is complete, in the place of r − 2.
#pragma once

#include "admit.h"
#include "leave.h"
#include "lock.h"
#include "numbers.h"

static __always_inline _Bool contributes(__u8 parties, __u8 rank, __u32 worker)
{
	return parties == ALL || parties == TO_ONE || (parties == FROM_ONE && rank == worker);
}

static __always_inline _Bool takes(__u8 parties, __u8 rank, __u32 worker)
{
	return parties == ALL || (parties == TO_ONE && rank == worker) || (parties == FROM_ONE && rank != worker);
}

// Validates an untrusted packet, as `malformed` does.
static __always_inline int malformed_in_pool(const struct pool_header *h, __u32 bytes)
{
	__u8 kind = h->kind & KIND_BITS, set = 0;
	if (kind > POOL_DONE || h->kind & ~(KIND_BITS | POOL_RESENT))
		return UNKNOWN_KIND;
	if (h->arithmetic > MAX)
		return UNKNOWN_FORMAT;
	enum part part = kind == POOL_CONTRIBUTION ? ADDS : kind == POOL_READY ? IS_READY : SAYS_NOTHING;
#pragma unroll
	for (int i = 0; i < (int)sizeof(h->reserved); i++)
		set |= h->reserved[i];
	if (set || !parties_fit(h->parties, h->rank, part))
		return RESERVED;
	_Bool has_payload = kind == POOL_CONTRIBUTION || kind == POOL_RESULT;
	return bytes == (has_payload ? bpf_ntohs(h->n_elems) * 4u : 0) ? FINE : PAYLOAD_LENGTH;
}

// A packet whose sender has no entry for this job, as in `strange`.
static __always_inline int strange_to_pool(const struct pool_header *h, struct address from, int wrong)
{
	int verdict = XDP_DROP;
	const struct lease *lease = meant_for(h->job, h->tree, from, wrong, h->version == POOL_SEALED, &verdict);
	if (!lease)
		return verdict;
	wrong = other_epoch(lease, h->epoch);
	return drop(wrong == FINE ? NOT_A_NEIGHBOUR : wrong);
}

// Whether a round is one of the packet's lease.
static __always_inline _Bool is_in_use(const struct round *round, const struct pool_header *h)
{
	const struct pool_header *f = &round->first;
	return round->begun && f->job == h->job && f->tree == h->tree && f->epoch == h->epoch;
}

static __always_inline _Bool is_complete(const struct round *round, const struct lease *lease)
{
	return round->arrived == lease->everyone;
}

// Whether a packet's round has begun in its place, or may begin there. `before`: the place of the round before.
static __always_inline int find_place(const struct packet *p, const struct round *here, const struct round *before,
				      _Bool *begun)
{
	const struct pool_header *h = p->pool;
	__u32 round = bpf_ntohl(h->round);
	_Bool here_is = is_in_use(here, h), before_is = is_in_use(before, h);
	*begun = 0;
	if (here_is) {
		__s32 ahead = (__s32)(bpf_ntohl(here->first.round) - round);
		*begun = ahead == 0;
		if (ahead >= 0)
			return ahead > 0 ? TOO_OLD : FINE;
	} else if (!before_is && round == p->lease->first_round) {
		return FINE;
	}
	_Bool follows = before_is && bpf_ntohl(before->first.round) == round - 1 && is_complete(before, p->lease);
	return follows ? FINE : BEYOND_WINDOW;
}

static __always_inline _Bool agree(const struct pool_header *a, const struct pool_header *b)
{
	return a->chunk == b->chunk && a->n_elems == b->n_elems && a->arithmetic == b->arithmetic &&
	       a->parties == b->parties && a->rank == b->rank;
}

// Combines the frame's values with a round's. A separate function, which the verifier checks once.
__noinline int combine_round(struct xdp_md *ctx, __u32 row, __u32 which, __u32 head)
{
	void *data = payload_of(ctx, head == SEALED_LEN ? SEALED_LEN : POOL_UNSEALED_LEN), *end = frame_end(ctx);
	struct pool_slot *slot = bpf_map_lookup_elem(&pool_slots, &row);
	if (!slot)
		return 0;
	struct round *round = &slot->round[which & 1];
	__u32 count = bpf_ntohs(round->first.n_elems);
	switch (round->first.arithmetic) {
	case SATURATING:
		add_all(round->values, data, end, count, 1);
		break;
	case WRAPPING:
		add_all(round->values, data, end, count, 0);
		break;
	case MIN:
		EACH(round->values, data, end, count, LESS);
		break;
	default:
		EACH(round->values, data, end, count, GREATER);
	}
	return 0;
}

// Adds the frame's values to a round, or stores them. False if the frame lacks them.
static __always_inline _Bool add_to_round(struct packet *p, struct round *round, __u32 which)
{
	if (!p->bytes)
		return 1;
	if (round->filled) {
		combine_round(p->ctx, p->row, which, p->head);
		return 1;
	}
	round->filled = read_values(p, round->values);
	return round->filled;
}

// Writes a round's result into the frame. `parties`: for `to_worker`, which makes each worker's packet of it.
static __always_inline _Bool write_result(struct packet *p, struct round *round, __u8 kind, _Bool parties)
{
	__u32 bytes = kind == POOL_RESULT && round->filled ? bpf_ntohs(round->first.n_elems) * 4 : 0;
	if (bytes != p->bytes && bpf_xdp_adjust_tail(p->ctx, (int)bytes - (int)p->bytes) != 0)
		return 0;
	void *data = frame(p->ctx);
	if (!CHECKED(data, PACKET_OFFSET + HEADER_LEN, frame_end(p->ctx)))
		return 0;
	struct pool_header *h = data + PACKET_OFFSET;
	*h = round->first;
	h->version = p->head == SEALED_LEN ? POOL_SEALED : POOL_UNSEALED;
	h->kind = kind;
	h->worker = NO_WORKER;
	if (!parties)
		h->parties = h->rank = 0;
	p->bytes = bytes;
	return !bytes || write_values(p, round->values, bytes);
}

static __always_inline int to_all(struct packet *p)
{
	__u32 index = p->lease_index;
	void *ports = bpf_map_lookup_elem(&fan_outs, &index);
	return ports ? bpf_redirect_map(ports, 0, BPF_F_BROADCAST) : XDP_DROP;
}

// Tells all workers that this one's packet differs from the first. The slot is locked on entry, and unlocked on return.
static __always_inline int tell_mismatch(struct packet *p, struct pool_slot *slot)
{
	unlock(&slot->lock);
	count_for(p->lease_index, MISMATCHES);
	drop(MISMATCHED);
	if (p->bytes && bpf_xdp_adjust_tail(p->ctx, -(int)p->bytes) != 0)
		return XDP_ABORTED;
	void *data = frame(p->ctx);
	if (!CHECKED(data, PACKET_OFFSET + HEADER_LEN, frame_end(p->ctx)))
		return XDP_ABORTED;
	struct pool_header *h = data + PACKET_OFFSET;
	h->kind = POOL_MISMATCH | (h->kind & POOL_RESENT);
	h->n_elems = 0;
	h->parties = h->rank = 0;
	return to_all(p);
}

// A packet that was counted before: its worker may lack the result. The slot is locked on entry, and unlocked on
// return.
static __always_inline int answer(struct packet *p, struct pool_slot *slot, struct round *round)
{
	const struct pool_header *f = &round->first;
	_Bool asks = p->pool->kind & POOL_RESENT && is_complete(round, p->lease), written = 0;
	if (asks)
		written = write_result(p, round, takes(f->parties, f->rank, p->child) ? POOL_RESULT : POOL_DONE, 0);
	unlock(&slot->lock);
	count_for(p->lease_index, DUPLICATES);
	drop(DUPLICATE);
	if (!asks)
		return XDP_DROP;
	count_for(p->lease_index, ANSWERED);
	return written ? send(p, &p->lease->child[p->child & (MAX_FAN_IN - 1)], p->bytes) : XDP_ABORTED;
}

// A worker's packet for a fragment: a contribution, or that it is ready.
static __always_inline int take_part(struct packet *p)
{
	const struct pool_header *h = p->pool;
	__u32 bit = 1u << (p->child & 31), which = bpf_ntohl(h->round) & 1;
	_Bool adds = contributes(h->parties, h->rank, p->child), begun;
	if (adds != ((h->kind & KIND_BITS) == POOL_CONTRIBUTION))
		return drop(MEMBERS);
	p->row = p->lease->first + bpf_ntohs(h->slot);
	struct pool_slot *slot = bpf_map_lookup_elem(&pool_slots, &p->row);
	if (!slot)
		return XDP_ABORTED;
	if (!lock(&slot->lock))
		return drop(BUSY);
	struct round *here = &slot->round[which & 1], *before = &slot->round[(which ^ 1) & 1];
	int wrong = find_place(p, here, before, &begun);
	if (wrong != FINE) {
		unlock(&slot->lock);
		return drop(wrong);
	}
	if (!begun) {
		here->first = *h;
		here->arrived = 0;
		here->filled = 0;
		here->begun = 1;
	}
	if (here->arrived & bit)
		return answer(p, slot, here);
	if (!agree(&here->first, h))
		return tell_mismatch(p, slot);
	__s16 exponent = (__s16)bpf_ntohs(h->next_exponent), greatest = (__s16)bpf_ntohs(here->first.next_exponent);
	if (exponent > greatest)
		here->first.next_exponent = h->next_exponent;
	if (adds && !add_to_round(p, here, which)) {
		unlock(&slot->lock);
		return XDP_ABORTED;
	}
	here->arrived |= bit;
	if (adds)
		count_for(p->lease_index, ADDED);
	if (!is_complete(here, p->lease)) {
		unlock(&slot->lock);
		return XDP_DROP;
	}
	_Bool written = write_result(p, here, POOL_RESULT, 1);
	unlock(&slot->lock);
	count_for(p->lease_index, COMPLETED);
	return written ? to_all(p) : XDP_ABORTED;
}
