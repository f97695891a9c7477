//! From a plan to the leases of its switches and servers, and to the configurations of its workers.
//!
//! Owns: which lease each node of a plan gets, which place each rank has, the plan as a worker receives it, and by what
//! a worker's machine works. Must not know: gRPC, sockets, how a plan is found. Start reading at [`leases`], then
//! [`worker_config`].
//!
//! Decisions:
//!
//! * **One lease type.** [`netsum_proto::Lease`] is what machines install, what the controller books, sends and stores,
//!   and what the simulator installs. It is generic over what names a neighbour: machines take port numbers, drivers and
//!   the controller `ip:port`, and `()` where only sizes matter. Protobuf messages exist only inside `netsum-control`.
//! * **A crate of its own.** The function needs trees (`topo`) and leases (`proto`); neither may know the other.
//! * **The caller names neighbours**, by node and tree: the simulator has a port for each edge, the controller one
//!   address for each process.
//! * **The memory of a lease is computed beside its type** (`netsum_proto::Lease::reservation`), because the machine that
//!   reserves and refuses must use the formula by which the controller books.

mod job_plan;
mod leases;
mod racks;
mod worker;

pub use job_plan::{Aggregator, Attachment, JobPlan};
pub use leases::{Granted, Terms, leases};
pub use racks::{FAN_IN_MAX, Rack, Racks};
pub use worker::{wire_bytes, worker_config};

/// Why a plan makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PlanError(String);

impl PlanError {
    /// With the problem in words.
    pub fn new(problem: impl Into<String>) -> PlanError {
        PlanError(problem.into())
    }
}
