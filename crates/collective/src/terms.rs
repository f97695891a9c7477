//! How an operation is to run.

use std::time::Duration;

/// For how long an operation may run, and on which thread.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// From the call.
    pub(crate) timeout: Duration,
    pub(crate) here: Option<Here>,
}

/// The caller's own thread may do the work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Here {
    /// Whether the caller does not want to wait any more; asked now and then while it waits.
    pub(crate) interrupted: fn() -> bool,
}

impl Terms {
    /// The caller only waits, so its own thread may do the work: where that is possible, the operation has ended when
    /// the call returns. Saves the waking of two threads.
    pub fn here(timeout: Duration) -> Terms {
        Terms { timeout, here: Some(Here { interrupted: || false }) }
    }

    /// An operation that runs here fails soon after `interrupted` says true.
    pub fn unless(self, interrupted: fn() -> bool) -> Terms {
        Terms { here: self.here.map(|_| Here { interrupted }), ..self }
    }
}

impl From<Duration> for Terms {
    /// The call returns at once.
    fn from(timeout: Duration) -> Terms {
        Terms { timeout, here: None }
    }
}
