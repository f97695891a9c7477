//! The controller's state.

use std::collections::{BTreeMap, HashMap, HashSet};

use netsum_topo::{Fabric, NodeId, Topology};
use netsum_wire::tag::JobKey;

use super::event::{Action, Answer, Decision, Event, Refusal, SessionId};
use super::job::{Job, JobSpec, MemberState, Phase};
use crate::pb;

/// Times and bounds, all in milliseconds unless said otherwise.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Buffers below this many bytes go by the host path, unless the job says otherwise.
    pub min_bytes: u64,
    /// Most fragments in flight per (job, tree).
    pub slots_max: u32,
    /// A worker's stream may be away for so long.
    pub worker_grace_ms: u64,
    /// As `worker_grace_ms`, after a start of the controller.
    pub restart_grace_ms: u64,
    /// A job whose ranks have not all come by then has failed.
    pub join_timeout_ms: u64,
    /// A switch with an open stream that says nothing for so long is dead.
    pub switch_silence_ms: u64,
    /// After a start of the controller, no plan is made without a switch before this time.
    pub switch_expected_ms: u64,
    /// A lease must be confirmed within this time.
    pub lease_timeout_ms: u64,
    /// A switch that refused a lease is not asked again by the same job for so long.
    pub refusal_ms: u64,
    /// A switch that came back is used again after this time; doubled for each death within a minute.
    pub return_hold_ms: u64,
    /// A lease may go when neither packets nor a controller have been there for so long, in seconds.
    pub idle_expiry_s: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            min_bytes: 16 << 10,
            slots_max: 512,
            worker_grace_ms: 3_000,
            restart_grace_ms: 10_000,
            join_timeout_ms: 600_000,
            switch_silence_ms: 5_000,
            switch_expected_ms: 3_000,
            lease_timeout_ms: 3_000,
            refusal_ms: 10_000,
            return_hold_ms: 500,
            idle_expiry_s: 900,
        }
    }
}

/// Whether a switch can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwitchCondition {
    /// The controller has just started; the switch has until then to come.
    Expected {
        /// Milliseconds.
        until_ms: u64,
    },
    /// Its stream is open.
    Up(SessionId),
    /// It is not there.
    Down,
}

/// A switch or a server.
#[derive(Debug, Clone, PartialEq)]
pub struct SwitchState {
    /// Whether it can be used.
    pub condition: SwitchCondition,
    /// Since when.
    pub since_ms: u64,
    /// When it was last heard of.
    pub heard_ms: u64,
    /// When it died lately.
    pub deaths_ms: Vec<u64>,
    /// Its last hello.
    pub hello: pb::SwitchHello,
    /// Its last counters.
    pub counters: pb::SwitchHeartbeat,
}

/// All that the controller knows.
#[derive(Debug, Clone)]
pub struct State {
    pub(super) settings: Settings,
    pub(super) fabric: Fabric,
    pub(super) topology: Topology,
    pub(super) switches: BTreeMap<NodeId, SwitchState>,
    pub(super) jobs: BTreeMap<u32, Job>,
    pub(super) next_job: u32,
    pub(super) worker_sessions: HashMap<SessionId, (u32, u32)>,
    pub(super) switch_sessions: HashMap<SessionId, NodeId>,
    pub(super) actions: Vec<Action>,
}

impl State {
    /// The state at a start. `jobs`: those that were not over when the last controller ended;
    /// `next_job`: the lowest number that was never given to a job.
    pub fn new(fabric: Fabric, settings: Settings, jobs: Vec<Job>, next_job: u32) -> State {
        let topology = fabric.topology();
        let expected = SwitchState {
            condition: SwitchCondition::Expected { until_ms: settings.switch_expected_ms },
            since_ms: 0,
            heard_ms: 0,
            deaths_ms: Vec::new(),
            hello: pb::SwitchHello::default(),
            counters: pb::SwitchHeartbeat::default(),
        };
        let aggregators = topology.switches().chain(topology.servers());
        let switches = aggregators.map(|node| (node, expected.clone())).collect();
        let mut state = State {
            settings,
            fabric,
            topology,
            switches,
            jobs: BTreeMap::new(),
            next_job: next_job.max(1),
            worker_sessions: HashMap::new(),
            switch_sessions: HashMap::new(),
            actions: Vec::new(),
        };
        state.jobs = jobs.into_iter().map(|job| (job.id, state.resumed(job))).collect();
        state
    }

