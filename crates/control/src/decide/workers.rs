//! Workers join, report and leave; a rank whose stream has ended is lost or returns.

use std::net::SocketAddr;
use std::sync::Arc;

use netsum_lease::JobPlan;
use netsum_topo::{Host, NodeId};
use netsum_wire::tag::JobKey;

use super::event::{Action, Refusal, SessionId};
use super::idle;
use super::job::{Job, Member, MemberState, Phase};
use super::state::State;
use crate::convert::plan_message;
use crate::pb::worker_event::Event as WorkerMessage;
use crate::{epoch, pb, version};

impl State {
    pub(super) fn worker_joined(
        &mut self,
        now_ms: u64,
        session: SessionId,
        join: &pb::Join,
        key: JobKey,
        unix_s: f64,
    ) -> Result<(), Refusal> {
        let (id, rank) = (join.job, join.rank);
        self.check_incarnation(join)?;
        let rebuilt = match self.jobs.get(&id) {
            Some(_) => None,
            None => Some(self.rebuild(now_ms, join, key, unix_s)?),
        };
        let job = rebuilt.as_ref().unwrap_or_else(|| &self.jobs[&id]);
        let (host, udp_address) = self.admit(job, join)?;
        if let Some(job) = rebuilt {
            self.next_job = after(self.next_job, id);
            self.jobs.insert(id, Arc::new(job));
            self.actions.push(Action::SaveJob(id));
        }
        let job = self.job_mut(id).expect("it was just admitted");
        job.active_ms = now_ms;
        job.vanished_for_ms = 0;
        if epoch::distance(join.known_epoch, job.epoch.into()) > 0 && join.known_epoch != 0 {
            // The store is older than the job. The next plan must be newer than the workers' plan.
            job.epoch = join.known_epoch as u16;
            job.replan_at_ms = Some(now_ms);
        }
        if job.phase == Phase::Abandoned {
            job.phase = Phase::Running;
            job.replan_at_ms = Some(now_ms);
            self.actions.push(Action::SaveJob(id));
        }
        let job = self.job_mut(id).expect("it was just admitted");
        let member = job.member_mut(rank);
        let old_session = member.session();
        let moved = (member.host, member.udp_address) != (Some(host), Some(udp_address));
        *member = Member {
            state: MemberState::Connected(session),
            host: Some(host),
            udp_address: Some(udp_address),
            mesh_address: join.mesh_address.clone(),
            pid: join.pid,
            mtu: join.mtu,
            statistics: std::mem::take(&mut member.statistics),
            reported_ms: None,
        };
        if let Some(old) = old_session {
            self.worker_sessions.remove(&old);
            self.actions.push(Action::Close(old));
        }
        self.worker_sessions.insert(session, (id, rank));
        self.actions.push(Action::SaveMember(id, rank));
        let rank_key = self.jobs[&id].rank_key_message(rank);
        let send = |message| Action::SendToWorker(session, message);
        self.actions.extend(rank_key.map(send));
        let job = self.job_mut(id).expect("it was just admitted");
        match job.phase {
            Phase::Joining => {
                if job.members.iter().all(|member| member.session().is_some()) {
                    job.phase = Phase::Running;
                    job.replan_at_ms = Some(now_ms);
                    self.actions.push(Action::SaveJob(id));
                }
            }
            _ => self.worker_returned(now_ms, session, join, moved),
        }
        self.tick_planning(now_ms);
        Ok(())
    }

