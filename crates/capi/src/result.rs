//! NCCL's results, and the text of each thread's last failure.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

use netsum_nccl_core::{
    Code, Failure, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, SUCCESS,
    SYSTEM_ERROR, guarded,
};

/// Runs the body of a call: stores its failure for this thread; a panic is a failure.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Failure>) -> Code {
    match guarded(body) {
        Ok(()) => SUCCESS,
        Err(Failure { code, words }) => {
            let words = CString::new(words.replace('\0', " ")).unwrap_or_default();
            LAST.with(|last| *last.borrow_mut() = words);
            code
        }
    }
}

/// The text of this thread's last failure; valid until its next call.
pub(crate) fn last() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}

/// The text of a result.
pub(crate) fn describe(code: Code) -> &'static CStr {
    match code {
        SUCCESS => c"no error",
        1 => c"unhandled cuda error",
        SYSTEM_ERROR => c"system error: ranks did not meet, or an operation took too long",
        INTERNAL_ERROR => c"internal error - please report this issue to the netsum developers",
        INVALID_ARGUMENT => c"invalid argument",
        INVALID_USAGE => c"invalid usage: calls that do not fit together, here or between ranks",
        REMOTE_ERROR => c"remote process exited or there was a network error",
        7 => c"operation in progress",
        _ => c"unknown result code",
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}
