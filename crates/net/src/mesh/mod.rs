//! Messages between the ranks of a group: a full mesh, in which a [`Network`] carries messages between hosts and shared
//! memory ([`Rings`]) those within a host.
//!
//! A [`Listener`] is opened first and its address given to the others; [`Listener::connect`] then builds the [`Mesh`].
//! A message goes to the receive that was posted for its sender and [`Key`]; messages between the same two ranks with
//! the same key arrive in the order of sending. One thread reads all connections; a sender writes as much as the
//! transport accepts, and the thread writes the rest. A connection that ends without a goodbye, or is silent for too
//! long, fails all waiting and later operations.
//!
//! Every pair of ranks keeps a TCP connection, which identifies ranks, shows which are alive, and carries the reason
//! for the end of a group. The frames of a pair are carried by its transport: `tcp` uses that connection, `ucx` and
//! `shared_memory` do not. The core (`core`, `outbox`, `mailbox`, `inbound`, `thread`) knows the `Transport` trait
//! only; `connect` is the only file that names the transports, and `limits` has all numbers.
//!
//! If the ranks have credentials, their connections are TLS 1.3 (`secure`, `tls`), and so are further ones between them
//! (`streams`).
//!
//! Source: the design of Gloo's unbound buffers (tagged messages, full mesh). Differs: bounded memory at the receiver,
//! errors that name the rank, no connection on first use.

mod connect;
mod connection;
mod core;
mod error;
mod events;
mod frame;
pub(crate) mod fuzzing;
mod handle;
mod hello;
mod in_order;
mod inbound;
mod limits;
mod mailbox;
mod outbox;
mod poll;
mod receive;
mod revocations;
mod roster;
mod seats;
mod secure;
mod shared_memory;
mod streams;
mod tcp;
mod thread;
mod tls;
mod transport;
mod ucx;

pub use connect::Listener;
pub use error::MeshError;
pub use events::Events;
pub use frame::{Channel, Key};
pub use handle::{Mesh, Outgoing, Receive};
pub use outbox::{OnSent, Payload};
pub use receive::{OnReceived, Received, Target, Wanted};
pub use roster::{Network, Occupant, Roster, SECRET_LEN, Seat};
pub use shared_memory::Rings;
pub use streams::{Answering, Streams};

#[cfg(test)]
mod secure_tests;
#[cfg(test)]
pub(crate) mod streams_tests;
#[cfg(test)]
mod tests;
