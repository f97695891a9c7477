//! How an operation is to run.

use std::time::Duration;

use crate::call::Elements;

/// For how long an operation may run, and on which thread.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// From the call.
    pub(crate) timeout: Duration,
    /// The caller only waits.
    pub(crate) waits: bool,
    /// How the operation behaves that runs on the caller's thread.
    pub(crate) here: Here,
    pub(crate) elements: Elements,
}

/// The caller's own thread does the work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Here {
    /// Whether the caller does not want to wait any more; asked now and then while it waits.
    pub(crate) interrupted: fn() -> bool,
}

impl Terms {
    /// The caller only waits, so its own thread may do the work: where that is possible, the operation has ended when
    /// the call returns. Saves the waking of two threads.
    pub fn here(timeout: Duration) -> Terms {
        Terms { waits: true, ..timeout.into() }
    }

    /// What runs on the caller's thread fails soon after `interrupted` says true.
    pub fn unless(self, interrupted: fn() -> bool) -> Terms {
        Terms { here: Here { interrupted }, ..self }
    }

    /// The elements of an operation that only moves bytes. Ranks that name different elements called different operations.
    pub fn of(self, elements: Elements) -> Terms {
        Terms { elements, ..self }
    }
}

impl From<Duration> for Terms {
    /// The call returns soon: a small sum may be done within it, the rest goes on behind the caller's back.
    fn from(timeout: Duration) -> Terms {
        Terms {
            timeout,
            waits: false,
            here: Here { interrupted: || false },
            elements: Elements::default(),
        }
    }
}
