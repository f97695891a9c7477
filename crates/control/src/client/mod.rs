//! The controller's clients, for switches and workers: sessions that reconnect automatically, and single calls.
//!
//! Sessions run either on the caller's tokio runtime or, for plain threads, on a thread of their own. No error here
//! ends a training run: while the controller is unavailable, a session keeps trying. Of several controllers, clients find
//! the one that leads, and refuse what another one says whose term is over.

mod backoff;
mod call;
mod endpoint;
mod host;
mod route;
mod session;
mod switch;
mod worker;

pub(crate) use call::{LEADER, MESSAGE_MAX, connect};
pub use call::{
    ask_ranks, create_job, fabric, leader, list_jobs, operations, rekey_job, status, stop_job,
};
pub use endpoint::ControllerEndpoint;
pub use host::{choose_host, is_local, local_hosts};
pub use switch::{LeaseOffer, LeaseTerms, SwitchClient, SwitchNotice};
pub use worker::{Answerer, WorkerClient, WorkerNotice};
