//! The process that owns something: a fork copies memory and descriptors, but not the threads behind them.

#![allow(unsafe_code)]

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// The process that created something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Number of forks between the first process of this program and this one.
    forks: u32,
    id: u32,
}

impl Process {
    /// The calling process.
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

    /// Whether the calling process is this one. Makes no system call, because every operation checks it.
    #[inline]
    pub fn is_this(self) -> bool {
        FORKS.load(Ordering::Relaxed) == self.forks
    }

    /// The system's process id.
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
