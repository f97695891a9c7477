//! Workers come, report, go.

use std::net::SocketAddr;

use netsum_topo::NodeId;

use super::event::{Action, Refusal, SessionId};
use super::job::{Job, Member, MemberState, Phase};
use super::state::State;
use crate::convert::plan_message;
use crate::pb;
use crate::pb::worker_event::Event as Word;

impl State {
    pub(super) fn worker_joined(
        &mut self,
        now_ms: u64,
        session: SessionId,
        join: &pb::Join,
    ) -> Result<(), Refusal> {
        let (host, udp_address) = self.admit(join)?;
        let job = self.jobs.get_mut(&join.job).expect("it was just admitted");
        let member = &mut job.members[join.rank as usize];
        if let Some(old) = member.session() {
            self.worker_sessions.remove(&old);
            self.actions.push(Action::Close(old));
        }
        let moved = (member.host, member.udp_address) != (Some(host), Some(udp_address));
        *member = Member {
            state: MemberState::Connected(session),
            host: Some(host),
            udp_address: Some(udp_address),
            mesh_address: join.mesh_address.clone(),
            pid: join.pid,
            mtu: join.mtu,
            statistics: std::mem::take(&mut member.statistics),
        };
        self.worker_sessions.insert(session, (join.job, join.rank));
        self.actions.push(Action::SaveMember(join.job, join.rank));
        match job.phase {
            Phase::Joining => {
                if job.members.iter().all(|member| member.session().is_some()) {
                    job.phase = Phase::Running;
                    self.actions.push(Action::SaveJob(join.job));
                    job.replan_at_ms = Some(now_ms);
                }
            }
            Phase::Running => self.worker_back(now_ms, session, join, moved),
            Phase::Ended => unreachable!("admission refuses jobs that are over"),
        }
        self.tick_planning(now_ms);
        Ok(())
    }

    pub(super) fn worker_beat(&mut self, session: SessionId, statistics: pb::WorkerHeartbeat) {
        if let Some(member) = self.member_of(session) {
            member.statistics = statistics;
        }
    }

    pub(super) fn worker_left(&mut self, now_ms: u64, session: SessionId) {
        let Some((job, rank)) = self.worker_sessions.remove(&session) else { return };
        self.actions.push(Action::Close(session));
        if let Some(job) = self.jobs.get_mut(&job) {
            job.members[rank as usize].state = MemberState::Left;
        }
        self.actions.push(Action::SaveMember(job, rank));
        self.end_if_empty(now_ms, job);
    }

    pub(super) fn worker_closed(&mut self, now_ms: u64, session: SessionId) {
        let until_ms = now_ms + self.settings.worker_grace_ms;
        if let Some(member) = self.member_of(session) {
            member.state = MemberState::Away { until_ms };
        }
        self.worker_sessions.remove(&session);
    }

    pub(super) fn stop(&mut self, now_ms: u64, job: u32, reason: &str) -> Result<(), Refusal> {
        match self.jobs.get(&job).map(|job| job.phase) {
            None => Err(Refusal::Unknown(self.unknown(job))),
            Some(Phase::Ended) => Err(Refusal::State(format!("job {job} is over"))),
            Some(_) => {
                let reason = if reason.is_empty() { "stopped by an operator" } else { reason };
                self.fail(now_ms, job, reason);
                Ok(())
            }
        }
    }

    pub(super) fn tick_workers(&mut self, now_ms: u64) {
        let due = |member: &Member| matches!(member.state, MemberState::Away { until_ms } if until_ms <= now_ms);
        let late: Vec<(u32, u32)> = self
            .jobs
            .values()
            .filter(|job| job.phase != Phase::Ended)
            .flat_map(|job| {
                (0..)
                    .zip(&job.members)
                    .filter(|(_, member)| due(member))
                    .map(|(rank, _)| (job.id, rank))
            })
            .collect();
        late.into_iter().for_each(|(job, rank)| self.lose(now_ms, job, rank));
    }

