//! Plans: what the workers and switches of a job must agree on.

use std::fmt;
use std::str::FromStr;

use crate::order::SumOrder;
use crate::tree::AggregationTree;

/// How sums are made: panama's trees, slots that are shared by whoever comes first, or a pool per job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Protocol {
    /// Trees of switches that add in order.
    #[default]
    Panama,
    /// Slots at the racks' switches and servers for the rest.
    Atp,
    /// One switch with a pool of slots for each job.
    Switchml,
}

impl Protocol {
    /// All of them.
    pub const ALL: [Protocol; 3] = [Protocol::Panama, Protocol::Atp, Protocol::Switchml];
}

impl Protocol {
    /// Whether its packets have room for a keyed tag.
    pub fn has_tags(self) -> bool {
        self != Protocol::Panama
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Panama => "panama",
            Protocol::Atp => "atp",
            Protocol::Switchml => "switchml",
        })
    }
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Protocol, String> {
        let found = Protocol::ALL.into_iter().find(|protocol| protocol.to_string() == text);
        found.ok_or_else(|| format!("protocol {text:?} is unknown; use panama, atp or switchml"))
    }
}

/// How a switch shares its slots among tenants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SlotPolicy {
    /// Each job has the slots that its lease guarantees, and no others.
    Partition,
    /// All slots are for whoever comes first.
    FirstCome,
    /// First come, but slots are yielded to guarantees, to priority, and by stragglers.
    #[default]
    Preempt,
}

impl fmt::Display for SlotPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SlotPolicy::Partition => "partition",
            SlotPolicy::FirstCome => "first-come",
            SlotPolicy::Preempt => "preempt",
        })
    }
}

impl FromStr for SlotPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<SlotPolicy, String> {
        match text {
            "partition" => Ok(SlotPolicy::Partition),
            "first-come" => Ok(SlotPolicy::FirstCome),
            "preempt" => Ok(SlotPolicy::Preempt),
            _ => Err(format!(
                "slot policy {text:?} is unknown; use partition, first-come or preempt"
            )),
        }
    }
}

/// How a worker answers congestion marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CongestionRule {
    /// PANAMA: one window per tree, marks of all branches taken together.
    #[default]
    Panama,
    /// One virtual window per branch, the least of them counts.
    PerBranch,
    /// PANAMA's, with the increase of one window shared by the trees of a job.
    Coupled,
    /// The window stays at its cap.
    None,
}

impl fmt::Display for CongestionRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CongestionRule::Panama => "panama",
            CongestionRule::PerBranch => "per-branch",
            CongestionRule::Coupled => "coupled",
            CongestionRule::None => "none",
        })
    }
}

impl FromStr for CongestionRule {
    type Err = String;

    fn from_str(text: &str) -> Result<CongestionRule, String> {
        match text {
            "panama" => Ok(CongestionRule::Panama),
            "per-branch" => Ok(CongestionRule::PerBranch),
            "coupled" => Ok(CongestionRule::Coupled),
            "none" => Ok(CongestionRule::None),
            _ => Err(format!(
                "congestion rule {text:?} is unknown; use panama, per-branch, coupled or none"
            )),
        }
    }
}

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
            assert_eq!(protocol.to_string().parse(), Ok(protocol));
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
