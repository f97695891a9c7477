//! Which process something belongs to: a fork copies memory and descriptors, but none of the threads behind them.

#![allow(unsafe_code)]

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// The process that made something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Number of forks between the first process of this program and it.
    forks: u32,
    id: u32,
}

impl Process {
    /// The one that calls this.
    #[inline]
    pub fn this() -> Process {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| {
            ID.store(std::process::id(), Ordering::Relaxed);
            // SAFETY: the handler is a function of this program that changes atomics, which a forked child may do.
            unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        });
        Process { forks: FORKS.load(Ordering::Relaxed), id: ID.load(Ordering::Relaxed) }
    }

    /// Whether the one that calls this is it. Asks no system call, as it is asked for every operation.
    #[inline]
    pub fn is_this(self) -> bool {
        FORKS.load(Ordering::Relaxed) == self.forks
    }

    /// As the system numbers it.
    pub fn id(self) -> u32 {
        self.id
    }
}

static FORKS: AtomicU32 = AtomicU32::new(0);
static ID: AtomicU32 = AtomicU32::new(0);

extern "C" fn forked() {
    ID.store(std::process::id(), Ordering::Relaxed);
    FORKS.fetch_add(1, Ordering::Relaxed);
}
