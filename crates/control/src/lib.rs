//! The control plane: jobs, plans, leases, and the clients that switches and workers hold.
//!
//! Owns: the gRPC protocol, the controller's decisions, its store, its clients. Must not know:
//! data packets, protocol state machines, the framework above.
//! Start reading at [`client`] (what switches and workers use) and [`decide`] (what the controller
//! does about each event; no sockets, no clock).

pub mod client;
mod convert;
pub mod decide;
mod error;
mod grant;
mod message;
mod racks;
mod server;
mod store;

pub use error::ControlError;
pub use message::Attachment;
pub use racks::{RackOf, Racks};
pub use server::{Config, Controller};
pub use store::{Loaded, SqliteStore, Store};

/// The messages, as generated from `proto/netsum/control/v1/control.proto`.
#[allow(missing_docs, clippy::all)]
pub mod pb {
    tonic::include_proto!("netsum.control.v1");
}
