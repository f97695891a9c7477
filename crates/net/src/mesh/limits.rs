//! The limits of the mesh, with their derivation.

use std::time::Duration;

use super::frame::HEADER_LEN;

/// Maximum sizes of messages and frames of a transport.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Longer messages are announced, and sent when the receiver has a receive for them.
    pub(super) eager: usize,
    /// Maximum bytes of an announced message in one frame.
    pub(super) segment: usize,
}

/// TCP: an announcement costs a round trip, so everything that fits in a segment is sent without one.
pub(super) const TCP: Limits = Limits { eager: SEGMENT_MAX, segment: SEGMENT_MAX };

/// Shared memory: a longer message is copied directly from the ring to its destination, or read in its sender's memory.
/// A round trip between two processes takes as long as copying some ten kilobytes.
pub(super) const SHARED_MEMORY: Limits = Limits { eager: 64 << 10, segment: SEGMENT_MAX };

/// UCX: a longer message costs two more round trips, but no copy at either end. UCX segments messages itself.
pub(super) const UCX: Limits = Limits { eager: 16 << 10, segment: usize::MAX };

// Bounds on the memory that a peer can make a rank hold.

/// Maximum payload bytes after one header in a stream or a ring. A small urgent message waits for at most one segment:
/// 1 MiB is under a millisecond at 10 Gbit/s, and 26,000 times as long as the header.
pub(super) const SEGMENT_MAX: usize = 1 << 20;

/// Room for eager messages that a rank keeps for each peer: eight segments, so messages of a pipelined collective need
/// no announcement; small beside the buffers of a training process.
pub(super) const ALLOWANCE: u64 = 8 << 20;

/// Freed room is reported in parts of this size: an eighth of the allowance, so that a sender is notified before it has
/// used up the rest, for one frame of 40 bytes per MiB.
pub(super) const CREDIT: u64 = ALLOWANCE / 8;

/// Room that an eager message takes at the receiver until it is received: its bytes and metadata.
#[inline]
pub(super) const fn cost(len: usize) -> u64 {
    (len + 2 * HEADER_LEN) as u64
}

/// Maximum number of announced messages of one peer without a receive. An entry takes about 100 bytes: at most 100 MB
/// for a peer that floods.
pub(super) const ANNOUNCED_MAX: usize = 1 << 20;

/// Maximum number of early frames of one peer. Their payloads count against [`ALLOWANCE`]; this bounds those without
/// payload.
pub(super) const EARLY_MAX: usize = 1 << 16;

/// The longest control message. A rank's retained results are at most 256 trees × window; a served batch is much
/// smaller.
pub(super) const CONTROL_MAX: usize = 256 << 20;

/// Maximum bytes of the text by which a rank says why it cannot continue: a few lines.
pub(super) const REASON_MAX: usize = 512;

/// Maximum bytes of one peer's control messages that were announced and have not arrived: the longest, and others
/// behind it.
pub(super) const CONTROL_HELD_MAX: u64 = 2 * CONTROL_MAX as u64;

/// Maximum number of these messages. An entry takes about 200 bytes.
pub(super) const CONTROLS_MAX: usize = 4096;

/// Memory reserved when a message has been announced: the rest only as it arrives.
pub(super) const RESERVE_MAX: usize = 1 << 20;

// Timing of the mesh's thread.

/// How often the files of the credentials are looked at: a revocation list takes effect within this time. A look takes
/// some microseconds.
pub(super) const REVOCATIONS_LOOK: Duration = Duration::from_secs(1);

/// Precision of deadlines. Twenty checks per second cost nothing, and no caller's deadline is shorter.
pub(super) const TICK: Duration = Duration::from_millis(50);

/// Number of ticks between two checks of deadlines after which the thread assumes that it was stopped itself.
pub(super) const STOPPED_TICKS: u32 = 4;

/// Number of keep-alives in the time of silence after which a peer is lost: three of four may be late.
pub(super) const KEEPALIVES: u32 = 4;

/// Bytes per read of a connection; they stay in the second-level cache between the kernel's copy and ours.
pub(super) const READ_BYTES: usize = 256 << 10;

