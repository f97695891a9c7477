//! Protocol `switchml`: a pool of slots per job, the baseline of the others (SwitchML, NSDI 2021).
//!
//! Fragment g uses slot g mod s in round ⌊g / s⌋. A worker sends a slot's next round when it has the result of the
//! last, so the pool is the window and the result the credit; there is no other congestion control. The [`Switch`]
//! keeps two rounds of each slot: a worker that sends round r + 1 has the result of r, so all have contributed to r and
//! have that of r − 1, whose memory round r + 1 takes.
//!
//! Differs from SwitchML's code: a full round number instead of one bit, any number of jobs, and exponents within one
//! operation only, so that all workers carry the same ones.
//!
//! The other collectives are ours. Every worker sends a packet for every fragment, without elements where it has none to
//! contribute, and gets one back, without elements where it takes none: so the reasoning about rounds is the same. What
//! one worker sends to all others has a pool of its own, so that it travels while sums do.

mod lease;
mod payload;
mod pool;
mod switch;
mod work;
mod worker;

pub use lease::{Lease, LeaseError, MAX_WORKERS};
pub use switch::{Counters, Switch, Transmit};
pub use work::{Accepted, Content, Outgoing, WorkerConfig};
pub use worker::Worker;

pub use crate::aggregator::Aggregator;
pub use crate::atp::supports;
pub use crate::flow::TreeStats;
pub use crate::operations::{Fragments, Submission};
pub use crate::worker::{Event, WorkerMachine};

use netsum_wire::switchml::{Header, Kind, NOBODY};

/// First time-out of SwitchML.
pub const TIMEOUT_NS: u64 = 10_000_000;
