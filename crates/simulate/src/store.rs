//! The controller's store: commits that survive the controller, a disk that can be full, a power cut that takes the last
//! commits.

use std::sync::{Arc, Mutex, PoisonError};

use netsum_control::{Change, ControlError, MemoryStore, Saved, Store};

/// A store that outlives the simulated controller. A clone is the same store.
#[derive(Clone, Debug)]
pub struct SimulatedStore {
    incarnation: u64,
    first_job: Option<u32>,
    rows: MemoryStore,
    /// Transactions, oldest first.
    log: Arc<Mutex<Vec<Vec<Change>>>>,
}

impl SimulatedStore {
    /// An empty store. `first_job`: the number of its first job, if the store does not choose it.
    pub fn new(incarnation: u64, first_job: Option<u32>) -> SimulatedStore {
        let rows = MemoryStore::new(incarnation);
        if let Some(first) = first_job {
            rows.set_next_job(first);
        }
        SimulatedStore { incarnation, first_job, rows, log: Arc::default() }
    }

    /// From now on the disk is full, or has room again.
    pub fn set_full(&self, full: bool) {
        self.rows.fail(full.then_some("database or disk is full"));
    }

    /// The machine lost its power: what is left without the last `commits`.
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
