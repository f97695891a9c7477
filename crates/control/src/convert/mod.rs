//! Conversion between plain types and messages. Other crates see plans and leases as plain types only.

mod bounds;
mod lease;
mod plan;

use netsum_proto::Secrets;
use netsum_wire::seal::HopKeys;
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

impl pb::Lease {
    /// The lease with the keys of its packets.
    pub(crate) fn with_secrets(self, secrets: Option<&Secrets>) -> pb::Lease {
        let message = |keys: &HopKeys| pb::JobKey { value: keys.to_bytes().to_vec() };
        let hop_keys = secrets.into_iter().flatten().map(message).collect();
        pb::Lease { hop_keys, ..self }
    }

    /// The keys of its packets; `None`: they carry no tags. Errors describe what is invalid.
    pub fn secrets(&self) -> Result<Option<Secrets>, String> {
        if self.hop_keys.is_empty() {
            return Ok(None);
        }
        let neighbours = self.children.len() + usize::from(!self.parent_address.is_empty());
        if self.hop_keys.len() != neighbours {
            let keys = self.hop_keys.len();
            return Err(format!("the lease has keys for {keys} of {neighbours} neighbours"));
        }
        let keys = self.hop_keys.iter().map(|keys| HopKeys::from_bytes(&keys.value));
        let keys: Option<Secrets> = keys.collect();
        keys.map(Some).ok_or_else(|| "the lease has keys that this version cannot use".to_owned())
    }
}

/// Omits the key, so that it does not appear in logs.
impl std::fmt::Debug for pb::JobKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JobKey(..)")
    }
}
