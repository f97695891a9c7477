//! Handles of callers.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A caller's handle: a number that looks like a pointer and is never dereferenced, so that an invalid one is an error.
pub(crate) type Handle = usize;

/// Above 0, which is NULL.
static NEXT: AtomicUsize = AtomicUsize::new(1);

/// A number for a handle that no other handle of the process has.
pub(crate) fn number() -> Handle {
    NEXT.fetch_add(1, Ordering::Relaxed)
}