    /// Changes the state for one event and says what must be done. `now_ms` never falls.
    pub fn decide(&mut self, now_ms: u64, event: Event, unix_s: f64) -> Decision {
        let answer = self.dispatch(now_ms, event, unix_s);
        self.forget_old_jobs();
        Decision { actions: std::mem::take(&mut self.actions), answer }
    }

    /// A job that is there, or was lately.
    pub fn job(&self, job: u32) -> Option<&Job> {
        self.jobs.get(&job)
    }

    /// The lowest number that was never given to a job.
    pub fn next_job(&self) -> u32 {
        self.next_job
    }

    /// The fabric.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Its graph.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    fn dispatch(&mut self, now_ms: u64, event: Event, unix_s: f64) -> Result<Answer, Refusal> {
        match event {
            Event::CreateJob { request, key } => {
                return self.create(now_ms, &request, key, unix_s).map(Answer::Created);
            }
            Event::StopJob { job, reason } => self.stop(now_ms, job, &reason)?,
            Event::WorkerJoined { session, join } => self.worker_joined(now_ms, session, &join)?,
            Event::WorkerBeat { session, statistics } => self.worker_beat(session, statistics),
            Event::WorkerLeft { session } => self.worker_left(now_ms, session),
            Event::WorkerClosed { session } => self.worker_closed(now_ms, session),
            Event::SwitchHello { session, hello } => self.switch_hello(now_ms, session, hello)?,
            Event::SwitchBeat { session, counters } => self.switch_beat(now_ms, session, counters),
            Event::LeaseAck { session, ack } => self.lease_ack(now_ms, session, &ack),
            Event::SwitchClosed { session } => self.switch_closed(now_ms, session),
            Event::Tick => self.tick(now_ms),
        }
        Ok(Answer::Done)
    }

    fn tick(&mut self, now_ms: u64) {
        self.tick_switches(now_ms);
        self.tick_workers(now_ms);
        self.tick_planning(now_ms);
    }

    fn create(
        &mut self,
        now_ms: u64,
        request: &pb::CreateJobRequest,
        key: JobKey,
        unix_s: f64,
    ) -> Result<u32, Refusal> {
        let spec = JobSpec::check(request, self.settings.min_bytes)?;
        let live = self.jobs.values().filter(|job| job.phase != Phase::Ended).count();
        if live >= JOBS_MAX {
            return Err(Refusal::State(format!(
                "{live} jobs are running, the most that this controller takes"
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
        let of_tenant = self.jobs.values().filter(|job| job.phase != Phase::Ended);
        let of_tenant = of_tenant.filter(|job| job.spec.tenant == *name).count();
        if of_tenant as u64 >= u64::from(tenant.jobs) {
            return Err(Refusal::State(format!(
                "tenant {name:?} has {of_tenant} jobs, the most that it may have; wait for one to end"
            )));
        }
        let id = self.next_job;
        self.next_job = id.checked_add(1).ok_or_else(|| {
            Refusal::State("all job numbers are used; start with a new store".to_owned())
        })?;
        let mut job = Job::new(id, spec, unix_s, now_ms + self.settings.join_timeout_ms);
        job.key = (!self.fabric.trusted).then_some(key);
        self.jobs.insert(id, job);
        self.actions.push(Action::SaveJob(id));
        Ok(id)
    }

    /// A job after a restart: its workers have a while to come back.
    fn resumed(&self, mut job: Job) -> Job {
        let until_ms = self.settings.restart_grace_ms;
        for member in &mut job.members {
            if matches!(member.state, MemberState::Connected(_) | MemberState::Away { .. }) {
                member.state = MemberState::Away { until_ms };
            }
        }
        job.join_by_ms = self.settings.join_timeout_ms;
        let plan_gone = job.phase == Phase::Running && job.current.is_none();
        job.replan_at_ms = plan_gone.then_some(0);
        job.improve_at_ms = job.is_degraded().then_some(self.settings.switch_expected_ms);
        let trees = job.current.iter().flat_map(|plan| &plan.trees);
        job.granted = trees.flat_map(|tree| tree.nodes.iter().map(|node| node.switch)).collect();
        job
    }

    fn forget_old_jobs(&mut self) {
        let ended: Vec<u32> =
            self.jobs.values().filter(|job| job.phase == Phase::Ended).map(|job| job.id).collect();
        let surplus = ended.len().saturating_sub(ENDED_KEPT);
        ended[..surplus].iter().for_each(|job| drop(self.jobs.remove(job)));
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

/// Each live job holds a stream per rank.
const JOBS_MAX: usize = 1024;
/// Jobs that are over and still shown.
const ENDED_KEPT: usize = 100;
