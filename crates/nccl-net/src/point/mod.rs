//! Messages from one rank to another over TCP, for NCCL's own algorithms.
//!
//! A connection goes in one direction, as NCCL's do. Nothing blocks, and there are no threads: every call of NCCL moves
//! what can be moved. The sender begins with the token of the receiver's handle, so that a stranger's connection is
//! closed. With credentials it is TLS, and the peer is a worker of the same fabric.

mod endpoint;
mod line;
mod listener;
mod queue;

pub(crate) use endpoint::{Endpoint, Message};
pub(crate) use listener::{Connecting, PointListener};
