//! The result of a run.

use std::fmt;

use serde::Serialize;

use crate::world::clock::Nanos;

/// Severity of a violation; the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// A component panicked.
    Crash,
    /// A wrong sum, memory exceeded, or a number allocated twice.
    Correctness,
    /// An operation or job does not end, or ended in an error without a cause.
    Liveness,
    /// The control plane ended a job whose data plane was working.
    Control,
    /// A job is not back on its trees in time.
    Recovery,
}

impl Class {
    /// The exit code of a command for this class.
    pub fn exit_code(self) -> u8 {
        match self {
            Class::Crash => 3,
            Class::Correctness => 4,
            Class::Liveness => 5,
            Class::Control => 6,
            Class::Recovery => 7,
        }
    }

    /// The class's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Class::Crash => "crash",
            Class::Correctness => "correctness",
            Class::Liveness => "liveness",
            Class::Control => "control",
            Class::Recovery => "recovery",
        }
    }
}

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Severity.
    pub class: Class,
    /// The invariant; a short constant text.
    pub rule: &'static str,
    /// Time, nanoseconds.
    pub at: Nanos,
    /// Description.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (class, seconds) = (self.class.name(), self.at as f64 / 1e9);
        write!(f, "{class} at {seconds:.6} s: {}: {}", self.rule, self.what)
    }
}

/// Statistics and violations of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The scenario's seed.
    pub seed: u64,
    /// Violations, in order of time.
    pub violations: Vec<Violation>,
    /// Digest of the event sequence; equal for equal runs.
    pub digest: u64,
    /// Number of events.
    pub events: u64,
    /// Simulated time, nanoseconds.
    pub simulated_ns: Nanos,
    /// Operations completed at a rank with the expected bits.
    pub operations: u64,
    /// Of these, operations that were summed on trees alone.
    pub on_trees: u64,
    /// Hand-overs completed at a rank.
    pub handovers: u64,
    /// Hostile packets.
    pub forged: u64,
    /// Ranks that completed all their operations.
    pub completed: u32,
    /// Ranks that ended in an error with a cause.
    pub failed: u32,
}

impl Report {
    /// The worst violation; the first of equally severe ones.
    pub fn worst(&self) -> Option<&Violation> {
        self.violations.iter().min_by_key(|violation| (violation.class, violation.at))
    }
}
