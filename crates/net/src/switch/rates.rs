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

/// The buckets of tenants that some thread knows, by name; of a job without a tenant by job.
#[derive(Debug, Default)]
pub(super) struct TenantRates {
    buckets: FxHashMap<(Option<Arc<str>>, Option<JobId>), Weak<LockedBuckets>>,
}

impl TenantRates {
    /// The buckets for packets of a job.
    pub(super) fn of(&mut self, now: Time, job: JobId, owner: &Owner) -> Arc<dyn SharedRates> {
        self.buckets.retain(|_, buckets| buckets.strong_count() > 0);
        let key = (owner.tenant.clone(), owner.tenant.is_none().then_some(job));
        if let Some(known) = self.buckets.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        let new = Arc::new(LockedBuckets(Mutex::new(RateBuckets::full(now))));
        self.buckets.insert(key, Arc::downgrade(&new));
        new
    }
}
