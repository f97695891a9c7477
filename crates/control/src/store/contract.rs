//! The interface of stores, and their rows.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::ControlError;

/// Storage of a controller's jobs.
///
/// Terms tell the controllers of a store apart, one after the other: what an earlier one still wants to write is refused.
pub trait Store: Send {
    /// Begins a term, which is higher than every term before, and returns its number. From now on only holders of this
    /// term can save.
    fn begin_term(&mut self) -> Result<u64, ControlError>;
    /// Loads everything.
    fn load(&mut self) -> Result<Saved, ControlError>;
    /// Makes all changes in one transaction. Errors: [`ControlError::Deposed`] (a later term has begun),
    /// [`ControlError::Uncertain`] (the changes may have been made, or may be made later: only a new term can tell); any
    /// other error leaves the store unchanged.
    fn save(&mut self, changes: &[Change]) -> Result<(), ControlError>;
    /// Confirms that no later term had begun when it was called, so that what this term knows is the newest. Errors:
    /// [`ControlError::Deposed`]; any other if the store does not answer.
    fn confirm(&mut self) -> Result<(), ControlError>;
    /// A name for users: the file, or "memory".
    fn place(&self) -> String;
}

impl Store for Box<dyn Store> {
    fn begin_term(&mut self) -> Result<u64, ControlError> {
        self.as_mut().begin_term()
    }

    fn load(&mut self) -> Result<Saved, ControlError> {
        self.as_mut().load()
    }

    fn save(&mut self, changes: &[Change]) -> Result<(), ControlError> {
        self.as_mut().save(changes)
    }

    fn confirm(&mut self) -> Result<(), ControlError> {
        self.as_mut().confirm()
    }

    fn place(&self) -> String {
        self.as_ref().place()
    }
}

/// One change of the store.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The store's incarnation; of a store that is restored from a backup.
    Incarnation(u64),
    /// Number of the next job, if it is free.
    NextJob(u32),
    /// A new job without ranks; replaces everything under its number.
    NewJob(JobRow),
    /// The present state of a job, without its ranks.
    Job(JobRow),
    /// A rank of a job that was saved before.
    Member(MemberRow),
}

impl Change {
    /// The job that changes.
    pub(super) fn job(&self) -> Option<u32> {
        match self {
            Change::Incarnation(_) | Change::NextJob(_) => None,
            Change::NewJob(job) | Change::Job(job) => Some(job.job),
            Change::Member(member) => Some(member.job),
        }
    }
}

/// The content of a store.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Saved {
    /// Random number drawn when the store was created.
    pub incarnation: u64,
    /// Number of the next job, if it is free.
    pub next_job: u32,
    /// Jobs by number; of ended jobs only the latest.
    pub jobs: Vec<JobRow>,
    /// Ranks of these jobs.
    pub members: Vec<MemberRow>,
}

/// A job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobRow {
    /// Number of the job.
    pub job: u32,
    /// Name for users.
    pub name: String,
    /// Number of ranks.
    pub size: u32,
    /// Requested maximum number of trees.
    pub max_trees: u32,
    /// Release fraction, above 0, at most 1.
    pub release_fraction: f32,
    /// Reaction of workers to congestion marks, by name.
    pub congestion: String,
    /// Smaller buffers use the host path.
    pub min_bytes: u64,
    /// Time of creation, in seconds since 1970.
    pub created_unix_s: f64,
    /// "joining", "running", "ended" or "abandoned".
    pub phase: String,
    /// The newest epoch sent to switches or workers.
    pub epoch: u16,
    /// The order of additions, once it is fixed.
    pub sum_order: Option<String>,
    /// The fragment size, once it is fixed.
    pub fragment_bytes: Option<u32>,
    /// Protocol by name; "auto": the controller chooses.
    pub protocol: String,
    /// Tenant of the job.
    pub tenant: String,
    /// Scale between reals and integers of slots; 0: shared exponents.
    pub scale: f32,
    /// Whether its trees have copies.
    pub all_collectives: bool,
    /// Number of the request that created it; 0: it had none.
    pub request: u64,
    /// The key for its packets' tags.
    pub key: Option<Vec<u8>>,
    /// The workers' plan, as a message.
    pub plan: Option<Vec<u8>>,
}

/// A rank of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct MemberRow {
    /// The job's number.
    pub job: u32,
    /// Index of the rank.
    pub rank: u32,
    /// "awaited", "present", "left" or "lost".
    pub state: String,
    /// Name of its host.
    pub host: Option<String>,
    /// Data address, as `ip:port`.
    pub udp_address: Option<String>,
    /// Mesh address, for users.
    pub mesh_address: String,
    /// Process id, for users.
    pub pid: u32,
    /// MTU of its interface; 0 if unknown.
    pub mtu: u32,
}

/// A random incarnation for a new store.
pub(super) fn draw_incarnation() -> Result<u64, ControlError> {
    let failed = |error: getrandom::Error| ControlError::Store {
        file: "random numbers".into(),
        problem: error.to_string(),
    };
    Ok(getrandom::u64().map_err(failed)?.max(1))
}

/// The number of a new term: higher than that of the term before, and at least the time in milliseconds since 1970, so
/// that a store that was restored from an old copy has no term for a second time.
pub(super) fn next_term(before: u64) -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (before + 1).max(since_1970.as_millis() as u64)
}

/// The first job number of a new store. Stores begin at different thousands, so that packets of a job of another
/// store's controller do not match one of this store.
pub(super) fn first_job(incarnation: u64) -> u32 {
    (incarnation % STARTS) as u32 * JOBS_PER_START + 1
}

const JOBS_PER_START: u32 = 1_000;
/// The last start is below 2³² - 1000.
const STARTS: u64 = 4_294_000;
/// Maximum number of ended jobs that are loaded.
pub(super) const ENDED_LOADED: u32 = 100;
/// Maximum number of ended jobs that are kept.
pub(super) const ENDED_KEPT: u32 = 1_000;
