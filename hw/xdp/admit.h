// Admission of packets: well-formed, consistent with the lease, and with a number that may be in flight.
#pragma once

#include "packet.h"

static __always_inline _Bool is_at(const struct endpoint *endpoint, struct address from)
{
	const struct iphdr *ip = (void *)endpoint->frame + IP_OFFSET;
	const struct udphdr *udp = (void *)endpoint->frame + UDP_OFFSET;
	return ip->daddr == from.ip && udp->dest == from.port;
}

// The sender of a packet of a job and tree: lease and child. False for an unknown sender.
static __always_inline _Bool find_sender(__be32 job, __u8 tree, struct address from, struct sender *found)
{
	__u32 cell = cell_of(from.ip, from.port, job, tree);
	const __u32 *guess = bpf_map_lookup_elem(&guesses, &cell);
	if (guess && *guess) {
		__u32 index = (*guess - 1) >> 16, child = (*guess - 1) & 0xffff;
		const struct lease *lease = bpf_map_lookup_elem(&leases, &index);
		if (lease && lease->job == bpf_ntohl(job) && lease->tree == tree &&
		    is_at(child == PARENT ? &lease->parent : &lease->child[child & (MAX_FAN_IN - 1)], from)) {
			found->lease = index;
			found->child = child;
			return 1;
		}
	}
	struct sender_key key = { .address = from.ip, .port = from.port, .tree = tree, .job = job };
	const struct sender *sender = bpf_map_lookup_elem(&senders, &key);
	if (sender)
		*found = *sender;
	return sender != 0;
}

static __always_inline _Bool possible(__u8 fan_in, __u32 bits)
{
	return fan_in >= 1 && fan_in <= 32 && (fan_in == 32 || !(bits >> fan_in));
}

// Upwards, a packet holds some workers of one rack, or several whole racks.
static __always_inline _Bool members_are_possible(const struct header *h)
{
	__u32 racks = bpf_ntohl(h->racks), workers = bpf_ntohl(h->workers);
	if (!possible(h->server_fan_in, racks) || !racks)
		return 0;
	if (racks & (racks - 1))
		return !workers && h->kind & LEVEL_BIT;
	return workers && possible(h->rack_fan_in, workers);
}

static __always_inline _Bool is_down(__u8 kind)
{
	return kind != CONTRIBUTION && kind != FIN && kind != READY;
}

// What a packet says of a fragment, whatever its protocol.
enum part { ADDS, IS_READY, SAYS_NOTHING };

// Whether a packet names parties that it can have.
static __always_inline _Bool parties_fit(__u8 parties, __u8 rank, enum part part)
{
	if (parties == ALL || parties == NOBODY ? rank : rank >= SCOPED_RANKS)
		return 0;
	switch (part) {
	case ADDS:
		return parties < NOBODY;
	case IS_READY:
		return parties == FROM_ONE || parties == NOBODY;
	default:
		return parties == ALL;
	}
}

static __always_inline enum part part_of(__u8 kind)
{
	return kind == CONTRIBUTION ? ADDS : kind == READY ? IS_READY : SAYS_NOTHING;
}

// Validates an untrusted packet; no field is used before. `bytes`: of payload. Returns a reason to drop it.
static __always_inline int malformed(const struct header *h, __u32 bytes)
{
	if (h->version == UNSEALED && *(const __u64 *)(h + 1))
		return RESERVED;
	__u8 kind = h->kind & KIND_BITS;
	if (kind > MISSING || h->kind & ~(KIND_BITS | LEVEL_BIT))
		return UNKNOWN_KIND;
	if (h->flags >> 4 > FLOAT)
		return UNKNOWN_FORMAT;
	if (!is_down(kind) && (h->reserved || !parties_fit(h->parties, h->rank, part_of(kind))))
		return RESERVED;
	_Bool has_payload = kind == CONTRIBUTION || kind == RESULT;
	if (bytes != (has_payload ? bpf_ntohs(h->n_elems) * 4u : 0))
		return PAYLOAD_LENGTH;
	if (has_payload && !h->n_elems)
		return EMPTY_FRAGMENT;
	if (!is_down(kind) && !members_are_possible(h))
		return MEMBERS;
	return FINE;
}

// Whether a child's packet is consistent with the lease.
static __always_inline _Bool agrees(const struct packet *p)
{
	const struct header *h = p->header;
	const struct lease *lease = p->lease;
	__u32 bit = 1u << (p->child & 31), workers = bpf_ntohl(h->workers), racks = bpf_ntohl(h->racks);
	if (lease->flags & AT_SERVER)
		return h->kind & LEVEL_BIT && racks == bit && h->server_fan_in == lease->children &&
		       h->rack_fan_in == lease->workers[p->child & 31];
	return !(h->kind & LEVEL_BIT) && workers == bit && racks == 1u << (lease->rack & 31) &&
	       h->rack_fan_in == lease->children && h->server_fan_in == lease->fan_in;
}

// Whether a number may be in flight.
static __always_inline int out_of_window(const struct packet *p)
{
	__s32 ahead = (__s32)(bpf_ntohl(p->header->sequence) - p->state->passed), window = p->lease->window;
	return ahead >= window ? BEYOND_WINDOW : ahead < -window ? TOO_OLD : FINE;
}

// Checks the epoch against the lease's.
static __always_inline int other_epoch(const struct lease *lease, __be16 epoch)
{
	__s16 ahead = (__s16)(bpf_ntohs(epoch) - lease->epoch);
	return ahead < 0 ? STALE_EPOCH : ahead > 0 ? FUTURE_EPOCH : FINE;
}

// The lease for which a packet is meant whose sender has no entry for its job; null, and what to do with the packet, if
// that is certain without the lease. `wrong`: what is wrong with the packet itself.
static __always_inline const struct lease *meant_for(__be32 job, __u8 tree, struct address from, int wrong,
						     _Bool sealed, int *verdict)
{
	struct known_key who = { .address = from.ip, .port = from.port };
	struct job_key what = { .job = job, .tree = tree };
	if (!bpf_map_lookup_elem(&known, &who)) {
		*verdict = drop(UNKNOWN_SENDER);
		return 0;
	}
	if (wrong != FINE) {
		*verdict = drop(wrong);
		return 0;
	}
	const __u32 *index = bpf_map_lookup_elem(&jobs, &what);
	if (!index) {
		*verdict = drop(NO_LEASE);
		return 0;
	}
	if (*index == IN_USER_SPACE) {
		*verdict = XDP_PASS;
		return 0;
	}
	const struct lease *lease = bpf_map_lookup_elem(&leases, index);
	// No key of the lease is the sender's.
	if (!lease || sealed)
		*verdict = drop(lease ? BAD_TAG : NO_LEASE);
	return sealed ? 0 : lease;
}

// A packet whose sender has no entry for this job: passed to user space, or dropped with a reason. `bytes`: of payload.
static __always_inline int strange(const struct header *h, __u32 bytes, struct address from)
{
	int verdict = XDP_DROP;
	const struct lease *lease =
		meant_for(h->job, h->tree, from, malformed(h, bytes), h->version == SEALED, &verdict);
	if (!lease)
		return verdict;
	int wrong = other_epoch(lease, h->epoch);
	if (wrong == FINE)
		wrong = bytes > lease->fragment_bytes ? TOO_LARGE : NOT_A_NEIGHBOUR;
	return drop(wrong);
}
