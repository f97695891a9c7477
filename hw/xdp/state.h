// The program's maps, written by its loader (crates/net/src/xdp).
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "format.h"

#define MAX_FAN_IN 32
#define MAX_LEASES 1024
#define MAX_SENDERS (MAX_LEASES * (MAX_FAN_IN + 1))

enum policy { PARTITION = 0, FIRST_COME = 1, PREEMPT = 2 };

// Set by the loader before the program is loaded.
struct config {
	__be32 address; // the switch's own
	__be16 port;
	__u16 policy;
	__u64 patience_ns; // of `PREEMPT`
	__u32 slots;
};

const volatile struct config config = {};

// Updated by the loader: a slot's age needs only ticks, and reading the real clock would cost a considerable part of
// adding a packet.
struct shared {
	__u64 now_ns;
	__u32 next_row; // `let_go` goes on here
};

struct shared shared = {};

// Header of packets to one neighbour: Ethernet, IPv4 and UDP, with lengths and checksum to be filled in.
struct endpoint {
	__u8 frame[48]; // 42 used
	__u32 ifindex;
	__u32 ip_sum; // of the IPv4 header's 16-bit words but length and checksum
	__u32 hop; // if packets are sealed
	__u32 pad;
};

enum lease_flag {
	AT_SERVER = 1, // second level
	HAS_KEYS = 4, // packets are sealed
	FAN_OUT = 2, // every child has an interface of its own here: results are multiplied in the kernel
	POOL = 8, // of protocol switchml, with workers as children and no parent
};

struct lease {
	__u32 job; // host byte order, as all below
	__u32 everyone;
	__u16 epoch;
	union {
		__u16 window;
		__u16 slots; // of a pool
	};
	__u16 fragment_bytes;
	__u8 tree;
	__u8 flags;
	__u8 children;
	__u8 rack;
	__u8 fan_in; // at the first level: racks of the job; at the second: the same as `children`
	__u8 priority;
	__u32 guaranteed;
	union {
		__u32 limit;
		__u32 first_round; // of each slot of a pool
	};
	__u32 first; // slot
	__u8 workers[MAX_FAN_IN]; // of each child, at the second level
	struct endpoint parent;
	struct endpoint child[MAX_FAN_IN];
};

// The mutable state of a lease; separate, so that a lease can be rewritten under traffic.
struct lease_state {
	__u32 passed; // one past the highest number whose result has passed
	__u32 held; // slots
	__u64 heard_ns;
};

// Largest number of hops, of all leases together.
#define MAX_HOPS 4096

// Words of a key that hash a packet: two per 16 bytes of header, number, length and payload, and two more.
#define KEY_WORDS ((48 + ROW_BYTES) / 8 + 2)

// A key of one hop and direction, expanded: crates/wire/src/nh.rs.
struct hop_key {
	__u64 finish[2];
	__u64 words[KEY_WORDS];
};

enum direction { RECEIVE = 0, SEND = 1 };

// Cells of the window of accepted numbers; each stands for 16 of them.
#define CELLS 256

// The packet numbers of a hop. Shared with user space (crates/net/src/xdp/numbers.rs), which sends and receives packets
// of the same hop.
struct hop_numbers {
	__u64 next; // to be sent
	// Which numbers were accepted: 48 bits, the number of the block of 16 for which the cell stands now, and a bit for
	// each number of the block.
	__u64 cell[CELLS];
};

enum counter {
	ADDED,
	COMPLETED,
	PASSED,
	COLLISIONS,
	DUPLICATES,
	RELEASED,
	EXPIRED,
	PREEMPTED,
	RESULTS,
	ANSWERED,
	MISMATCHES,
	COUNTERS,
};

struct counters {
	__u64 count[COUNTERS];
};

enum slot_state { EMPTY = 0, VACATED = 1, HELD = 2 };

struct slot {
	__u32 lock;
	__u8 state;
	__u8 complete;
	__u8 overflow;
	__u8 ecn;
	__u32 arrived;
	__u16 lease;
	__u16 bytes;
	__u64 touched_ns;
	struct header first; // of the first member
	__u8 pad[2];
	__u8 values[ROW_BYTES] __attribute__((aligned(8)));
};

