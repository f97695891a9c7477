//! What every store does, and the rows that it keeps.

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

/// A job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobRow {
    /// Its number.
    pub job: u32,
    /// For people.
    pub name: String,
    /// Ranks.
    pub size: u32,
    /// The most trees it asked for.
    pub max_trees: u32,
    /// Above 0, at most 1.
    pub release_fraction: f32,
    /// How workers answer marks, by name.
    pub congestion: String,
    /// Smaller buffers go by the host path.
    pub min_bytes: u64,
    /// Seconds since 1970.
    pub created_unix_s: f64,
    /// "joining", "running", "ended" or "abandoned".
    pub phase: String,
    /// The newest epoch that was given out.
    pub epoch: u16,
    /// The order of additions, once it is fixed.
    pub sum_order: Option<String>,
    /// Likewise.
    pub fragment_bytes: Option<u32>,
    /// By name; "auto": the controller chooses.
    pub protocol: String,
    /// Whose the job is.
    pub tenant: String,
    /// Between reals and integers of slots; 0: shared exponents.
    pub scale: f32,
    /// The key of its packets' tags.
    pub key: Option<[u8; 16]>,
    /// The plan that its workers have, as a message.
    pub plan: Option<Vec<u8>>,
}

/// A rank of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct MemberRow {
    /// The job's number.
    pub job: u32,
    /// Its index.
    pub rank: u32,
    /// "awaited", "present", "left" or "lost".
    pub state: String,
    /// Name of its host.
    pub host: Option<String>,
    /// `ip:port`.
    pub udp_address: Option<String>,
    /// For people.
    pub mesh_address: String,
    /// For people.
    pub pid: u32,
    /// Of its interface; 0 if unknown.
    pub mtu: u32,
}

/// An incarnation for a new store.
pub(super) fn draw_incarnation() -> Result<u64, ControlError> {
    let failed = |error: getrandom::Error| ControlError::Store {
        file: "random numbers".into(),
        problem: error.to_string(),
    };
    Ok(getrandom::u64().map_err(failed)?.max(1))
}

/// The first job number of a new store. Stores begin at different thousands, so that packets of a job that another
/// store's controller made do not fit one of this.
pub(super) fn first_job(incarnation: u64) -> u32 {
    (incarnation % STARTS) as u32 * JOBS_PER_START + 1
}

const JOBS_PER_START: u32 = 1_000;
/// The last start is below 2³² - 1000.
const STARTS: u64 = 4_294_000;
/// Jobs that are over and still loaded.
pub(super) const ENDED_LOADED: u32 = 100;
/// Jobs that are over and still kept.
pub(super) const ENDED_KEPT: u32 = 1_000;
