//! The controller's state.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use netsum_topo::{Fabric, NodeId, Topology};
use netsum_wire::tag::{JobKey, Mac};

use super::event::{Action, Answer, Decision, Event, Refusal, SessionId};
use super::job::{Job, JobSpec, MemberState, Phase};
use super::settings::Settings;
use crate::limits::{
    ENDED_RANKS_SHOWN, ENDED_SHOWN, JOBS_MAX, JOBS_WAITING_MAX, RANKS_LIVE_MAX, RANKS_WAITING_MAX,
    TENANT_WAITING_MAX,
};
use crate::pb;

/// Condition of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwitchCondition {
    /// The controller has just started; the switch is expected to connect until then.
    Expected {
        /// Deadline in milliseconds.
        until_ms: u64,
    },
    /// Its stream is open.
    Up(SessionId),
    /// It has no stream.
    Down,
}

/// A switch or a server.
#[derive(Debug, Clone, PartialEq)]
pub struct SwitchState {
    /// Condition.
    pub condition: SwitchCondition,
    /// When it last changed.
    pub since_ms: u64,
    /// When its last report arrived.
    pub reported_ms: u64,
    /// When its stream last ended.
    pub died_ms: Option<u64>,
    /// Number of consecutive deaths, each soon after the previous return.
    pub deaths: u32,
    /// Its last hello.
    pub hello: pb::SwitchHello,
    /// Its last counters.
    pub counters: pb::SwitchHeartbeat,
}

/// Content of the store at a start.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Loaded {
    /// Random number of the store, which distinguishes its job numbers from those of another store.
    pub incarnation: u64,
    /// Number of the next job, if it is free.
    pub next_job: u32,
    /// All stored jobs, without plans that the fabric file no longer allows.
    pub jobs: Vec<Job>,
}

/// The controller's state.
///
/// A clone shares all jobs, ranks and switches with the original until one of the two changes them.
#[derive(Debug, Clone)]
pub struct State {
    pub(super) settings: Settings,
    pub(super) fabric: Arc<Fabric>,
    pub(super) topology: Arc<Topology>,
    pub(super) switches: BTreeMap<NodeId, Arc<SwitchState>>,
    pub(super) jobs: BTreeMap<u32, Arc<Job>>,
    pub(super) incarnation: u64,
    pub(super) next_job: u32,
    pub(super) worker_sessions: HashMap<SessionId, (u32, u32)>,
    pub(super) switch_sessions: HashMap<SessionId, NodeId>,
    pub(super) actions: Vec<Action>,
    /// When the last tick was.
    pub(super) ticked_ms: u64,
}

impl State {
    /// The state at a start, with the content of the store.
    pub fn new(fabric: Fabric, settings: Settings, loaded: Loaded) -> State {
        let topology = fabric.topology();
        let expected = Arc::new(SwitchState {
            condition: SwitchCondition::Expected { until_ms: settings.switch_expected_ms },
            since_ms: 0,
            reported_ms: 0,
            died_ms: None,
            deaths: 0,
            hello: pb::SwitchHello::default(),
            counters: pb::SwitchHeartbeat::default(),
        });
        let aggregators = topology.switches().chain(topology.servers());
        let switches = aggregators.map(|node| (node, expected.clone())).collect();
        let Loaded { incarnation, next_job, jobs } = loaded;
        let mut state = State {
            settings,
            fabric: Arc::new(fabric),
            topology: Arc::new(topology),
            switches,
            jobs: BTreeMap::new(),
            incarnation,
            next_job,
            worker_sessions: HashMap::new(),
            switch_sessions: HashMap::new(),
            actions: Vec::new(),
            ticked_ms: 0,
        };
        state.jobs = jobs.into_iter().map(|job| (job.id, Arc::new(state.resumed(job)))).collect();
        state
    }

