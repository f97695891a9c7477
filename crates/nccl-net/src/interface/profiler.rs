//! `ncclProfiler_v4_t` to `ncclProfiler_v7_t`: what NCCL does when.
//!
//! Source: `src/include/plugin/profiler/profiler_v4.h` to `profiler_v6.h` of NCCL 2.30.7, and for v7 the debug symbols
//! of NCCL 2.32.3. Of an event only the members at the begin of its kinds are read, which have the same offsets in all
//! of these versions.

use std::ffi::{c_char, c_int, c_void};

use super::{Code, Handle, Logger};

/// The begin of `ncclProfilerEventDescr_vN_t`. Of the kind, v4 has one byte, and seven that mean nothing.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Event {
    /// One bit of `ncclProfile…`.
    pub kind: u64,
    /// What this is a part of.
    pub parent: Handle,
    /// Rank that it is about.
    pub rank: c_int,
    /// What the kind says.
    pub of: OfKind,
}

/// The members of a kind, as far as they are read.
#[repr(C)]
#[derive(Clone, Copy)]
pub union OfKind {
    /// `ncclProfileColl`.
    pub collective: Collective,
    /// `ncclProfileP2p`.
    pub message: Message,
}

/// A collective.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)] // NCCL's header describes them.
pub struct Collective {
    pub sequence: u64,
    pub function: *const c_char,
    pub send: *const c_void,
    pub receive: *mut c_void,
    pub count: usize,
    pub root: c_int,
    pub datatype: *const c_char,
    pub channels: u8,
    pub warps: u8,
    pub algorithm: *const c_char,
    pub protocol: *const c_char,
}

/// A message.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)] // NCCL's header describes them.
pub struct Message {
    pub function: *const c_char,
    pub memory: *mut c_void,
    pub datatype: *const c_char,
    pub count: usize,
    pub peer: c_int,
}

/// Context, kinds of events, name, communicator, nodes, ranks, rank, logger.
pub(crate) type InitV4 = extern "C" fn(
    *mut Handle,
    *mut c_int,
    *const c_char,
    u64,
    c_int,
    c_int,
    c_int,
    Option<Logger>,
) -> Code;
/// Context, communicator, kinds of events, name, nodes, ranks, rank, logger.
pub(crate) type InitV5 = extern "C" fn(
    *mut Handle,
    u64,
    *mut c_int,
    *const c_char,
    c_int,
    c_int,
    c_int,
    Option<Logger>,
) -> Code;

macro_rules! profiler {
    ($(#[$doc:meta])* $name:ident, $init:ty) => {
        $(#[$doc])*
        #[repr(C)]
        #[allow(missing_docs)] // NCCL's headers describe the functions; `profiler_calls` implements them.
        pub struct $name {
            pub name: *const c_char,
            pub init: $init,
            pub start_event: extern "C" fn(Handle, *mut Handle, *const c_void) -> Code,
            pub stop_event: extern "C" fn(Handle) -> Code,
            pub record_event_state: extern "C" fn(Handle, c_int, *mut c_void) -> Code,
            pub finalize: extern "C" fn(Handle) -> Code,
        }

        // SAFETY: a constant of function pointers and a static string.
        unsafe impl Sync for $name {}
    };
}

profiler!(
    /// `ncclProfiler_v4_t`.
    ProfilerV4, InitV4
);
profiler!(
    /// `ncclProfiler_v5_t` to `ncclProfiler_v7_t`.
    ProfilerV5, InitV5
);
