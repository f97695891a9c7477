//! Handles that NCCL holds: numbers, so that an invalid one is an error.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use netsum_nccl_core::Failure;
use parking_lot::Mutex;

use crate::interface::Handle;

/// Objects of one kind by handle. A number is never reused, not even by another kind.
pub(crate) struct Table<T> {
    kind: &'static str,
    entries: Mutex<Option<HashMap<Handle, Arc<T>>>>,
}

/// Above 0, which is NULL, and 1, which NCCL uses as a request that needs no test.
static NEXT: AtomicUsize = AtomicUsize::new(2);

impl<T> Table<T> {
    /// `kind`: for errors.
    pub(crate) const fn new(kind: &'static str) -> Table<T> {
        Table { kind, entries: Mutex::new(None) }
    }

    pub(crate) fn add(&self, object: Arc<T>) -> Handle {
        let handle = NEXT.fetch_add(1, Ordering::Relaxed);
        self.entries.lock().get_or_insert_default().insert(handle, object);
        handle
    }

    pub(crate) fn get(&self, handle: Handle) -> Result<Arc<T>, Failure> {
        let found = self.entries.lock().get_or_insert_default().get(&handle).cloned();
        found.ok_or_else(|| self.unknown())
    }

    pub(crate) fn remove(&self, handle: Handle) -> Result<Arc<T>, Failure> {
        let found = self.entries.lock().get_or_insert_default().remove(&handle);
        found.ok_or_else(|| self.unknown())
    }

    /// Removes the objects for which `keep` is false.
    pub(crate) fn retain(&self, keep: impl Fn(&T) -> bool) {
        let removed: Vec<Arc<T>> = {
            let mut entries = self.entries.lock();
            let extracted = entries.get_or_insert_default().extract_if(|_, object| !keep(object));
            extracted.map(|(_, object)| object).collect()
        };
        // Without the lock: an object may end others.
        drop(removed);
    }

    fn unknown(&self) -> Failure {
        Failure::argument(format!("the {} is NULL, or was closed", self.kind))
    }
}
