//! What the threads of a group report to its coordinator.

use std::time::Duration;

use crate::Error;

/// The coordinator, as the queues, sessions and rounds of a group see it.
pub(crate) trait GroupEvents: Send + Sync {
    /// Another rank called something else than this rank as operation `sequence`.
    fn differs(&self, sequence: u64);

    /// The group cannot continue.
    fn failed(&self, error: Error);

    /// Waits until the coordinator has handled every event that was sent before, at most for `patience`.
    fn settle(&self, patience: Duration);
}
