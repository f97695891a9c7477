//! The aggregation memory of a switch with several threads: each thread has a part, and the parts add up to the whole.
//!
//! A thread uses its part without asking anybody. Parts change when leases come and go: each thread gets what its leases
//! want and an equal part of what is left; if leases want more than there is, parts are in proportion to their number. A
//! part that gets smaller is given back before another grows.

/// What the leases of a thread want.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Bytes with which every lease has its whole window.
    pub(crate) bytes: u64,
    /// Number of leases.
    pub(crate) leases: u64,
}

/// The parts of all threads.
#[derive(Debug)]
pub(super) struct Division {
    memory: u64,
    parts: Vec<u64>,
    /// Whether some part is not what it should be, because leases want too much or a busy one has yet to give back.
    unsettled: bool,
}

impl Division {
    /// Equal parts.
    pub(super) fn new(memory: u64, threads: usize) -> Division {
        let parts = targets(memory, &vec![Demand::default(); threads]);
        Division { memory, parts, unsettled: false }
    }

    pub(super) fn memory(&self) -> u64 {
        self.memory
    }

    pub(super) fn parts(&self) -> &[u64] {
        &self.parts
    }

    pub(super) fn is_unsettled(&self) -> bool {
        self.unsettled
    }

    /// Changes the parts for these demands. `set` sets the limit of a thread and returns the one that it has then, which
    /// is larger if its leases hold more. Errors: those of `set`.
    pub(super) fn settle<E>(
        &mut self,
        demands: &[Demand],
        mut set: impl FnMut(usize, u64) -> Result<u64, E>,
    ) -> Result<(), E> {
        let targets = targets(self.memory, demands);
        for (thread, &target) in targets.iter().enumerate() {
            if target < self.parts[thread] {
                self.parts[thread] = set(thread, target)?;
            }
        }
        for (thread, &target) in targets.iter().enumerate() {
            let free = self.memory.saturating_sub(self.parts.iter().sum());
            let more = target.saturating_sub(self.parts[thread]).min(free);
            if more > 0 {
                self.parts[thread] = set(thread, self.parts[thread] + more)?;
            }
        }
        let wanted: u64 = demands.iter().map(|demand| demand.bytes).sum();
        self.unsettled = wanted > self.memory || self.parts != targets;
        Ok(())
    }
}

/// What each thread should have.
fn targets(memory: u64, demands: &[Demand]) -> Vec<u64> {
    let wanted: u64 = demands.iter().map(|demand| demand.bytes).sum();
    let leases: u64 = demands.iter().map(|demand| demand.leases).sum();
    let part = |demand: &Demand| match memory.checked_sub(wanted) {
        Some(left) => demand.bytes + left / demands.len() as u64,
        None => (u128::from(memory) * u128::from(demand.leases) / u128::from(leases.max(1))) as u64,
    };
    let mut targets: Vec<u64> = demands.iter().map(part).collect();
    // What whole numbers leave over.
    let rest = memory - targets.iter().sum::<u64>();
    if let Some(first) = targets.first_mut() {
        *first += rest;
    }
    targets
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_follow_the_leases() {
        let demand = |bytes, leases| Demand { bytes, leases };
        assert_eq!(targets(100, &[demand(0, 0); 3]), [34, 33, 33]);
        assert_eq!(targets(100, &[demand(70, 3), demand(10, 1)]), [80, 20]);
        assert_eq!(targets(100, &[demand(0, 0), demand(200, 1)]), [0, 100]);
        assert_eq!(targets(100, &[demand(300, 1), demand(20, 3)]), [25, 75]);
    }

    /// A thread as `set` sees it: its limit, and bytes that its leases hold.
    #[derive(Clone, Copy, Debug)]
    struct Thread {
        limit: u64,
        held: u64,
    }

    fn demands(threads: usize) -> impl Strategy<Value = Vec<Demand>> {
        let demand = prop_oneof![
            Just(Demand::default()),
            (1..3_000u64, 1..5u64).prop_map(|(bytes, leases)| Demand { bytes, leases }),
        ];
        prop::collection::vec(demand, threads)
    }

    proptest! {
        #[test]
        fn the_limits_of_all_threads_are_never_more_than_the_memory(
            memory in 0..4_000u64,
            steps in prop::collection::vec((demands(3), prop::collection::vec(0..2_000u64, 3)), 1..12),
        ) {
            let mut division = Division::new(memory, 3);
            let mut threads: Vec<Thread> =
                division.parts().iter().map(|&limit| Thread { limit, held: 0 }).collect();
            for (demands, holds) in steps {
                // Whatever the leases hold is within the limit of their thread.
                for (thread, held) in threads.iter_mut().zip(holds) {
                    thread.held = held.min(thread.limit);
                }
                let mut most = 0;
                let settled: Result<(), Infallible> = division.settle(&demands, |thread, bytes| {
                    threads[thread].limit = bytes.max(threads[thread].held);
                    most = most.max(threads.iter().map(|thread| thread.limit).sum());
                    Ok(threads[thread].limit)
                });
                let Ok(()) = settled;
                prop_assert!(most <= memory, "{most} of {memory}");
                let limits: Vec<u64> = threads.iter().map(|thread| thread.limit).collect();
                prop_assert_eq!(&limits, division.parts());
                let wanted: u64 = demands.iter().map(|demand| demand.bytes).sum();
                if wanted <= memory && !division.is_unsettled() {
                    let all = limits.iter().zip(&demands);
                    prop_assert!(all.into_iter().all(|(limit, demand)| *limit >= demand.bytes));
                    prop_assert_eq!(limits.iter().sum::<u64>(), memory);
                }
                // Where nobody holds more than its new part, everybody has it.
                let fit = threads.iter().zip(targets(memory, &demands)).all(|(t, part)| t.held <= part);
                prop_assert!(!fit || limits == targets(memory, &demands));
            }
        }
    }
}
