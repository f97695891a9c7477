//! C functions of collectives with a configuration of their own: it is checked, and changes nothing that netsum does.

use std::ffi::{c_int, c_void};

use netsum_nccl_core::{Code, SUCCESS};

use crate::comm::Handle;
use crate::config::{RawCollConfig, check_collective};
use crate::operations::*;
use crate::result::call;

/// Functions that check the configuration and call the one without it.
macro_rules! configured {
    ($($profiled:literal $name:ident = $plain:ident($($argument:ident: $kind:ty),*);)*) => {
        exported! {$(
            /// The collective without `Config` in its name, after a check of the configuration.
            #[allow(clippy::too_many_arguments)] // NCCL's signature.
            $profiled fn $name($($argument: $kind,)* config: *const RawCollConfig) -> Code {
                match call(|| check_collective(config)) {
                    SUCCESS => $plain($($argument),*),
                    code => code,
                }
            }
        )*}
    };
}

configured! {
    "pncclAllReduceConfig" ncclAllReduceConfig = ncclAllReduce(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: c_int, op: c_int,
        comm: Handle, stream: *mut c_void
    );
    "pncclBroadcastConfig" ncclBroadcastConfig = ncclBroadcast(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: c_int, root: c_int,
        comm: Handle, stream: *mut c_void
    );
    "pncclReduceConfig" ncclReduceConfig = ncclReduce(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: c_int, op: c_int,
        root: c_int, comm: Handle, stream: *mut c_void
    );
    "pncclAllGatherConfig" ncclAllGatherConfig = ncclAllGather(
        sendbuff: *const c_void, recvbuff: *mut c_void, sendcount: usize, datatype: c_int,
        comm: Handle, stream: *mut c_void
    );
    "pncclReduceScatterConfig" ncclReduceScatterConfig = ncclReduceScatter(
        sendbuff: *const c_void, recvbuff: *mut c_void, recvcount: usize, datatype: c_int,
        op: c_int, comm: Handle, stream: *mut c_void
    );
    "pncclAlltoAllConfig" ncclAlltoAllConfig = ncclAlltoAll(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: c_int,
        comm: Handle, stream: *mut c_void
    );
    "pncclGatherConfig" ncclGatherConfig = ncclGather(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: c_int, root: c_int,
        comm: Handle, stream: *mut c_void
    );
    "pncclScatterConfig" ncclScatterConfig = ncclScatter(
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: c_int, root: c_int,
        comm: Handle, stream: *mut c_void
    );
}
