//! The rates of tenants at a switch with several threads: one pair of buckets per tenant, whichever thread has the jobs.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use netsum_proto::Time;
use netsum_proto::policer::{Level, Owner, RateBuckets, RateLimit, SharedRates};
use netsum_wire::JobId;
use rustc_hash::FxHashMap;

/// Buckets behind a lock, which only packets of tenants with a limit take.
#[derive(Debug)]
struct LockedBuckets(Mutex<RateBuckets>);

impl SharedRates for LockedBuckets {
    fn admit(&self, now: Time, limit: RateLimit, bytes: u64, passes: bool) -> Level {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.admit(now, limit, bytes, passes)
    }
}

/// The name of a tenant, or a job that stands for itself.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Name {
    Tenant(Arc<str>),
    Job(JobId),
}

/// The buckets of tenants that some thread knows.
#[derive(Debug, Default)]
pub(super) struct TenantRates {
    buckets: FxHashMap<Name, Weak<LockedBuckets>>,
}

impl TenantRates {
    /// The buckets for packets of a job.
    pub(super) fn of(&mut self, now: Time, job: JobId, owner: &Owner) -> Arc<dyn SharedRates> {
        self.buckets.retain(|_, buckets| buckets.strong_count() > 0);
        let name = owner.tenant.clone().map_or(Name::Job(job), Name::Tenant);
        if let Some(known) = self.buckets.get(&name).and_then(Weak::upgrade) {
            return known;
        }
        let new = Arc::new(LockedBuckets(Mutex::new(RateBuckets::full(now))));
        self.buckets.insert(name, Arc::downgrade(&new));
        new
    }
}
