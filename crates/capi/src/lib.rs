//! NCCL's C interface for buffers in host memory: `libnetsum_nccl.so`, with `include/nccl.h`.
//!
//! Owns: NCCL's names and semantics (groups of calls, unique ids), and C pointers. Must not know: algorithms, sockets. Every call catches panics; a communicator's handle is a number and never dereferenced. Start
//! reading at [`operations`], then `group_call` (order of execution) and `comm` (connecting ranks).

#![allow(unsafe_code)]

mod comm;
mod communicators;
mod group_call;
pub mod operations;
mod pointers;
mod result;
mod unique_id;
