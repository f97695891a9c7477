//! Rows as messages, for stores outside of this process and for backups.

use super::contract::{JobRow, MemberRow};
use crate::pb::store as message;

impl From<&JobRow> for message::Job {
    fn from(row: &JobRow) -> message::Job {
        let row = row.clone();
        message::Job {
            job: row.job,
            name: row.name,
            size: row.size,
            max_trees: row.max_trees,
            release_fraction: row.release_fraction,
            congestion: row.congestion,
            min_bytes: row.min_bytes,
            created_unix_s: row.created_unix_s,
            phase: row.phase,
            epoch: row.epoch.into(),
            sum_order: row.sum_order,
            fragment_bytes: row.fragment_bytes,
            protocol: row.protocol,
            tenant: row.tenant,
            scale: row.scale,
            request: row.request,
            all_collectives: row.all_collectives,
            key: row.key,
            plan: row.plan,
        }
    }
}

impl From<message::Job> for JobRow {
    fn from(job: message::Job) -> JobRow {
        JobRow {
            job: job.job,
            name: job.name,
            size: job.size,
            max_trees: job.max_trees,
            release_fraction: job.release_fraction,
            congestion: job.congestion,
            min_bytes: job.min_bytes,
            created_unix_s: job.created_unix_s,
            phase: job.phase,
            epoch: job.epoch as u16,
            sum_order: job.sum_order,
            fragment_bytes: job.fragment_bytes,
            protocol: job.protocol,
            tenant: job.tenant,
            scale: job.scale,
            request: job.request,
            all_collectives: job.all_collectives,
            key: job.key,
            plan: job.plan,
        }
    }
}

impl From<&MemberRow> for message::Member {
    fn from(row: &MemberRow) -> message::Member {
        let row = row.clone();
        message::Member {
            job: row.job,
            rank: row.rank,
            state: row.state,
            host: row.host,
            udp_address: row.udp_address,
            mesh_address: row.mesh_address,
            pid: row.pid,
            mtu: row.mtu,
        }
    }
}

impl From<message::Member> for MemberRow {
    fn from(member: message::Member) -> MemberRow {
        MemberRow {
            job: member.job,
            rank: member.rank,
            state: member.state,
            host: member.host,
            udp_address: member.udp_address,
            mesh_address: member.mesh_address,
            pid: member.pid,
            mtu: member.mtu,
        }
    }
}
