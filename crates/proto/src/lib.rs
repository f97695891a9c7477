//! Protocols as sans-IO state machines: the same objects run in daemons, in the simulator and in tests.
//!
//! Owns: how a worker and an aggregator handle each packet; congestion control; recovery. Must not know: sockets, the
//! clock, threads, topology, frameworks. Start reading at [`panama`], or at [`atp`] for slots that jobs share.
//!
//! Every machine has the same interface: `handle(now, input)` changes it, then `poll_transmit`, `poll_event` and
//! `poll_timeout` are drained. Time is an argument and never decreases. Nothing allocates per packet once warm, nothing
//! is random. Bytes from the network never panic a machine: an invalid packet is dropped and counted by [`DropReason`].

mod aggregator;
mod answers;
pub mod atp;
mod children;
pub mod congestion;
pub mod departure;
mod drops;
mod epoch;
mod flight;
mod flow;
pub mod handover;
pub mod hops;
mod lanes;
pub mod lateness;
mod lease;
pub mod operations;
pub mod panama;
mod pattern;
pub mod policer;
pub mod registry;
pub mod row_machines;
mod rtt;
mod sequence;
pub mod switchml;
mod time;
pub mod values;
pub mod visit;
mod worker;

pub use aggregator::Aggregator;
pub use congestion::CongestionRule;
pub use drops::{DropCounters, DropReason};
pub use hops::{Hop, Hops, Secrets, SharedNumbers, WorkerTags};
pub use lateness::Lateness;
pub use lease::{LeaseKey, Reservation};
pub use pattern::Pattern;
pub use registry::{Lease, Worker, WorkerConfig, supports};
pub use time::{PortId, Time};
pub use worker::{AcceptedResult, Event, OutgoingPacket, Refusal, Settings, WorkerMachine};
