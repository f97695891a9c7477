//! Machines that join by a token: the authority as a server, and the machine's side.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use netsum_control::{Attempt, ControlError, EnrolmentServer};
use netsum_identity::{Authority, JoinToken};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::ca::{Owner, owner, raise};
use crate::errors::{self, CredentialsError};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Enrolment>()?;
    module.add_function(wrap_pyfunction!(ca_token, module)?)?;
    module.add_function(wrap_pyfunction!(ca_join, module)?)
}

/// A machine's address, the identity that it got, and why it got none.
type Told = (String, Option<String>, Option<String>);

/// Makes a token by which a machine gets a certificate of a role within `seconds`, from the authority at `address`.
#[pyfunction]
fn ca_token(authority: PathBuf, role: &str, address: &str, seconds: f64) -> PyResult<String> {
    let lifetime = errors::seconds(seconds)?;
    let token = || Authority::open(&authority)?.token(&role.parse()?, address, lifetime);
    token().map(|token| token.to_string()).map_err(raise)
}

/// Gets the certificate of a token, and writes the files of its owner into `out`.
#[pyfunction]
fn ca_join(py: Python<'_>, token: &str, out: PathBuf) -> PyResult<Owner> {
    let token: JoinToken = token.parse().map_err(raise)?;
    let issued = py.detach(|| netsum_control::join(&token, &out));
    issued.map(|issued| owner(&issued)).map_err(|error| failed(&error))
}

/// The authority in a folder, served at `listen` ("address:port") until it is closed.
#[pyclass(frozen, module = "netsum._core")]
pub(crate) struct Enrolment(Mutex<Option<EnrolmentServer>>);

#[pymethods]
impl Enrolment {
    #[new]
    fn new(authority: PathBuf, listen: &str, days: u32) -> PyResult<Enrolment> {
        let wrong =
            |_| PyValueError::new_err(format!("{listen:?} is no address and port of this machine"));
        let (listen, lifetime): (SocketAddr, _) =
            (listen.parse().map_err(wrong)?, Duration::from_secs(u64::from(days) * 24 * 3600));
        let server = EnrolmentServer::start(&authority, listen, lifetime);
        Ok(Enrolment(Mutex::new(Some(server.map_err(|error| failed(&error))?))))
    }

    /// The listening address; empty once it is closed.
    fn address(&self) -> String {
        let server = self.0.lock();
        server.as_ref().map(|server| server.address().to_string()).unwrap_or_default()
    }

    /// How many tokens can be used.
    fn open_tokens(&self) -> PyResult<usize> {
        let server = self.0.lock();
        let open = server.as_ref().map_or(Ok(0), EnrolmentServer::open_tokens);
        open.map_err(|error| failed(&error))
    }

    /// The next attempt within `timeout_s` seconds: the machine's address, and the identity that it got, or why it got
    /// none.
    fn next(&self, py: Python<'_>, timeout_s: f64) -> PyResult<Option<Told>> {
        let patience = errors::seconds(timeout_s)?;
        let attempt = py.detach(|| self.0.lock().as_ref().and_then(|server| server.next(patience)));
        Ok(attempt.map(|Attempt { from, outcome }| match outcome {
            Ok(identity) => (from.to_string(), Some(identity), None),
            Err(reason) => (from.to_string(), None, Some(reason)),
        }))
    }

    /// Stops serving.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.0.lock().take()));
    }
}

fn failed(error: &ControlError) -> PyErr {
    CredentialsError::new_err(error.to_string())
}
