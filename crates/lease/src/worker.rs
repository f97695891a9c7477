//! From a plan to the configuration of a worker's machine.

use std::net::SocketAddr;

use netsum_proto::{CongestionRule as Rule, WorkerConfig, atp, panama, switchml};
use netsum_topo::{CongestionRule, Plan, Protocol};
use netsum_wire::fixed::Scale;
use netsum_wire::seal::SEALED_HEADER_LEN;
use netsum_wire::{Epoch, JobId, Rank};

use crate::{JobPlan, PlanError};

/// The configuration of a worker, and by tree the address that the worker sends to. The plan must have trees and be
/// validated for `size` ranks. Errors: those of [`JobPlan::attachments`] and [`JobPlan::places`].
pub fn worker_config(
    plan: &JobPlan,
    rank: u32,
    size: u32,
) -> Result<(WorkerConfig, Vec<SocketAddr>), PlanError> {
    let attachments = plan.attachments(rank)?;
    let config = match plan.plan.protocol {
        Protocol::Panama => panama_config(&plan.plan, rank, size).into(),
        Protocol::Atp => atp_config(&plan.plan, plan.places(rank)?, rank, size).into(),
        Protocol::Switchml => {
            let child = attachments.first().map_or(0, |attachment| attachment.child);
            pool_config(&plan.plan, child, size).into()
        }
    };
    Ok((config, attachments.into_iter().map(|attachment| attachment.address).collect()))
}

/// Bytes on the wire of a sealed packet with `payload` bytes: Ethernet, IPv4, UDP and protocol headers included.
pub const fn wire_bytes(payload: u16) -> u16 {
    const ETHERNET: u16 = 14;
    const IPV4_UDP: u16 = 20 + 8;
    payload.saturating_add(ETHERNET + IPV4_UDP + SEALED_HEADER_LEN as u16)
}

// Validation ensures that window, fragment size and number of trees fit the types below.

fn panama_config(plan: &Plan, rank: u32, size: u32) -> panama::WorkerConfig {
    let window_max = plan.window_max as u16;
    let trees = plan.trees.len() as u8;
    let independent = if plan.copies { trees / 2 } else { trees };
    panama::WorkerConfig {
        job: JobId(plan.job),
        epoch: Epoch(plan.epoch),
        rank: Rank(rank),
        ranks: size,
        trees,
        copies: plan.copies,
        window_max,
        fragment_bytes: plan.fragment_bytes as u16,
        congestion: match plan.congestion {
            CongestionRule::Panama => Rule::Panama,
            CongestionRule::PerBranch => Rule::PerBranch,
            CongestionRule::Coupled => Rule::Coupled { trees: independent },
            CongestionRule::None => Rule::Fixed(window_max),
        },
        partial: plan.release_fraction < 1.0,
    }
}

fn atp_config(
    plan: &Plan,
    places: Vec<atp::WorkerPosition>,
    rank: u32,
    size: u32,
) -> atp::WorkerConfig {
    let (window_max, fragment_bytes) = (plan.window_max as u16, plan.fragment_bytes as u16);
    atp::WorkerConfig {
        job: JobId(plan.job),
        epoch: Epoch(plan.epoch),
        rank: Rank(rank),
        ranks: size,
        copies: plan.copies,
        places,
        window_max,
        fragment_bytes,
        slots: plan.slot_space,
        scaling: Scale::new(plan.scale).map_or(atp::Scaling::Shared, atp::Scaling::Fixed),
        congestion: match plan.congestion {
            CongestionRule::None => Rule::Fixed(window_max),
            CongestionRule::Panama | CongestionRule::PerBranch | CongestionRule::Coupled => {
                Rule::Aimd { packet_bytes: wire_bytes(fragment_bytes) }
            }
        },
    }
}

fn pool_config(plan: &Plan, child: u8, size: u32) -> switchml::WorkerConfig {
    switchml::WorkerConfig {
        job: JobId(plan.job),
        epoch: Epoch(plan.epoch),
        worker: child,
        workers: size as u8,
        copies: plan.copies,
        slots: plan.window_max as u16,
        fragment_bytes: plan.fragment_bytes as u16,
        timeout_ns: switchml::TIMEOUT_NS,
    }
}

#[cfg(test)]
mod tests {
    use netsum_topo::{AggregationTree, Child, NodeId, Parent, SumOrder, TreeNode};

