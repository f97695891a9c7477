// A child's fragment: added to its slot, or forwarded.
#pragma once

#include "slots.h"

static __always_inline int contribute(struct packet *p)
{
	const struct lease *lease = p->lease;
	const struct header *h = p->header;
	_Bool at_server = lease->flags & AT_SERVER;
	// A slot would only delay what one rank contributes alone.
	if (h->flags >> 4 == FLOAT || h->parties == FROM_ONE || lease->everyone == 1 || (config.policy == PARTITION && lease->guaranteed == 0))
		return pass_up(p, 0);
	__u32 index = bpf_ntohl(h->slot);
	__u32 row = config.policy == PARTITION ? lease->first + index % lease->guaranteed : index % config.slots;
	struct slot *slot = bpf_map_lookup_elem(&slots, &row);
	if (!slot)
		return XDP_ABORTED;
	p->row = row;
	if (!lock(&slot->lock))
		return drop(BUSY);
	if (at_server && h->flags & RESEND) {
		// Whole racks in the slot were counted once each; their own fragments are resent too.
		if (has_number_of(slot, h)) {
			free_slot(slot, VACATED);
			slot->first = *h;
		}
		unlock(&slot->lock);
		return pass_up(p, 0);
	}
	__u32 all_workers = h->rack_fan_in >= 32 ? 0xffffffff : (1u << h->rack_fan_in) - 1;
	if (at_server && bpf_ntohl(h->workers) != all_workers) {
		unlock(&slot->lock);
		return pass_up(p, 0);
	}
	if (is_of(slot, h))
		return add(p, slot);
	if (has_number_of(slot, h)) {
		unlock(&slot->lock);
		return pass_up(p, 0);
	}
	if (slot->state != HELD)
		return take(p, slot);
	if (yields(p, slot))
		return preempt(p, slot);
	unlock(&slot->lock);
	count_for(p->lease_index, COLLISIONS);
	return pass_up(p, COLLISION);
}
