//! The frame of every call of NCCL.

use netsum_nccl_core::{Failure, SUCCESS, guarded};

use crate::interface::Code;
use crate::{log, profiler};

/// Runs the body of the call `name`. A failure, or a panic, becomes NCCL's code, and its words appear in NCCL's
/// log; the profiler writes what NCCL did last.
pub(crate) fn call(name: &str, body: impl FnOnce() -> Result<(), Failure>) -> Code {
    match guarded(body) {
        Ok(()) => SUCCESS,
        Err(Failure { code, words }) => {
            let words = format!("NET/netsum: {name}: {words}");
            log::warn(&words);
            profiler::write_all(&words);
            code
        }
    }
}
