//! Plans: what the workers and switches of a job must agree on.

use crate::order::SumOrder;
use crate::tree::AggregationTree;

pub use netsum_wire::{CongestionRule, Protocol, SlotPolicy};

/// All that the workers and switches of a job must agree on for one epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Never used for another job of the same controller.
    pub job: u32,
    /// From 1; a higher epoch replaces a lower one.
    pub epoch: u16,
    /// The same for all trees and for the host path; fixed with the job's first plan.
    pub order: SumOrder,
    /// How sums are made.
    pub protocol: Protocol,
    /// Why it is that protocol, in words; empty where the job asked for it.
    pub choice: String,
    /// By tree id; empty: host path only. The root of a tree of protocol `atp` is a server.
    pub trees: Vec<AggregationTree>,
    /// Payload bytes of a full fragment.
    pub fragment_bytes: u32,
    /// Most fragments in flight per tree; 0 without trees.
    pub window_max: u32,
    /// Slot numbers that workers and servers of protocol `atp` compute with; 0 elsewhere.
    pub slot_space: u32,
    /// Factor between reals and the integers of slots; 0: shared exponents, fragment by fragment.
    pub scale: f32,
    /// Share of children that must be in before a switch may release a partial, 0 < f ≤ 1.
    pub release_fraction: f32,
    /// How workers answer marks.
    pub congestion: CongestionRule,
    /// Buffers below this go by the host path.
    pub min_bytes: u64,
    /// Why there are fewer trees than the fabric could give, in words; empty when there are not.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_read_back() {
        for protocol in Protocol::ALL {
            assert_eq!(protocol.to_string().parse(), Ok(*protocol));
        }
        for policy in [SlotPolicy::Partition, SlotPolicy::FirstCome, SlotPolicy::Preempt] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        for rule in [
            CongestionRule::Panama,
            CongestionRule::PerBranch,
            CongestionRule::Coupled,
            CongestionRule::None,
        ] {
            assert_eq!(rule.to_string().parse(), Ok(rule));
        }
        assert!(
            "dctcp"
                .parse::<CongestionRule>()
                .unwrap_err()
                .contains("use panama, per-branch, coupled or none")
        );
    }
}
