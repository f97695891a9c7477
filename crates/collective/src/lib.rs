//! Collectives of a group of ranks: selection of the path, order of calls, and failover.
//!
//! Owns: the operations that a framework calls ([`Group`]), the algorithms of the host path, the choice between trees
//! and hosts, the transition from one plan to the next, errors that name ranks and operations. Must not know: torch,
//! Python, packets. Start reading at [`Group`], then `coordinator` (sums on trees); [`netsum_proto::handover`] hands
//! the ranks over from one plan to the next.

mod address;
mod algorithm;
mod call;
mod combine;
mod comm;
mod coordinator;
mod core;
mod deadline;
mod digest;
mod error;
mod events;
mod explain;
#[doc(hidden)]
pub mod fuzzing;
mod group;
mod hosts;
mod ledger;
mod link_cost;
mod membership;
mod messages;
mod options;
mod order;
mod pace;
mod pieces;
pub mod planned;
mod point;
mod queue;
mod recorder;
pub mod rendezvous;
pub mod responder;
mod rest;
mod shared;
mod status;
mod steps;
mod switch_cost;
mod task;
mod terms;
mod trial;
mod work;

pub use call::Elements;
pub use combine::Combine;
pub use error::Error;
pub use explain::{Choice, Cost, explain};
pub use group::Group;
pub use hosts::Hosts;
pub use link_cost::{Across, LinkCost};
pub use netsum_net::Buffer;
pub use netsum_net::mesh::Network;
pub use netsum_wire::{Dtype, Format, ReduceOp, shared_scale};
pub use options::{GroupConfig, Options, Order, PROTOCOLS, congestion_rules, networks};
pub use recorder::{KEPT as RECORDED_MAX, Recorded, RecordedData, RecordedOperation};
pub use status::{GroupStats, HostStats, LinkView, Pause, PlanView, SumPath, TreeView};
pub use steps::{Step, training_steps};
pub use switch_cost::{Curve, Operation, OperationCost, SwitchCost};
pub use terms::Terms;
pub use work::Work;

use std::path::Path;
use std::time::Duration;

use netsum_control::client;

/// Ends a job of the controller at `address`; its ranks are told `reason`. `credentials`, errors: as
/// [`controller_status`].
pub fn stop_job(
    address: &str,
    credentials: Option<&Path>,
    job: u32,
    reason: &str,
    timeout: Duration,
) -> Result<(), Error> {
    let stopped = client::stop_job(&status::endpoint(address, credentials)?, job, reason, timeout);
    stopped.map_err(|error| status::controller_error(&error))
}

/// Asks the ranks of a job of the controller at `address` what they are doing: a JSON object of
/// [`responder::Evidence`] by rank, without those that do not answer within `patience`. `credentials`, errors: as
/// [`controller_status`].
pub fn ask_ranks(
    address: &str,
    credentials: Option<&Path>,
    job: u32,
    patience: Duration,
    timeout: Duration,
) -> Result<String, Error> {
    let endpoint = status::endpoint(address, credentials)?;
    let asked = client::ask_ranks(&endpoint, job, patience, timeout);
    let asked = asked.map_err(|error| status::controller_error(&error))?;
    let answers = asked.answers.into_iter().map(|answer| (answer.rank, answer.evidence));
    Ok(responder::Asked::of(answers).to_json())
}

/// Gives a job new keys and a new plan; packets under the old keys are refused. `credentials`, errors: as
/// [`controller_status`].
pub fn rekey_job(
    address: &str,
    credentials: Option<&Path>,
    job: u32,
    timeout: Duration,
) -> Result<(), Error> {
    let rekeyed = client::rekey_job(&status::endpoint(address, credentials)?, job, timeout);
    rekeyed.map_err(|error| status::controller_error(&error))
}

/// The stragglers of all jobs between two statuses of a controller, as JSON; the statuses as [`controller_status`] returns
/// them, `elapsed_s` seconds apart.
pub fn stragglers(before: &str, now: &str, elapsed_s: f64) -> Result<String, Error> {
    let read = |text: &str| -> Result<netsum_control::pb::StatusReply, Error> {
        serde_json::from_str(text).map_err(|e| Error::Unsupported(format!("no status: {e}")))
    };
    let found = netsum_control::stragglers_between(&read(before)?, &read(now)?, elapsed_s);
    serde_json::to_string(&found).map_err(|e| Error::Internal(e.to_string()))
}

/// The last operations of a job's ranks as the controller at `address` has them, as JSON. `credentials`, errors: as
/// [`controller_status`].
pub fn job_operations(
    address: &str,
    credentials: Option<&Path>,
    job: u32,
    timeout: Duration,
) -> Result<String, Error> {
    let reply = client::operations(&status::endpoint(address, credentials)?, job, timeout);
    let reply = reply.map_err(|error| status::controller_error(&error))?;
    serde_json::to_string(&reply.ranks).map_err(|error| Error::Internal(error.to_string()))
}

/// The state of the controller at `address`, as JSON. `credentials`: the folder of this process's, if the controller
/// demands certificates. Errors name the address, or the file.
pub fn controller_status(
    address: &str,
    credentials: Option<&Path>,
    timeout: Duration,
) -> Result<String, Error> {
    status::of_controller(address, credentials, timeout)
}
