//! NCCL's results, and why a call failed.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use netsum_collective::Error;
use netsum_net::without_sigpipe;

/// As `ncclResult_t`.
pub type Code = c_int;

/// `ncclSuccess`.
pub const SUCCESS: Code = 0;
/// `ncclSystemError`.
pub const SYSTEM_ERROR: Code = 2;
/// `ncclInternalError`.
pub const INTERNAL_ERROR: Code = 3;
/// `ncclInvalidArgument`.
pub const INVALID_ARGUMENT: Code = 4;
/// `ncclInvalidUsage`.
pub const INVALID_USAGE: Code = 5;
/// `ncclRemoteError`.
pub const REMOTE_ERROR: Code = 6;

/// Why a call failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// As `ncclResult_t`.
    pub code: Code,
    /// What happened, and what to do about it.
    pub words: String,
}

impl Failure {
    /// An argument that cannot be used.
    pub fn argument(words: impl Into<String>) -> Failure {
        Failure { code: INVALID_ARGUMENT, words: words.into() }
    }

    /// Calls that do not fit together.
    pub fn usage(words: impl Into<String>) -> Failure {
        Failure { code: INVALID_USAGE, words: words.into() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { code: code_of(&error), words: error.to_string() }
    }
}

/// NCCL's result for an error.
pub fn code_of(error: &Error) -> Code {
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

/// Runs the body of a call; a panic is a failure, and a connection that a peer has ended raises no signal.
pub fn guarded<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let outcome = catch_unwind(AssertUnwindSafe(|| without_sigpipe(body)));
    outcome.unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        Err(Failure { code: INTERNAL_ERROR, words: format!("internal error: {words}") })
    })
}