// One use of a slot of a pool.
struct round {
	__u32 arrived; // workers
	_Bool begun;
	_Bool filled; // values are there
	struct pool_header first; // of the first packet; the exponent is the greatest so far
	__u8 values[ROW_BYTES] __attribute__((aligned(8)));
};

// Rounds with even and odd numbers.
struct pool_slot {
	__u32 lock;
	struct round round[2];
};

// Senders of a job, by address.
struct sender_key {
	__be32 address;
	__be16 port;
	__u8 tree;
	__u8 pad;
	__be32 job;
};

struct sender {
	__u16 lease;
	__u16 child; // or PARENT
};

#define PARENT 0xffff

// Cache of senders: the hash map below costs a fifth of a small packet. A cell is a hint, which is checked against the
// lease; the loader writes single cells.
#define CELL_BITS 14

static __always_inline __u32 cell_of(__be32 address, __be16 port, __be32 job, __u8 tree)
{
	__u32 mixed = (address ^ job * 0x85ebca6bu ^ (__u32)port << 8 ^ tree) * 0x9e3779b1u;
	return mixed >> (32 - CELL_BITS);
}

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << CELL_BITS);
	__type(key, __u32);
	__type(value, __u32); // (lease << 16 | child) + 1, or 0
} guesses SEC(".maps");

struct known_key {
	__be32 address;
	__be16 port;
	__u16 pad;
};

struct job_key {
	__be32 job;
	__u32 tree;
};

// A job handled by user space: its packets go to the socket.
#define IN_USER_SPACE 0xffffffff

struct egress_key {
	__u32 ifindex;
	__be32 job;
	__u32 tree;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_SENDERS);
	__type(key, struct sender_key);
	__type(value, struct sender);
} senders SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_SENDERS);
	__type(key, struct known_key);
	__type(value, __u32);
} known SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * MAX_LEASES);
	__type(key, struct job_key);
	__type(value, __u32);
} jobs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_LEASES);
	__type(key, __u32);
	__type(value, struct lease);
} leases SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_LEASES);
	__type(key, __u32);
	__type(value, struct lease_state);
} lease_states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_LEASES);
	__type(key, __u32);
	__type(value, struct counters);
} lease_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, DROPS);
	__type(key, __u32);
	__type(value, __u64);
} drops SEC(".maps");

// Resized by the loader.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

// Of all pools. Resized by the loader.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pool_slot);
} pool_slots SEC(".maps");

// For each lease, a map of its children's interfaces.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, MAX_LEASES);
	__uint(key_size, sizeof(__u32));
	__array(values, struct {
		__uint(type, BPF_MAP_TYPE_DEVMAP);
		__uint(max_entries, MAX_FAN_IN);
		__uint(key_size, sizeof(__u32));
		__uint(value_size, sizeof(struct bpf_devmap_val));
	});
} fan_outs SEC(".maps");

// The child of a lease behind an interface.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_LEASES * MAX_FAN_IN);
	__type(key, struct egress_key);
	__type(value, struct sender);
} egress SEC(".maps");

// By hop and direction.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * MAX_HOPS);
	__type(key, __u32);
	__type(value, struct hop_key);
} hop_keys SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_HOPS);
	__type(key, __u32);
	__type(value, struct hop_numbers);
} numbers_of_hops SEC(".maps");

struct scratch {
	__u8 values[ROW_BYTES] __attribute__((aligned(8)));
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratch SEC(".maps");

// The loader writes these as bytes.
_Static_assert(sizeof(struct config) == 24 && sizeof(struct shared) == 16, "layout.rs says so");
_Static_assert(sizeof(struct endpoint) == 64 && __builtin_offsetof(struct lease, parent) == 64, "layout.rs says so");
_Static_assert(sizeof(struct lease_state) == 16 && sizeof(struct sender_key) == 12, "layout.rs says so");
_Static_assert(sizeof(struct hop_key) == 1488 && sizeof(struct hop_numbers) == 2056, "layout.rs and numbers.rs say so");
