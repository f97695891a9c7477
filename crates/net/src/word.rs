//! A word of memory that processes share. Code that uses it is generic over the word, so that a model checker can run
//! the same steps.

use std::sync::atomic::{AtomicU32, Ordering, fence};

/// A word that other processes change.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u32;
    fn store(&self, value: u32, order: Ordering);
    /// Returns the previous value.
    fn swap(&self, value: u32, order: Ordering) -> u32;
    /// Returns the previous value.
    fn add(&self, value: u32, order: Ordering) -> u32;
    /// A sequentially consistent fence.
    fn fence();
}

macro_rules! word {
    ($atomic:ty, $fence:path) => {
        impl Word for $atomic {
            #[inline(always)]
            fn load(&self, order: Ordering) -> u32 {
                self.load(order)
            }
            #[inline(always)]
            fn store(&self, value: u32, order: Ordering) {
                self.store(value, order);
            }
            #[inline(always)]
            fn swap(&self, value: u32, order: Ordering) -> u32 {
                self.swap(value, order)
            }
            #[inline(always)]
            fn add(&self, value: u32, order: Ordering) -> u32 {
                self.fetch_add(value, order)
            }
            #[inline(always)]
            fn fence() {
                $fence(Ordering::SeqCst);
            }
        }
    };
}

word!(AtomicU32, fence);
// The model checker's words.
#[cfg(test)]
word!(loom::sync::atomic::AtomicU32, loom::sync::atomic::fence);
