//! Properties of a device.

use std::ffi::{c_char, c_int};

macro_rules! properties {
    ($(#[$doc:meta])* $name:ident { $($flush:ident)? } { $($field:ident: $kind:ty = $words:literal,)* }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            /// Name, a C string.
            pub name: *const c_char,
            /// The device's folder in /sys, a C string; NULL: none.
            pub pci_path: *const c_char,
            /// Number of the adapter, equal for its ports.
            pub guid: u64,
            /// Kinds of memory: 1 host, 2 CUDA, 4 DMA-BUF.
            pub ptr_support: c_int,
            /// Whether registrations hold for all communicators.
            pub reg_is_global: c_int,
            $(
                /// Whether every receive needs a flush.
                pub $flush: c_int,
            )?
            /// Megabits per second.
            pub speed: c_int,
            /// Port of the adapter.
            pub port: c_int,
            /// Microseconds.
            pub latency: f32,
            /// Maximum number of communicators.
            pub max_comms: c_int,
            /// Maximum number of receives in one call.
            pub max_recvs: c_int,
            /// 0: the host's processor does the work.
            pub net_device_type: c_int,
            /// Version of the offload, 0 without.
            pub net_device_version: c_int,
            $(
                #[doc = $words]
                pub $field: $kind,
            )*
        }
    };
}

properties!(
    /// `ncclNetProperties_v8_t`.
    PropertiesV8 {} {}
);
properties!(
    /// `ncclNetProperties_v9_t` and `ncclNetProperties_v10_t`.
    PropertiesV9 { force_flush } {
        v_props: VirtualDeviceV9 = "The devices of which this one is made.",
        max_p2p_bytes: usize = "Bytes of the longest message.",
        max_coll_bytes: usize = "Bytes of the largest collective.",
    }
);
properties!(
    /// `ncclNetProperties_v11_t`.
    PropertiesV11 { force_flush } {
        v_props: VirtualDeviceV9 = "The devices of which this one is made.",
        max_p2p_bytes: usize = "Bytes of the longest message.",
        max_coll_bytes: usize = "Bytes of the largest collective.",
        max_multi_request_size: c_int = "Requests in one multi-request.",
    }
);
properties!(
    /// `ncclNetProperties_v12_t`.
    PropertiesV12 { force_flush } {
        v_props: VirtualDeviceV12 = "The devices of which this one is made.",
        max_p2p_bytes: usize = "Bytes of the longest message.",
        max_coll_bytes: usize = "Bytes of the largest collective.",
        max_multi_request_size: c_int = "Requests in one multi-request.",
        rail_id: i16 = "The device's rail, or -1.",
        plane_id: i16 = "The device's plane, or -1.",
    }
);

/// `ncclNetVDeviceProps_v9_t` to `ncclNetVDeviceProps_v11_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VirtualDeviceV9 {
    /// Number of devices.
    pub ndevs: c_int,
    /// Their indices.
    pub devs: [c_int; 4],
}

/// `ncclNetVDeviceProps_v12_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VirtualDeviceV12 {
    /// Number of devices.
    pub ndevs: c_int,
    /// Their indices.
    pub devs: [c_int; 8],
}
