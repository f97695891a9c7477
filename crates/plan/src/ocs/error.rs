//! What is wrong with a plan or a request. The texts are shown to users.

/// Why a plan does not do what it says.
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
    /// Nobody to share with.
    #[error("no job to share the devices among; name at least one as N,D")]
    NoJob,
    /// Jobs share one pool, so the ports of a device must agree.
    #[error("job {job} counts on devices with {given} ports, but those of the pool have {pool}")]
    OtherDevices {
        /// Index of the job.
        job: usize,
        /// Its E.
        given: u32,
        /// The pool's E.
        pool: u32,
    },
}
