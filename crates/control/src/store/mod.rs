//! What a controller keeps over its own end: jobs and their ranks as plain rows.

mod memory;
mod row;
mod sqlite;

pub use memory::MemoryStore;
pub use row::{JobRow, MemberRow};
pub use sqlite::SqliteStore;

pub(crate) use row::{job_row, loaded, member_row};

use crate::error::ControlError;

/// Where a controller keeps its jobs.
pub trait Store: Send {
    /// Everything that is kept.
    fn load(&mut self) -> Result<Saved, ControlError>;
    /// Makes all changes in one transaction. After an error the store is as before.
    fn save(&mut self, changes: &[Change]) -> Result<(), ControlError>;
    /// A name for people: the file, or "memory".
    fn place(&self) -> String;
}

impl Store for Box<dyn Store> {
    fn load(&mut self) -> Result<Saved, ControlError> {
        self.as_mut().load()
    }

    fn save(&mut self, changes: &[Change]) -> Result<(), ControlError> {
        self.as_mut().save(changes)
    }

    fn place(&self) -> String {
        self.as_ref().place()
    }
}

/// One change of what is kept.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The number that the next job gets if no job has it.
    NextJob(u32),
    /// A new job without ranks; what was kept under its number goes.
    NewJob(JobRow),
    /// A job as it is now, without its ranks.
    Job(JobRow),
    /// A rank of a job that was saved before.
    Member(MemberRow),
}

/// What was kept.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Saved {
    /// Drawn when the store was made.
    pub incarnation: u64,
    /// The number that the next job gets if no job has it.
    pub next_job: u32,
    /// By number; of those that are over the latest.
    pub jobs: Vec<JobRow>,
    /// Of these jobs.
    pub members: Vec<MemberRow>,
}

/// An incarnation for a new store.
pub(crate) fn draw_incarnation() -> Result<u64, ControlError> {
    let failed = |error: getrandom::Error| ControlError::Store {
        file: "random numbers".into(),
        problem: error.to_string(),
    };
    Ok(getrandom::u64().map_err(failed)?.max(1))
}

/// The first job number of a new store. Stores begin at different thousands, so that packets of a job that another
/// store's controller made do not fit one of this.
pub(crate) fn first_job(incarnation: u64) -> u32 {
    (incarnation % STARTS) as u32 * JOBS_PER_START + 1
}

const JOBS_PER_START: u32 = 1_000;
/// The last start is below 2³² - 1000.
const STARTS: u64 = 4_294_000;
/// Jobs that are over and still loaded.
const ENDED_LOADED: u32 = 100;
/// Jobs that are over and still kept.
const ENDED_KEPT: u32 = 1_000;
