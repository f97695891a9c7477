//! The control plane: jobs, plans, leases, and the clients that switches and workers hold.
//!
//! Owns: the gRPC protocol, the controller's decisions, its store, its clients. Must not know:
//! data packets, protocol state machines, the framework above. Plans and leases go in and out as plain types; their
//! messages are seen by nobody else.
//! Start reading at [`client`] (what switches and workers use) and [`decide`] (what the controller
//! does about each event; no sockets, no clock).

pub mod client;
mod convert;
pub mod decide;
mod error;
mod server;
mod store;

pub use convert::{plan_from_bytes, plan_to_bytes};
pub use error::ControlError;
pub use netsum_lease::{Attachment, JobPlan};
pub use server::{Config, Controller};
pub use store::{Loaded, SqliteStore, Store};

/// The messages, as generated from `proto/netsum/control/v1/control.proto`.
#[allow(missing_docs, clippy::all)]
pub mod pb {
    tonic::include_proto!("netsum.control.v1");
}
