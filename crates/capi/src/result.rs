//! NCCL's results, and the text of each thread's last failure.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use netsum_collective::Error;

/// As `ncclResult_t`.
pub(crate) type Code = c_int;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const SYSTEM_ERROR: Code = 2;
pub(crate) const INTERNAL_ERROR: Code = 3;
pub(crate) const INVALID_ARGUMENT: Code = 4;
pub(crate) const INVALID_USAGE: Code = 5;
pub(crate) const REMOTE_ERROR: Code = 6;

/// Why a call failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) words: String,
}

impl Failure {
    pub(crate) fn argument(words: impl Into<String>) -> Failure {
        Failure { code: INVALID_ARGUMENT, words: words.into() }
    }

    pub(crate) fn usage(words: impl Into<String>) -> Failure {
        Failure { code: INVALID_USAGE, words: words.into() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { code: code_of(&error), words: error.to_string() }
    }
}

/// NCCL's result for an error.
pub(crate) fn code_of(error: &Error) -> Code {
    match error {
        Error::PeerLost { .. } | Error::Left { .. } | Error::Aborted(_) => REMOTE_ERROR,
        Error::Told { mismatch: false, .. } => REMOTE_ERROR,
        Error::Mismatch { .. }
        | Error::Size { .. }
        | Error::Told { .. }
        | Error::Closed(_)
        | Error::Forked { .. } => INVALID_USAGE,
        Error::Unsupported(_) => INVALID_ARGUMENT,
        Error::Internal(_) => INTERNAL_ERROR,
        _ => SYSTEM_ERROR,
    }
}

/// Runs the body of a call: stores its failure for this thread; a panic is a failure.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Failure>) -> Code {
    let outcome = catch_unwind(AssertUnwindSafe(body));
    let outcome = outcome.unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        Err(Failure { code: INTERNAL_ERROR, words: format!("internal error: {words}") })
    });
    match outcome {
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
