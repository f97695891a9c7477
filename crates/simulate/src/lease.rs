//! What a worker works by, from the controller's plan.

use std::net::SocketAddr;

use netsum_lease::{JobPlan, PlanError};
use netsum_proto::{CongestionRule as Rule, WorkerConfig, atp, panama, switchml};
use netsum_topo::{CongestionRule, Protocol};
use netsum_wire::fixed::Scale;
use netsum_wire::{Epoch, JobId, Rank};

pub use netsum_proto::supports;

/// A validated plan as one worker needs it: the machine's configuration, and by tree where to send.
pub fn worker(
    plan: &JobPlan,
    rank: u32,
    size: u32,
) -> Result<(WorkerConfig, Vec<SocketAddr>), PlanError> {
    let attachments = plan.attachments(rank)?;
    let switches = attachments.iter().map(|a| a.address).collect();
    let places = || plan.places(rank);
    let plan = &plan.plan;
    let (job, epoch) = (JobId(plan.job), Epoch(plan.epoch));
    let (window_max, fragment_bytes) = (plan.window_max as u16, plan.fragment_bytes as u16);
    let trees = plan.trees.len() as u8;
    let config = match plan.protocol {
        Protocol::Panama => WorkerConfig::Panama(panama::WorkerConfig {
            job,
            epoch,
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
        }),
        Protocol::Atp => {
            let congestion = match plan.congestion {
                CongestionRule::None => Rule::Fixed(window_max),
                _ => Rule::Aimd { packet_bytes: fragment_bytes.saturating_add(ATP_HEADERS) },
            };
            let scaling = Scale::new(plan.scale).map_or(atp::Scaling::Shared, atp::Scaling::Fixed);
            WorkerConfig::Atp(atp::WorkerConfig {
                job,
                epoch,
                ranks: size,
                places: places()?,
                window_max,
                fragment_bytes,
                slots: plan.slot_space,
                congestion,
                scaling,
            })
        }
        Protocol::Switchml => WorkerConfig::Switchml(switchml::WorkerConfig {
            job,
            epoch,
            worker: attachments.first().map_or(0, |a| a.child),
            workers: size as u8,
            slots: window_max,
            fragment_bytes,
            timeout_ns: switchml::TIMEOUT_NS,
        }),
    };
    Ok((config, switches))
}

/// Ethernet 14, IPv4 and UDP 28, protocol atp 46.
const ATP_HEADERS: u16 = 88;