    pub(super) fn worker_heartbeat(
        &mut self,
        now_ms: u64,
        session: SessionId,
        statistics: pb::WorkerHeartbeat,
    ) -> Result<(), Refusal> {
        let Some((job, rank)) = self.member_of(session) else { return Ok(()) };
        check_lists(job, rank, &statistics)?;
        job.active_ms = now_ms;
        let epoch = job.current.as_ref().map(|plan| u32::from(plan.epoch));
        let min_bytes = job.spec.min_bytes;
        let member = job.member_mut(rank);
        let before = std::mem::replace(&mut member.statistics, statistics);
        member.reported_ms = Some(now_ms);
        let after = &member.statistics;
        let asks = idle::asks(&before, after, min_bytes);
        let same_plan = epoch == Some(after.plan_epoch) && before.plan_epoch == after.plan_epoch;
        if same_plan && results(&before) < results(after) {
            job.worked_ms = Some(now_ms);
        }
        if asks {
            job.asks(now_ms);
        }
        Ok(())
    }

    pub(super) fn worker_left(&mut self, now_ms: u64, session: SessionId) {
        let Some((id, rank)) = self.worker_sessions.remove(&session) else { return };
        self.actions.push(Action::Close(session));
        if let Some(job) = self.job_mut(id) {
            job.active_ms = now_ms;
            job.member_mut(rank).state = MemberState::Left;
        }
        self.actions.push(Action::SaveMember(id, rank));
        self.end_if_empty(now_ms, id);
    }

    pub(super) fn worker_closed(&mut self, now_ms: u64, session: SessionId, hung_up: bool) {
        let grace_until_ms = now_ms + self.settings.worker_grace_ms;
        if let Some((job, rank)) = self.member_of(session) {
            job.active_ms = now_ms;
            let member = job.member_mut(rank);
            member.state = MemberState::Away { since_ms: now_ms, grace_until_ms, hung_up };
        }
        self.worker_sessions.remove(&session);
    }

    pub(super) fn stop(&mut self, now_ms: u64, id: u32, reason: &str) -> Result<(), Refusal> {
        match self.jobs.get(&id).map(|job| job.phase) {
            None => Err(Refusal::Unknown(self.unknown(id))),
            Some(Phase::Ended) => Err(Refusal::State(format!("job {id} is over"))),
            Some(Phase::Abandoned) => {
                let job = self.job_mut(id).expect("it was just found");
                job.phase = Phase::Ended;
                self.actions.push(Action::SaveJob(id));
                Ok(())
            }
            Some(Phase::Joining | Phase::Running) => {
                let reason = if reason.is_empty() { "stopped by an operator" } else { reason };
                self.fail(now_ms, id, reason);
                Ok(())
            }
        }
    }

    /// Gives a job a new key. Its ranks get theirs at once, so that they have them before the plan that needs them.
    pub(super) fn rekey(&mut self, now_ms: u64, id: u32, key: JobKey) -> Result<(), Refusal> {
        match self.jobs.get(&id).map(|job| (job.phase, job.key)) {
            None => return Err(Refusal::Unknown(self.unknown(id))),
            Some((Phase::Ended | Phase::Abandoned, _)) => {
                return Err(Refusal::State(format!("job {id} is over")));
            }
            Some((_, None)) => {
                return Err(Refusal::State(format!(
                    "job {id} has no key: fabric {:?} is trusted",
                    self.fabric.name
                )));
            }
            Some((Phase::Joining | Phase::Running, Some(_))) => {}
        }
        let key = self.key_of_new_job(&self.jobs[&id].spec, key);
        let job = self.job_mut(id).expect("it was just found");
        job.key = key;
        if job.phase == Phase::Running {
            job.replan_at_ms = Some(now_ms);
            // A plan names its key. One without trees would otherwise stay, under another key and the same epoch, and one
            // whose leases are under way would be given to the ranks.
            job.current = job.current.take().filter(|plan| !plan.trees.is_empty());
            job.pending = None;
        }
        let open = (0..).zip(&job.members).filter_map(|(rank, m)| Some((rank, m.session()?)));
        let send =
            |(rank, session)| Some(Action::SendToWorker(session, job.rank_key_message(rank)?));
        let messages: Vec<Action> = open.filter_map(send).collect();
        self.actions.push(Action::SaveJob(id));
        self.actions.extend(messages);
        Ok(())
    }

