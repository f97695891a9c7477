//! Events that the threads of a group report to its coordinator.

use std::time::Duration;

use crate::Error;

/// The coordinator's interface to the queues, sessions and rounds of a group.
pub(crate) trait GroupEvents: Send + Sync {
    /// Another rank's call of operation `sequence` differs from this rank's.
    fn differs(&self, sequence: u64);

    /// The group cannot continue.
    fn failed(&self, error: Error);

    /// Waits until the coordinator has handled every earlier event, at most for `patience`.
    fn settle(&self, patience: Duration);
}
