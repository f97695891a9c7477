//! The numbers of the mesh, in one place, with what each follows from.

use std::time::Duration;

use super::frame::HEADER_LEN;

/// The largest messages and frames that a transport carries at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Longer messages are announced, and sent when the receiver has a receive for them.
    pub(super) eager: usize,
    /// Most bytes of an announced message in one frame.
    pub(super) segment: usize,
}

/// TCP: one announcement costs a round trip, so whatever fits in a segment goes without it.
pub(super) const TCP: Limits = Limits { eager: SEGMENT_MAX, segment: SEGMENT_MAX };

/// Shared memory: a longer message goes straight from the ring to where it belongs, or is read in its sender's memory.
/// A round trip between two processes takes as long as copying some ten kilobytes.
pub(super) const SHARED_MEMORY: Limits = Limits { eager: 64 << 10, segment: SEGMENT_MAX };

/// UCX: a longer message costs two more round trips, but no copy at either end. UCX cuts messages itself.
pub(super) const UCX: Limits = Limits { eager: 16 << 10, segment: usize::MAX };

// Memory that a peer can make a rank hold.

/// Most payload bytes behind one header in a stream or a ring. A small urgent message waits for at most one segment: 1
/// MiB is under a millisecond at 10 Gbit/s, and 26,000 times as long as the header.
pub(super) const SEGMENT_MAX: usize = 1 << 20;

/// Room for eager messages that a rank keeps for each peer: eight segments, so messages of a pipelined collective need
/// no announcement; small beside the buffers of a training process.
pub(super) const ALLOWANCE: u64 = 8 << 20;

/// Freed room is reported in parts of this size: an eighth of the allowance, so that a sender is told before it has
/// used up the rest, for one frame of 40 bytes per MiB.
pub(super) const CREDIT: u64 = ALLOWANCE / 8;

/// Room that an eager message takes at the receiver until it is wanted: its bytes and what is kept beside them.
#[inline]
pub(super) const fn cost(len: usize) -> u64 {
    (len + 2 * HEADER_LEN) as u64
}

/// Announced messages of one peer without a receive. An entry takes about 100 bytes: at most 100 MB for a peer that
/// floods.
pub(super) const ANNOUNCED_MAX: usize = 1 << 20;

/// Frames that have overtaken one of the same peer. Their payloads count against [`ALLOWANCE`]; this bounds those
/// without.
pub(super) const EARLY_MAX: usize = 1 << 16;

/// The longest control message. A rank's retained results are at most 256 trees × window; a served batch is cut well
/// below this.
pub(super) const CONTROL_MAX: usize = 256 << 20;

/// Memory reserved for a message that has been announced: the rest only as it arrives.
pub(super) const RESERVE_MAX: usize = 1 << 20;

// The mesh's thread.

/// Deadlines are kept to this. Twenty times a second costs nothing, and no caller's deadline is shorter.
pub(super) const TICK: Duration = Duration::from_millis(50);

/// Between two looks at the deadlines so many ticks may pass before the thread takes it that it was stopped itself.
pub(super) const STOPPED_TICKS: u32 = 4;

/// Keep-alives per time of silence after which a peer is lost: three of four may be late.
pub(super) const KEEPALIVES: u32 = 4;

/// One read of a connection; it stays in the second-level cache between the kernel's copy and ours.
pub(super) const READ_BYTES: usize = 256 << 10;

/// Reads of one connection before the others get their turn: together one segment.
pub(super) const READS_PER_TURN: usize = SEGMENT_MAX / READ_BYTES;

/// Turns of a polled transport before sockets and deadlines get theirs.
pub(super) const TURNS: usize = 64;

/// The thread leaves a polled transport to callers that wait for messages for so long: a fiftieth of a tick, and longer
/// than most waits.
pub(super) const NAP: Duration = Duration::from_millis(1);

/// For a transport to let go of memory that its owner wants back; then the peer is lost. Many times what any message in
/// flight takes, and short beside the operation that has just failed.
pub(super) const GRACE: Duration = Duration::from_secs(1);

// UCX.

/// A caller that waits for a message polls UCX for so long before going to sleep: some round trips.
pub(super) const UCX_SPIN: Duration = Duration::from_micros(200);

// Shared memory.

/// Writer and reader of a ring copy at the same time: the reader begins when so much has been written. Half of a
/// first-level cache.
pub(super) const PIECE: usize = 16 << 10;

/// Read of a message in its sender's memory at once: the receive may be given up between two reads.
pub(super) const FETCH: usize = 1 << 20;

/// Read of one rank's ring before the other ranks get their turn.
pub(super) const READ_MAX: usize = 1 << 20;

/// Looks without a pause between them: an answer that comes at once is here within them.
pub(super) const FIRST_LOOKS: u32 = 20;

/// Looks between two looks at the clock: some microseconds.
pub(super) const LOOKS: u32 = 100;

/// Short messages that may be under way in one ring: 16 KiB of cells, half of a first-level cache. A power of two.
pub(super) const CELLS: u32 = 128;

/// Bytes of the ring between two ranks, where there are few: both ends of a few rings stay in a second-level cache.
pub(super) const RING_MAX: u32 = 256 << 10;

/// And where there are many: two pieces, so that writer and reader still work at the same time.
pub(super) const RING_MIN: u32 = 2 * PIECE as u32;

/// Bytes of all rings in which a rank writes: that many ranks of a host take little memory.
pub(super) const RINGS: u32 = 4 << 20;

// Building the mesh.

/// For the whole of a handshake, from the connection on: one packet each way, so a connection that takes longer is not
/// a rank.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(5);

/// Between two attempts to connect to a rank that does not listen yet.
pub(super) const RETRY: Duration = Duration::from_millis(50);

/// How soon the accepting side sees that all ranks are connected.
pub(super) const ACCEPT_TICK: Duration = Duration::from_millis(20);

/// Connections that wait to be accepted: all ranks of a large job connect at once. The kernel cuts this to its own
/// limit.
pub(super) const BACKLOG: i32 = 1024;

/// Handshakes under way at a time. Connections that are not ranks can hold at most this many threads, for [`HANDSHAKE`]
/// each.
pub(super) const HANDSHAKES_MAX: usize = 64;

/// TCP's own keep-alive, for connections whose host has disappeared while nobody writes.
pub(super) const TCP_KEEPALIVE: Duration = Duration::from_secs(10);

const _: () = assert!(SEGMENT_MAX.is_multiple_of(READ_BYTES) && CELLS.is_power_of_two());
const _: () = assert!(RING_MIN.is_power_of_two() && RING_MAX.is_power_of_two());
const _: () = assert!(cost(SEGMENT_MAX) * 7 < ALLOWANCE && CREDIT * 8 == ALLOWANCE);
