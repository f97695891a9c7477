//! One job, for one of its servers, at a switch.

use netsum_wire::atp::Header;

use super::lease::Lease;
use super::policy::Share;
use crate::lateness::Meter;
use crate::lease::Tenancy;
use crate::sequence::distance;
use crate::{DropReason, Time};

/// Counters of one lease at one switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Children's fragments that were added.
    pub added: u64,
    /// Sums of all children that were sent on.
    pub completed: u64,
    /// Fragments that were forwarded alone, and notices of workers that contribute no elements.
    pub passed: u64,
    /// Fragments that were forwarded because the slot held another fragment.
    pub collisions: u64,
    /// Fragments that had already been added.
    pub duplicates: u64,
    /// Sums that were sent on early because a fragment was sent again.
    pub released: u64,
    /// Slots that were flushed because a member was late.
    pub expired: u64,
    /// Slots that were yielded to another fragment.
    pub preempted: u64,
    /// Results that passed on their way down, and notices that a fragment is complete.
    pub results: u64,
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.added += other.added;
        self.completed += other.completed;
        self.passed += other.passed;
        self.collisions += other.collisions;
        self.duplicates += other.duplicates;
        self.released += other.released;
        self.expired += other.expired;
        self.preempted += other.preempted;
        self.results += other.results;
    }
}

/// An installed lease.
#[derive(Clone, Debug)]
pub(super) struct Tenant {
    pub(super) lease: Lease,
    pub(super) share: Share,
    /// One past the highest number whose result has passed.
    pub(super) passed: u32,
    pub(super) finished: u32,
    pub(super) last_seen: Time,
    pub(super) meter: Meter,
    pub(super) counters: Counters,
}

impl Tenant {
    /// Checks that a number may be in flight. A child sends less than a window beyond its lowest missing result, which
    /// is not above `passed`; it contributed to every result that passed, so it lacks none that is a window or more
    /// below.
    pub(super) fn admit(&self, header: &Header) -> Result<(), DropReason> {
        let ahead = distance(header.sequence.0, self.passed);
        let window = i32::from(self.lease.window);
        match ahead {
            _ if ahead >= window => Err(DropReason::BeyondWindow),
            _ if ahead < -window => Err(DropReason::TooOld),
            _ => Ok(()),
        }
    }
}

impl Tenancy for Tenant {
    type Lease = Lease;

    fn lease(&self) -> &Lease {
        &self.lease
    }

    fn last_seen(&self) -> Time {
        self.last_seen
    }
}
