//! The part of UCX's C interface that is used (`ucp/api/ucp.h` of 1.13, whose types grow at their ends behind field
//! masks), loaded from the library at run time: building needs nothing of UCX.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::{align_of, offset_of, size_of};
use std::sync::OnceLock;

use super::UcxError;

/// `ucs_status_t`: one byte, negative for errors.
pub(super) type Status = i8;

pub(super) const OK: Status = 0;
pub(super) const IN_PROGRESS: Status = 1;
pub(super) const UNREACHABLE: Status = -6;
pub(super) const CANCELED: Status = -16;

/// `ucp_params_t`.
#[repr(C)]
pub(super) struct Params {
    pub(super) field_mask: u64,
    pub(super) features: u64,
    rest: [u64; 8],
}

impl Params {
    pub(super) fn new(features: u64) -> Params {
        const FIELD_FEATURES: u64 = 1;
        Params { field_mask: FIELD_FEATURES, features, rest: [0; 8] }
    }
}

pub(super) const FEATURE_WAKEUP: u64 = 1 << 4;
pub(super) const FEATURE_AM: u64 = 1 << 6;

/// `ucp_worker_params_t`.
#[repr(C)]
pub(super) struct WorkerParams {
    field_mask: u64,
    thread_mode: c_int,
    rest: [u64; 23],
}

impl WorkerParams {
    /// Parameters of a worker that several threads use, one at a time.
    pub(super) fn serialized() -> WorkerParams {
        const FIELD_THREAD_MODE: u64 = 1;
        const THREAD_MODE_SERIALIZED: c_int = 1;
        let thread_mode = THREAD_MODE_SERIALIZED;
        WorkerParams { field_mask: FIELD_THREAD_MODE, thread_mode, rest: [0; 23] }
    }
}

/// `ucp_ep_params_t`.
#[repr(C)]
pub(super) struct EndpointParams {
    field_mask: u64,
    address: *const c_void,
    mode: c_int,
    on_error: OnError,
    argument: *mut c_void,
    rest: [u64; 8],
}

impl EndpointParams {
    /// Parameters of an endpoint to the worker with that address. With `on_error` every request completes even if the
    /// peer dies.
    pub(super) fn to(
        address: *const c_void,
        on_error: Option<OnError>,
        argument: *mut c_void,
    ) -> EndpointParams {
        const FIELD_REMOTE_ADDRESS: u64 = 1;
        const FIELD_ERR_HANDLING_MODE: u64 = 1 << 1;
        const FIELD_ERR_HANDLER: u64 = 1 << 2;
        const ERR_HANDLING_MODE_PEER: c_int = 1;
        let (fields, mode) = match on_error {
            Some(_) => (FIELD_ERR_HANDLING_MODE | FIELD_ERR_HANDLER, ERR_HANDLING_MODE_PEER),
            None => (0, 0),
        };
        EndpointParams {
            field_mask: FIELD_REMOTE_ADDRESS | fields,
            address,
            mode,
            on_error: on_error.unwrap_or(ignore),
            argument,
            rest: [0; 8],
        }
    }
}

unsafe extern "C" fn ignore(_: *mut c_void, _: *mut c_void, _: Status) {}

/// `ucp_err_handler_cb_t`: argument, endpoint, status.
pub(super) type OnError = unsafe extern "C" fn(*mut c_void, *mut c_void, Status);

/// `ucp_am_recv_callback_t`: argument, header, its bytes, data, its bytes, more.
pub(super) type OnMessage = unsafe extern "C" fn(
    *mut c_void,
    *const c_void,
    usize,
    *mut c_void,
    usize,
    *const ReceiveParams,
) -> Status;

/// `ucp_am_handler_param_t`.
#[repr(C)]
pub(super) struct HandlerParams {
    field_mask: u64,
    id: c_uint,
    flags: u32,
    on_message: OnMessage,
    argument: *mut c_void,
}

impl HandlerParams {
    pub(super) fn new(on_message: OnMessage, argument: *mut c_void) -> HandlerParams {
        const FIELDS_ID_CALLBACK_ARGUMENT: u64 = 1 | 1 << 2 | 1 << 3;
        let (field_mask, id) = (FIELDS_ID_CALLBACK_ARGUMENT, MESSAGE);
        HandlerParams { field_mask, id, flags: 0, on_message, argument }
    }
}

