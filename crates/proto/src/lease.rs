//! How leases are named and kept.

use std::ops::AddAssign;

use netsum_wire::{Epoch, JobId, TreeId};
use rustc_hash::FxHashMap;

use crate::{Time, epoch};

/// Which lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseKey {
    /// Job.
    pub job: JobId,
    /// Version of the plan.
    pub epoch: Epoch,
    /// Tree, or pool.
    pub tree: TreeId,
}

/// What leases take of a switch or server for as long as they are installed, whatever their traffic: the controller
/// books it, machines reserve it and refuse what does not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    /// Aggregation memory: of a switch for trees of `panama`, of a server for fragments of `atp`. Slots of `atp` at a
    /// switch are for whoever comes first.
    pub memory_bytes: u64,
    /// Slots of static pools.
    pub pool_slots: u64,
}

impl AddAssign for Reservation {
    fn add_assign(&mut self, other: Reservation) {
        self.memory_bytes += other.memory_bytes;
        self.pool_slots += other.pool_slots;
    }
}

/// A lease as a table keeps it.
pub(crate) trait Granted {
    /// Job, epoch and tree.
    fn key(&self) -> LeaseKey;
}

/// What a machine keeps with a lease at work.
pub(crate) trait Tenancy {
    /// The lease.
    type Lease: Granted + PartialEq;

    /// The lease.
    fn lease(&self) -> &Self::Lease;
    /// When one of its neighbours was last heard.
    fn last_seen(&self) -> Time;
}

/// The leases of one machine, one per job and tree: the rules by which they come and go are the same in every protocol.
#[derive(Clone, Debug)]
pub(crate) struct LeaseTable<T>(FxHashMap<(JobId, TreeId), T>);

/// A lease of an epoch that is not after the one at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superseded {
    /// Of the lease.
    pub(crate) offered: Epoch,
    /// Already here.
    pub(crate) installed: Epoch,
}

impl<T: Tenancy> LeaseTable<T> {
    pub(crate) fn new() -> LeaseTable<T> {
        LeaseTable(FxHashMap::default())
    }

    /// Whether a lease is to be installed: true for a new (job, tree) and for a later epoch, false for the very lease that
    /// is at work.
    pub(crate) fn admits(&self, lease: &T::Lease) -> Result<bool, Superseded> {
        let LeaseKey { job, epoch: offered, tree } = lease.key();
        let Some(old) = self.0.get(&(job, tree)) else { return Ok(true) };
        if old.lease() == lease {
            return Ok(false);
        }
        let installed = old.lease().key().epoch;
        match epoch::compare(offered, installed).is_gt() {
            true => Ok(true),
            false => Err(Superseded { offered, installed }),
        }
    }

    /// Installs a lease; returns the one that it replaces.
    pub(crate) fn insert(&mut self, tenancy: T) -> Option<T> {
        let LeaseKey { job, tree, .. } = tenancy.lease().key();
        self.0.insert((job, tree), tenancy)
    }

    /// Takes back a job's leases of epochs up to `up_to`.
    pub(crate) fn revoke(&mut self, job: JobId, up_to: Epoch) -> Vec<T> {
        self.take(|tenancy| {
            let key = tenancy.lease().key();
            key.job == job && epoch::compare(key.epoch, up_to).is_le()
        })
    }

    /// Takes back leases whose neighbours have been silent for `idle_ns`: a dead job's memory comes back even while no
    /// controller is there.
    pub(crate) fn expire(&mut self, now: Time, idle_ns: u64) -> Vec<T> {
        self.take(|tenancy| now.since(tenancy.last_seen()) >= idle_ns)
    }

    #[inline]
    pub(crate) fn get(&self, job: JobId, tree: TreeId) -> Option<&T> {
        self.0.get(&(job, tree))
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, job: JobId, tree: TreeId) -> Option<&mut T> {
        self.0.get_mut(&(job, tree))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.0.values()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.values_mut()
    }

    /// In the order of jobs and trees.
    pub(crate) fn sorted_mut(&mut self) -> Vec<&mut T> {
        let mut all: Vec<_> = self.0.iter_mut().collect();
        all.sort_by_key(|(key, _)| **key);
        all.into_iter().map(|(_, tenancy)| tenancy).collect()
    }

    /// In the order of jobs and trees.
    pub(crate) fn sorted(&self) -> Vec<(&(JobId, TreeId), &T)> {
        let mut all: Vec<_> = self.0.iter().collect();
        all.sort_by_key(|(key, _)| **key);
        all
    }

    /// Those of other jobs, or of other trees of the job.
    pub(crate) fn others(&self, job: JobId, tree: TreeId) -> impl Iterator<Item = &T> {
        self.0.iter().filter(move |(key, _)| **key != (job, tree)).map(|(_, tenancy)| tenancy)
    }

    fn take(&mut self, gone: impl Fn(&T) -> bool) -> Vec<T> {
        self.0.extract_if(|_, tenancy| gone(tenancy)).map(|(_, tenancy)| tenancy).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    struct Grant(LeaseKey, u8);

    impl Granted for Grant {
        fn key(&self) -> LeaseKey {
            self.0
        }
    }

    impl Tenancy for (Grant, Time) {
        type Lease = Grant;

        fn lease(&self) -> &Grant {
            &self.0
        }

        fn last_seen(&self) -> Time {
            self.1
        }
    }

    fn grant(job: u32, epoch: u16, tree: u8) -> Grant {
        Grant(LeaseKey { job: JobId(job), epoch: Epoch(epoch), tree: TreeId(tree) }, 0)
    }

    #[test]
    fn a_later_epoch_replaces_the_older_even_where_epochs_wrap() {
        let mut table = LeaseTable::new();
        assert!(table.insert((grant(1, 65_535, 0), Time(0))).is_none());
        assert_eq!(table.admits(&grant(1, 65_535, 0)), Ok(false), "the same again");
        let other = Grant(grant(1, 65_535, 0).0, 1);
        let superseded = |offered, installed| {
            Err(Superseded { offered: Epoch(offered), installed: Epoch(installed) })
        };
        assert_eq!(table.admits(&other), superseded(65_535, 65_535));
        assert_eq!(table.admits(&grant(1, 65_534, 0)), superseded(65_534, 65_535));
        assert_eq!(table.admits(&grant(1, 65_534, 1)), Ok(true), "another tree");
        assert_eq!(table.admits(&grant(1, 1, 0)), Ok(true), "epoch 1 follows 65,535");
        assert_eq!(table.insert((grant(1, 1, 0), Time(0))).unwrap().0, grant(1, 65_535, 0));
        assert_eq!(table.admits(&grant(1, 65_535, 0)), superseded(65_535, 1));
    }

    #[test]
    fn leases_end_by_revocation_and_by_silence() {
        let mut table = LeaseTable::new();
        for (job, epoch, tree, last_seen) in [(1, 65_535, 0, 5), (1, 2, 1, 9), (2, 1, 0, 5)] {
            table.insert((grant(job, epoch, tree), Time(last_seen)));
        }
        let gone = table.revoke(JobId(1), Epoch(1));
        assert_eq!(gone, [(grant(1, 65_535, 0), Time(5))], "epoch 2 is later");
        assert!(table.expire(Time(9), 5).is_empty());
        assert_eq!(table.expire(Time(10), 5), [(grant(2, 1, 0), Time(5))]);
        assert_eq!(table.len(), 1);
        assert!(table.get(JobId(1), TreeId(1)).is_some());
    }
}
