//! Limits of what the controller takes from the network, with what each follows from.
//!
//! The controller keeps the last heartbeat of every rank and of every switch, so these limits bound its memory: at most
//! [`KEPT_PER_RANK`] bytes for each rank with a stream.

use std::time::Duration;

/// Maximum number of ranks of a job: more would need streams to several controllers.
pub(crate) const RANKS_MAX: u32 = 4096;
/// Maximum number of trees of a job: of a rack's uplinks that a job may use at once.
pub(crate) const TREES_MAX: u32 = 16;
/// Maximum number of live jobs, each of which holds a stream per rank.
pub(crate) const JOBS_MAX: usize = 1024;
/// The largest report, in bytes: a switch's, with a few thousand neighbours and trees. One byte of a report takes up to
/// 120 bytes once it is decoded, so the service checks a report before it hands the report on.
pub(crate) const REPORT_MAX: usize = 1 << 20;

/// Maximum length in bytes of a job's name. Names of hosts, switches and tenants have at most 63 (fabric file).
pub(crate) const NAME_MAX: usize = 128;
/// Maximum length in bytes of a text for people: a reason, what a pause was for.
pub(crate) const TEXT_MAX: usize = 256;
/// Maximum length in bytes of `ip:port`: an IPv6 address with its scope.
pub(crate) const ADDRESS_MAX: usize = 80;
/// Maximum length in bytes of the texts in the plan that a rank brings back. The controller wrote them, and keeps none:
/// a reason can name every switch of a fabric.
pub(crate) const PLAN_TEXT_MAX: usize = 1 << 16;
/// Maximum number of pauses in a heartbeat. A worker names its last ones.
pub(crate) const PAUSES_MAX: usize = 32;
/// Maximum number of operations in a heartbeat: one second of a training with small steps.
pub(crate) const RECENT_MAX: usize = 64;
/// Maximum length in bytes of an operation's name and type.
pub(crate) const CALL_MAX: usize = 48;

/// Maximum number of leases that a switch names: all trees of all jobs.
pub(crate) const LEASES_MAX: usize = JOBS_MAX * TREES_MAX as usize;
/// Maximum number of neighbours that a switch names: each takes a child of a lease, or has taken one.
pub(crate) const NEIGHBOURS_MAX: usize = 16_384;
/// Maximum number of reasons for which a switch, or a tree at a switch, counts drops.
pub(crate) const DROP_REASONS_MAX: usize = 64;
/// Maximum number of children of leases whose lateness a switch reports: some 100 bytes each.
pub const LATENESS_MAX: usize = 4096;
/// Maximum number of buckets of a child's histogram.
pub(crate) const BUCKETS_MAX: usize = 64;
/// Maximum bytes of a rank's answer to the question what it is doing.
pub(crate) const EVIDENCE_MAX: usize = 256 << 10;
/// Maximum bytes of the answers in one reply; within the largest message of a client.
pub(crate) const ANSWERS_MAX: usize = 12 << 20;
/// Maximum number of questions to the ranks of jobs at once.
pub(crate) const QUESTIONS_MAX: usize = 8;
/// Maximum number of lease confirmations that wait for a store that fails: one for each lease.
pub(crate) const ACKS_DEFERRED_MAX: usize = LEASES_MAX;

/// Maximum number of ranks of all live jobs, which take some 20 MB.
pub(crate) const RANKS_LIVE_MAX: usize = 16 * RANKS_MAX as usize;
/// Maximum number of jobs, and of their ranks, that one address has created and whose ranks have not all joined. Such
/// jobs cost their creator nothing; without the limits they take all places until their time-out.
pub(crate) const JOBS_WAITING_MAX: usize = 64;
/// See [`JOBS_WAITING_MAX`]; four of the largest jobs.
pub(crate) const RANKS_WAITING_MAX: usize = 4 * RANKS_MAX as usize;
/// Maximum number of jobs of a tenant that wait for ranks, on a fabric with several tenants.
pub(crate) const TENANT_WAITING_MAX: usize = JOBS_MAX / 4;
/// Maximum number of ended jobs, and of their ranks, that are still shown.
pub(crate) const ENDED_SHOWN: usize = 100;
/// See [`ENDED_SHOWN`].
pub(crate) const ENDED_RANKS_SHOWN: usize = 4 * RANKS_MAX as usize;

/// Maximum number of connections: a stream for each rank of the largest jobs, and calls.
pub(crate) const CONNECTIONS_MAX: usize = 16_384;
/// Open files that are not connections: the store, logs, the runtime.
pub(crate) const DESCRIPTORS_RESERVED: usize = 64;
/// Maximum number of concurrent calls on a connection; clients here make one.
pub(crate) const CALLS_PER_CONNECTION: u32 = 16;
/// Bytes that a peer may send on a stream before the controller reads them; on a connection four times as many.
pub(crate) const STREAM_WINDOW: u32 = 64 << 10;
/// Maximum number of bytes of messages that have begun to arrive: some reports of the largest switches at once. Beyond it
/// only messages of [`INCOMPLETE_FREE`] bytes may arrive in parts.
pub(crate) const INCOMPLETE_MAX: usize = 64 << 20;
/// See [`INCOMPLETE_MAX`]; most messages, and with all calls of all connections at most a gigabyte.
pub(crate) const INCOMPLETE_FREE: usize = 4 << 10;
const _: () = assert!(CONNECTIONS_MAX * CALLS_PER_CONNECTION as usize * INCOMPLETE_FREE <= 1 << 30);
/// Number of messages that wait for the owner of the state.
pub(crate) const MESSAGES_MAX: usize = 1024;
/// Maximum number of calls and new streams among these; the other places are for reports.
pub(crate) const CALLS_MAX: usize = 64;
/// Minimum time between two replies to Status that are built. People and tools read a few per second.
pub(crate) const STATUS_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum bytes of replies to Status that are being sent: several of the largest.
pub(crate) const REPLIES_HELD_MAX: usize = 64 << 20;

/// Upper bound of the bytes that the controller keeps of a rank's messages: an address and the last heartbeat.
pub(crate) const KEPT_PER_RANK: usize = ADDRESS_MAX
    + size_of::<crate::pb::WorkerHeartbeat>()
    + TREES_MAX as usize * (size_of::<crate::pb::WorkerTree>() + size_of::<u32>())
    + RANKS_MAX as usize * size_of::<u32>()
    + PAUSES_MAX * (size_of::<crate::pb::Pause>() + TEXT_MAX)
    + RECENT_MAX * (size_of::<crate::pb::RecentOperation>() + CALL_MAX);
const _: () = assert!(KEPT_PER_RANK < 36 << 10);
