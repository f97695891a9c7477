//! The controller's store in memory: commits survive a restart of the controller, the disk can be full, and a power
//! failure drops the last commits.

use std::sync::atomic::{AtomicBool, Ordering};
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
    /// Whether the store does not answer this handle.
    silent: Arc<AtomicBool>,
}

impl SimulatedStore {
    /// An empty store. `first_job`: the first job number, if not chosen by the store.
    pub fn new(incarnation: u64, first_job: Option<u32>) -> SimulatedStore {
        let rows = MemoryStore::new(incarnation);
        if let Some(first) = first_job {
            rows.set_next_job(first);
        }
        SimulatedStore { incarnation, first_job, rows, log: Arc::default(), silent: Arc::default() }
    }

    /// The same store for another controller.
    pub fn shared(&self) -> SimulatedStore {
        SimulatedStore { silent: Arc::default(), ..self.clone() }
    }

    /// Sets whether the store answers this handle and its clones.
    pub fn set_silent(&self, silent: bool) {
        self.silent.store(silent, Ordering::Relaxed);
    }

    fn uncertain(&self) -> ControlError {
        ControlError::Uncertain { place: self.place(), problem: "no answer".to_owned() }
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
        rest.rows.set_term(self.rows.term());
        rest
    }
}

impl Store for SimulatedStore {
    fn begin_term(&mut self) -> Result<u64, ControlError> {
        self.rows.begin_term()
    }

    fn confirm(&mut self) -> Result<(), ControlError> {
        match self.silent.load(Ordering::Relaxed) {
            true => Err(self.uncertain()),
            false => self.rows.confirm(),
        }
    }

    fn load(&mut self) -> Result<Saved, ControlError> {
        self.rows.load()
    }

    fn save(&mut self, changes: &[Change]) -> Result<(), ControlError> {
        let silent = self.silent.load(Ordering::Relaxed);
        let count = self.log.lock().unwrap_or_else(PoisonError::into_inner).len();
        // A write without an answer is made or not.
        if silent && count.is_multiple_of(2) {
            return Err(self.uncertain());
        }
        self.rows.save(changes)?;
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push(changes.to_vec());
        if silent { Err(self.uncertain()) } else { Ok(()) }
    }

    fn place(&self) -> String {
        "simulated".to_owned()
    }
}
