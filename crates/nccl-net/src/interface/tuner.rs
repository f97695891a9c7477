//! `ncclTuner_v3_t` to `ncclTuner_v6_t`: what an algorithm of NCCL costs.
//!
//! Source: `src/include/plugin/tuner/tuner_v3.h` to `tuner_v6.h` of NCCL 2.30.7.

use std::ffi::{c_char, c_int, c_void};

use super::{Code, Handle, Logger};

/// `ncclNvlDomainInfo_v5_t`.
#[repr(C)]
pub struct NvlinkDomains {
    /// Number of domains.
    pub domains: c_int,
    /// Ranks of the smallest.
    pub ranks_min: c_int,
    /// Ranks of the largest.
    pub ranks_max: c_int,
}

/// Context, ranks, nodes, logger.
pub(crate) type InitV3 = extern "C" fn(usize, usize, Option<Logger>, *mut Handle) -> Code;
/// Context, communicator, ranks, nodes, logger, domains of NVLink, constants of NCCL's own model.
pub(crate) type InitV5 = extern "C" fn(
    *mut Handle,
    u64,
    usize,
    usize,
    Option<Logger>,
    *mut NvlinkDomains,
    *mut c_void,
) -> Code;
/// Context, collective, bytes, operations of the group, costs, algorithms, protocols, channels.
pub(crate) type CostsV3 =
    extern "C" fn(Handle, c_int, usize, c_int, *mut *mut f32, c_int, c_int, *mut c_int) -> Code;
/// Likewise, and whether the user's buffer can be registered.
pub(crate) type CostsV4 = extern "C" fn(
    Handle,
    c_int,
    usize,
    c_int,
    *mut *mut f32,
    c_int,
    c_int,
    c_int,
    *mut c_int,
) -> Code;
pub(crate) type Destroy = extern "C" fn(Handle) -> Code;
pub(crate) type ChunkSize =
    Option<extern "C" fn(Handle, c_int, usize, c_int, c_int, c_int, *mut usize) -> Code>;

macro_rules! tuner {
    ($(#[$doc:meta])* $name:ident, $init:ty, $costs:ty $(, $field:ident: $kind:ty)*) => {
        $(#[$doc])*
        #[repr(C)]
        #[allow(missing_docs)] // NCCL's headers describe the functions; `tuner` implements them.
        pub struct $name {
            pub name: *const c_char,
            pub init: $init,
            pub get_coll_info: $costs,
            pub finalize: Destroy,
            $(pub $field: $kind,)*
        }

        // SAFETY: a constant of function pointers and a static string.
        unsafe impl Sync for $name {}
    };
}

tuner!(
    /// `ncclTuner_v3_t`.
    TunerV3, InitV3, CostsV3
);
tuner!(
    /// `ncclTuner_v4_t`.
    TunerV4, InitV3, CostsV4
);
tuner!(
    /// `ncclTuner_v5_t`.
    TunerV5, InitV5, CostsV4
);
tuner!(
    /// `ncclTuner_v6_t`.
    TunerV6, InitV5, CostsV4, get_chunk_size: ChunkSize
);