    pub(super) fn tick_workers(&mut self, now_ms: u64) {
        let due = |job: &Job, rank: u32| match job.members[rank as usize].state {
            MemberState::Away { grace_until_ms, .. } => {
                grace_until_ms <= now_ms && is_lost(job, rank)
            }
            _ => false,
        };
        self.count_vanished(now_ms);
        let live = || self.jobs.values().filter(|job| job.phase.is_live());
        let lost: Vec<(u32, u32)> = live()
            .flat_map(|job| (0..job.spec.size).map(move |rank| (job, rank)))
            .filter(|&(job, rank)| due(job, rank))
            .map(|(job, rank)| (job.id, rank))
            .collect();
        let alone =
            |job: &&Arc<Job>| job.phase == Phase::Running && job.sessions().next().is_none();
        let settings = &self.settings;
        let over = |job: &&Arc<Job>| {
            let has_vanished = job.has_vanished() && job.vanished_for_ms >= settings.vanish_ms;
            has_vanished || job.active_ms + settings.abandon_ms <= now_ms
        };
        let abandoned: Vec<u32> = live().filter(alone).filter(over).map(|job| job.id).collect();
        lost.into_iter().for_each(|(id, rank)| self.lose(now_ms, id, rank));
        abandoned.into_iter().for_each(|id| self.end(now_ms, id, Phase::Abandoned));
    }

    /// Counts the time for which jobs show no sign of life. After a pause of the controller, what ranks and switches sent
    /// meanwhile is still to be read, so a pause counts as one tick.
    fn count_vanished(&mut self, now_ms: u64) {
        let last_ms = self.ticked_ms;
        let passed = (now_ms - last_ms).min(TICK_MAX_MS);
        for id in self.running(Job::has_vanished) {
            let Some(job) = self.job_mut(id) else { continue };
            let has_just_lived = job.active_ms > last_ms;
            job.vanished_for_ms = if has_just_lived { 0 } else { job.vanished_for_ms + passed };
        }
    }

    /// Ends a job: sends its workers the reason and revokes its leases.
    pub(super) fn fail(&mut self, now_ms: u64, id: u32, reason: &str) {
        let Some(job) = self.job_mut(id).filter(|job| job.phase.is_live()) else { return };
        let sessions: Vec<SessionId> = job.sessions().collect();
        for rank in 0..job.spec.size {
            if !job.members[rank as usize].state.is_gone() {
                job.member_mut(rank).state = MemberState::Left;
            }
        }
        for session in sessions {
            let message = WorkerMessage::JobFailed(pb::JobFailed { reason: reason.to_owned() });
            self.actions.push(Action::SendToWorker(session, message));
            self.actions.push(Action::Close(session));
            self.worker_sessions.remove(&session);
        }
        self.end_if_empty(now_ms, id);
    }

    /// A number of another store may belong to another job here.
    fn check_incarnation(&self, join: &pb::Join) -> Result<(), Refusal> {
        if join.incarnation == 0 || join.incarnation == self.incarnation {
            return Ok(());
        }
        let (id, fabric) = (join.job, &self.fabric.name);
        Err(Refusal::Unknown(format!(
            "job {id} was made by a controller of fabric {fabric:?} with another store; start the controller with that \
             store, or start the job again"
        )))
    }

