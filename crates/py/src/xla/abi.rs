//! The part of XLA's C foreign function interface that a handler needs.
//!
//! Source: xla/ffi/api/c_api.h, version 0.3 (in JAX's package under jaxlib/include). Structures only grow at their
//! ends, and each begins with its size; the members here are those that every version has.

use std::ffi::{c_char, c_int, c_void};

pub(super) const VERSION: (c_int, c_int) = (0, 3);
pub(super) const EXTENSION_METADATA: c_int = 1;
pub(super) const STAGE_EXECUTE: c_int = 3;
pub(super) const TYPE_TOKEN: c_int = 17;
pub(super) const TYPE_S64: c_int = 5;
pub(super) const ATTRIBUTE_SCALAR: c_int = 3;
pub(super) const ERROR_INTERNAL: c_int = 13;

#[repr(C)]
pub(super) struct Extension {
    pub(super) struct_size: usize,
    pub(super) kind: c_int,
    pub(super) next: *mut Extension,
}

#[repr(C)]
pub(super) struct ApiVersion {
    struct_size: usize,
    extension: *mut Extension,
    pub(super) major: c_int,
    pub(super) minor: c_int,
}

#[repr(C)]
pub(super) struct Metadata {
    struct_size: usize,
    pub(super) api_version: ApiVersion,
    pub(super) traits: u32,
}

#[repr(C)]
pub(super) struct MetadataExtension {
    base: Extension,
    pub(super) metadata: *mut Metadata,
}

#[repr(C)]
pub(super) struct ErrorCreate {
    pub(super) struct_size: usize,
    pub(super) extension: *mut Extension,
    pub(super) message: *const c_char,
    pub(super) code: c_int,
}

#[repr(C)]
pub(super) struct Api {
    struct_size: usize,
    extension: *mut Extension,
    api_version: ApiVersion,
    internal: *const c_void,
    pub(super) error_create: unsafe extern "C" fn(*mut ErrorCreate) -> *mut c_void,
}

#[repr(C)]
pub(super) struct Buffer {
    struct_size: usize,
    extension: *mut Extension,
    pub(super) dtype: c_int,
    pub(super) data: *mut c_void,
    pub(super) rank: i64,
    pub(super) dims: *mut i64,
}

/// Arguments, and results: kinds (all are buffers) and pointers.
#[repr(C)]
pub(super) struct Buffers {
    struct_size: usize,
    extension: *mut Extension,
    pub(super) size: i64,
    kinds: *mut c_int,
    pub(super) items: *mut *mut Buffer,
}

#[repr(C)]
pub(super) struct ByteSpan {
    pub(super) start: *const u8,
    pub(super) len: usize,
}

#[repr(C)]
pub(super) struct Scalar {
    pub(super) dtype: c_int,
    pub(super) value: *const c_void,
}

#[repr(C)]
pub(super) struct Attributes {
    struct_size: usize,
    extension: *mut Extension,
    pub(super) size: i64,
    pub(super) kinds: *mut c_int,
    pub(super) names: *mut *mut ByteSpan,
    pub(super) values: *mut *mut c_void,
}

#[repr(C)]
pub(super) struct CallFrame {
    struct_size: usize,
    pub(super) extension: *mut Extension,
    pub(super) api: *const Api,
    context: *mut c_void,
    pub(super) stage: c_int,
    pub(super) arguments: Buffers,
    pub(super) results: Buffers,
    pub(super) attributes: Attributes,
}