/// The only kind of active message.
pub(super) const MESSAGE: c_uint = 0;

/// `ucp_am_recv_param_t`.
#[repr(C)]
pub(super) struct ReceiveParams {
    pub(super) attributes: u64,
    reply: *mut c_void,
}

/// The data are still at the sender; the callback gets a descriptor for fetching them.
pub(super) const RECEIVED_RENDEZVOUS: u64 = 1 << 17;

/// `ucp_send_nbx_callback_t`: request, status, argument.
pub(super) type OnSent = unsafe extern "C" fn(*mut c_void, Status, *mut c_void);

/// `ucp_am_recv_data_nbx_callback_t`: request, status, bytes, argument.
pub(super) type OnFetched = unsafe extern "C" fn(*mut c_void, Status, usize, *mut c_void);

/// `ucp_request_param_t`.
#[repr(C)]
pub(super) struct RequestParams {
    attributes: u32,
    flags: u32,
    request: *mut c_void,
    callback: Callback,
    datatype: u64,
    argument: *mut c_void,
    rest: [u64; 4],
}

#[repr(C)]
union Callback {
    sent: OnSent,
    fetched: OnFetched,
    none: usize,
}

impl RequestParams {
    /// Parameters of an operation without a completion callback.
    pub(super) fn with_flags(flags: u32) -> RequestParams {
        RequestParams::new(FIELD_FLAGS, flags, Callback { none: 0 }, std::ptr::null_mut())
    }

    /// Parameters of sending; `callback` is called with `argument` if the operation does not complete at once.
    pub(super) fn send(flags: u32, callback: OnSent, argument: *mut c_void) -> RequestParams {
        RequestParams::new(
            FIELD_FLAGS | FIELDS_CALLBACK,
            flags,
            Callback { sent: callback },
            argument,
        )
    }

    /// Parameters of fetching, likewise.
    pub(super) fn fetch(callback: OnFetched, argument: *mut c_void) -> RequestParams {
        RequestParams::new(FIELDS_CALLBACK, 0, Callback { fetched: callback }, argument)
    }

    fn new(attributes: u32, flags: u32, callback: Callback, argument: *mut c_void) -> Self {
        let (request, datatype, rest) = (std::ptr::null_mut(), 0, [0; 4]);
        RequestParams { attributes, flags, request, callback, datatype, argument, rest }
    }
}

const FIELD_FLAGS: u32 = 1 << 4;
/// Callback and argument.
const FIELDS_CALLBACK: u32 = 1 << 1 | 1 << 2;

pub(super) const SEND_EAGER: u32 = 1 << 1;
pub(super) const SEND_RENDEZVOUS: u32 = 1 << 2;
pub(super) const CLOSE_FORCE: u32 = 1;

// Sizes and offsets by a C compiler for 64-bit processors.
const _: () = assert!(
    size_of::<Params>() == 80
        && size_of::<WorkerParams>() == 200
        && offset_of!(WorkerParams, thread_mode) == 8
        && size_of::<EndpointParams>() == 104
        && offset_of!(EndpointParams, on_error) == 24
        && offset_of!(EndpointParams, argument) == 32
        && size_of::<HandlerParams>() == 32
        && offset_of!(HandlerParams, on_message) == 16
        && size_of::<ReceiveParams>() == 16
        && size_of::<RequestParams>() == 72
        && align_of::<RequestParams>() == 8
        && offset_of!(RequestParams, callback) == 16
        && offset_of!(RequestParams, argument) == 32
);

macro_rules! library {
    ($($field:ident = $symbol:literal: $type:ty;)*) => {
        /// UCX's functions; they stay loaded until the process ends.
        pub(super) struct Library {
            $(pub(super) $field: $type,)*
        }

        impl Library {
            fn load() -> Result<Library, libloading::Error> {
                // SAFETY: UCX's initialisers are made to be run by any program that loads it.
                let library = unsafe { libloading::Library::new(SONAME)? };
                // Its threads and handlers do not expect unloading.
                let library = Box::leak(Box::new(library));
                Ok(Library {
                    // SAFETY: the type is that of the header's declaration.
                    $($field: *unsafe { library.get::<$type>($symbol)? },)*
                })
            }
        }
    };
}

