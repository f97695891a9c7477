//! Parameters of running an operation.

use std::time::Duration;

use crate::call::Elements;

/// Time-out of an operation, and the thread that runs it.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Time-out from the call.
    pub(crate) timeout: Duration,
    /// Whether the caller only waits.
    pub(crate) waits: bool,
    /// Settings for running on the caller's thread.
    pub(crate) here: Here,
    pub(crate) elements: Elements,
}

/// Settings for running on the caller's thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Here {
    /// Whether the caller wants to stop waiting; polled while it waits.
    pub(crate) interrupted: fn() -> bool,
}

impl Terms {
    /// The caller only waits, so its own thread may run the operation: if that is possible, the operation has completed
    /// when the call returns. Saves two thread wake-ups.
    pub fn here(timeout: Duration) -> Terms {
        Terms { waits: true, ..timeout.into() }
    }

    /// The same for a caller that goes on: it waits for several operations together.
    pub(crate) fn in_background(self) -> Terms {
        Terms { waits: false, ..self }
    }

    /// An operation on the caller's thread fails soon after `interrupted` returns true.
    pub fn unless(self, interrupted: fn() -> bool) -> Terms {
        Terms { here: Here { interrupted }, ..self }
    }

    /// The elements of an operation that only moves bytes. Different elements at different ranks are a mismatch.
    pub fn of(self, elements: Elements) -> Terms {
        Terms { elements, ..self }
    }
}

impl From<Duration> for Terms {
    /// The call returns soon: a small sum may complete within it, other operations continue asynchronously.
    fn from(timeout: Duration) -> Terms {
        Terms {
            timeout,
            waits: false,
            here: Here { interrupted: || false },
            elements: Elements::default(),
        }
    }
}
