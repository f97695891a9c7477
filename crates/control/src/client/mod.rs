//! The controller's clients, for switches and workers: sessions that reconnect automatically, and single calls.
//!
//! Sessions run either on the caller's tokio runtime or, for plain threads, on a thread of their own. No error here
//! ends a training run: while the controller is unavailable, a session keeps trying.

mod backoff;
mod call;
mod endpoint;
mod host;
mod session;
mod switch;
mod worker;

pub(crate) use call::MESSAGE_MAX;
pub use call::{create_job, fabric, list_jobs, rekey_job, status, stop_job};
pub use endpoint::ControllerEndpoint;
pub use host::{choose_host, is_local, local_hosts};
pub use switch::{LeaseOffer, LeaseTerms, SwitchClient, SwitchNotice};
pub use worker::{WorkerClient, WorkerNotice};
