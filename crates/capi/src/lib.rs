//! NCCL's C interface for buffers in host memory: `libnetsum_nccl.so`, with `include/nccl.h`.
//!
//! Owns: NCCL's names and semantics (groups of calls, unique ids, windows), and C pointers. Must not know: algorithms,
//! sockets. Every call catches panics; a communicator's handle is a number and never dereferenced. Start reading at
//! [`operations`], then `group_call` (order of execution), `comm` (connecting ranks) and `members` (from one
//! communicator to the next).

#![allow(unsafe_code)]

#[macro_use]
mod exported;

pub mod changes;
mod comm;
pub mod communicators;
mod config;
pub mod configured;
mod group_call;
mod handle;
mod members;
mod memory;
pub mod one_sided;
pub mod operations;
pub mod parameters;
mod pointers;
mod result;
mod signalling;
mod signals;
mod unique_id;
mod windows;