    /// Rebuilds a running job that is not in the store, from the data of a joining rank, with a new key: no rank knew
    /// the old one.
    fn rebuild(
        &self,
        now_ms: u64,
        join: &pb::Join,
        key: JobKey,
        unix_s: f64,
    ) -> Result<Job, Refusal> {
        let (id, known) = (join.job, join.known_epoch);
        let (Some(description), Some(plan)) = (&join.description, &join.plan) else {
            return Err(Refusal::Unknown(self.unknown(id)));
        };
        // A job created by another store must not use a number of this store.
        if known == 0 || join.incarnation != self.incarnation {
            return Err(Refusal::Unknown(self.unknown(id)));
        }
        let invalid = |problem: String| Refusal::Invalid(format!("job {id}: {problem}"));
        if id == 0 || (id.wrapping_sub(self.next_job) as i32) >= NUMBERS_AHEAD_MAX {
            return Err(invalid("no controller has given out this number".to_owned()));
        }
        let spec = self.spec(description)?;
        self.admit_job(&spec)?;
        if (plan.job, plan.epoch) != (id, known) || known > u32::from(u16::MAX) {
            return Err(invalid(format!(
                "the plan of the Join is epoch {} of job {}, not epoch {known}",
                plan.epoch, plan.job
            )));
        }
        let bare = pb::Plan { trees: Vec::new(), ..plan.clone() };
        let bare = JobPlan::try_from(&bare).map_err(|error| invalid(error.to_string()))?;
        bare.validate(spec.size).map_err(|error| invalid(error.to_string()))?;
        let mut job = Job::new(id, spec, unix_s, now_ms);
        job.phase = Phase::Running;
        job.epoch = known as u16;
        job.order = Some(bare.plan.order);
        job.fragment_bytes = Some(plan.fragment_bytes);
        job.key = self.key_of_new_job(&job.spec, key);
        job.replan_at_ms = Some(now_ms);
        Ok(job)
    }

