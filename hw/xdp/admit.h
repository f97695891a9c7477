// Admission of packets: well-formed, consistent with the lease, and with a number that may be in flight.
#pragma once

#include "packet.h"

struct address {
	__be32 ip;
	__be16 port;
};

static __always_inline _Bool is_at(const struct endpoint *endpoint, struct address from)
{
	const struct iphdr *ip = (void *)endpoint->frame + IP_OFFSET;
	const struct udphdr *udp = (void *)endpoint->frame + UDP_OFFSET;
	return ip->daddr == from.ip && udp->dest == from.port;
}

// The sender of a packet: lease and child. False for an unknown sender.
static __always_inline _Bool find_sender(const struct header *h, struct address from, struct sender *found)
{
	__u32 cell = cell_of(from.ip, from.port, h->job, h->tree);
	const __u32 *guess = bpf_map_lookup_elem(&guesses, &cell);
	if (guess && *guess) {
		__u32 index = (*guess - 1) >> 16, child = (*guess - 1) & 0xffff;
		const struct lease *lease = bpf_map_lookup_elem(&leases, &index);
		if (lease && lease->job == bpf_ntohl(h->job) && lease->tree == h->tree &&
		    is_at(child == PARENT ? &lease->parent : &lease->child[child & (MAX_FAN_IN - 1)], from)) {
			found->lease = index;
			found->child = child;
			return 1;
		}
	}
	struct sender_key key = { .address = from.ip, .port = from.port, .tree = h->tree, .job = h->job };
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

// Whether a packet that goes up names parties that its kind can have.
static __always_inline _Bool parties_fit(const struct header *h, __u8 kind)
{
	if (h->reserved || (h->parties == ALL || h->parties == NOBODY ? h->rank : h->rank >= SCOPED_RANKS))
		return 0;
	switch (kind) {
	case CONTRIBUTION:
		return h->parties < NOBODY;
	case READY:
		return h->parties == FROM_ONE || h->parties == NOBODY;
	default:
		return h->parties == ALL;
	}
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
	if (!is_down(kind) && !parties_fit(h, kind))
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
static __always_inline int other_epoch(const struct lease *lease, const struct header *h)
{
	__s16 ahead = (__s16)(bpf_ntohs(h->epoch) - lease->epoch);
	return ahead < 0 ? STALE_EPOCH : ahead > 0 ? FUTURE_EPOCH : FINE;
}

// A packet whose sender has no entry for this job: passed to user space, or dropped with a reason. `bytes`: of payload.
static __always_inline int strange(const struct header *h, __u32 bytes, __be32 address, __be16 port)
{
	struct known_key who = { .address = address, .port = port };
	if (!bpf_map_lookup_elem(&known, &who))
		return drop(UNKNOWN_SENDER);
	int wrong = malformed(h, bytes);
	if (wrong != FINE)
		return drop(wrong);
	struct job_key what = { .job = h->job, .tree = h->tree };
	const __u32 *index = bpf_map_lookup_elem(&jobs, &what);
	if (!index)
		return drop(NO_LEASE);
	if (*index == IN_USER_SPACE)
		return XDP_PASS;
	// No key of the lease is the sender's.
	if (h->version == SEALED)
		return drop(BAD_TAG);
	const struct lease *lease = bpf_map_lookup_elem(&leases, index);
	if (!lease)
		return drop(NO_LEASE);
	wrong = other_epoch(lease, h);
	if (wrong == FINE)
		wrong = bytes > lease->fragment_bytes ? TOO_LARGE : NOT_A_NEIGHBOUR;
	return drop(wrong);
}
