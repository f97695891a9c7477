//! A controller's grant to a job at a switch.

use netsum_wire::{Epoch, JobId, TreeId};

use crate::PortId;
use crate::lease::{Granted, LeaseKey, Superseded};

/// Most workers of a job, as in the paper.
pub const MAX_WORKERS: usize = 32;

/// Grant of one pool to one job at the one switch that adds for it. `P` names a worker: a port number for machines, an
/// address for drivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease<P = PortId> {
    /// Job.
    pub job: JobId,
    /// Version of the plan; a lease of a later epoch replaces this one.
    pub epoch: Epoch,
    /// Pool of the job: 0 for sums, 1 for what one worker sends to all others.
    pub tree: TreeId,
    /// Workers by number.
    pub workers: Vec<P>,
    /// Slots of the pool; each takes two rows of memory.
    pub slots: u16,
    /// Largest payload.
    pub fragment_bytes: u16,
}

/// Why a lease cannot be installed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// Invalid number of workers.
    #[error("a pool has 1 to {MAX_WORKERS} workers, the lease has {0}")]
    Workers(usize),
    /// Two workers are the same neighbour.
    #[error("neighbour {0:?} occurs twice in the lease")]
    DuplicateNeighbour(PortId),
    /// No slots.
    #[error("a pool has at least one slot")]
    Slots,
    /// Invalid size of a fragment.
    #[error("fragments of {fragment} bytes are not between 4 and {row}, in steps of 4")]
    FragmentBytes {
        /// Fragment size of the lease.
        fragment: u16,
        /// Size of the switch's rows.
        row: u16,
    },
    /// Not enough rows: the whole pool must be free.
    #[error("aggregation memory is full: the pool needs {needed} rows, {free} are free")]
    NoMemory {
        /// Twice the slots.
        needed: u32,
        /// Rows that no pool has reserved.
        free: u32,
    },
    /// The lease's epoch is not later than the installed one.
    #[error("epoch {offered} is not after the installed epoch {installed}")]
    Epoch {
        /// Epoch of the lease.
        offered: Epoch,
        /// Installed epoch.
        installed: Epoch,
    },
}

impl<P: Copy> Lease<P> {
    /// The same lease with other names for workers.
    pub fn map<Q>(&self, name: impl FnMut(P) -> Q) -> Lease<Q> {
        Lease {
            job: self.job,
            epoch: self.epoch,
            tree: self.tree,
            workers: self.workers.iter().copied().map(name).collect(),
            slots: self.slots,
            fragment_bytes: self.fragment_bytes,
        }
    }
}

impl Lease {
    /// Validates everything that does not depend on the switch's state. `row`: size of a row.
    pub fn validate(&self, row: u16) -> Result<(), LeaseError> {
        let n = self.workers.len();
        if n == 0 || n > MAX_WORKERS {
            return Err(LeaseError::Workers(n));
        }
        let mut ports = self.workers.clone();
        ports.sort();
        if let Some(twice) = ports.windows(2).find(|w| w[0] == w[1]) {
            return Err(LeaseError::DuplicateNeighbour(twice[0]));
        }
        if self.slots == 0 {
            return Err(LeaseError::Slots);
        }
        let fragment = self.fragment_bytes;
        if !(4..=row).contains(&fragment) || !fragment.is_multiple_of(4) {
            return Err(LeaseError::FragmentBytes { fragment, row });
        }
        Ok(())
    }

    /// Number of rows of memory.
    pub(crate) fn rows(&self) -> u32 {
        2 * u32::from(self.slots)
    }
}

impl Granted for Lease {
    fn key(&self) -> LeaseKey {
        LeaseKey { job: self.job, epoch: self.epoch, tree: self.tree }
    }
}

impl From<Superseded> for LeaseError {
    fn from(Superseded { offered, installed }: Superseded) -> LeaseError {
        LeaseError::Epoch { offered, installed }
    }
}
