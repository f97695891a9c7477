//! The controller's store in memory: commits survive a restart of the controller, the disk can be full, and a power
//! failure drops the last commits.

use std::sync::{Arc, Mutex, PoisonError};

use netsum_control::{Change, ControlError, MemoryStore, Saved, Store};

/// A store that outlives the simulated controller. Clones share the same data.
#[derive(Clone, Debug)]
pub struct SimulatedStore {
    incarnation: u64,
    first_job: Option<u32>,
    rows: MemoryStore,
    /// Transactions, oldest first.
    log: Arc<Mutex<Vec<Vec<Change>>>>,
}

impl SimulatedStore {
    /// An empty store. `first_job`: the first job number, if not chosen by the store.
    pub fn new(incarnation: u64, first_job: Option<u32>) -> SimulatedStore {
        let rows = MemoryStore::new(incarnation);
        if let Some(first) = first_job {
            rows.set_next_job(first);
        }
        SimulatedStore { incarnation, first_job, rows, log: Arc::default() }
    }

    /// Sets whether the disk is full.
    pub fn set_full(&self, full: bool) {
        self.rows.fail(full.then_some("database or disk is full"));
    }

    /// A copy without the last `commits` transactions, as after a power failure.
    pub fn without_last(&self, commits: usize) -> SimulatedStore {
        let mut rest = SimulatedStore::new(self.incarnation, self.first_job);
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        for changes in &log[..log.len().saturating_sub(commits)] {
            rest.save(changes).expect("a store in memory with room takes all");
        }
        rest
    }
}

impl Store for SimulatedStore {
    fn load(&mut self) -> Result<Saved, ControlError> {
        self.rows.load()
    }

    fn save(&mut self, changes: &[Change]) -> Result<(), ControlError> {
        self.rows.save(changes)?;
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push(changes.to_vec());
        Ok(())
    }

    fn place(&self) -> String {
        "simulated".to_owned()
    }
}
