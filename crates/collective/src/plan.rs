//! From the controller's plan to what the data thread works by.

use std::net::SocketAddr;
use std::sync::Arc;

use netsum_control::{plan_from_bytes, plan_to_bytes};
use netsum_lease::{JobPlan, PlanError};
use netsum_net::worker::WorkerPlan;
use netsum_proto::CongestionRule as Rule;
use netsum_proto::{WorkerConfig, atp, handover, panama, switchml};
use netsum_topo::{CongestionRule, Plan, Protocol};
use netsum_wire::fixed::Scale;
use netsum_wire::{Epoch, JobId, Rank};

pub(crate) use netsum_proto::supports;

/// A plan of the controller, validated, as ranks hand over from one to the next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ControllerPlan(pub(crate) Arc<JobPlan>);

impl handover::Plan for ControllerPlan {
    fn epoch(&self) -> Epoch {
        Epoch(self.0.plan.epoch)
    }

    fn has_trees(&self) -> bool {
        !self.0.plan.trees.is_empty()
    }

    fn continues(&self, before: &ControllerPlan) -> bool {
        // Protocols differ in the formats that they can add: an operation that one rank has begun over the hosts must not
        // go over the trees of another protocol at the others.
        let (plan, before) = (&self.0.plan, &before.0.plan);
        (plan.fragment_bytes, plan.protocol) == (before.fragment_bytes, before.protocol)
    }

    fn patience_ns(&self) -> u64 {
        if self.0.plan.protocol.has_pools() { POOL_PATIENCE_NS } else { PATIENCE_NS }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(plan_to_bytes(&self.0));
    }

    fn decode(bytes: &[u8], size: u32) -> Result<ControllerPlan, String> {
        let plan = plan_from_bytes(bytes, size).map_err(|error| error.to_string())?;
        Ok(ControllerPlan(Arc::new(plan)))
    }
}

/// The plan as the driver needs it; it has trees, and is validated.
pub(crate) fn worker_plan(plan: &JobPlan, rank: u32, size: u32) -> Result<WorkerPlan, PlanError> {
    let attachments = plan.attachments(rank)?;
    let switches: Vec<SocketAddr> = attachments.iter().map(|a| a.address).collect();
    let scale = plan.plan.scale;
    let config = match plan.plan.protocol {
        Protocol::Panama => panama_config(&plan.plan, rank, size).into(),
        Protocol::Atp => {
            let scaling = Scale::new(scale).map_or(atp::Scaling::Shared, atp::Scaling::Fixed);
            atp_config(&plan.plan, plan.places(rank)?, size, scaling).into()
        }
        Protocol::Switchml => WorkerConfig::Switchml(switchml::WorkerConfig {
            job: JobId(plan.plan.job),
            epoch: Epoch(plan.plan.epoch),
            worker: attachments.first().map_or(0, |a| a.child),
            workers: size as u8,
            slots: plan.plan.window_max as u16,
            fragment_bytes: plan.plan.fragment_bytes as u16,
            timeout_ns: switchml::TIMEOUT_NS,
        }),
    };
    Ok(WorkerPlan { config, switches })
}

fn panama_config(plan: &Plan, rank: u32, size: u32) -> panama::WorkerConfig {
    // `validate` has checked the ranges.
    let (window_max, fragment_bytes) = (plan.window_max as u16, plan.fragment_bytes as u16);
    let trees = plan.trees.len() as u8;
    panama::WorkerConfig {
        job: JobId(plan.job),
        epoch: Epoch(plan.epoch),
        rank: Rank(rank),
        ranks: size,
        trees,
        window_max,
        fragment_bytes,
        congestion: match plan.congestion {
            CongestionRule::Panama => Rule::Panama,
            CongestionRule::PerBranch => Rule::PerBranch,
            CongestionRule::Coupled => Rule::Coupled { trees },
            CongestionRule::None => Rule::Fixed(window_max),
        },
        partial: plan.release_fraction < 1.0,
    }
}

fn atp_config(
    plan: &Plan,
    places: Vec<atp::Place>,
    size: u32,
    scaling: atp::Scaling,
) -> atp::WorkerConfig {
    let (window_max, fragment_bytes) = (plan.window_max as u16, plan.fragment_bytes as u16);
    let on_the_wire = fragment_bytes.saturating_add(HEADERS);
    atp::WorkerConfig {
        job: JobId(plan.job),
        epoch: Epoch(plan.epoch),
        ranks: size,
        places,
        window_max,
        fragment_bytes,
        slots: plan.slot_space,
        scaling,
        congestion: match plan.congestion {
            CongestionRule::None => Rule::Fixed(window_max),
            CongestionRule::Panama | CongestionRule::PerBranch | CongestionRule::Coupled => {
                Rule::Aimd { packet_bytes: on_the_wire }
            }
        },
    }
}
/// Ethernet 14, IPv4 and UDP 28, protocol atp 46.
const HEADERS: u16 = 88;
/// A tree that has been silent gets this long for a new plan to come before the ranks give it up.
const PATIENCE_NS: u64 = 1_000_000_000;
/// A pool says nothing while a worker is late, so silence is no sign of death; the controller sees that sooner.
const POOL_PATIENCE_NS: u64 = 20_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use netsum_lease::Aggregator;
    use netsum_proto::handover::Plan as _;
    use netsum_topo::{AggregationTree, Child, NodeId, SumOrder, TreeNode};

    fn plan(epoch: u16, fragment_bytes: u32) -> ControllerPlan {
        let root = NodeId(0);
        let children = vec![Child::Rank(0), Child::Rank(1)];
        let nodes = vec![TreeNode { switch: root, children, parent: None }];
        let address = Some("127.0.0.1:1".parse().unwrap());
        ControllerPlan(Arc::new(JobPlan {
            plan: Plan {
                job: 1,
                epoch,
                order: SumOrder::flat(2),
                protocol: Protocol::Panama,
                choice: String::new(),
                trees: vec![AggregationTree { root, nodes }],
                fragment_bytes,
                window_max: 8,
                slot_space: 0,
                scale: 0.0,
                release_fraction: 1.0,
                congestion: CongestionRule::Panama,
                min_bytes: 0,
                reason: String::new(),
            },
            aggregators: vec![Aggregator { name: "s".to_owned(), address }],
            key: None,
        }))
    }

    fn encoded(plan: &ControllerPlan) -> Vec<u8> {
        let mut bytes = Vec::new();
        plan.encode(&mut bytes);
        bytes
    }

    #[test]
    fn plans_are_validated_as_they_are_read() {
        let valid = plan(65_535, 1408);
        let bytes = encoded(&valid);
        assert_eq!(ControllerPlan::decode(&bytes, 2), Ok(valid));
        assert!(ControllerPlan::decode(&bytes, 3).is_err(), "its order is not of three ranks");
        assert!(ControllerPlan::decode(&bytes[1..], 2).is_err());
        assert!(ControllerPlan::decode(&encoded(&plan(0, 1408)), 2).is_err(), "epoch 0");
    }

    #[test]
    fn operations_go_on_where_fragments_and_protocol_are_as_before() {
        let before = plan(1, 1408);
        assert!(plan(2, 1408).continues(&before) && !plan(2, 704).continues(&before));
        let mut other = (*plan(2, 1408).0).clone();
        other.plan.protocol = Protocol::Atp;
        assert!(!ControllerPlan(Arc::new(other)).continues(&before));
    }
}
