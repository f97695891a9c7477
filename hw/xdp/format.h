// The packets of protocols atp and switchml in a frame: docs/protocol-atp.md, docs/protocol-switchml.md. Ethernet, IPv4
// without options, UDP.
#pragma once

#include <linux/types.h>

#define ETHERNET_LEN 14
#define IP_OFFSET ETHERNET_LEN
#define UDP_OFFSET 34
#define PACKET_OFFSET 42
#define HEADER_LEN 38
// Bytes before the payload: after the header, unsealed packets of atp have zeros, those of switchml nothing, and sealed
// ones an extension.
#define UNSEALED_LEN 46
#define POOL_UNSEALED_LEN HEADER_LEN
#define SEALED_LEN 54

// Largest payload of a slot: 352 elements, the most that an MTU of 1500 carries in whole 128-byte blocks.
#define ROW_BYTES 1408

// Whether `bytes` from a position on are within the frame, in a form that the verifier can follow.
#define CHECKED(pointer, bytes, end) ((void *)(pointer) + (bytes) <= (end))

// First bytes of unsealed and of sealed packets of atp and of switchml.
#define UNSEALED 0x21
#define SEALED 0x22
#define POOL_UNSEALED 0x31
#define POOL_SEALED 0x32
#define LEVEL_BIT 0x10
#define KIND_BITS 0x0f

enum kind {
	CONTRIBUTION = 0,
	RESULT = 1,
	WAITING = 2,
	FLOAT_REQUEST = 3,
	MISMATCH = 4,
	FIN = 5,
	READY = 6,
	DONE = 7,
	MISSING = 8,
};

enum pool_kind {
	POOL_CONTRIBUTION = 0,
	POOL_RESULT = 1,
	POOL_MISMATCH = 2,
	POOL_FIN = 3,
	POOL_READY = 4,
	POOL_DONE = 5,
};

// Beside the kind of a packet of switchml.
#define POOL_RESENT 0x10
// Worker in packets of a switch.
#define NO_WORKER 255

#define RESEND 0x01
#define COLLISION 0x02
#define OVERFLOW 0x04
#define ECN 0x08

// Codes of who contributes and who takes; the rank is in a byte of its own.
enum parties {
	ALL = 0,
	TO_ONE = 1,
	FROM_ONE = 2,
	NOBODY = 3,
};

// Ranks that parties can name.
#define SCOPED_RANKS 64

enum arithmetic {
	SATURATING = 0,
	WRAPPING = 1,
	MIN = 2,
	MAX = 3,
	FLOAT = 4,
};

// All numbers in network byte order.
struct header {
	__u8 version;
	__u8 kind; // with the level bit
	__u8 flags; // with the arithmetic
	__u8 tree;
	__be32 job;
	__be32 sequence;
	__be32 chunk;
	__be16 epoch;
	__be16 n_elems;
	__u8 rack_fan_in;
	__u8 server_fan_in;
	__be32 slot;
	__be32 workers;
	__be32 racks;
	union {
		__be32 next_slot; // down
		struct {
			__u8 rank;
			__u8 parties;
			__be16 reserved;
		}; // up
	};
} __attribute__((packed));

// Of switchml.
struct pool_header {
	__u8 version;
	__u8 kind; // with the flag
	__u8 arithmetic;
	__u8 worker;
	__be32 job;
	__be32 round;
	__be32 chunk;
	__be16 epoch;
	__be16 slot;
	__be16 n_elems;
	__be16 next_exponent;
	__u8 tree;
	__u8 parties;
	__u8 rank;
	__u8 reserved[11];
} __attribute__((packed));

// Follows the header of a sealed packet.
struct extension {
	__be64 number;
	__be64 tag;
} __attribute__((packed));

_Static_assert(sizeof(struct header) == HEADER_LEN, "the header has 38 bytes");
_Static_assert(sizeof(struct pool_header) == HEADER_LEN, "and so has that of switchml");
_Static_assert(sizeof(struct header) + sizeof(struct extension) == SEALED_LEN, "and the extension 16");

// Why a packet was dropped; the order is that of `reasons` in crates/net/src/xdp/layout.rs.
enum drop {
	TRUNCATED_HEADER,
	UNKNOWN_KIND,
	UNKNOWN_FORMAT,
	PAYLOAD_LENGTH,
	EMPTY_FRAGMENT,
	RESERVED,
	MEMBERS,
	BAD_TAG,
	REPLAY,
	UNKNOWN_SENDER,
	NO_LEASE,
	STALE_EPOCH,
	FUTURE_EPOCH,
	NOT_A_NEIGHBOUR,
	WRONG_DIRECTION,
	TOO_LARGE,
	BEYOND_WINDOW,
	TOO_OLD,
	DUPLICATE,
	MISMATCHED, // another packet of the same fragment had other properties
	BUSY, // other processors held the slot's lock, or changed a hop's numbers, for too long
	DROPS,
};