    /// Ends a job: its workers are told why, its leases are revoked.
    pub(super) fn fail(&mut self, now_ms: u64, id: u32, reason: &str) {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.phase != Phase::Ended) else {
            return;
        };
        for session in job.sessions().collect::<Vec<_>>() {
            let word = Word::JobFailed(pb::JobFailed { reason: reason.to_owned() });
            self.actions.push(Action::TellWorker(session, word));
            self.actions.push(Action::Close(session));
            self.worker_sessions.remove(&session);
        }
        let live =
            |member: &&mut Member| !matches!(member.state, MemberState::Left | MemberState::Lost);
        job.members.iter_mut().filter(live).for_each(|member| member.state = MemberState::Left);
        self.end_if_empty(now_ms, id);
    }

    /// Who joins, where, and whether they may. Nothing is changed.
    fn admit(&self, join: &pb::Join) -> Result<(NodeId, SocketAddr), Refusal> {
        let (id, rank) = (join.job, join.rank);
        let job = self.jobs.get(&id).ok_or_else(|| Refusal::Unknown(self.unknown(id)))?;
        if job.phase == Phase::Ended {
            return Err(Refusal::State(format!("job {id} is over")));
        }
        let Some(member) = job.members.get(rank as usize) else {
            return Err(Refusal::Invalid(format!(
                "job {id} has ranks 0 to {}, not {rank}",
                job.spec.size - 1
            )));
        };
        let udp_address: SocketAddr = join.udp_address.parse().map_err(|_| {
            Refusal::Invalid(format!(
                "rank {rank}: udp_address {:?} is not ip:port",
                join.udp_address
            ))
        })?;
        match member.state {
            MemberState::Left => {
                return Err(Refusal::State(format!("rank {rank} of job {id} has left")));
            }
            MemberState::Lost => {
                return Err(Refusal::State(format!(
                    "rank {rank} of job {id} was away too long and was given up"
                )));
            }
            MemberState::Connected(_)
                if (member.pid, member.udp_address) != (join.pid, Some(udp_address)) =>
            {
                return Err(Refusal::Taken(format!(
                    "rank {rank} of job {id} is process {} already",
                    member.pid
                )));
            }
            _ => {}
        }
        let same = |(other, member): (u32, &Member)| {
            other != rank && member.udp_address == Some(udp_address)
        };
        if (0..).zip(&job.members).any(same) {
            return Err(Refusal::Taken(format!(
                "another rank of job {id} has the address {udp_address}"
            )));
        }
        Ok((self.host_of(join, udp_address)?, udp_address))
    }

    fn host_of(&self, join: &pb::Join, udp_address: SocketAddr) -> Result<NodeId, Refusal> {
        let fabric = &self.fabric;
        let host = if join.host.is_empty() {
            fabric.hosts.iter().find(|host| host.address == udp_address.ip())
        } else {
            fabric.host(&join.host)
        };
        let names = || {
            fabric.hosts.iter().take(NAMES_SHOWN).map(|host| host.name.as_str()).collect::<Vec<_>>()
        };
        let host = host.ok_or_else(|| {
            let what =
                if join.host.is_empty() { udp_address.ip().to_string() } else { join.host.clone() };
            let fabric = &fabric.name;
            Refusal::Invalid(format!(
                "fabric {fabric:?} has no host {what}; it has {} …",
                names().join(", ")
            ))
        })?;
        Ok(self.topology.find(&host.name).expect("every host is in the graph"))
    }

    /// A rank of a running job has a new stream: it gets what it missed, and nothing else.
    fn worker_back(&mut self, now_ms: u64, session: SessionId, join: &pb::Join, moved: bool) {
        let job = self.jobs.get_mut(&join.job).expect("it was just admitted");
        for word in (0..)
            .zip(&job.members)
            .filter_map(|(rank, member)| lost_word(&self.topology, rank, member))
        {
            self.actions.push(Action::TellWorker(session, word));
        }
        let known = join.known_epoch;
        if known > u32::from(job.epoch) {
            // The store is older than the job. Plan beyond what the workers have.
            job.epoch = u16::try_from(known).unwrap_or(u16::MAX);
            job.replan_at_ms = Some(now_ms);
        } else if moved {
            job.replan_at_ms = Some(now_ms);
        } else if let Some(plan) = job.current.as_ref().filter(|plan| u32::from(plan.epoch) > known)
        {
            let key = job.key_message(plan.protocol);
            let plan = plan_message(plan, &self.fabric, &self.topology);
            let word = Word::Plan(pb::Plan { key, ..plan });
            self.actions.push(Action::TellWorker(session, word));
        }
    }

    fn lose(&mut self, now_ms: u64, id: u32, rank: u32) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.members[rank as usize].state = MemberState::Lost;
        self.actions.push(Action::SaveMember(id, rank));
        if job.phase == Phase::Joining {
            self.fail(now_ms, id, &format!("rank {rank} was lost before all ranks had joined"));
            return;
        }
        if let Some(word) = lost_word(&self.topology, rank, &job.members[rank as usize]) {
            let tell = |session| Action::TellWorker(session, word.clone());
            self.actions.extend(job.sessions().map(tell));
        }
        self.end_if_empty(now_ms, id);
    }

    fn end_if_empty(&mut self, now_ms: u64, id: u32) {
        let gone = |member: &Member| matches!(member.state, MemberState::Left | MemberState::Lost);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.phase != Phase::Ended && job.members.iter().all(gone) {
            job.phase = Phase::Ended;
            job.pending = None;
            self.actions.push(Action::SaveJob(id));
            self.revoke(id);
            self.improve_all(now_ms);
        }
    }

    fn member_of(&mut self, session: SessionId) -> Option<&mut Member> {
        let (job, rank) = *self.worker_sessions.get(&session)?;
        let job: &mut Job = self.jobs.get_mut(&job)?;
        Some(&mut job.members[rank as usize])
    }

    fn unknown(&self, job: u32) -> String {
        format!(
            "job {job} is unknown to the controller of fabric {:?}; was its store deleted?",
            self.fabric.name
        )
    }
}

fn lost_word(topology: &netsum_topo::Topology, rank: u32, member: &Member) -> Option<Word> {
    (member.state == MemberState::Lost).then(|| {
        Word::PeerLost(pb::PeerLost {
            rank,
            host: member.host.map(|host| topology.name(host).to_owned()).unwrap_or_default(),
            pid: member.pid,
            reason: "its connection to the controller ended and did not come back".to_owned(),
        })
    })
}

const NAMES_SHOWN: usize = 8;
