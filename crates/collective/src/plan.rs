//! From the controller's plan to what the data thread works by.

use std::net::SocketAddr;

use netsum_control::{Attachment, ControlError, pb};
use netsum_net::worker::{PlanConfig, WorkerPlan};
use netsum_proto::CongestionRule as Rule;
use netsum_proto::{atp, panama, switchml};
use netsum_topo::{CongestionRule, Protocol};
use netsum_wire::atp::Level;
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
pub(crate) fn worker_plan(
    plan: &pb::Plan,
    rank: u32,
    size: u32,
) -> Result<WorkerPlan, ControlError> {
    let attachments = plan.attachments(rank)?;
    let switches: Vec<SocketAddr> = attachments.iter().map(|a| a.address).collect();
    let config = match plan.protocol()? {
        Protocol::Panama => panama_config(plan, rank, size, attachments.len())?.into(),
        Protocol::Atp => {
            let config = atp_config(plan, rank, size, &attachments)?;
            let scaling = Scale::new(plan.scale).map_or(atp::Scaling::Shared, atp::Scaling::Fixed);
            PlanConfig::Atp(config, scaling)
        }
        Protocol::Switchml => PlanConfig::Switchml(switchml::WorkerConfig {
            job: JobId(plan.job),
            epoch: Epoch(plan.epoch as u16),
            worker: attachments.first().map_or(0, |a| a.child),
            workers: size as u8,
            slots: plan.window_max as u16,
            fragment_bytes: plan.fragment_bytes as u16,
            timeout_ns: SWITCHML_TIMEOUT_NS,
        }),
    };
    Ok(WorkerPlan { config, switches })
}

fn panama_config(
    plan: &pb::Plan,
    rank: u32,
    size: u32,
    trees: usize,
) -> Result<panama::WorkerConfig, ControlError> {
    // `validate` has checked the ranges.
    let (window_max, fragment_bytes) = (plan.window_max as u16, plan.fragment_bytes as u16);
    let congestion = match plan.congestion_rule()? {
        CongestionRule::Panama => Rule::Panama,
        CongestionRule::PerBranch => Rule::PerBranch,
        CongestionRule::Coupled => Rule::Coupled { trees: trees as u8 },
        CongestionRule::None => Rule::Fixed(window_max),
    };
    Ok(panama::WorkerConfig {
        job: JobId(plan.job),
        epoch: Epoch(plan.epoch as u16),
        rank: Rank(rank),
        ranks: size,
        trees: trees as u8,
        window_max,
        fragment_bytes,
        congestion,
        partial: plan.release_fraction < 1.0,
    })
}

fn atp_config(
    plan: &pb::Plan,
    rank: u32,
    size: u32,
    attachments: &[Attachment],
) -> Result<atp::WorkerConfig, ControlError> {
    let mut places = Vec::new();
    for (tree, attachment) in plan.trees.iter().zip(attachments) {
        let racks = tree.racks()?;
        let (rack, worker) = racks.find(rank).expect("a validated plan has every rank");
        let own = &racks.racks[rack];
        let at_rack = own.switch.as_deref() == Some(&attachment.switch);
        places.push(atp::Place {
            level: if at_rack { Level::Rack } else { Level::Server },
            worker: worker as u8,
            rack_fan_in: own.ranks.len() as u8,
            rack: rack as u8,
            server_fan_in: racks.racks.len() as u8,
        });
    }
    let (window_max, fragment_bytes) = (plan.window_max as u16, plan.fragment_bytes as u16);
    let on_the_wire = fragment_bytes.saturating_add(HEADERS);
    Ok(atp::WorkerConfig {
        job: JobId(plan.job),
        epoch: Epoch(plan.epoch as u16),
        ranks: size,
        places,
        window_max,
        fragment_bytes,
        slots: plan.slot_space,
        congestion: match plan.congestion_rule()? {
            CongestionRule::None => Rule::Fixed(window_max),
            CongestionRule::Panama | CongestionRule::PerBranch | CongestionRule::Coupled => {
                Rule::Aimd { packet_bytes: on_the_wire }
            }
        },
    })
}

/// SwitchML's first time-out.
const SWITCHML_TIMEOUT_NS: u64 = 10_000_000;
/// Ethernet 14, IPv4 and UDP 28, protocol atp 46.
const HEADERS: u16 = 88;
