//! Times and limits of the controller's decisions.

/// Times and limits, in milliseconds unless stated otherwise. docs/operations.md has the flags that set them.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Buffers below this many bytes use the host path, unless the job has its own limit.
    pub min_bytes: u64,
    /// Maximum number of fragments in flight per (job, tree).
    pub slots_max: u32,
    /// How long a worker's stream may be disconnected before its peers' reports count.
    pub worker_grace_ms: u64,
    /// As `worker_grace_ms`, after a start of the controller.
    pub restart_grace_ms: u64,
    /// A job ends if none of its ranks is connected and no switch counts its packets for this long.
    pub abandon_ms: u64,
    /// The same if the connections of all ranks ended as those of processes that died. A rank that lives returns
    /// earlier; one that does not resumes its job.
    pub vanish_ms: u64,
    /// A job fails if its ranks have not all joined within this time.
    pub join_timeout_ms: u64,
    /// A switch with an open stream that reports nothing for this long is down.
    pub switch_silence_ms: u64,
    /// After a start of the controller, no plan is made without a switch before this time.
    pub switch_expected_ms: u64,
    /// A lease must be confirmed within this time.
    pub lease_timeout_ms: u64,
    /// How long a switch that refused a lease is not asked again by the same job.
    pub refusal_ms: u64,
    /// Minimum time from a switch's death until it is used again; doubled each time that it dies within two seconds of
    /// its return.
    pub return_hold_ms: u64,
    /// How long reports of silent trees are collected before a plan avoids their common parts.
    pub silence_settle_ms: u64,
    /// Time until the first trial of a suspected switch; doubled for each failed trial.
    pub trial_first_ms: u64,
    /// Maximum time between trials of a suspected switch in the first minute; longer afterwards.
    pub trial_max_ms: u64,
    /// A job whose trees have carried nothing for this long yields its leases to jobs that find no room.
    pub idle_yield_ms: u64,
    /// A lease may expire after this time without packets and without a controller, in seconds.
    pub idle_expiry_s: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            min_bytes: 16 << 10,
            slots_max: 512,
            worker_grace_ms: 3_000,
            restart_grace_ms: 10_000,
            abandon_ms: 30_000,
            vanish_ms: 1_000,
            join_timeout_ms: 600_000,
            switch_silence_ms: 5_000,
            switch_expected_ms: 1_500,
            lease_timeout_ms: 3_000,
            refusal_ms: 10_000,
            return_hold_ms: 500,
            silence_settle_ms: 150,
            trial_first_ms: 500,
            trial_max_ms: 1_000,
            idle_yield_ms: 10_000,
            idle_expiry_s: 900,
        }
    }
}
