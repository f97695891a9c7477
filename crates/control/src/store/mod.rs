//! What the controller keeps over its own death.

mod sqlite;

pub use sqlite::SqliteStore;

use netsum_topo::{Fabric, Topology};

use crate::decide::Job;
use crate::error::ControlError;

/// Where jobs, members, epochs and plans are kept. Each call is one transaction.
pub trait Store: Send {
    /// Everything that was not over, and the lowest job number that was never given out.
    fn load(&mut self, topology: &Topology) -> Result<Loaded, ControlError>;
    /// Keeps a job as it is now with its plan, without its members. `fabric` and `topology` give
    /// names to what the job holds by number.
    fn save_job(
        &mut self,
        job: &Job,
        fabric: &Fabric,
        topology: &Topology,
    ) -> Result<(), ControlError>;
    /// Keeps one rank of a job that was saved before.
    fn save_member(
        &mut self,
        job: &Job,
        rank: u32,
        topology: &Topology,
    ) -> Result<(), ControlError>;
}

/// What was kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// Jobs that were not over. A job with a plan that the fabric file no longer allows has none.
    pub jobs: Vec<Job>,
    /// Never given to a job.
    pub next_job: u32,
}
