//! NCCL's network plug-in, `libnccl-net-netsum.so`: sums in netsum's switches for NCCL's CollNet algorithms, and the
//! messages of its other algorithms over TCP. It is NCCL's tuner, too, which says when CollNet pays, and its profiler.
//!
//! Owns: NCCL's plug-in structures of every version, C pointers of NCCL, the order in which NCCL's proxy threads call,
//! messages between two ranks ([`point`]). Must not know: algorithms, packets of switches. A communicator of CollNet is
//! a group of `netsum-collective`. Every call catches panics, and handles are numbers that are never dereferenced.
//! Start reading at [`interface`], then `collnet` (communicators) and [`point`].

#![allow(unsafe_code)]

mod call;
mod collnet;
mod collnet_calls;
mod device;
mod device_calls;
mod handles;
pub mod interface;
mod log;
pub mod plugin;
mod point;
mod point_calls;
mod pointers;
mod profiler;
mod profiler_calls;
mod tuner;
