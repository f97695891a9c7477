//! One job, for one of its servers, at a switch.

use netsum_wire::atp::Header;

use super::lease::Lease;
use super::policy::Share;
use crate::lease::Tenancy;
use crate::sequence::distance;
use crate::{DropReason, Time};

/// What happened to one lease's fragments at one switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Fragments of children that were added.
    pub added: u64,
    /// Sums of all children that went on.
    pub completed: u64,
    /// Fragments that went on alone.
    pub passed: u64,
    /// Of these, because the slot was another fragment's.
    pub collisions: u64,
    /// Fragments that had been added before.
    pub duplicates: u64,
    /// Sums that went on early for a fragment that was sent again.
    pub released: u64,
    /// Slots that were let go because a member was late.
    pub expired: u64,
    /// Slots that were yielded to another fragment.
    pub preempted: u64,
    /// Results that passed on their way down.
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

/// A lease at work.
#[derive(Clone, Debug)]
pub(super) struct Tenant {
    pub(super) lease: Lease,
    pub(super) share: Share,
    /// One past the highest number whose result has passed.
    pub(super) passed: u32,
    pub(super) finished: u32,
    pub(super) heard: Time,
    pub(super) counters: Counters,
}

impl Tenant {
    /// Whether a number is one that may be in flight. A child sends less than a window beyond its lowest
    /// missing result, which is not above `passed`; and it contributed to every result that passed, so it
    /// lacks none that lies a window below.
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

    fn heard(&self) -> Time {
        self.heard
    }
}
