// Marks packets as a switch's port does: with more than MARK_BYTES queued, a packet gets ECN's "congestion
// experienced".
//
// Common kernels have token buckets and no marking queue. This program runs before the token bucket of an interface and
// computes its queue length: bytes arrived, minus bytes sent at the rate since. Packets beyond LIMIT_BYTES are dropped
// by the bucket, and do not count.
//
// Given when it is compiled: BYTES_PER_S, MARK_BYTES, LIMIT_BYTES.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct queue {
	struct bpf_spin_lock lock;
	__u64 bytes;
	__u64 at_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct queue);
} queues SEC(".maps");

#define NS_PER_S 1000000000ULL
#define TC_GO_ON (-1)

SEC("classifier")
int mark(struct __sk_buff *skb)
{
	__u32 only = 0;
	struct queue *queue = bpf_map_lookup_elem(&queues, &only);
	if (!queue)
		return TC_GO_ON;
	__u64 now = bpf_ktime_get_ns(), length = skb->wire_len, waiting;

	bpf_spin_lock(&queue->lock);
	__u64 passed = now > queue->at_ns ? now - queue->at_ns : 0;
	/* A longer pause has emptied it, and the product would not fit. */
	__u64 drained = passed < NS_PER_S ? passed * BYTES_PER_S / NS_PER_S : LIMIT_BYTES;
	waiting = queue->bytes > drained ? queue->bytes - drained : 0;
	queue->bytes = waiting + length <= LIMIT_BYTES ? waiting + length : waiting;
	queue->at_ns = now;
	bpf_spin_unlock(&queue->lock);

	if (waiting > MARK_BYTES)
		bpf_skb_ecn_set_ce(skb);
	return TC_GO_ON;
}

char _license[] SEC("license") = "Dual MIT/GPL";
