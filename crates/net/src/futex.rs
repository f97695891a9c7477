//! Waiting for another process to change a word of shared memory.

#![allow(unsafe_code)]

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::word::Word;

/// A word that a process can sleep on until another changes it.
pub(crate) trait Futex: Word {
    /// Sleeps while the word is `seen`, at most for `patience`; may return early.
    fn wait(&self, seen: u32, patience: Duration);
    /// Wakes all sleepers.
    fn wake(&self);
}

impl Futex for AtomicU32 {
    fn wait(&self, seen: u32, patience: Duration) {
        wait(self, seen, patience);
    }
    fn wake(&self) {
        wake(self);
    }
}

/// Sleeps while `word` is `seen`, at most for `patience`; may return early.
fn wait(word: &AtomicU32, seen: u32, patience: Duration) {
    let patience =
        libc::timespec { tv_sec: patience.as_secs() as _, tv_nsec: patience.subsec_nanos().into() };
    // SAFETY: the word is a live, aligned u32 and the timespec outlives the call; FUTEX_WAIT only reads both. Not
    // PRIVATE: the word is in memory shared between processes. The caller checks the word again after any outcome.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &raw const patience);
    }
}

/// Wakes all who wait for `word`.
fn wake(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE uses the address of a live word as a key and accesses no memory.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
    }
}

#[cfg(test)]
pub(crate) mod model {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use super::Futex;
    use crate::word::Word;

    /// The model's word: a futex is a lock around "check, then sleep".
    pub(crate) struct ModelWord {
        value: loom::sync::atomic::AtomicU32,
        queue: loom::sync::Mutex<()>,
        woken: loom::sync::Condvar,
    }

    impl ModelWord {
        pub(crate) fn new() -> ModelWord {
            let (queue, woken) = (loom::sync::Mutex::new(()), loom::sync::Condvar::new());
            ModelWord { value: loom::sync::atomic::AtomicU32::new(0), queue, woken }
        }
    }

    impl Word for ModelWord {
        fn load(&self, order: Ordering) -> u32 {
            self.value.load(order)
        }
        fn store(&self, value: u32, order: Ordering) {
            self.value.store(value, order);
        }
        fn swap(&self, value: u32, order: Ordering) -> u32 {
            self.value.swap(value, order)
        }
        fn add(&self, value: u32, order: Ordering) -> u32 {
            self.value.fetch_add(value, order)
        }
        fn fence() {
            <loom::sync::atomic::AtomicU32 as Word>::fence();
        }
    }

    impl Futex for ModelWord {
        /// The kernel checks the word with its queue locked; the model has no time-outs.
        fn wait(&self, seen: u32, _: Duration) {
            let queue = self.queue.lock().unwrap();
            if self.value.load(Ordering::SeqCst) == seen {
                drop(self.woken.wait(queue).unwrap());
            }
        }
        fn wake(&self) {
            drop(self.queue.lock().unwrap());
            self.woken.notify_all();
        }
    }
}