    /// Checks whether a worker may join; returns its host and address. Changes nothing.
    fn admit(&self, job: &Job, join: &pb::Join) -> Result<(NodeId, SocketAddr), Refusal> {
        let (id, rank) = (join.job, join.rank);
        if job.phase == Phase::Ended || job.phase == Phase::Abandoned && join.known_epoch == 0 {
            return Err(Refusal::State(format!("job {id} is over")));
        }
        let Some(member) = job.members.get(rank as usize) else {
            return Err(Refusal::Invalid(format!(
                "job {id} has ranks 0 to {}, not {rank}",
                job.spec.size - 1
            )));
        };
        version::check_packets(&format!("rank {rank}"), join.packets.as_ref())
            .map_err(Refusal::State)?;
        let udp_address: SocketAddr = join.udp_address.parse().map_err(|_| {
            Refusal::Invalid(format!(
                "rank {rank}: udp_address {:?} is not ip:port",
                join.udp_address
            ))
        })?;
        let ahead = match join.known_epoch {
            0 => 0,
            known => epoch::distance(known, job.epoch.into()),
        };
        if join.known_epoch > u32::from(u16::MAX) || ahead > EPOCHS_AHEAD_MAX {
            return Err(Refusal::Invalid(format!(
                "rank {rank} of job {id} claims to have a plan of epoch {}; the newest is {}",
                join.known_epoch, job.epoch
            )));
        }
        match member.state {
            MemberState::Left => {
                return Err(Refusal::State(format!("rank {rank} of job {id} has left")));
            }
            MemberState::Lost => {
                return Err(Refusal::State(format!(
                    "rank {rank} of job {id} was lost: its peers could not reach it"
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
        let same = |(other, member): (u32, &Arc<Member>)| {
            other != rank && member.udp_address == Some(udp_address)
        };
        if (0..).zip(&job.members).any(same) {
            return Err(Refusal::Taken(format!(
                "another rank of job {id} has the address {udp_address}"
            )));
        }
        Ok((self.host_of(join, udp_address)?, udp_address))
    }

    /// The host on which a worker says it runs, if the fabric has it.
    pub fn host_of_join(&self, join: &pb::Join) -> Option<&Host> {
        self.host_at(join, join.udp_address.parse().ok()?)
    }

    /// The tenant of the job that a worker joins, or that its Join describes if the controller does not have the job.
    pub fn tenant_of_join(&self, join: &pb::Join) -> Option<String> {
        let described = || join.description.as_ref().map(|job| job.tenant_name().to_owned());
        self.tenant_of_job(join.job).or_else(described)
    }

    /// The tenant of a job.
    pub fn tenant_of_job(&self, job: u32) -> Option<String> {
        self.job(job).map(|job| job.spec.tenant.clone())
    }

    fn host_at(&self, join: &pb::Join, udp_address: SocketAddr) -> Option<&Host> {
        match join.host.as_str() {
            "" => self.fabric.hosts.iter().find(|host| host.address == udp_address.ip()),
            name => self.fabric.host(name),
        }
    }

    fn host_of(&self, join: &pb::Join, udp_address: SocketAddr) -> Result<NodeId, Refusal> {
        let fabric = &self.fabric;
        let host = self.host_at(join, udp_address);
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
        if host.address != udp_address.ip() {
            // Switches send results there: a rank must not name another machine, or a switch.
            return Err(Refusal::Invalid(format!(
                "rank {} of job {} receives at {udp_address}, but host {:?} has the address {} in the fabric file; \
                 correct one of them",
                join.rank, join.job, host.name, host.address
            )));
        }
        let servers = fabric.servers.iter().map(|server| (&server.name, server.address));
        let mut taken = servers.chain(fabric.switches.iter().map(|s| (&s.name, s.address)));
        if let Some((name, _)) = taken.find(|(_, address)| *address == udp_address) {
            return Err(Refusal::Invalid(format!(
                "rank {} of job {} receives at {udp_address}, which is the address of {name:?}",
                join.rank, join.job
            )));
        }
        Ok(self.topology.find(&host.name).expect("every host is in the graph"))
    }

    /// Resumes a rank of a running job on a new stream: sends only the messages that the rank missed.
    fn worker_returned(&mut self, now_ms: u64, session: SessionId, join: &pb::Join, moved: bool) {
        let topology = self.topology.clone();
        let fabric = self.fabric.clone();
        let incarnation = self.incarnation;
        let job = self.job_mut(join.job).expect("it was just admitted");
        let lost = (0..).zip(&job.members);
        let lost = lost.filter_map(|(rank, member)| peer_lost(&topology, rank, member));
        let mut messages: Vec<WorkerMessage> = lost.collect();
        if moved {
            job.replan_at_ms = Some(now_ms);
        } else if let Some(plan) = &job.current
            && job.plan_has_key()
            && epoch::is_newer(plan.epoch.into(), join.known_epoch)
        {
            let plan = pb::Plan { incarnation, ..plan_message(plan, &fabric, &topology) };
            messages.push(WorkerMessage::Plan(job.with_key_id(plan)));
        }
        let send = |message| Action::SendToWorker(session, message);
        self.actions.extend(messages.into_iter().map(send));
    }

    fn lose(&mut self, now_ms: u64, id: u32, rank: u32) {
        let Some(job) = self.job_mut(id) else { return };
        job.member_mut(rank).state = MemberState::Lost;
        let (phase, sessions) = (job.phase, job.sessions().collect::<Vec<_>>());
        let member = job.members[rank as usize].clone();
        self.actions.push(Action::SaveMember(id, rank));
        if phase == Phase::Joining {
            self.fail(now_ms, id, &format!("rank {rank} was lost before all ranks had joined"));
            return;
        }
        if let Some(message) = peer_lost(&self.topology, rank, &member) {
            let send = |session| Action::SendToWorker(session, message.clone());
            self.actions.extend(sessions.into_iter().map(send));
        }
        self.end_if_empty(now_ms, id);
    }

    fn end_if_empty(&mut self, now_ms: u64, id: u32) {
        let Some(job) = self.jobs.get(&id) else { return };
        if job.phase.is_live() && job.members.iter().all(|member| member.state.is_gone()) {
            self.end(now_ms, id, Phase::Ended);
        }
    }

    fn end(&mut self, now_ms: u64, id: u32, phase: Phase) {
        let Some(job) = self.job_mut(id).filter(|job| job.phase.is_live()) else { return };
        job.phase = phase;
        job.pending = None;
        job.suspicion = None;
        if phase == Phase::Abandoned {
            // The plan's leases are about to be revoked. If the job resumes it gets a new plan.
            job.current = None;
        }
        self.actions.push(Action::SaveJob(id));
        self.revoke(id);
        self.improve_all(now_ms);
    }

    fn member_of(&mut self, session: SessionId) -> Option<(&mut Job, u32)> {
        let (id, rank) = *self.worker_sessions.get(&session)?;
        Some((self.job_mut(id)?, rank))
    }

    fn unknown(&self, job: u32) -> String {
        format!(
            "job {job} is unknown to the controller of fabric {:?}; was its store deleted?",
            self.fabric.name
        )
    }
}

/// Refuses a heartbeat whose lists are longer than those of any rank of the job.
fn check_lists(job: &Job, rank: u32, statistics: &pb::WorkerHeartbeat) -> Result<(), Refusal> {
    let pb::WorkerHeartbeat { trees, silent_trees, unreachable_ranks, .. } = statistics;
    let (most, size) = (job.spec.trees_max(), job.spec.size);
    let lists = [
        ("trees", trees.len(), most),
        ("silent_trees", silent_trees.len(), most),
        ("unreachable_ranks", unreachable_ranks.len(), size),
    ];
    let wrong = lists.into_iter().find(|&(_, length, limit)| length > limit as usize);
    wrong.map_or(Ok(()), |(field, length, limit)| {
        Err(Refusal::Invalid(format!(
            "{field} of rank {rank} of job {} has {length} entries; the limit is {limit}",
            job.id
        )))
    })
}

/// Number of results that trees have brought a rank so far.
fn results(statistics: &pb::WorkerHeartbeat) -> u64 {
    statistics.trees.iter().map(|tree| tree.results).sum()
}

/// Whether a rank whose stream has ended is lost. While a job runs, its peers decide: all that have reported since must
/// be unable to reach it. A rank without any remaining peer is lost.
fn is_lost(job: &Job, rank: u32) -> bool {
    let MemberState::Away { since_ms, .. } = job.members[rank as usize].state else { return false };
    if job.phase == Phase::Joining {
        return true;
    }
    let peers = || (0..).zip(&job.members).filter(|&(other, _): &(u32, _)| other != rank);
    let reported = |member: &Member| member.reported_ms.is_some_and(|at| at > since_ms);
    let mut opinions = peers()
        .filter(|(_, member)| member.session().is_some() && reported(member))
        .map(|(_, member)| member.statistics.unreachable_ranks.contains(&rank))
        .peekable();
    match opinions.peek() {
        Some(_) => opinions.all(|unreachable| unreachable),
        None => peers().all(|(_, member)| member.state.is_gone()),
    }
}

fn peer_lost(
    topology: &netsum_topo::Topology,
    rank: u32,
    member: &Member,
) -> Option<WorkerMessage> {
    (member.state == MemberState::Lost).then(|| {
        WorkerMessage::PeerLost(pb::PeerLost {
            rank,
            host: member.host.map(|host| topology.name(host).to_owned()).unwrap_or_default(),
            pid: member.pid,
            reason: "its connection to the controller ended, and no peer can reach it".to_owned(),
        })
    })
}

/// The next job number to allocate after `job` is taken.
fn after(next: u32, job: u32) -> u32 {
    if (job.wrapping_sub(next) as i32) >= 0 { job.wrapping_add(1) } else { next }
}

const NAMES_SHOWN: usize = 8;
/// How much a tick counts at most. The controller ticks every 100 ms.
const TICK_MAX_MS: u64 = 250;
/// Maximum number of epochs by which a store restored from a copy may be behind the jobs.
const EPOCHS_AHEAD_MAX: i16 = 1024;
/// Maximum number of job numbers by which such a store may be behind.
const NUMBERS_AHEAD_MAX: i32 = 65_536;
