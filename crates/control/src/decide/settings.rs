//! Times and bounds of the controller's decisions.

/// Times and bounds, all in milliseconds unless said otherwise. docs/operations.md has the flags that set them.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Buffers below this many bytes go by the host path, unless the job says otherwise.
    pub min_bytes: u64,
    /// Most fragments in flight per (job, tree).
    pub slots_max: u32,
    /// A worker's stream may be away for so long before its peers' opinion counts.
    pub worker_grace_ms: u64,
    /// As `worker_grace_ms`, after a start of the controller.
    pub restart_grace_ms: u64,
    /// A job none of whose ranks is connected and none of whose packets a switch counts is over after this time.
    pub abandon_ms: u64,
    /// A job whose ranks have not all come by then has failed.
    pub join_timeout_ms: u64,
    /// A switch with an open stream that reports nothing for so long is down.
    pub switch_silence_ms: u64,
    /// After a start of the controller, no plan is made without a switch before this time.
    pub switch_expected_ms: u64,
    /// A lease must be confirmed within this time.
    pub lease_timeout_ms: u64,
    /// A switch that refused a lease is not asked again by the same job for so long.
    pub refusal_ms: u64,
    /// A switch is used again so long after its death at the earliest; doubled each time that it dies within two seconds
    /// of its return.
    pub return_hold_ms: u64,
    /// Reports of silent trees are collected for so long before a plan avoids what they have in common.
    pub silence_settle_ms: u64,
    /// The first trial of a suspected switch comes after this time; doubled for each that fails.
    pub trial_first_ms: u64,
    /// The longest time between trials of a suspected switch in the first minute; longer after that.
    pub trial_max_ms: u64,
    /// A lease may go when neither packets nor a controller have been there for so long, in seconds.
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
            join_timeout_ms: 600_000,
            switch_silence_ms: 5_000,
            switch_expected_ms: 1_500,
            lease_timeout_ms: 3_000,
            refusal_ms: 10_000,
            return_hold_ms: 500,
            silence_settle_ms: 150,
            trial_first_ms: 500,
            trial_max_ms: 1_000,
            idle_expiry_s: 900,
        }
    }
}
