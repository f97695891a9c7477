//! The packet-level simulator: hosts, switches and links in integer picoseconds, driving `proto` itself.
//!
//! Owns: the event queue, links, queues, routes, hosts' transport, workloads, faults. Must not know: sockets, the wall
//! clock, protocol rules (they are in `proto`). Start reading at [`network::Network`] (packets and queues), then
//! `hosts` (flows and jobs), [`aggregation::Aggregation`] (where `proto`'s machines run), [`job`] (training jobs),
//! [`schedule`] (what jobs replay) and [`simulation::Simulation`] (the whole run); `windows` runs one simulation on
//! several threads, `repeats` skips what repeats itself.
//!
//! A run is a function of its configuration, its seed and the version: events of equal time have a stable
//! order, random streams are derived by purpose, and nothing depends on addresses, threads or the clock.

pub mod aggregation;
mod calendar;
pub mod capture;
pub mod config;
pub mod error;
mod fair;
pub mod faults;
mod fifo;
pub mod fluid;
mod hosts;
pub mod job;
mod link;
pub mod network;
pub mod packet;
mod partition;
pub mod random;
mod routes;
pub mod run;
pub mod schedule;
pub mod simulation;
pub mod tcp;
mod timer;
pub mod transport;
mod visit;
mod windows;
pub mod workload;

pub use error::SimError;
pub use network::{HostQueue, Pause, SharedBuffer, Switching};
pub use partition::Threads;
pub use routes::PathChoice;
pub use simulation::Simulation;
pub use simulation::Skipped;
