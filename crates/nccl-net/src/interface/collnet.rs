//! `ncclCollNet_v8_t` to `ncclCollNet_v12_t`: collectives in the network.

use std::ffi::{c_char, c_int, c_void};

use super::{
    Close, Code, Deregister, Devices, Finalize, GetProperties, Handle, InitV8, ListenV8, ListenV11,
    Logger, MakeVirtualDevice, PropertiesV8, PropertiesV9, PropertiesV11, PropertiesV12, Register,
    RegisterDmaBuf, Test, VirtualDeviceV9, VirtualDeviceV12,
};

/// `ncclNetSGE_v8_t`: a part of the memory of all ranks.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PartV8 {
    /// Its registration.
    pub mhandle: Handle,
    /// First byte.
    pub address: *mut c_void,
    /// Bytes.
    pub size: u32,
}

/// `ncclNetSGE_v9_t` to `ncclNetSGE_v12_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PartV9 {
    /// Its registration.
    pub mhandle: Handle,
    /// First byte.
    pub address: *mut c_void,
    /// Bytes.
    pub size: usize,
}

pub(crate) type Connect =
    extern "C" fn(*mut *mut c_void, c_int, c_int, Handle, *mut Handle) -> Code;
pub(crate) type ReduceSupport = extern "C" fn(c_int, c_int, *mut c_int) -> Code;
/// Communicator, send and receive memory, count, type, operation, their registrations, request.
pub(crate) type Allreduce<N> = extern "C" fn(
    Handle,
    *mut c_void,
    *mut c_void,
    N,
    c_int,
    c_int,
    Handle,
    Handle,
    *mut Handle,
) -> Code;
/// Communicator, send memory, parts of the result, bytes of a rank, offset and bytes of the window, registration,
/// request.
pub(crate) type Allgather<P> = extern "C" fn(
    Handle,
    *mut c_void,
    c_int,
    *mut P,
    usize,
    usize,
    usize,
    Handle,
    *mut Handle,
) -> Code;
/// Communicator, parts of the input, receive memory, bytes of a rank, offset and bytes of the window, type, operation,
/// registration, request.
pub(crate) type ReduceScatter<P> = extern "C" fn(
    Handle,
    c_int,
    *mut P,
    *mut c_void,
    usize,
    usize,
    usize,
    c_int,
    c_int,
    Handle,
    *mut Handle,
) -> Code;
pub(crate) type Flush = extern "C" fn(Handle, *mut c_void, c_int, Handle, *mut Handle) -> Code;
pub(crate) type InitV11 = extern "C" fn(*mut *mut c_void, u64, Option<Logger>) -> Code;

macro_rules! collnet {
    (
        $(#[$doc:meta])* $name:ident, $init:ty, $properties:ty, $listen:ty, $count:ty, $part:ty
        $(, $field:ident: $kind:ty)*
    ) => {
        $(#[$doc])*
        #[repr(C)]
        #[allow(missing_docs)] // NCCL's headers describe the functions; `collnet_calls` implements them.
        pub struct $name {
            pub name: *const c_char,
            pub init: $init,
            pub devices: Devices,
            pub get_properties: GetProperties<$properties>,
            pub listen: $listen,
            pub connect: Connect,
            pub reduce_support: ReduceSupport,
            pub reg_mr: Register,
            pub reg_mr_dma_buf: RegisterDmaBuf,
            pub dereg_mr: Deregister,
            pub iallreduce: Allreduce<$count>,
            pub iallgather: Allgather<$part>,
            pub ireducescatter: ReduceScatter<$part>,
            pub iflush: Flush,
            pub test: Test,
            pub close_coll: Close,
            pub close_listen: Close,
            $(pub $field: $kind,)*
        }

        // SAFETY: a constant of function pointers and a static string.
        unsafe impl Sync for $name {}
    };
}

collnet!(
    /// `ncclCollNet_v8_t`.
    CollNetV8, InitV8, PropertiesV8, ListenV8, c_int, PartV8
);
collnet!(
    /// `ncclCollNet_v9_t` and `ncclCollNet_v10_t`.
    CollNetV9, InitV8, PropertiesV9, ListenV8, usize, PartV9,
    make_v_device: MakeVirtualDevice<VirtualDeviceV9>
);
collnet!(
    /// `ncclCollNet_v11_t`.
    CollNetV11, InitV11, PropertiesV11, ListenV11, usize, PartV9,
    make_v_device: MakeVirtualDevice<VirtualDeviceV9>, finalize: Finalize
);
collnet!(
    /// `ncclCollNet_v12_t`.
    CollNetV12, InitV11, PropertiesV12, ListenV11, usize, PartV9,
    make_v_device: MakeVirtualDevice<VirtualDeviceV12>, finalize: Finalize
);
