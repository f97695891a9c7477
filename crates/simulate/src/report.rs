//! What a run found.

use std::fmt;

use serde::Serialize;

use crate::world::clock::Nanos;

/// How bad a violation is; the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// A component panicked.
    Crash,
    /// A sum is wrong, memory is exceeded, a number was given twice.
    Correctness,
    /// Something does not end, or ended in an error without a cause.
    Liveness,
    /// The control plane ended a job whose data plane works.
    Control,
    /// A job is not back on its trees in time.
    Recovery,
}

impl Class {
    /// The exit code of a command that found it.
    pub fn exit_code(self) -> u8 {
        match self {
            Class::Crash => 3,
            Class::Correctness => 4,
            Class::Liveness => 5,
            Class::Control => 6,
            Class::Recovery => 7,
        }
    }

    /// Its name in reports.
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

/// An invariant that did not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// How bad it is.
    pub class: Class,
    /// Which invariant; short and always the same.
    pub rule: &'static str,
    /// When, nanoseconds.
    pub at: Nanos,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (class, seconds) = (self.class.name(), self.at as f64 / 1e9);
        write!(f, "{class} at {seconds:.6} s: {}: {}", self.rule, self.what)
    }
}

/// What one run did and found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The scenario's seed.
    pub seed: u64,
    /// What did not hold, in the order of time.
    pub violations: Vec<Violation>,
    /// Equal for equal runs.
    pub digest: u64,
    /// Events.
    pub events: u64,
    /// Time that passed in the run.
    pub simulated_ns: Nanos,
    /// Operations that ended at a rank with the right bits.
    pub operations: u64,
    /// Of these, operations that were summed in the network alone.
    pub on_trees: u64,
    /// Hand-overs that ended at a rank.
    pub handovers: u64,
    /// Ranks that did all of their work.
    pub completed: u32,
    /// Ranks that ended in an error with a cause.
    pub failed: u32,
}

impl Report {
    /// The worst violation; of these the first.
    pub fn worst(&self) -> Option<&Violation> {
        self.violations.iter().min_by_key(|violation| (violation.class, violation.at))
    }
}
