//! Keys of jobs, under which packets carry tags.

use netsum_wire::JobId;
use netsum_wire::tag::JobKey;
use rustc_hash::FxHashMap;

use crate::DropReason;

/// The keys of jobs at one switch, server or worker. A job without a key is trusted: its packets carry no tag.
#[derive(Clone, Debug, Default)]
pub struct Keys(FxHashMap<JobId, JobKey>);

impl Keys {
    /// Sets the key under which `job`'s packets carry tags; `None`: no tags.
    pub fn set(&mut self, job: JobId, key: Option<JobKey>) {
        match key {
            Some(key) => _ = self.0.insert(job, key),
            None => _ = self.0.remove(&job),
        }
    }

    /// Removes the keys of jobs for which `here` is false.
    pub fn retain(&mut self, here: impl Fn(JobId) -> bool) {
        self.0.retain(|&job, _| here(job));
    }

    /// A job's key.
    #[inline]
    pub fn get(&self, job: JobId) -> Option<&JobKey> {
        if self.0.is_empty() { None } else { self.0.get(&job) }
    }

    /// Checks a packet's tag before any machine handles the packet.
    #[inline]
    pub fn check(&self, job: JobId, packet: &[u8]) -> Result<(), DropReason> {
        match self.get(job) {
            Some(key) if !key.has_sealed(packet) => Err(DropReason::BadTag),
            _ => Ok(()),
        }
    }

    /// Writes the tag into a packet before it is sent.
    #[inline]
    pub fn seal(&self, job: JobId, head: &mut [u8], payload: &[u8]) {
        if let Some(key) = self.get(job) {
            key.seal(head, payload);
        }
    }
}
