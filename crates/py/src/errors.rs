//! Conversion of errors: one Python exception per cause.

use std::time::Duration;

use netsum_collective::Error;
use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

create_exception!(
    netsum,
    NetsumError,
    PyRuntimeError,
    "An operation failed; the group may be unusable."
);
create_exception!(netsum, PeerLost, NetsumError, "A rank is gone; `rank` says which.");
create_exception!(
    netsum,
    OperationTimeout,
    NetsumError,
    "An operation took longer than its timeout."
);
create_exception!(
    netsum,
    Mismatch,
    NetsumError,
    "Ranks called different operations in the same place."
);
create_exception!(netsum, Unsupported, NetsumError, "An argument that is not possible.");
create_exception!(
    netsum,
    ControllerUnavailable,
    NetsumError,
    "The controller does not answer, or refuses."
);

create_exception!(
    netsum,
    CredentialsError,
    NetsumError,
    "A certificate, a key or their authority cannot be used; the text names the file and the remedy."
);

pub(crate) fn register(py: Python<'_>, module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("NetsumError", py.get_type::<NetsumError>())?;
    module.add("PeerLost", py.get_type::<PeerLost>())?;
    module.add("OperationTimeout", py.get_type::<OperationTimeout>())?;
    module.add("Mismatch", py.get_type::<Mismatch>())?;
    module.add("Unsupported", py.get_type::<Unsupported>())?;
    module.add("ControllerUnavailable", py.get_type::<ControllerUnavailable>())
}

/// The exception for an error's cause.
pub(crate) fn raise(py: Python<'_>, error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::PeerLost { rank, .. } | Error::Left { rank, .. } => {
            let exception = PeerLost::new_err(text);
            match exception.value(py).setattr("rank", rank) {
                Ok(()) => exception,
                Err(failed) => failed,
            }
        }
        Error::Timeout { .. } => OperationTimeout::new_err(extended(py, text)),
        Error::Mismatch { .. } | Error::Size { .. } | Error::Told { mismatch: true, .. } => {
            Mismatch::new_err(text)
        }
        Error::Unsupported(_) => Unsupported::new_err(text),
        Error::Controller(_) => ControllerUnavailable::new_err(text),
        _ => NetsumError::new_err(text),
    }
}

/// The text of a time-out with a diagnosis, if there can be one.
fn extended(py: Python<'_>, text: String) -> String {
    let module = py.import("netsum.diagnosis.own");
    let extended = module.and_then(|own| own.call_method1("extended", (text.as_str(),)));
    // The error at hand is more important than why it cannot be explained.
    extended.and_then(|text| text.extract()).unwrap_or(text)
}

/// A time-out in seconds; ValueError if it is negative, infinite or not a number.
pub(crate) fn seconds(value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| PyValueError::new_err(format!("a timeout of {value} s is not possible")))
}
