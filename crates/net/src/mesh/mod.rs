//! Messages between the ranks of a group: a full mesh, in which a [`Network`] carries what goes from host to host and
//! memory that they share ([`Rings`]) what stays on one host.
//!
//! A [`Listener`] is opened first and its address told to the others; [`Listener::connect`] then builds the
//! [`Mesh`]. A message goes to the receive that was posted for its sender and [`Key`]; messages between the
//! same two ranks with the same key arrive in the order of sending. One thread reads all connections; a
//! sender writes what the transport takes at once, and the thread the rest. A connection that ends without a
//! goodbye, or is silent for too long, fails everything that waits and everything that comes after.
//!
//! Every pair of ranks keeps a TCP connection, which shows which rank is which, which are alive and why a group ends.
//! The frames of a pair are carried by its transport: `tcp` uses that connection, `ucx` and `shared_memory` go beside
//! it. The core (`core`, `outbox`, `mailbox`, `inbound`, `thread`) knows the `Transport` trait only; `connect` is the
//! one place that names the transports, and `limits` the one place for numbers.
//!
//! Source: the shape of Gloo's unbound buffers (tagged messages, full mesh). Differs: bounded memory at the
//! receiver, errors that name the rank, no connection on first use.

mod connect;
mod core;
mod error;
mod events;
mod frame;
mod handle;
mod in_order;
mod inbound;
mod limits;
mod mailbox;
mod outbox;
mod poll;
mod receive;
mod roster;
mod shared_memory;
mod tcp;
mod thread;
mod transport;
mod ucx;

pub use connect::Listener;
pub use error::MeshError;
pub use events::Events;
pub use frame::{Channel, Key};
pub use handle::{Mesh, Outgoing, Receive};
pub use outbox::{OnSent, Payload};
pub use receive::{OnReceived, Received, Target, Wanted};
pub use roster::{Network, Roster, SECRET_LEN, Seat};
pub use shared_memory::Rings;

#[cfg(test)]
mod tests;
