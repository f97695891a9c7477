//! Switches and workers around a controller without sockets, as far as its decisions depend on them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use netsum_control::decide::{Action, Answer, Event, SessionId, Settings, State};
use netsum_control::pb::switch_command::Command;
use netsum_control::pb::worker_event::Event as WorkerMessage;
use netsum_control::{Engine, Failure, JobPlan, MemoryStore, Outcome, epoch, pb};
use netsum_topo::{Addressing, Fabric, Rate, leaf_spine};
use netsum_wire::tag::{JobKey, Mac};

pub const RATE: Rate = Rate(10_000_000_000);

/// Job, tree and epoch of installed leases.
type Leases = BTreeSet<(u32, u32, u32)>;

pub const KEY: JobKey = JobKey::new(Mac::Nh, [42; 16]);
/// The key of jobs that the controller rebuilds.
pub const REBUILT: JobKey = JobKey::new(Mac::Nh, [43; 16]);
/// Its first job has the number 1.
pub const INCARNATION: u64 = 4_294_000;
/// A worker detects within this time that a tree does not answer.
pub const NOTICE_MS: u64 = 300;

/// Largest payload of slots and rows.
pub const SLOT_BYTES: u16 = 8832;

/// A controller with switches that confirm leases and workers that accept plans.
pub struct World {
    pub engine: Engine<MemoryStore>,
    pub store: MemoryStore,
    pub fabric: Fabric,
    pub now_ms: u64,
    pub next_session: u64,
    /// By name: session and installed leases.
    pub switches: BTreeMap<String, (SessionId, Leases)>,
    /// By job and rank: session and newest plan.
    pub workers: BTreeMap<(u32, u32), (SessionId, Option<pb::Plan>)>,
    /// By job and rank: the number of the last key, and the key.
    pub rank_keys: BTreeMap<(u32, u32), (u64, JobKey)>,
    pub messages: Vec<(u32, WorkerMessage)>,
    /// Every lease that was sent out, with the switch.
    pub granted: Vec<(String, pb::Lease)>,
    /// Switches ("rack0") and links ("rack0-spine1", "h0-rack0") that carry no data, though control messages pass.
    pub broken: BTreeSet<String>,
    /// Content of heartbeats, by job and rank.
    pub reports: BTreeMap<(u32, u32), Report>,
    /// Commands sent to switches.
    pub commands: Vec<(String, Command)>,
    /// Switches that refuse, with the reason.
    pub refusing: BTreeMap<String, String>,
    /// Switches that do not answer.
    pub mute: BTreeSet<String>,
    /// Of every switch's process; 0: unknown.
    pub instance: u64,
    pub aes: bool,
    /// Whether switches that connect handle fragments of one rank.
    pub all_collectives: bool,
    pub receive_buffer: u64,
    /// Memory of each switch.
    pub memory: u64,
    /// Versions of packets that switches and ranks say they speak.
    pub packets: Option<pb::VersionRange>,
    /// Answers of switches in transit: a stream delivers in order, after earlier messages.
    pub answers: VecDeque<Event>,
}

/// A worker's view of its data plane.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Trees that do not answer, and since when.
    broken: BTreeMap<u32, u64>,
    pub heartbeat: pb::WorkerHeartbeat,
    sent_ms: Option<u64>,
}

impl World {
    pub fn new(fabric: Fabric, settings: Settings) -> World {
        let store = MemoryStore::new(INCARNATION);
        let engine = Engine::new(fabric.clone(), settings, store.clone()).unwrap();
        World {
            engine,
            store,
            fabric,
            now_ms: 0,
            next_session: 1,
            switches: BTreeMap::new(),
            workers: BTreeMap::new(),
            rank_keys: BTreeMap::new(),
            messages: Vec::new(),
            granted: Vec::new(),
            broken: BTreeSet::new(),
            reports: BTreeMap::new(),
            commands: Vec::new(),
            refusing: BTreeMap::new(),
            mute: BTreeSet::new(),
            instance: 0,
            aes: false,
            all_collectives: true,
            receive_buffer: 64 << 20,
            memory: 64 << 20,
            packets: None,
            answers: VecDeque::new(),
        }
    }

    /// Two racks of two hosts, two spines, all switches up.
    pub fn standard() -> World {
        let fabric = leaf_spine(2, 2, 2, RATE, RATE, Addressing::default()).unwrap();
        let mut world = World::new(fabric, Settings::default());
        world.all_up();
        world
    }

    pub fn all_up(&mut self) {
        let switches = self.fabric.switches.iter().map(|switch| switch.name.clone());
        let servers = self.fabric.servers.iter().map(|server| server.name.clone());
        for name in switches.chain(servers).collect::<Vec<_>>() {
            self.up(&name, &[]).unwrap();
        }
    }

