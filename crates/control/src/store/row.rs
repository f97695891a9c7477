//! Conversion between jobs, ranks and rows of plain values.

use std::collections::BTreeMap;
use std::sync::Arc;

use netsum_topo::{Fabric, SumOrder, Topology};
use netsum_wire::tag::JobKey;
use prost::Message;

use super::contract::{JobRow, MemberRow, Saved};
use crate::convert::{plan_from_message, plan_message};
use crate::decide::{AUTO, Job, JobSpec, Loaded, Member, MemberState, Phase};
use crate::pb;

/// The present state of a job, without its ranks. `fabric` and `topology` map the job's node numbers to names.
pub(crate) fn job_row(job: &Job, fabric: &Fabric, topology: &Topology) -> JobRow {
    let plan = job.current.as_ref();
    JobRow {
        job: job.id,
        name: job.spec.name.clone(),
        size: job.spec.size,
        max_trees: job.spec.max_trees,
        release_fraction: job.spec.release_fraction,
        congestion: job.spec.congestion.to_string(),
        min_bytes: job.spec.min_bytes,
        created_unix_s: job.created_unix_s,
        phase: PHASES
            .iter()
            .find(|(phase, _)| *phase == job.phase)
            .map(|(_, name)| (*name).to_owned())
            .unwrap_or_default(),
        epoch: job.epoch,
        sum_order: job.order.as_ref().map(SumOrder::to_string),
        fragment_bytes: job.fragment_bytes,
        protocol: job
            .spec
            .protocol
            .map_or_else(|| AUTO.to_owned(), |protocol| protocol.to_string()),
        tenant: job.spec.tenant.clone(),
        scale: job.spec.scale,
        request: job.request,
        all_collectives: job.spec.all_collectives,
        key: job.key.map(|key| key.to_bytes().to_vec()),
        plan: plan.map(|plan| {
            let plan = plan_message(plan, fabric, topology);
            pb::Plan { key_id: job.plan_key, ..plan }.encode_to_vec()
        }),
    }
}

/// The present state of a rank.
pub(crate) fn member_row(job: u32, rank: u32, member: &Member, topology: &Topology) -> MemberRow {
    let state = match member.state {
        MemberState::Awaited => "awaited",
        // A stream ends with the controller.
        MemberState::Connected(_) | MemberState::Away { .. } => "present",
        MemberState::Left => "left",
        MemberState::Lost => "lost",
    };
    MemberRow {
        job,
        rank,
        state: state.to_owned(),
        host: member.host.map(|host| topology.name(host).to_owned()),
        udp_address: member.udp_address.map(|address| address.to_string()),
        mesh_address: member.mesh_address.clone(),
        pid: member.pid,
        mtu: member.mtu,
    }
}

/// The content of the store at a start.
pub(crate) fn loaded(saved: Saved, topology: &Topology) -> Loaded {
    let mut jobs: BTreeMap<u32, Job> =
        saved.jobs.into_iter().map(|row| (row.job, job(row, topology))).collect();
    for row in saved.members {
        let Some(job) = jobs.get_mut(&row.job) else { continue };
        if let Some(place) = job.members.get_mut(row.rank as usize) {
            *place = Arc::new(member(row, topology));
        }
    }
    let (incarnation, next_job) = (saved.incarnation, saved.next_job);
    Loaded { incarnation, next_job, jobs: jobs.into_values().collect() }
}

fn job(row: JobRow, topology: &Topology) -> Job {
    let spec = JobSpec {
        name: row.name,
        size: row.size,
        max_trees: row.max_trees,
        release_fraction: row.release_fraction,
        congestion: row.congestion.parse().unwrap_or_default(),
        min_bytes: row.min_bytes,
        protocol: match row.protocol.as_str() {
            AUTO => None,
            name => Some(name.parse().unwrap_or_default()),
        },
        tenant: row.tenant,
        scale: row.scale,
        encrypt: false,
        all_collectives: row.all_collectives,
    };
    let mut job = Job::new(row.job, spec, row.created_unix_s, 0);
    let phase = PHASES.iter().find(|(_, name)| *name == row.phase);
    job.phase = phase.map_or(Phase::Running, |(phase, _)| *phase);
    (job.epoch, job.request) = (row.epoch, row.request);
    job.order = row.sum_order.and_then(|order| order.parse().ok());
    job.fragment_bytes = row.fragment_bytes;
    if let Some(key) = row.key {
        job.key = JobKey::from_bytes(&key);
        // Without its key the job's packets would be accepted without tags.
        if job.key.is_none() {
            tracing::error!(
                job = job.id,
                "the key of a job in the store is damaged: the job has ended"
            );
            job.phase = Phase::Abandoned;
        }
        job.spec.encrypt = job.key.is_some_and(|key| key.mac().encrypts());
    }
    // A plan with a switch that the fabric file no longer has is dropped.
    let plan = row.plan.and_then(|body| pb::Plan::decode(body.as_slice()).ok());
    job.plan_key = plan.as_ref().map_or(0, |plan| plan.key_id);
    job.current = plan.and_then(|plan| plan_from_message(&plan, topology).ok());
    job
}

fn member(row: MemberRow, topology: &Topology) -> Member {
    let state = match row.state.as_str() {
        "present" => MemberState::Away { since_ms: 0, grace_until_ms: 0, hung_up: false },
        "left" => MemberState::Left,
        "lost" => MemberState::Lost,
        _ => MemberState::Awaited,
    };
    let mut member = Member::awaited();
    member.state = state;
    member.host = row.host.and_then(|name| topology.find(&name));
    member.udp_address = row.udp_address.and_then(|address| address.parse().ok());
    member.mesh_address = row.mesh_address;
    member.pid = row.pid;
    member.mtu = row.mtu;
    member
}

const PHASES: [(Phase, &str); 4] = [
    (Phase::Joining, "joining"),
    (Phase::Running, "running"),
    (Phase::Ended, "ended"),
    (Phase::Abandoned, "abandoned"),
];
