//! Rendezvous of ranks without torch.

use std::net::ToSocketAddrs;

use netsum_collective::rendezvous::{self, TOKEN_LEN, Token};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::errors;

/// An open rendezvous, hosted by one rank; all ranks then call `meet`.
#[pyclass(frozen, module = "netsum._core")]
pub(crate) struct Meeting(rendezvous::Meeting);

#[pymethods]
impl Meeting {
    /// Opens it at `at` ("host:port"; port 0: any) for `timeout_s` seconds. OSError if the name has no address.
    #[new]
    fn new(py: Python<'_>, at: &str, token: &[u8], timeout_s: f64) -> PyResult<Meeting> {
        let (token, patience) = (token_of(token)?, errors::seconds(timeout_s)?);
        let address = py.detach(|| at.to_socket_addrs().ok().and_then(|mut all| all.next()));
        let address = address
            .ok_or_else(|| PyOSError::new_err(format!("{at:?} is no host:port with an address")))?;
        let meeting = rendezvous::Meeting::host(address, token, patience);
        Ok(Meeting(meeting.map_err(|error| errors::raise(py, error))?))
    }

    /// The listening port.
    fn port(&self) -> u16 {
        self.0.address().port()
    }
}

/// All addresses by rank, from the rendezvous at `at`; blocks until all ranks have joined, at most `timeout_s` seconds.
#[pyfunction]
pub(crate) fn meet(
    py: Python<'_>,
    at: String,
    token: &[u8],
    rank: u32,
    size: u32,
    address: Vec<u8>,
    timeout_s: f64,
) -> PyResult<Vec<Vec<u8>>> {
    let (token, timeout) = (token_of(token)?, errors::seconds(timeout_s)?);
    let all = py.detach(|| rendezvous::meet(&at, token, (rank, size), &address, timeout));
    all.map_err(|error| errors::raise(py, error))
}

fn token_of(bytes: &[u8]) -> PyResult<Token> {
    let wrong =
        |_| PyValueError::new_err(format!("a token has {TOKEN_LEN} bytes, not {}", bytes.len()));
    bytes.try_into().map_err(wrong)
}
