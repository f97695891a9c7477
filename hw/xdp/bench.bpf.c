// Self-generated load for the switch: a frame becomes the next packet of a job before each pass through the program, so
// that a repeated test run is a stream of fragments. For `make bench NAME=xdp` only.

#include "switch.bpf.c"

// Set by the bench: the job's workers have consecutive addresses.
struct load {
	__be32 first; // address of worker 0; the parent follows the last worker
	__be16 port; // of all
	__u8 workers;
	__u8 arithmetic;
	__u16 elements;
	__u16 sealed;
};

const volatile struct load load = {};

// Of the pool: crates/net/src/xdp/stream.rs.
#define POOL_SLOTS 512

__u64 turn = 0;

// Seals the frame as its sender does; `number` is the next of that sender.
static __always_inline _Bool seal_as_sender(struct xdp_md *ctx, const struct endpoint *sender, __u8 version,
					    __u64 number)
{
	void *data = frame(ctx);
	if (!CHECKED(data, PACKET_OFFSET + SEALED_LEN, frame_end(ctx)))
		return 0;
	*(__u8 *)(data + PACKET_OFFSET) = version;
	struct extension *extension = data + PACKET_OFFSET + HEADER_LEN;
	extension->number = bpf_cpu_to_be64(number);
	__be64 tag = bpf_cpu_to_be64(tag_of(ctx, key_of(sender->hop, RECEIVE), load.elements * 4));
	data = frame(ctx);
	if (!CHECKED(data, PACKET_OFFSET + SEALED_LEN, frame_end(ctx)))
		return 0;
	extension = data + PACKET_OFFSET + HEADER_LEN;
	extension->tag = tag;
	return 1;
}

// Makes the frame the next packet, sealed if the job has keys.
static __always_inline _Bool prepare(struct xdp_md *ctx, __u64 turn)
{
	void *data = frame(ctx);
	if (!CHECKED(data, PACKET_OFFSET + HEADER_LEN, frame_end(ctx)))
		return 0;
	struct iphdr *ip = data + IP_OFFSET;
	struct udphdr *udp = data + UDP_OFFSET;
	struct header *h = data + PACKET_OFFSET;
	__u32 step = turn % (load.workers + 1u), sequence = turn / (load.workers + 1u);
	_Bool result = step == load.workers;
	ip->saddr = bpf_htonl(bpf_ntohl(load.first) + step);
	ip->daddr = config.address;
	udp->source = load.port;
	udp->dest = config.port;
	*(__u16 *)h = UNSEALED | (result ? RESULT | LEVEL_BIT : CONTRIBUTION) << 8;
	h->flags = load.arithmetic << 4;
	h->sequence = bpf_htonl(sequence);
	h->slot = h->sequence;
	h->rack_fan_in = load.workers;
	h->server_fan_in = 1;
	h->workers = result ? 0 : bpf_htonl(1u << (step & 31));
	h->racks = bpf_htonl(!result);
	if (!load.sealed)
		return 1;
	// The first lease is the only one.
	__u32 index = 0;
	const struct lease *lease = bpf_map_lookup_elem(&leases, &index);
	if (!lease)
		return 0;
	const struct endpoint *sender = result ? &lease->parent : &lease->child[step & (MAX_FAN_IN - 1)];
	return seal_as_sender(ctx, sender, SEALED, sequence);
}

// The same for a pool of switchml, which has no results from above. `load.workers` is a power of two.
static __always_inline _Bool prepare_in_pool(struct xdp_md *ctx, __u64 turn)
{
	void *data = frame(ctx);
	if (!CHECKED(data, PACKET_OFFSET + HEADER_LEN, frame_end(ctx)))
		return 0;
	struct iphdr *ip = data + IP_OFFSET;
	struct udphdr *udp = data + UDP_OFFSET;
	struct pool_header *h = data + PACKET_OFFSET;
	__u32 workers = load.workers ? load.workers : 1, step = turn % workers, fragment = turn / workers;
	ip->saddr = bpf_htonl(bpf_ntohl(load.first) + step);
	ip->daddr = config.address;
	udp->source = load.port;
	udp->dest = config.port;
	*(__u16 *)h = POOL_UNSEALED | POOL_CONTRIBUTION << 8;
	h->arithmetic = load.arithmetic;
	h->worker = step;
	h->slot = bpf_htons(fragment % POOL_SLOTS);
	h->round = bpf_htonl(fragment / POOL_SLOTS);
	if (!load.sealed)
		return 1;
	__u32 index = 0;
	const struct lease *lease = bpf_map_lookup_elem(&leases, &index);
	return lease && seal_as_sender(ctx, &lease->child[step & (MAX_FAN_IN - 1)], POOL_SEALED, fragment);
}

SEC("xdp")
int stream(struct xdp_md *ctx)
{
	return prepare(ctx, turn++) ? switch_packet(ctx) : XDP_ABORTED;
}

// The cost of the preparation alone.
SEC("xdp")
int idle(struct xdp_md *ctx)
{
	static __u64 idle_turn = 0;
	return prepare(ctx, idle_turn++) ? XDP_DROP : XDP_ABORTED;
}

__u64 pool_turn = 0;

SEC("xdp")
int stream_in_pool(struct xdp_md *ctx)
{
	return prepare_in_pool(ctx, pool_turn++) ? switch_packet(ctx) : XDP_ABORTED;
}

