//! NCCL's log: what the plug-in says there.

use std::ffi::{CString, c_int, c_ulong};

use parking_lot::Mutex;

use crate::interface::Logger;

static LOGGER: Mutex<Option<Logger>> = Mutex::new(None);

/// Uses NCCL's logger from now on. All communicators of a process pass the same.
pub(crate) fn set(logger: Option<Logger>) {
    if logger.is_some() {
        *LOGGER.lock() = logger;
    }
}

/// A line that NCCL shows with NCCL_DEBUG=INFO.
pub(crate) fn info(words: &str) {
    say(LEVEL_INFO, words);
}

/// A line that NCCL shows with NCCL_DEBUG=WARN.
pub(crate) fn warn(words: &str) {
    say(LEVEL_WARN, words);
}

fn say(level: c_int, words: &str) {
    let Some(logger) = *LOGGER.lock() else { return };
    let words = CString::new(words.replace('\0', " ")).unwrap_or_default();
    // SAFETY: NCCL's logger formats like printf; format, file and words are C strings that outlive the call.
    unsafe {
        logger(level, SUBSYSTEMS, c"netsum".as_ptr(), 0, c"%s".as_ptr(), words.as_ptr());
    }
}

/// `NCCL_LOG_WARN` and `NCCL_LOG_INFO`.
const LEVEL_WARN: c_int = 2;
const LEVEL_INFO: c_int = 3;
/// `NCCL_INIT`, which NCCL shows unless it is told otherwise, and `NCCL_NET`.
const SUBSYSTEMS: c_ulong = 1 | 16;
