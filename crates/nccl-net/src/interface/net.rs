//! `ncclNet_v8_t` to `ncclNet_v12_t`: messages from one rank to another.

use std::ffi::{c_char, c_int, c_void};

use super::{
    Close, Code, CommConfig, Deregister, Devices, Finalize, GetProperties, Handle, InitV8,
    ListenV8, ListenV11, Logger, MakeVirtualDevice, Profiler, PropertiesV8, PropertiesV9,
    PropertiesV11, PropertiesV12, Register, RegisterDmaBuf, Test, VirtualDeviceV9,
    VirtualDeviceV12,
};

/// `ncclNetCommAttr_v11_t` and `ncclNetCommAttr_v12_t`.
#[repr(C)]
#[allow(missing_docs)] // Hints of NCCL about a communicator, without effect here.
pub struct CommAttributes {
    pub max_concurrent_peers: i32,
    pub min_concurrent_peers: i32,
    pub max_flows_per_peer: i32,
    pub min_flows_per_peer: i32,
}

/// `ncclNetAttr_v11_t` and `ncclNetAttr_v12_t`.
#[repr(C)]
#[allow(missing_docs)] // As above.
pub struct NetAttributes {
    pub send_comm_attr: CommAttributes,
    pub recv_comm_attr: CommAttributes,
    pub op: u32,
    pub algo: u32,
    pub proto: u32,
}

pub(crate) type InitV10 = extern "C" fn(Option<Logger>, Option<Profiler>) -> Code;
pub(crate) type InitV11 =
    extern "C" fn(*mut *mut c_void, u64, *mut CommConfig, Option<Logger>, Option<Profiler>) -> Code;
pub(crate) type ConnectV8 =
    extern "C" fn(c_int, *mut c_void, *mut Handle, *mut *mut c_void) -> Code;
pub(crate) type ConnectV10 =
    extern "C" fn(c_int, *mut CommConfig, *mut c_void, *mut Handle, *mut *mut c_void) -> Code;
pub(crate) type ConnectV11 =
    extern "C" fn(*mut c_void, c_int, *mut c_void, *mut Handle, *mut *mut c_void) -> Code;
pub(crate) type Accept = extern "C" fn(Handle, *mut Handle, *mut *mut c_void) -> Code;
/// Connection, memory, bytes, tag, registration, request.
pub(crate) type SendV8<N> =
    extern "C" fn(Handle, *mut c_void, N, c_int, Handle, *mut Handle) -> Code;
/// The same with a handle for the profiler.
pub(crate) type SendV10 =
    extern "C" fn(Handle, *mut c_void, usize, c_int, Handle, *mut c_void, *mut Handle) -> Code;
/// Connection, number of receives, memories, bytes, tags, registrations, request.
pub(crate) type ReceiveV8<N> = extern "C" fn(
    Handle,
    c_int,
    *mut *mut c_void,
    *mut N,
    *mut c_int,
    *mut Handle,
    *mut Handle,
) -> Code;
/// The same with handles for the profiler.
pub(crate) type ReceiveV10 = extern "C" fn(
    Handle,
    c_int,
    *mut *mut c_void,
    *mut usize,
    *mut c_int,
    *mut Handle,
    *mut *mut c_void,
    *mut Handle,
) -> Code;
pub(crate) type Flush =
    extern "C" fn(Handle, c_int, *mut *mut c_void, *mut c_int, *mut Handle, *mut Handle) -> Code;
pub(crate) type GetDeviceMr = extern "C" fn(Handle, Handle, *mut *mut c_void) -> Code;
pub(crate) type ReceiveConsumed = extern "C" fn(Handle, c_int, Handle) -> Code;
pub(crate) type SetAttributes = extern "C" fn(*mut c_void, *mut NetAttributes) -> Code;

macro_rules! net {
    (
        $(#[$doc:meta])* $name:ident, $init:ty, $properties:ty, $listen:ty, $connect:ty, $send:ty, $receive:ty
        $(, $field:ident: $kind:ty)*
    ) => {
        $(#[$doc])*
        #[repr(C)]
        #[allow(missing_docs)] // NCCL's headers describe the functions; `point_calls` implements them.
        pub struct $name {
            pub name: *const c_char,
            pub init: $init,
            pub devices: Devices,
            pub get_properties: GetProperties<$properties>,
            pub listen: $listen,
            pub connect: $connect,
            pub accept: Accept,
            pub reg_mr: Register,
            pub reg_mr_dma_buf: RegisterDmaBuf,
            pub dereg_mr: Deregister,
            pub isend: $send,
            pub irecv: $receive,
            pub iflush: Flush,
            pub test: Test,
            pub close_send: Close,
            pub close_recv: Close,
            pub close_listen: Close,
            pub get_device_mr: GetDeviceMr,
            pub irecv_consumed: ReceiveConsumed,
            $(pub $field: $kind,)*
        }

        // SAFETY: a constant of function pointers and a static string.
        unsafe impl Sync for $name {}
    };
}

net!(
    /// `ncclNet_v8_t`.
    NetV8, InitV8, PropertiesV8, ListenV8, ConnectV8, SendV8<c_int>, ReceiveV8<c_int>
);
net!(
    /// `ncclNet_v9_t`.
    NetV9, InitV8, PropertiesV9, ListenV8, ConnectV8, SendV8<usize>, ReceiveV8<usize>,
    make_v_device: MakeVirtualDevice<VirtualDeviceV9>
);
net!(
    /// `ncclNet_v10_t`.
    NetV10, InitV10, PropertiesV9, ListenV8, ConnectV10, SendV10, ReceiveV10,
    make_v_device: MakeVirtualDevice<VirtualDeviceV9>
);
net!(
    /// `ncclNet_v11_t`.
    NetV11, InitV11, PropertiesV11, ListenV11, ConnectV11, SendV10, ReceiveV10,
    make_v_device: MakeVirtualDevice<VirtualDeviceV9>, finalize: Finalize, set_net_attr: SetAttributes
);
net!(
    /// `ncclNet_v12_t`.
    NetV12, InitV11, PropertiesV12, ListenV11, ConnectV11, SendV10, ReceiveV10,
    make_v_device: MakeVirtualDevice<VirtualDeviceV12>, finalize: Finalize, set_net_attr: SetAttributes
);
