//! The certificate authority of a fabric: folders in, what was issued out.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use netsum_identity::{Authority, Credentials, Identity, IdentityError, Issued, Role, Validity};
use pyo3::prelude::*;

use crate::errors::CredentialsError;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("CredentialsError", module.py().get_type::<CredentialsError>())?;
    module.add_function(wrap_pyfunction!(ca_init, module)?)?;
    module.add_function(wrap_pyfunction!(ca_issue, module)?)?;
    module.add_function(wrap_pyfunction!(ca_renew, module)?)?;
    module.add_function(wrap_pyfunction!(ca_revoke, module)?)?;
    module.add_function(wrap_pyfunction!(credentials, module)?)
}

/// Identity, and seconds since 1970 at the certificate's end.
pub(crate) type Owner = (String, u64);

/// Creates the authority of a fabric in a folder, or checks that it is there.
#[pyfunction]
fn ca_init(folder: PathBuf, fabric: &str) -> PyResult<()> {
    Authority::create(&folder, fabric).map(drop).map_err(raise)
}

/// Issues a certificate of a role, as "switch/rack0", and writes the files of its owner into `out`.
#[pyfunction]
fn ca_issue(authority: PathBuf, role: &str, out: PathBuf, days: u32) -> PyResult<Owner> {
    let issue = || {
        let authority = Authority::open(&authority)?;
        let identity = Identity::new(authority.fabric(), role.parse()?)?;
        let issued = authority.issue(&identity, lasting(days))?;
        issued.save(&out)?;
        Ok(issued)
    };
    issue().map(|issued| owner(&issued)).map_err(raise)
}

/// Replaces the certificate and the key in `folder`.
#[pyfunction]
fn ca_renew(authority: PathBuf, folder: PathBuf, days: u32) -> PyResult<Owner> {
    let renew = || Authority::open(&authority)?.renew(&folder, lasting(days));
    renew().map(|issued| owner(&issued)).map_err(raise)
}

/// Revokes all certificates of a role. Returns their number and the file of the revocation list. Without a role, only
/// signs the list anew.
#[pyfunction]
#[pyo3(signature = (authority, role=None))]
fn ca_revoke(authority: PathBuf, role: Option<&str>) -> PyResult<(usize, PathBuf)> {
    let revoke = || {
        let authority = Authority::open(&authority)?;
        let count = match role {
            Some(role) => authority.revoke(&role.parse::<Role>()?)?,
            None => authority.refresh().map(|()| 0)?,
        };
        Ok((count, authority.revocations_file()))
    };
    revoke().map_err(raise)
}

/// The owner of the credentials in a folder, which must be usable.
#[pyfunction]
fn credentials(folder: PathBuf) -> PyResult<Owner> {
    let credentials = Credentials::open(&folder).map_err(raise)?;
    Ok((credentials.identity().to_string(), credentials.expires_s()))
}

pub(crate) fn owner(issued: &Issued) -> Owner {
    (issued.identity().to_string(), seconds(issued.until()))
}

fn lasting(days: u32) -> Validity {
    Validity::lasting(Duration::from_secs(u64::from(days) * 24 * 3600))
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

pub(crate) fn raise(error: IdentityError) -> PyErr {
    CredentialsError::new_err(error.to_string())
}
