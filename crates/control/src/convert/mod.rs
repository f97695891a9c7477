//! Conversion between plain types and messages. Other crates see plans and leases as plain types only.

mod bounds;
mod lease;
mod plan;

use netsum_wire::tag::JobKey;

use crate::error::ControlError;
use crate::pb;

pub(crate) use bounds::{Bounded, shorten};
pub use lease::lease_from_message;
pub(crate) use lease::{idle_expiry, lease_message, revocation};
pub(crate) use plan::{plan_from_bytes, plan_from_message, plan_message, plan_to_bytes};

impl From<JobKey> for pb::JobKey {
    fn from(key: JobKey) -> pb::JobKey {
        pb::JobKey { value: key.to_bytes().to_vec() }
    }
}

impl pb::JobKey {
    /// The key. Errors: an invalid length, or a message authentication code that this version does not know.
    pub fn key(&self) -> Result<JobKey, ControlError> {
        JobKey::from_bytes(&self.value).ok_or_else(|| ControlError::Malformed {
            what: "job key",
            problem: format!(
                "no MAC of this version has a key of these {} bytes",
                self.value.len()
            ),
        })
    }
}

/// Omits the key, so that it does not appear in logs.
impl std::fmt::Debug for pb::JobKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JobKey(..)")
    }
}
