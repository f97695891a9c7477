//! Errors of plans and requests. The texts are shown to users.

/// Why a plan is invalid.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[error("{place}: {problem}")]
pub struct OcsViolation {
    /// As `circuit 7 (w0.1 → d0.2)` or `lane 3`.
    pub place: String,
    /// What is wrong.
    pub problem: String,
}

/// Why devices cannot be shared among jobs.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum JobsError {
    /// There are no jobs.
    #[error("no job to share the devices among; name at least one as N,D")]
    NoJob,
    /// Jobs share one pool, so their devices must have the same number of ports.
    #[error("job {job} counts on devices with {given} ports, but those of the pool have {pool}")]
    OtherDevices {
        /// Index of the job.
        job: usize,
        /// The job's E.
        given: u32,
        /// The pool's E.
        pool: u32,
    },
}