SEC("xdp")
int idle_in_pool(struct xdp_md *ctx)
{
	static __u64 idle_turn_in_pool = 0;
	return prepare_in_pool(ctx, idle_turn_in_pool++) ? XDP_DROP : XDP_ABORTED;
}

// The same stream as frames on links: worker i's leave through feeder i, results through the last, each towards a port
// of the switch. Run with live frames.
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, MAX_FAN_IN + 1);
	__type(key, __u32);
	__type(value, __u32);
} feeders SEC(".maps");

// Fragments between a contribution and the results sent at the same time: several batches of live frames.
#define RESULTS_LAG 256
__u64 feed_turn = 0;

SEC("xdp")
int feed(struct xdp_md *ctx)
{
	__u64 turn = feed_turn++, one = load.workers + 1u;
	_Bool result = turn % one == load.workers;
	// Ports are processed one after the other: a result must not overtake its contributions.
	if (result && turn < RESULTS_LAG * one)
		return XDP_DROP;
	return prepare(ctx, result ? turn - RESULTS_LAG * one : turn) ? bpf_redirect_map(&feeders, turn % one, 0) : XDP_ABORTED;
}

// Contributions only, for an aggregator that replies itself.
SEC("xdp")
int feed_bare(struct xdp_md *ctx)
{
	static __u64 bare_feed_turn = 0;
	__u64 turn = bare_feed_turn++, workers = load.workers ? load.workers : 1;
	// In a round of workers and parent, the parent is skipped.
	return prepare(ctx, turn / workers * (workers + 1) + turn % workers) ?
		       bpf_redirect_map(&feeders, turn % workers, 0) :
		       XDP_ABORTED;
}

// At the far end of each link.
SEC("xdp")
int sink(struct xdp_md *ctx)
{
	return XDP_DROP;
}

// The baseline: aggregation only, the first version for evaluating the hook. No lease, no sender check, no epoch, no
// lock, one arithmetic each; the slot is free again once its sum has been sent.
struct bare {
	__u32 sequence;
	__u32 arrived;
	__s32 values[ROW_BYTES / 4];
};

__u64 bare_turn = 0;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct bare);
} bare_slots SEC(".maps");

static __always_inline __s32 clamp_sum(__s32 a, __s32 b, _Bool clamp)
{
	__u32 signs = 0;
	return clamp ? saturated(a, b, &signs) : (__s32)((__u32)a + (__u32)b);
}

static __always_inline int bare_adder(struct xdp_md *ctx, _Bool clamp)
{
	void *data = frame(ctx), *end = frame_end(ctx), *values = payload_of(ctx, UNSEALED_LEN);
	if (!CHECKED(data, PACKET_OFFSET + HEADER_LEN, end))
		return XDP_ABORTED;
	struct ethhdr *ethernet = data;
	struct iphdr *ip = data + IP_OFFSET;
	struct udphdr *udp = data + UDP_OFFSET;
	struct header *h = data + PACKET_OFFSET;
	__u32 step = bare_turn % 4;
	__u32 sequence = bare_turn++ / 4;
	h->sequence = bpf_htonl(sequence);
	if (ethernet->h_proto != bpf_htons(ETH_P_IP) || ip->protocol != IPPROTO_UDP || udp->dest != config.port)
		return XDP_PASS;
	__u32 row = (bpf_ntohl(h->sequence) + bpf_ntohl(h->job) * 97) % 1024, bit = 1u << step;
	struct bare *slot = bpf_map_lookup_elem(&bare_slots, &row);
	if (!slot)
		return XDP_ABORTED;
	if (!slot->arrived) {
		slot->sequence = sequence;
		for (int block = 0; block < BLOCKS; block++) {
			__s32 *packet = values + block * BLOCK * 4;
			if (!CHECKED(packet, BLOCK * 4, end))
				break;
#pragma unroll
			for (int i = 0; i < BLOCK; i++)
				slot->values[block * BLOCK + i] = packet[i];
		}
	} else if (slot->sequence != sequence || slot->arrived & bit) {
		return XDP_TX;
	} else {
		for (int block = 0; block < BLOCKS; block++) {
			__s32 *packet = values + block * BLOCK * 4, *sum = slot->values + block * BLOCK;
			if (!CHECKED(packet, BLOCK * 4, end))
				break;
#pragma unroll
			for (int i = 0; i < BLOCK; i++)
				sum[i] = clamp_sum(sum[i], packet[i], clamp);
		}
	}
	slot->arrived |= bit;
	if (slot->arrived != 15)
		return XDP_DROP;
	slot->arrived = 0;
	for (int block = 0; block < BLOCKS; block++) {
		__s32 *packet = values + block * BLOCK * 4;
		if (!CHECKED(packet, BLOCK * 4, end))
			break;
#pragma unroll
		for (int i = 0; i < BLOCK; i++)
			packet[i] = slot->values[block * BLOCK + i];
	}
	__be32 from = ip->saddr;
	ip->saddr = ip->daddr;
	ip->daddr = from;
	return XDP_TX;
}

SEC("xdp")
int bare_wrapping(struct xdp_md *ctx)
{
	return bare_adder(ctx, 0);
}

SEC("xdp")
int bare_saturating(struct xdp_md *ctx)
{
	return bare_adder(ctx, 1);
}
