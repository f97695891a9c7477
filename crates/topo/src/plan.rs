//! Plans: what the workers and switches of a job must agree on.

use crate::order::SumOrder;
use crate::tree::AggregationTree;

pub use netsum_wire::{CongestionRule, Protocol, SlotPolicy};

/// What the workers and switches of a job must agree on for one epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Number of the job; never used for another job of the same controller.
    pub job: u32,
    /// Epoch, from 1; a higher epoch replaces a lower one.
    pub epoch: u16,
    /// Order of additions, the same for all trees and for the host path; fixed by the job's first plan.
    pub order: SumOrder,
    /// Protocol of the trees.
    pub protocol: Protocol,
    /// Reason for the protocol, as text; empty if the job requested it.
    pub choice: String,
    /// Trees by tree id; empty: host path only. The root of a tree of protocol `atp` is a server.
    pub trees: Vec<AggregationTree>,
    /// Whether the second half of the trees are copies of the first half, for operations that copy what one rank sends
    /// to others. Without copies switches do allreduces alone.
    pub copies: bool,
    /// Payload bytes of a full fragment.
    pub fragment_bytes: u32,
    /// Maximum number of fragments in flight per tree; 0 without trees.
    pub window_max: u32,
    /// Slot numbers with which workers and servers of protocol `atp` compute; 0 for other protocols.
    pub slot_space: u32,
    /// Factor between reals and the integers of slots; 0: a shared exponent per fragment.
    pub scale: f32,
    /// Share of children that must have contributed before a switch may release a partial, 0 < f ≤ 1.
    pub release_fraction: f32,
    /// Reaction of workers to congestion marks.
    pub congestion: CongestionRule,
    /// Buffers smaller than this use the host path.
    pub min_bytes: u64,
    /// Reason for fewer trees than the fabric could provide, as text; otherwise empty.
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