    /// Changes the state for one event and returns the resulting actions. `now_ms` never decreases.
    pub fn decide(&mut self, now_ms: u64, event: Event, unix_s: f64) -> Decision {
        let is_report = event.is_report();
        let answer = self.dispatch(now_ms, event, unix_s);
        if !is_report {
            self.forget_old_jobs();
        }
        Decision { actions: std::mem::take(&mut self.actions), answer }
    }

    /// A job that exists or has recently ended.
    pub fn job(&self, job: u32) -> Option<&Job> {
        self.jobs.get(&job).map(Arc::as_ref)
    }

    /// Number of the next job, if it is free.
    pub fn next_job(&self) -> u32 {
        self.next_job
    }

    /// The incarnation of the store.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The fabric.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// The fabric's graph.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    fn dispatch(&mut self, now_ms: u64, event: Event, unix_s: f64) -> Result<Answer, Refusal> {
        match event {
            Event::CreateJob { request, key, from } => {
                let spec = self.spec(&request)?;
                if let Some(job) = self.created_by(request.request) {
                    return repeated(job, &spec).map(Answer::Created);
                }
                self.admit_waiting(&spec, from)?;
                let number = request.request;
                return self.create(now_ms, spec, number, key, from, unix_s).map(Answer::Created);
            }
            Event::StopJob { job, reason } => self.stop(now_ms, job, &reason)?,
            Event::RekeyJob { job, key } => self.rekey(now_ms, job, key)?,
            Event::WorkerJoined { session, join, key } => {
                self.worker_joined(now_ms, session, &join, key, unix_s)?;
            }
            Event::WorkerHeartbeat { session, statistics } => {
                self.worker_heartbeat(now_ms, session, statistics)?;
            }
            Event::WorkerLeft { session } => self.worker_left(now_ms, session),
            Event::WorkerClosed { session, hung_up } => {
                self.worker_closed(now_ms, session, hung_up);
            }
            Event::SwitchHello { session, hello } => self.switch_hello(now_ms, session, hello)?,
            Event::SwitchHeartbeat { session, counters } => {
                self.switch_heartbeat(now_ms, session, counters)
            }
            Event::LeaseAck { session, ack } => self.lease_ack(now_ms, session, &ack),
            Event::SwitchClosed { session } => self.switch_closed(now_ms, session),
            Event::Tick => self.tick(now_ms),
        }
        Ok(Answer::Done)
    }

    fn tick(&mut self, now_ms: u64) {
        self.tick_switches(now_ms);
        self.tick_workers(now_ms);
        self.ticked_ms = now_ms;
        self.tick_suspicions(now_ms);
        self.tick_planning(now_ms);
    }

    fn create(
        &mut self,
        now_ms: u64,
        spec: JobSpec,
        request: u64,
        key: JobKey,
        from: Option<IpAddr>,
        unix_s: f64,
    ) -> Result<u32, Refusal> {
        self.admit_job(&spec)?;
        let id = self.draw_number();
        let mut job = Job::new(id, spec, unix_s, now_ms + self.settings.join_timeout_ms);
        job.key = self.key_of_new_job(&job.spec, key);
        (job.creator, job.request) = (from, request);
        job.active_ms = now_ms;
        self.jobs.insert(id, Arc::new(job));
        self.actions.push(Action::SaveJob(id));
        Ok(id)
    }

    /// The job that a request has created; a caller that got no answer asks again.
    fn created_by(&self, request: u64) -> Option<&Job> {
        self.jobs.values().map(Arc::as_ref).find(|job| request != 0 && job.request == request)
    }

    /// A job as it is requested, and as its tenant demands.
    pub(super) fn spec(&self, request: &pb::CreateJobRequest) -> Result<JobSpec, Refusal> {
        let mut spec = JobSpec::check(request, self.settings.min_bytes)?;
        spec.encrypt |= self.fabric.tenant(&spec.tenant).is_some_and(|tenant| tenant.encrypt);
        if spec.encrypt && self.fabric.trusted {
            return Err(Refusal::Invalid(format!(
                "fabric {:?} is trusted: its packets have no keys, so they cannot be encrypted; remove `trusted = true` \
                 from the fabric file, or do not ask for encryption",
                self.fabric.name
            )));
        }
        Ok(spec)
    }

    /// The key of a new job, from random bytes.
    pub(super) fn key_of_new_job(&self, spec: &JobSpec, key: JobKey) -> Option<JobKey> {
        let mac = if spec.encrypt { Mac::AegisAead } else { self.fastest_mac() };
        (!self.fabric.trusted).then(|| key.with_mac(mac))
    }

    /// The MAC that is the fastest for all connected switches and servers. A job keeps its MAC: every switch and worker
    /// can compute it.
    fn fastest_mac(&self) -> Mac {
        let live = self.live();
        let all_aes = live.iter().all(|switch| self.switches[switch].hello.aes);
        if all_aes && !live.is_empty() { Mac::Aegis } else { Mac::Nh }
    }

    /// Whether the controller and the tenant may have another job.
    pub(super) fn admit_job(&self, spec: &JobSpec) -> Result<(), Refusal> {
        let live = || self.jobs.values().filter(|job| job.phase.is_live());
        let all = live().count();
        if all >= JOBS_MAX {
            return Err(Refusal::State(format!(
                "{all} jobs are running, the most that this controller takes; wait for one to end"
            )));
        }
        let ranks: usize = live().map(|job| job.members.len()).sum();
        if ranks + spec.size as usize > RANKS_LIVE_MAX {
            return Err(Refusal::State(format!(
                "the running jobs have {ranks} ranks, and all jobs may have {RANKS_LIVE_MAX}; wait for one to end"
            )));
        }
        let name = &spec.tenant;
        let Some(tenant) = self.fabric.tenant(name) else {
            let names: Vec<&str> =
                self.fabric.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
            return Err(Refusal::Invalid(format!(
                "fabric {:?} has no tenant {name:?}; it has {}",
                self.fabric.name,
                if names.is_empty() { "none".to_owned() } else { names.join(", ") }
            )));
        };
        let of_tenant = live().filter(|job| job.spec.tenant == *name).count();
        if of_tenant as u64 >= u64::from(tenant.jobs) {
            return Err(Refusal::State(format!(
                "tenant {name:?} has {of_tenant} jobs, the most that it may have; wait for one to end"
            )));
        }
        Ok(())
    }

    /// Whether the caller at `from` and the tenant may have another job that waits for its ranks.
    fn admit_waiting(&self, spec: &JobSpec, from: Option<IpAddr>) -> Result<(), Refusal> {
        let waiting = || self.jobs.values().filter(|job| job.phase == Phase::Joining);
        let own = || waiting().filter(|job| from.is_some() && job.creator == from);
        let (jobs, ranks) = (own().count(), own().map(|job| job.members.len()).sum::<usize>());
        let address = from.map(|address| address.to_string()).unwrap_or_default();
        if jobs >= JOBS_WAITING_MAX || ranks + spec.size as usize > RANKS_WAITING_MAX {
            return Err(Refusal::State(format!(
                "{jobs} jobs created from {address} still wait for some of their {ranks} ranks; an address may have \
                 {JOBS_WAITING_MAX} such jobs with {RANKS_WAITING_MAX} ranks; start their ranks, or stop these jobs"
            )));
        }
        let of_tenant = waiting().filter(|job| job.spec.tenant == spec.tenant).count();
        if !self.fabric.tenants.is_empty() && of_tenant >= TENANT_WAITING_MAX {
            return Err(Refusal::State(format!(
                "{of_tenant} jobs of tenant {:?} wait for their ranks, the most that it may have; start their ranks, \
                 or stop these jobs",
                spec.tenant
            )));
        }
        Ok(())
    }

    /// An unused job number. Numbers wrap around; 0 is invalid.
    fn draw_number(&mut self) -> u32 {
        let mut id = self.next_job;
        while id == 0 || self.jobs.contains_key(&id) {
            id = id.wrapping_add(1);
        }
        self.next_job = id.wrapping_add(1);
        id
    }

    /// A job after a restart: its workers have some time to reconnect.
    fn resumed(&self, mut job: Job) -> Job {
        let grace_until_ms = self.settings.restart_grace_ms;
        for rank in 0..job.spec.size {
            let state = job.members[rank as usize].state;
            if matches!(state, MemberState::Connected(_) | MemberState::Away { .. }) {
                job.member_mut(rank).state =
                    MemberState::Away { since_ms: 0, grace_until_ms, hung_up: false };
            }
        }
        if !job.phase.is_live() {
            return job;
        }
        job.join_by_ms = self.settings.join_timeout_ms;
        let plan_gone =
            job.phase == Phase::Running && (job.current.is_none() || !job.plan_has_key());
        job.replan_at_ms = (plan_gone && job.is_complete()).then_some(0);
        job.improve_at_ms = job.is_degraded().then_some(self.settings.switch_expected_ms);
        let trees = job.current.iter().flat_map(|plan| &plan.trees);
        job.granted = trees.flat_map(|tree| tree.nodes.iter().map(|node| node.switch)).collect();
        job
    }

    fn forget_old_jobs(&mut self) {
        let over = self.jobs.values().filter(|job| !job.phase.is_live());
        let over: Vec<(u32, usize)> = over.map(|job| (job.id, job.members.len())).collect();
        let mut ranks = 0;
        let shown = over.iter().rev().take(ENDED_SHOWN).take_while(|(_, size)| {
            ranks += size;
            ranks <= ENDED_RANKS_SHOWN
        });
        let surplus = over.len() - shown.count();
        over[..surplus].iter().for_each(|(job, _)| drop(self.jobs.remove(job)));
    }

    /// A job, mutable.
    pub(super) fn job_mut(&mut self, job: u32) -> Option<&mut Job> {
        self.jobs.get_mut(&job).map(Arc::make_mut)
    }

    /// A switch or server, mutable.
    pub(super) fn switch_mut(&mut self, switch: NodeId) -> &mut SwitchState {
        Arc::make_mut(self.switches.get_mut(&switch).expect("every switch has a state"))
    }

    /// Numbers of the running jobs for which `wanted` holds.
    pub(super) fn running(&self, wanted: impl Fn(&Job) -> bool) -> Vec<u32> {
        let running = self.jobs.values().filter(|job| job.phase == Phase::Running);
        running.filter(|job| wanted(job)).map(|job| job.id).collect()
    }

    /// Switches and servers whose stream is open.
    pub(super) fn live(&self) -> HashSet<NodeId> {
        let up = |state: &SwitchState| matches!(state.condition, SwitchCondition::Up(_));
        self.switches.iter().filter(|(_, state)| up(state)).map(|(&switch, _)| switch).collect()
    }

    /// The open stream of a switch.
    pub(super) fn switch_session(&self, switch: NodeId) -> Option<SessionId> {
        match self.switches.get(&switch)?.condition {
            SwitchCondition::Up(session) => Some(session),
            _ => None,
        }
    }

    pub(super) fn name(&self, node: NodeId) -> &str {
        self.topology.name(node)
    }
}

/// The answer to a request that has created `job` before. Errors: it describes another job.
fn repeated(job: &Job, spec: &JobSpec) -> Result<u32, Refusal> {
    match (&job.spec.tenant, &job.spec.name, job.spec.size) == (&spec.tenant, &spec.name, spec.size)
    {
        true => Ok(job.id),
        false => Err(Refusal::Invalid(format!(
            "request {:016x} has created job {}, which is another one; draw a new number for each job",
            job.request, job.id
        ))),
    }
}
