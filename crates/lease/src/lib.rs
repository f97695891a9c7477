//! From a plan to the leases of its switches and servers, and to the configurations of its workers.
//!
//! Owns: the lease of each node of a plan and its keys, the position of each rank, the plan as a worker receives it, and
//! the configuration of a worker's machine. Must not know: gRPC, sockets, planning. Start reading at [`leases`], then
//! [`worker_config`].
//!
//! Decisions:
//!
//! * **One lease type.** [`netsum_proto::Lease`] is what machines and the simulator install and what the controller
//!   books, sends and stores. It is generic over the address of a neighbour: machines use port numbers, drivers and the
//!   controller `ip:port`, and `()` where only sizes matter. Protobuf messages exist only inside `netsum-control`.
//! * **A crate of its own.** The function needs trees (`topo`) and leases (`proto`); neither may know the other.
//! * **The caller maps neighbours to addresses**, by node and tree: the simulator has a port for each edge, the
//!   controller one address for each process.
//! * **The memory of a lease is computed beside its type** (`netsum_proto::Lease::reservation`), because the controller
//!   must book by the formula by which machines reserve and refuse.

mod job_plan;
mod keys;
mod leases;
mod racks;
mod worker;

pub use job_plan::{Aggregator, Attachment, JobPlan};
pub use keys::{RankKeys, key_id, lease_secrets, rank_key, worker_secrets};
pub use leases::{Granted, Terms, leases};
pub use racks::{FAN_IN_MAX, Rack, Racks};
pub use worker::{wire_bytes, worker_config};

/// An invalid plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PlanError(String);

impl PlanError {
    /// An error with this description.
    pub fn new(problem: impl Into<String>) -> PlanError {
        PlanError(problem.into())
    }
}
