//! NCCL's plug-in structures, version by version, and the types of their functions.
//!
//! Source: `src/include/plugin/net/net_v8.h` to `net_v12.h` of NCCL 2.30.7; `tests/layouts.txt` has what a C++ compiler
//! says about them.

mod collnet;
mod net;
mod profiler;
mod properties;
mod tuner;

pub use tuner::{NvlinkDomains, TunerV3, TunerV4, TunerV5, TunerV6};

use std::ffi::{c_char, c_int, c_ulong, c_void};

pub use collnet::{CollNetV8, CollNetV9, CollNetV11, CollNetV12, PartV8, PartV9};
pub use net::{CommAttributes, NetAttributes, NetV8, NetV9, NetV10, NetV11, NetV12};
pub use profiler::{
    Collective as ProfiledCollective, Event, Message as ProfiledMessage, OfKind, ProfilerV4,
    ProfilerV5,
};
pub use properties::{
    PropertiesV8, PropertiesV9, PropertiesV11, PropertiesV12, VirtualDeviceV9, VirtualDeviceV12,
};

/// `ncclResult_t`.
pub type Code = c_int;
/// A handle that the plug-in gives to NCCL: a number that looks like a pointer.
pub type Handle = usize;

/// `ncclDebugLogger_t`: level, subsystems, file, line, format, arguments.
pub type Logger = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);
/// `ncclProfilerCallback_t`.
pub type Profiler =
    unsafe extern "C" fn(*mut *mut c_void, c_int, *mut c_void, i64, *mut c_void) -> Code;

/// `ncclNetCommConfig_t`, since v10.
#[repr(C)]
pub struct CommConfig {
    /// Class of the communicator's traffic, or -1.
    pub traffic_class: c_int,
}

// The functions that several versions share.
pub(crate) type InitV8 = extern "C" fn(Option<Logger>) -> Code;
pub(crate) type Devices = extern "C" fn(*mut c_int) -> Code;
pub(crate) type GetProperties<P> = extern "C" fn(c_int, *mut P) -> Code;
pub(crate) type ListenV8 = extern "C" fn(c_int, *mut c_void, *mut Handle) -> Code;
pub(crate) type ListenV11 = extern "C" fn(*mut c_void, c_int, *mut c_void, *mut Handle) -> Code;
pub(crate) type Register = extern "C" fn(Handle, *mut c_void, usize, c_int, *mut Handle) -> Code;
pub(crate) type RegisterDmaBuf =
    extern "C" fn(Handle, *mut c_void, usize, c_int, u64, c_int, *mut Handle) -> Code;
pub(crate) type Deregister = extern "C" fn(Handle, Handle) -> Code;
pub(crate) type Test = extern "C" fn(Handle, *mut c_int, *mut c_int) -> Code;
pub(crate) type Close = extern "C" fn(Handle) -> Code;
pub(crate) type Finalize = extern "C" fn(*mut c_void) -> Code;
/// Virtual devices: NCCL makes none where this is NULL.
pub(crate) type MakeVirtualDevice<V> = Option<extern "C" fn(*mut c_int, *mut V) -> Code>;
