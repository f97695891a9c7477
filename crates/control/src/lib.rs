//! The control plane: jobs, plans, leases, and the clients that switches and workers hold.
//!
//! Owns: the gRPC protocol, the controller's decisions, its store, its clients, who may do what; the server of
//! enrolments. Must not know: data packets, protocol state machines, the framework above. Its interface has plans and
//! leases as plain types; no other crate sees their messages. Start reading at [`client`] (for switches and workers),
//! [`decide`] (reactions to events)
//! and [`Engine`] (a controller without sockets and clock).

pub mod client;
mod connection;
mod controller_plan;
mod convert;
pub mod decide;
pub mod election;
mod engine;
pub mod epoch;
mod error;
mod fence;
#[doc(hidden)]
pub mod fuzzing;
mod limits;
mod log_rate;
pub mod pb;
mod security;
mod server;
mod store;
mod stragglers;
mod version;

pub use connection::Secured;
pub use controller_plan::ControllerPlan;
pub use convert::lease_from_message;
pub use engine::{Engine, Failure, Outcome};
pub use error::ControlError;
pub use fence::{Fence, Stale};
pub use limits::LATENESS_MAX;
pub use log_rate::LogRate;
pub use netsum_lease::{Attachment, JobPlan};
pub use security::Security;
pub use server::{Attempt, Config, Controller, EnrolmentServer, SharedStore, join};
pub use store::{
    BackupSummary, Change, EtcdCredentials, EtcdStore, JobRow, MemberRow, MemoryStore, Saved,
    SqliteStore, Store, backup, restore,
};
pub use stragglers::{JobStraggler, stragglers_between};
