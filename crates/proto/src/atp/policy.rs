//! Policies by which tenants share the slots of a switch.

use netsum_wire::SlotIndex;

use super::lease::Claim;
use crate::Time;

/// How a switch shares its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Each lease has `guaranteed` slots of its own and no others (static pools): without conflicts, but idle whenever
    /// the job is.
    Partition,
    /// First come, first served (ATP's policy).
    FirstCome,
    /// First come, first served, but a holder yields its slot to a lease that is far below its guarantee, or of higher
    /// priority, or (at equal priority) if nothing was added for `patience_ns`. The partial sum goes on to the server.
    /// After ESA (preemptive allocation).
    Preempt {
        /// Time after which a slot that waits for a straggler or for a result yields to any lease.
        patience_ns: u64,
    },
}

/// A lease's claim and its use of slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) claim: Claim,
    /// Slots held now.
    pub(crate) held: u32,
    /// First slot of its partition.
    pub(crate) first: u32,
}

impl Policy {
    /// The row of a slot index for a lease; `None` if the lease has no slots.
    pub(crate) fn row(self, share: &Share, slot: SlotIndex, slots: u32) -> Option<usize> {
        match self {
            Policy::Partition => {
                let within = slot.0.checked_rem(share.claim.guaranteed)?;
                Some((share.first + within) as usize)
            }
            _ => Some((slot.0 % slots) as usize),
        }
    }

    /// First slot of a partition of `wanted` slots, or 0 if slots are shared. Error: the number of slots that are free.
    /// Guarantees never exceed the number of slots.
    pub(crate) fn room<'a>(
        self,
        slots: u32,
        wanted: u32,
        others: impl Iterator<Item = &'a Share>,
    ) -> Result<u32, u32> {
        let mut taken: Vec<(u32, u32)> = others.map(|s| (s.first, s.claim.guaranteed)).collect();
        let promised: u32 = taken.iter().map(|&(_, n)| n).sum();
        if wanted > slots - promised {
            return Err(slots - promised);
        }
        if self != Policy::Partition {
            return Ok(0);
        }
        taken.push((slots, 0));
        taken.sort_unstable();
        let (mut start, mut largest) = (0, 0);
        for (first, count) in taken {
            if first - start >= wanted {
                return Ok(start);
            }
            largest = largest.max(first - start);
            start = first + count;
        }
        Err(largest)
    }

    /// Whether a lease may take another slot.
    pub(crate) fn may_take(self, share: &Share) -> bool {
        share.held < share.claim.limit
    }

    /// Whether `holder`, which last added to its slot at `touched`, yields it to `contender`. `complete`: its sum has
    /// been sent. Preempting an incomplete sum costs the links more than the contender gains, so a guarantee takes such
    /// a slot only while less than half of it is met: jobs near their guarantees do not preempt each other.
    pub(crate) fn yields(
        self,
        now: Time,
        touched: Time,
        complete: bool,
        holder: &Share,
        contender: &Share,
    ) -> bool {
        let Policy::Preempt { patience_ns } = self else { return false };
        let protected = holder.held <= holder.claim.guaranteed;
        let owed = contender.claim.guaranteed / if complete { 1 } else { 2 };
        if contender.held < owed && !protected {
            return true;
        }
        let idle = now.since(touched) >= patience_ns;
        let weaker = holder.claim.priority < contender.claim.priority;
        let equal = holder.claim.priority == contender.claim.priority;
        !protected && (weaker || equal && idle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(guaranteed: u32, limit: u32, priority: u8, held: u32) -> Share {
        Share { claim: Claim { guaranteed, limit, priority }, held, first: 10 }
    }

    #[test]
    fn partitions_do_not_overlap_and_the_others_share_all() {
        let own = share(4, 4, 0, 0);
        let rows = |policy: Policy| -> Vec<_> {
            (0..6).map(|i| policy.row(&own, SlotIndex(i + 100), 64)).collect()
        };
        let partition = [10, 11, 12, 13, 10, 11].map(Some);
        assert_eq!(rows(Policy::Partition), partition);
        assert_eq!(rows(Policy::FirstCome), [36, 37, 38, 39, 40, 41].map(Some));
        assert_eq!(Policy::Partition.row(&share(0, 9, 0, 0), SlotIndex(1), 64), None);
    }

    #[test]
    fn guarantees_never_exceed_the_slots() {
        let at = |first, guaranteed| Share { first, ..share(guaranteed, 9, 0, 0) };
        let others = [at(0, 10), at(20, 10)];
        let room = |policy: Policy, wanted| policy.room(32, wanted, others.iter());
        assert_eq!(room(Policy::Partition, 10), Ok(10));
        assert_eq!(room(Policy::Partition, 2), Ok(10));
        assert_eq!(room(Policy::Partition, 12), Err(10), "twelve are free, but not in a row");
        assert_eq!(room(Policy::FirstCome, 12), Ok(0));
        assert_eq!(room(Policy::FirstCome, 13), Err(12));
    }

    #[test]
    fn claims_decide_which_slot_yields() {
        let policy = Policy::Preempt { patience_ns: 100 };
        let yields =
            |age, holder, contender| policy.yields(Time(age), Time(0), false, &holder, &contender);
        let plain = |held| share(0, 99, 3, held);
        let owed = share(8, 99, 0, 3);
        assert!(!yields(99, plain(5), plain(5)), "first come");
        assert!(yields(100, plain(5), plain(5)), "stragglers do not hold memory");
        assert!(yields(0, plain(5), share(0, 99, 4, 5)), "priority");
        assert!(!yields(1000, share(0, 99, 4, 5), plain(5)), "not even when it is slow");
        assert!(yields(0, share(0, 99, 9, 5), owed), "a guarantee beats priority");
        assert!(!yields(1000, share(5, 99, 0, 5), plain(5)), "guaranteed slots never yield");
        assert!(!yields(0, share(5, 99, 0, 5), owed), "not to another guarantee either");
        assert!(yields(0, share(5, 99, 0, 6), owed), "what goes beyond does");
        let nearly = share(8, 99, 0, 7);
        assert!(!yields(0, plain(5), nearly), "a sum is not cut short for the rest of a guarantee");
        assert!(policy.yields(Time(0), Time(0), true, &plain(5), &nearly), "one that is done goes");
        let full = share(8, 99, 0, 8);
        assert!(!policy.yields(Time(0), Time(0), true, &plain(5), &full));
        assert!(!Policy::FirstCome.yields(Time(1 << 40), Time(0), true, &plain(1), &owed));
    }
}
