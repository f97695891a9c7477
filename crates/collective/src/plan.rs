//! From the controller's plan to what the data thread works by.

use std::net::SocketAddr;

use netsum_lease::{JobPlan, PlanError};
use netsum_net::worker::{PlanConfig, WorkerPlan};
use netsum_proto::CongestionRule as Rule;
use netsum_proto::{atp, panama, switchml};
use netsum_topo::{CongestionRule, Plan, Protocol};
use netsum_wire::fixed::Scale;
use netsum_wire::{Epoch, Format, JobId, Rank};

/// Whether switches and servers of a protocol can do a format; the rest goes over the hosts.
pub(crate) fn supports(protocol: Protocol, format: Format) -> bool {
    match protocol {
        Protocol::Panama => format.in_network(),
        Protocol::Atp => atp::supports(format),
        Protocol::Switchml => switchml::supports(format),
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
            let config = atp_config(&plan.plan, plan.places(rank)?, size);
            let scaling = Scale::new(scale).map_or(atp::Scaling::Shared, atp::Scaling::Fixed);
            PlanConfig::Atp(config, scaling)
        }
        Protocol::Switchml => PlanConfig::Switchml(switchml::WorkerConfig {
            job: JobId(plan.plan.job),
            epoch: Epoch(plan.plan.epoch),
            worker: attachments.first().map_or(0, |a| a.child),
            workers: size as u8,
            slots: plan.plan.window_max as u16,
            fragment_bytes: plan.plan.fragment_bytes as u16,
            timeout_ns: SWITCHML_TIMEOUT_NS,
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

fn atp_config(plan: &Plan, places: Vec<atp::Place>, size: u32) -> atp::WorkerConfig {
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
        congestion: match plan.congestion {
            CongestionRule::None => Rule::Fixed(window_max),
            CongestionRule::Panama | CongestionRule::PerBranch | CongestionRule::Coupled => {
                Rule::Aimd { packet_bytes: on_the_wire }
            }
        },
    }
}

/// SwitchML's first time-out.
const SWITCHML_TIMEOUT_NS: u64 = 10_000_000;
/// Ethernet 14, IPv4 and UDP 28, protocol atp 46.
const HEADERS: u16 = 88;
