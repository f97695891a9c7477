//! C functions about the device, shared by both interfaces: properties and memory.

use std::ffi::{c_int, c_void};

use netsum_nccl_core::Failure;
use std::sync::Arc;

use crate::call::call;
use crate::device;
use crate::handles::Table;
use crate::interface::{
    Code, Handle, PropertiesV8, PropertiesV9, PropertiesV11, PropertiesV12, VirtualDeviceV9,
    VirtualDeviceV12,
};
use crate::pointers::write;

/// Memory that NCCL registered. Sockets need no registration: it only must be the host's.
struct Registered;

static MEMORY: Table<Registered> = Table::new("registration");

macro_rules! get_properties {
    ($function:ident, $name:ident $(, $field:ident = $value:expr)*) => {
        pub(crate) extern "C" fn $function(dev: c_int, props: *mut $name) -> Code {
            call("getProperties", || {
                let device = device::check(dev)?;
                let properties = $name {
                    name: device.name.as_ptr(),
                    pci_path: device.pci_path(),
                    guid: 0,
                    ptr_support: HOST_MEMORY,
                    reg_is_global: 0,
                    speed: device.speed_mbps,
                    port: 0,
                    latency: 0.0,
                    max_comms: MAX_COMMS,
                    max_recvs: 1,
                    net_device_type: 0,
                    net_device_version: 0,
                    $($field: $value,)*
                };
                write(props, properties, "props")
            })
        }
    };
}

get_properties!(get_properties_v8, PropertiesV8);
get_properties!(
    get_properties_v9,
    PropertiesV9,
    force_flush = 0,
    v_props = VirtualDeviceV9 { ndevs: 1, devs: [0; 4] },
    max_p2p_bytes = MAX_BYTES,
    max_coll_bytes = MAX_BYTES
);
get_properties!(
    get_properties_v11,
    PropertiesV11,
    force_flush = 0,
    v_props = VirtualDeviceV9 { ndevs: 1, devs: [0; 4] },
    max_p2p_bytes = MAX_BYTES,
    max_coll_bytes = MAX_BYTES,
    max_multi_request_size = 1
);
get_properties!(
    get_properties_v12,
    PropertiesV12,
    force_flush = 0,
    v_props = VirtualDeviceV12 { ndevs: 1, devs: [0; 8] },
    max_p2p_bytes = MAX_BYTES,
    max_coll_bytes = MAX_BYTES,
    max_multi_request_size = 1,
    rail_id = UNDEFINED,
    plane_id = UNDEFINED
);

pub(crate) extern "C" fn register(
    _comm: Handle,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    mhandle: *mut Handle,
) -> Code {
    call("regMr", || {
        if kind != HOST_MEMORY {
            let words =
                format!("memory of type {kind} at {data:p} ({size} bytes) is not the host's");
            return Err(Failure::argument(words));
        }
        write(mhandle, MEMORY.add(Arc::new(Registered)), "mhandle")
    })
}

pub(crate) extern "C" fn register_dma_buf(
    _comm: Handle,
    _data: *mut c_void,
    _size: usize,
    _kind: c_int,
    _offset: u64,
    _fd: c_int,
    mhandle: *mut Handle,
) -> Code {
    call("regMrDmaBuf", || {
        write(mhandle, 0, "mhandle")?;
        Err(Failure::argument(
            "memory of a device cannot be registered: sockets send from the host's memory alone, which NCCL stages it in",
        ))
    })
}

pub(crate) extern "C" fn deregister(_comm: Handle, mhandle: Handle) -> Code {
    call("deregMr", || MEMORY.remove(mhandle).map(|_| ()))
}

pub(crate) extern "C" fn finalize(_context: *mut c_void) -> Code {
    call("finalize", || Ok(()))
}

/// `NCCL_PTR_HOST`.
const HOST_MEMORY: c_int = 1;
/// The longest message and the largest collective, 1 GiB: what `test` reports as an int.
pub(crate) const MAX_BYTES: usize = 1 << 30;
/// As of NCCL's own sockets.
const MAX_COMMS: c_int = 65_536;
/// `NCCL_NET_ID_UNDEF`.
const UNDEFINED: i16 = -1;