    pub fn state(&self) -> &State {
        self.engine.state()
    }

    /// Stops the controller and starts another with `store`: all streams are new.
    pub fn restart(&mut self, settings: Settings, store: MemoryStore) {
        self.engine = Engine::new(self.fabric.clone(), settings, store.clone()).unwrap();
        self.store = store;
        self.now_ms = 0;
        self.answers.clear();
        for report in self.reports.values_mut() {
            *report = Report::default();
        }
    }

    /// Stops the controller and starts another with its store, to which the switches come with their leases.
    pub fn restart_with_leases(&mut self) {
        let switches = self.switches.iter();
        let leases: Vec<_> = switches.map(|(name, s)| (name.clone(), s.1.clone())).collect();
        self.restart(Settings::default(), self.store.clone());
        for (name, leases) in leases {
            self.up(&name, &leases.into_iter().collect::<Vec<_>>()).unwrap();
        }
    }

    pub fn play(&mut self, event: Event) -> Result<Answer, Failure> {
        let answer = self.decide(event);
        while let Some(answer) = self.answers.pop_front() {
            self.decide(answer).unwrap();
        }
        answer
    }

    fn decide(&mut self, event: Event) -> Result<Answer, Failure> {
        let Outcome { actions, answer } = self.engine.handle(self.now_ms, event, 1e9);
        actions.into_iter().for_each(|action| self.act(action));
        answer
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::SaveJob(_) | Action::SaveMember(..) => panic!("the engine saves"),
            Action::SendToWorker(session, message) => {
                let entry = self.workers.iter_mut().find(|(_, worker)| worker.0 == session);
                let (&id, worker) = entry.expect("only open streams are told");
                let (_, rank) = id;
                if let WorkerMessage::Plan(plan) = &message {
                    let last = worker.1.as_ref().map_or(0, |plan| plan.epoch);
                    assert!(epoch::is_newer(plan.epoch, last), "epoch {} after {last}", plan.epoch);
                    worker.1 = Some(plan.clone());
                }
                if let WorkerMessage::RankKey(message) = &message {
                    let key = message.key.as_ref().unwrap().key().unwrap();
                    self.rank_keys.insert(id, (message.key_id, key));
                    return;
                }
                self.messages.push((rank, message));
            }
            Action::SendToSwitch(session, command) => self.command(session, command),
            Action::Close(session) => {
                self.switches.retain(|_, switch| switch.0 != session);
                self.workers.retain(|_, worker| worker.0 != session);
            }
        }
    }

    fn command(&mut self, session: SessionId, command: Command) {
        let entry = self.switches.iter_mut().find(|(_, switch)| switch.0 == session);
        let (name, (_, leases)) = entry.expect("only open streams are told");
        self.commands.push((name.clone(), command.clone()));
        match command {
            Command::Hello(hello) => assert_ne!(hello.incarnation, 0),
            Command::Revoke(revoke) => leases
                .retain(|lease| lease.0 != revoke.job || epoch::is_newer(lease.2, revoke.epoch)),
            Command::Install(lease) => {
                assert!(lease.slots >= 1 && !lease.children.is_empty());
                self.granted.push((name.clone(), lease.clone()));
                let refused = self.refusing.get(name).cloned();
                if refused.is_none() {
                    leases.retain(|old| (old.0, old.1) != (lease.job, lease.tree));
                    leases.insert((lease.job, lease.tree, lease.epoch));
                }
                if !self.mute.contains(name) {
                    let (ok, reason) = (refused.is_none(), refused.unwrap_or_default());
                    let ack = pb::LeaseAck {
                        job: lease.job,
                        tree: lease.tree,
                        epoch: lease.epoch,
                        ok,
                        reason,
                    };
                    self.answers.push_back(Event::LeaseAck { session, ack });
                }
            }
        }
    }

    pub fn session(&mut self) -> SessionId {
        self.next_session += 1;
        SessionId(self.next_session)
    }

    pub fn up(&mut self, name: &str, installed: &[(u32, u32, u32)]) -> Result<Answer, Failure> {
        let session = self.session();
        let address = self.fabric.aggregator_address(name).map(|address| address.to_string());
        let switch = self.fabric.switch(name);
        let lease = |&(job, tree, epoch): &(u32, u32, u32)| pb::InstalledLease {
            job,
            tree,
            epoch,
            incarnation: self.engine.state().incarnation(),
        };
        let hello = pb::SwitchHello {
            name: name.to_owned(),
            udp_address: address.unwrap_or_default(),
            memory_bytes: self.memory,
            receive_buffer_bytes: self.receive_buffer,
            mtu: 65536,
            installed: installed.iter().map(lease).collect(),
            server: switch.is_none() && self.fabric.server(name).is_some(),
            slots: switch.map_or(0, |switch| switch.slots),
            slot_bytes: SLOT_BYTES.into(),
            policy: switch.map(|switch| switch.policy.to_string()).unwrap_or_default(),
            instance: self.instance,
            aes: self.aes,
            encrypts: self.aes,
            all_collectives: self.all_collectives,
            packets: self.packets,
            ..pb::SwitchHello::default()
        };
        // A new stream may replace an old one, which is then closed by an action.
        self.switches.remove(name);
        self.switches.insert(name.to_owned(), (session, installed.iter().copied().collect()));
        let answer = self.play(Event::SwitchHello { session, hello });
        if answer.is_err() {
            self.switches.remove(name);
        }
        answer
    }

    pub fn down(&mut self, name: &str) {
        let (session, _) = self.switches.remove(name).unwrap();
        self.play(Event::SwitchClosed { session }).unwrap();
    }

    pub fn create(&mut self, size: u32) -> u32 {
        self.create_with(size, 0)
    }

    pub fn create_with(&mut self, size: u32, max_trees: u32) -> u32 {
        let min_bytes = Some(0);
        self.create_as(pb::CreateJobRequest { size, max_trees, min_bytes, ..Default::default() })
    }

    pub fn create_as(&mut self, request: pb::CreateJobRequest) -> u32 {
        match self.play(Event::CreateJob { request, key: KEY, from: None }).unwrap() {
            Answer::Created(job) => job,
            Answer::Done => panic!("no number"),
        }
    }

    pub fn join(
        &mut self,
        job: u32,
        rank: u32,
        host: &str,
        known_epoch: u32,
    ) -> Result<Answer, Failure> {
        let join = self.join_message(job, rank, host, known_epoch);
        self.join_as(join)
    }

    pub fn join_message(&self, job: u32, rank: u32, host: &str, known_epoch: u32) -> pb::Join {
        let address = self
            .fabric
            .host(host)
            .map_or_else(|| "127.0.0.1".to_owned(), |host| host.address.to_string());
        pb::Join {
            job,
            rank,
            host: host.to_owned(),
            udp_address: format!("{address}:{}", 5000 + job % 500 * 100 + rank),
            mesh_address: String::new(),
            pid: 1000 + rank,
            mtu: 1500,
            known_epoch,
            incarnation: INCARNATION,
            packets: self.packets,
            ..pb::Join::default()
        }
    }

    pub fn join_as(&mut self, join: pb::Join) -> Result<Answer, Failure> {
        let session = self.session();
        let (job, rank) = (join.job, join.rank);
        let before = self.workers.insert((job, rank), (session, None));
        let answer = self.play(Event::WorkerJoined { session, join, key: REBUILT });
        if answer.is_err() {
            match before {
                Some(worker) => self.workers.insert((job, rank), worker),
                None => self.workers.remove(&(job, rank)),
            };
        }
        answer
    }

    /// A job with one rank on each of the four hosts.
    pub fn job(&mut self) -> u32 {
        self.job_of("panama", "")
    }

    pub fn job_of(&mut self, protocol: &str, tenant: &str) -> u32 {
        let job = self.create_as(pb::CreateJobRequest {
            size: 4,
            min_bytes: Some(0),
            protocol: protocol.to_owned(),
            tenant: tenant.to_owned(),
            ..Default::default()
        });
        for rank in 0..4 {
            self.join(job, rank, &format!("h{rank}"), 0).unwrap();
        }
        job
    }

    /// A job with a rank on each of some hosts, and at most `max_trees` trees.
    pub fn job_on(&mut self, hosts: &[usize], max_trees: u32) -> u32 {
        let job = self.create_with(hosts.len() as u32, max_trees);
        for (rank, host) in hosts.iter().enumerate() {
            self.join(job, rank as u32, &format!("h{host}"), 0).unwrap();
        }
        job
    }

    /// Ends the stream of a rank, as when the network fails.
    pub fn worker_gone(&mut self, job: u32, rank: u32) {
        self.stream_ends(job, rank, false);
    }

    /// Ends the stream of a rank, as when its process dies.
    pub fn worker_dies(&mut self, job: u32, rank: u32) {
        self.stream_ends(job, rank, true);
    }

    fn stream_ends(&mut self, job: u32, rank: u32, hung_up: bool) {
        let (session, _) = self.workers.remove(&(job, rank)).unwrap();
        self.play(Event::WorkerClosed { session, hung_up }).unwrap();
    }

    /// Makes all other ranks report in their heartbeats that they cannot reach this one.
    pub fn peers_report_unreachable(&mut self, job: u32, rank: u32) {
        let peers: Vec<(u32, u32)> =
            self.workers.keys().copied().filter(|id| *id != (job, rank)).collect();
        for id in peers {
            let heartbeat = &mut self.reports.entry(id).or_default().heartbeat;
            heartbeat.unreachable_ranks = vec![rank];
        }
    }

    pub fn wait(&mut self, ms: u64) {
        let end = self.now_ms + ms;
        while self.now_ms < end {
            self.now_ms = (self.now_ms + 100).min(end);
            for (session, _) in self.switches.values().cloned().collect::<Vec<_>>() {
                self.play(Event::SwitchHeartbeat {
                    session,
                    counters: pb::SwitchHeartbeat::default(),
                })
                .unwrap();
            }
            self.report();
            self.play(Event::Tick).unwrap();
        }
    }

    /// Heartbeats of the workers: once a second, and when a tree falls silent.
    fn report(&mut self) {
        for (id, (session, plan)) in self.workers.clone() {
            let broken = plan
                .iter()
                .flat_map(|plan| self.broken_trees(id.0, plan))
                .collect::<BTreeSet<u32>>();
            let epoch = plan.map_or(0, |plan| plan.epoch);
            let report = self.reports.entry(id).or_default();
            if report.heartbeat.plan_epoch != epoch {
                report.heartbeat.plan_epoch = epoch;
                report.heartbeat.silent_trees.clear();
                report.broken.clear();
                report.sent_ms = None;
            }
            report.broken.retain(|tree, _| broken.contains(tree));
            if broken.is_empty() {
                // No operation ends without each of its trees.
                report.heartbeat.trees.resize(1, pb::WorkerTree::default());
                report.heartbeat.trees[0].results += 1;
            }
            for tree in broken {
                let since_ms = *report.broken.entry(tree).or_insert(self.now_ms);
                let known = report.heartbeat.silent_trees.contains(&tree);
                if since_ms + NOTICE_MS <= self.now_ms && !known {
                    report.heartbeat.silent_trees.push(tree);
                    report.sent_ms = None;
                }
            }
            if report.sent_ms.is_none_or(|at| at + 1_000 <= self.now_ms) {
                report.sent_ms = Some(self.now_ms);
                let statistics = report.heartbeat.clone();
                self.play(Event::WorkerHeartbeat { session, statistics }).unwrap();
            }
        }
    }

    /// Trees of a plan that a broken switch or link silences. A tree needs all of its parts for any sum.
    fn broken_trees(&self, job: u32, plan: &pb::Plan) -> Vec<u32> {
        let topology = self.state().topology();
        let members = self.state().job(job).map(|job| job.members.clone()).unwrap_or_default();
        let host =
            |rank: u32| members[rank as usize].host.map(|host| topology.name(host)).unwrap_or("");
        let works = |a: &str, b: &str| {
            ![a.to_owned(), b.to_owned(), format!("{a}-{b}"), format!("{b}-{a}")]
                .iter()
                .any(|part| self.broken.contains(part))
        };
        let tree_works = |tree: &pb::Tree| {
            tree.nodes.iter().all(|node| {
                node.children.iter().all(|child| match child.child.as_ref().unwrap() {
                    pb::tree_child::Child::Rank(rank) => works(host(*rank), &node.switch),
                    pb::tree_child::Child::Switch(switch) => works(switch, &node.switch),
                })
            })
        };
        plan.trees.iter().filter(|tree| !tree_works(tree)).map(|tree| tree.tree).collect()
    }

    pub fn plan(&self, job: u32) -> &pb::Plan {
        self.workers[&(job, 0)].1.as_ref().expect("there is a plan")
    }

    pub fn roots(&self, job: u32) -> Vec<&str> {
        self.plan(job).trees.iter().map(|tree| tree.root.as_str()).collect()
    }

    /// Checks that each switch holds exactly the leases of the workers' plans.
    pub fn check_leases(&self) {
        for (name, (_, leases)) in &self.switches {
            let mut wanted = BTreeSet::new();
            let jobs: BTreeSet<u32> = self.workers.keys().map(|&(job, _)| job).collect();
            for plan in jobs.iter().filter_map(|&job| self.state().job(job)?.current.as_ref()) {
                for (tree, body) in (0..).zip(&plan.trees) {
                    let switch = self.state().topology().find(name).unwrap();
                    if body.node(switch).is_some() {
                        wanted.insert((plan.job, tree, u32::from(plan.epoch)));
                    }
                }
            }
            assert_eq!(*leases, wanted, "at {name}");
        }
    }
}

/// Validates a plan as the workers of a job of `size` ranks do.
pub fn checked(plan: &pb::Plan, size: u32) -> Result<(), String> {
    let plan = JobPlan::try_from(plan).map_err(|error| error.to_string())?;
    plan.validate(size).map_err(|error| error.to_string())
}
