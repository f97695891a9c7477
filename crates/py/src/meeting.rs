//! Rendezvous of ranks without torch.

use std::net::ToSocketAddrs;
use std::path::PathBuf;

use netsum_collective::rendezvous::{self, Invitation, TOKEN_LEN, Token};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::errors;

/// An open rendezvous, hosted by one rank; all ranks then call `meet`.
#[pyclass(frozen, module = "netsum._core")]
pub(crate) struct Meeting(rendezvous::Meeting);

#[pymethods]
impl Meeting {
    /// Opens it at `at` ("host:port"; port 0: any) for `timeout_s` seconds. `credentials`: the folder of this process's.
    /// OSError if the name has no address.
    #[new]
    #[pyo3(signature = (at, token, timeout_s, credentials=None))]
    fn new(
        py: Python<'_>,
        at: &str,
        token: &[u8],
        timeout_s: f64,
        credentials: Option<PathBuf>,
    ) -> PyResult<Meeting> {
        let invitation = invitation(py, token, credentials)?;
        let patience = errors::seconds(timeout_s)?;
        let address = py.detach(|| at.to_socket_addrs().ok().and_then(|mut all| all.next()));
        let address = address
            .ok_or_else(|| PyOSError::new_err(format!("{at:?} is no host:port with an address")))?;
        let meeting = rendezvous::Meeting::host(address, invitation, patience);
        Ok(Meeting(meeting.map_err(|error| errors::raise(py, error))?))
    }

    /// The listening port.
    fn port(&self) -> u16 {
        self.0.address().port()
    }
}

/// All addresses by rank, from the rendezvous at `at`; blocks until all ranks have joined, at most `timeout_s` seconds.
/// `credentials`: the folder of this process's.
#[pyfunction]
#[pyo3(signature = (at, token, rank, size, address, timeout_s, credentials=None))]
#[expect(clippy::too_many_arguments, reason = "Python names them")]
pub(crate) fn meet(
    py: Python<'_>,
    at: String,
    token: &[u8],
    rank: u32,
    size: u32,
    address: Vec<u8>,
    timeout_s: f64,
    credentials: Option<PathBuf>,
) -> PyResult<Vec<Vec<u8>>> {
    let (invitation, timeout) = (invitation(py, token, credentials)?, errors::seconds(timeout_s)?);
    let all = py.detach(|| rendezvous::meet(&at, invitation, (rank, size), &address, timeout));
    all.map_err(|error| errors::raise(py, error))
}

fn invitation(py: Python<'_>, token: &[u8], credentials: Option<PathBuf>) -> PyResult<Invitation> {
    let invitation = Invitation::new(token_of(token)?, credentials.as_deref());
    invitation.map_err(|error| errors::raise(py, error))
}

fn token_of(bytes: &[u8]) -> PyResult<Token> {
    let wrong =
        |_| PyValueError::new_err(format!("a token has {TOKEN_LEN} bytes, not {}", bytes.len()));
    bytes.try_into().map_err(wrong)
}