/// Reads of one connection before the others are served: together one segment.
pub(super) const READS_PER_TURN: usize = SEGMENT_MAX / READ_BYTES;

/// Encrypted bytes of one connection that the kernel has not accepted yet: eight records. Encryption and the kernel's
/// copy take turns within the second-level cache.
pub(super) const ENCRYPTED_MAX: usize = 128 << 10;

/// Polls of a polled transport before sockets and deadlines are served.
pub(super) const TURNS: usize = 64;

/// How long the thread leaves a polled transport to callers that wait for messages: a fiftieth of a tick, and longer
/// than most waits.
pub(super) const NAP: Duration = Duration::from_millis(1);

/// Time for a transport to release memory that its owner wants back; afterwards the peer is lost. Many times what any
/// message in flight takes, and short beside the operation that has just failed.
pub(super) const GRACE: Duration = Duration::from_secs(1);

// UCX.

/// How long a caller that waits for a message polls UCX before it sleeps: some round trips.
pub(super) const UCX_SPIN: Duration = Duration::from_micros(200);

// Shared memory.

/// Writer and reader of a ring copy at the same time: the reader begins when this much has been written. Half of a
/// first-level cache.
pub(super) const PIECE: usize = 16 << 10;

/// Bytes read at once of a message in its sender's memory: the receive may be cancelled between two reads.
pub(super) const FETCH: usize = 1 << 20;

/// Bytes read of one rank's ring before the other ranks are served.
pub(super) const READ_MAX: usize = 1 << 20;

/// Number of polls without a pause: an immediate answer arrives within them.
pub(super) const FIRST_LOOKS: u32 = 20;

/// Number of polls between two readings of the clock: some microseconds.
pub(super) const LOOKS: u32 = 100;

/// Maximum number of short messages in one ring: 16 KiB of cells, half of a first-level cache. A power of two.
pub(super) const CELLS: u32 = 128;

/// Bytes of the ring between two ranks, if there are few: both ends of a few rings stay in a second-level cache.
pub(super) const RING_MAX: u32 = 256 << 10;

/// The same if there are many: two pieces, so that writer and reader still work at the same time.
pub(super) const RING_MIN: u32 = 2 * PIECE as u32;

/// Bytes of all rings in which a rank writes, which bounds the memory of a host with many ranks.
pub(super) const RINGS: u32 = 4 << 20;

// Building the mesh.

/// Time-out of a whole handshake, from the connection on: one packet in each direction, or two with TLS, so a
/// connection that takes longer is not a rank.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(5);

/// How long the connecting rank waits for the handshake. Longer than the accepting one: a rank that gave up first would
/// connect again, while the other takes the first connection for complete.
pub(super) const ANSWER: Duration = Duration::from_secs(2 * HANDSHAKE.as_secs());

/// Interval between attempts to connect to a rank that does not listen yet.
pub(super) const RETRY: Duration = Duration::from_millis(50);

/// Delay until the accepting side notices that all ranks are connected.
pub(super) const ACCEPT_TICK: Duration = Duration::from_millis(20);

/// Length of the listener's queue: all ranks of a large job connect at once. The kernel limits it.
pub(super) const BACKLOG: i32 = 1024;

/// Maximum number of concurrent handshakes. Connections that are not ranks can hold at most this many threads, for
/// [`HANDSHAKE`] each. With TLS each holds at most a handshake message of 64 KiB.
pub(super) const HANDSHAKES_MAX: usize = 64;

/// Refused connections that an error mentions: a rank that comes too often, a stranger, and some more.
pub(super) const REFUSALS_SHOWN: usize = 4;

/// TCP's own keep-alive, for connections whose host has disappeared while nothing is written.
pub(super) const TCP_KEEPALIVE: Duration = Duration::from_secs(10);

const _: () = assert!(SEGMENT_MAX.is_multiple_of(READ_BYTES) && CELLS.is_power_of_two());
const _: () = assert!(RING_MIN.is_power_of_two() && RING_MAX.is_power_of_two());
const _: () = assert!(cost(SEGMENT_MAX) * 7 < ALLOWANCE && CREDIT * 8 == ALLOWANCE);