library! {
    get_version = b"ucp_get_version\0": unsafe extern "C" fn(*mut c_uint, *mut c_uint, *mut c_uint);
    status_string = b"ucs_status_string\0": unsafe extern "C" fn(Status) -> *const c_char;
    config_read = b"ucp_config_read\0":
        unsafe extern "C" fn(*const c_char, *const c_char, *mut *mut c_void) -> Status;
    config_release = b"ucp_config_release\0": unsafe extern "C" fn(*mut c_void);
    init_version = b"ucp_init_version\0":
        unsafe extern "C" fn(c_uint, c_uint, *const Params, *const c_void, *mut *mut c_void) -> Status;
    cleanup = b"ucp_cleanup\0": unsafe extern "C" fn(*mut c_void);
    worker_create = b"ucp_worker_create\0":
        unsafe extern "C" fn(*mut c_void, *const WorkerParams, *mut *mut c_void) -> Status;
    worker_destroy = b"ucp_worker_destroy\0": unsafe extern "C" fn(*mut c_void);
    worker_get_address = b"ucp_worker_get_address\0":
        unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut usize) -> Status;
    worker_release_address = b"ucp_worker_release_address\0":
        unsafe extern "C" fn(*mut c_void, *mut c_void);
    worker_get_efd = b"ucp_worker_get_efd\0": unsafe extern "C" fn(*mut c_void, *mut c_int) -> Status;
    worker_arm = b"ucp_worker_arm\0": unsafe extern "C" fn(*mut c_void) -> Status;
    worker_progress = b"ucp_worker_progress\0": unsafe extern "C" fn(*mut c_void) -> c_uint;
    worker_set_am_recv_handler = b"ucp_worker_set_am_recv_handler\0":
        unsafe extern "C" fn(*mut c_void, *const HandlerParams) -> Status;
    ep_create = b"ucp_ep_create\0":
        unsafe extern "C" fn(*mut c_void, *const EndpointParams, *mut *mut c_void) -> Status;
    ep_close_nbx = b"ucp_ep_close_nbx\0":
        unsafe extern "C" fn(*mut c_void, *const RequestParams) -> *mut c_void;
    am_send_nbx = b"ucp_am_send_nbx\0": unsafe extern "C" fn(
        *mut c_void,
        c_uint,
        *const c_void,
        usize,
        *const c_void,
        usize,
        *const RequestParams,
    ) -> *mut c_void;
    am_recv_data_nbx = b"ucp_am_recv_data_nbx\0": unsafe extern "C" fn(
        *mut c_void,
        *mut c_void,
        *mut c_void,
        usize,
        *const RequestParams,
    ) -> *mut c_void;
    am_data_release = b"ucp_am_data_release\0": unsafe extern "C" fn(*mut c_void, *mut c_void);
    request_check_status = b"ucp_request_check_status\0": unsafe extern "C" fn(*mut c_void) -> Status;
    request_free = b"ucp_request_free\0": unsafe extern "C" fn(*mut c_void);
}

impl Library {
    /// The library, loaded by the first call. Errors describe what is missing.
    pub(super) fn get() -> Result<&'static Library, UcxError> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        let loaded = LIBRARY.get_or_init(|| Library::load().map_err(|error| error.to_string()));
        loaded.as_ref().map_err(|reason| UcxError::Missing(reason.clone()))
    }

    /// "1.13.1".
    pub(super) fn version(&self) -> String {
        let (mut major, mut minor, mut release) = (0, 0, 0);
        // SAFETY: pointers to three integers.
        unsafe { (self.get_version)(&raw mut major, &raw mut minor, &raw mut release) };
        format!("{major}.{minor}.{release}")
    }

    /// UCX's text for a status.
    pub(super) fn words(&self, status: Status) -> String {
        // SAFETY: the function gives a constant string for every status, known or not.
        let words = unsafe { CStr::from_ptr((self.status_string)(status)) };
        words.to_string_lossy().into_owned()
    }
}

const SONAME: &str = "libucp.so.0";
/// Minimum version for the functions above; later versions of UCX 1 are compatible.
pub(super) const API: (c_uint, c_uint) = (1, 11);