    use super::*;
    use crate::Aggregator;

    /// Ranks 0 and 1 below switch 1, switch 1 below server or switch 0.
    fn plan(protocol: Protocol, congestion: CongestionRule, scale: f32) -> JobPlan {
        let children = vec![Child::Rank(1), Child::Rank(0)];
        let parent = Some(Parent { switch: NodeId(0), via: Vec::new() });
        let rack = TreeNode { switch: NodeId(1), children, parent };
        let nodes = match protocol.has_pools() {
            true => vec![TreeNode { parent: None, ..rack }],
            false => {
                let children = vec![Child::Switch(NodeId(1))];
                vec![TreeNode { switch: NodeId(0), children, parent: None }, rack]
            }
        };
        let aggregator = |number: u16| Aggregator {
            name: format!("node {number}"),
            address: Some(([10, 0, 0, 1], number).into()),
        };
        JobPlan {
            plan: Plan {
                job: 7,
                epoch: 3,
                order: SumOrder::flat(2),
                protocol,
                choice: String::new(),
                trees: vec![AggregationTree { root: nodes[0].switch, nodes }],
                copies: false,
                fragment_bytes: 1408,
                window_max: 5,
                slot_space: 9,
                scale,
                release_fraction: 0.5,
                congestion,
                min_bytes: 0,
                reason: String::new(),
            },
            aggregators: vec![aggregator(0), aggregator(1)],
            key_id: 0,
        }
    }

    fn config(plan: &JobPlan) -> WorkerConfig {
        plan.validate(2).unwrap();
        worker_config(plan, 1, 2).unwrap().0
    }

    #[test]
    fn every_protocol_has_its_configuration_and_sends_to_the_switch_above() {
        for &protocol in Protocol::ALL {
            let plan = plan(protocol, CongestionRule::Panama, 0.0);
            let (config, switches) = worker_config(&plan, 1, 2).unwrap();
            assert_eq!(config.protocol(), protocol);
            assert_eq!(config.settings().fragment_bytes, 1408);
            assert_eq!(switches, ["10.0.0.1:1".parse().unwrap()]);
            assert!(worker_config(&plan, 2, 3).is_err(), "no tree has rank 2");
        }
    }

    #[test]
    fn congestion_rules_are_parsed_with_their_parameters() {
        let rule = |protocol, name| match config(&plan(protocol, name, 0.0)) {
            WorkerConfig::Panama(config) => config.congestion,
            WorkerConfig::Atp(config) => config.congestion,
            other => panic!("{other:?}"),
        };
        assert_eq!(rule(Protocol::Panama, CongestionRule::Panama), Rule::Panama);
        assert_eq!(rule(Protocol::Panama, CongestionRule::PerBranch), Rule::PerBranch);
        assert_eq!(rule(Protocol::Panama, CongestionRule::Coupled), Rule::Coupled { trees: 1 });
        for protocol in [Protocol::Panama, Protocol::Atp] {
            assert_eq!(rule(protocol, CongestionRule::None), Rule::Fixed(5));
        }
        // Ethernet 14, IPv4 and UDP 28, a sealed header 54.
        let aimd = Rule::Aimd { packet_bytes: 1408 + 96 };
        assert_eq!(rule(Protocol::Atp, CongestionRule::Panama), aimd);
    }

    #[test]
    fn a_scale_of_zero_means_shared_exponents() {
        let scaling = |scale| match config(&plan(Protocol::Atp, CongestionRule::Panama, scale)) {
            WorkerConfig::Atp(config) => config.scaling,
            other => panic!("{other:?}"),
        };
        assert_eq!(scaling(0.0), atp::Scaling::Shared);
        assert_eq!(scaling(1024.0), atp::Scaling::Fixed(Scale::new(1024.0).unwrap()));
    }

    #[test]
    fn partial_sums_and_places_follow_the_plan() {
        let panama = plan(Protocol::Panama, CongestionRule::Panama, 0.0);
        assert!(matches!(config(&panama), WorkerConfig::Panama(config) if config.partial));
        match config(&plan(Protocol::Switchml, CongestionRule::None, 0.0)) {
            WorkerConfig::Switchml(config) => assert_eq!((config.worker, config.workers), (0, 2)),
            other => panic!("{other:?}"),
        }
    }
}
