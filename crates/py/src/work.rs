//! A handle to an asynchronous operation.

use std::time::Instant;

use netsum_collective as core;
use pyo3::prelude::*;

use crate::{SIGNAL_CHECK, callbacks, errors};

/// A handle to an asynchronous operation; its memory is free when it is done.
#[pyclass(frozen, module = "netsum._core")]
pub(crate) struct Work(pub(crate) core::Work);

#[pymethods]
impl Work {
    /// Blocks until the operation is done, at most `timeout_s` seconds (None: without limit).
    #[pyo3(signature = (timeout_s=None))]
    fn wait(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<()> {
        let timeout = timeout_s.map(errors::seconds).transpose()?;
        let until = timeout.and_then(|t| Instant::now().checked_add(t));
        loop {
            let left = until.map_or(SIGNAL_CHECK, |u| u.saturating_duration_since(Instant::now()));
            if self.0.is_done() || py.detach(|| self.0.wait_at_most(left.min(SIGNAL_CHECK))) {
                return self.0.outcome().map_err(|error| errors::raise(py, error));
            }
            py.check_signals()?;
            if left.is_zero() {
                return Err(errors::raise(py, self.0.still_running()));
            }
        }
    }

    /// Whether it is done, with or without an error.
    fn done(&self) -> bool {
        self.0.is_done()
    }

    /// Whether it is done without an error.
    fn ended_well(&self) -> bool {
        self.0.is_done() && self.0.error().is_none()
    }

    /// The error as text; None if there is none.
    fn error(&self) -> Option<String> {
        self.0.error().map(|error| error.to_string())
    }

    /// The sender of a received message.
    fn source_rank(&self) -> Option<u32> {
        self.0.source_rank()
    }

    /// Calls `callback()` once when the operation is done, on a pool of two threads.
    fn on_done(&self, callback: Py<PyAny>) {
        self.0.on_done(move || callbacks::call(callback));
    }
}
