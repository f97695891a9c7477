//! The simulated world: processes, networks and the event loop.

mod adversary;
mod aggregators;
mod checks;
mod client;
pub mod clock;
mod controller;
mod election;
mod faults;
mod host_path;
mod mesh;
mod network;
mod queue;
mod ranks;
mod streams;

use std::collections::BTreeMap;
use std::fmt::Arguments;
use std::net::SocketAddr;

use netsum_proto::{PortId, Time};
use netsum_topo::{Fabric, Topology};

use crate::fault::Process;
use crate::oracle::Oracle;
use crate::random::Random;
use crate::report::{Class, Report, Violation};
use crate::scenario::Scenario;
use crate::trace::Trace;
use adversary::Adversary;
use aggregators::AggregatorProcess;
use clock::{Clock, MS, Nanos, SECOND};
use controller::ControllerProcess;
use election::Register;
use faults::Active;
use mesh::Mesh;
use network::Network;
use queue::Queue;
use ranks::RankProcess;
use streams::{Side, StreamId, Streams};

/// Index of a process: the controller, then switches and servers, then ranks by job, then further controllers.
type Place = usize;

/// Index of the first controller.
const CONTROLLER: Place = 0;

/// An event of the simulation.
#[derive(Clone, Debug)]
enum Event {
    /// A packet arrives.
    Packet {
        from: Place,
        to: Place,
        ce: bool,
        bytes: Vec<u8>,
    },
    /// A process's timer expires; timers of an earlier incarnation are ignored.
    Timer {
        place: Place,
        incarnation: u32,
        timer: Timer,
    },
    /// A stream's message arrives at the controller.
    Up(StreamId),
    /// A stream's message arrives at the controller's peer.
    Down(StreamId),
    /// The controller's task for a stream has ended.
    SessionEnded(StreamId),
    /// One side of a stream detects that the other does not answer.
    KeepAlive {
        stream: StreamId,
        side: Side,
        since: Nanos,
    },
    /// A message between ranks arrives.
    Mesh {
        from: Place,
        to: Place,
    },
    /// A rank detects that another does not answer.
    MeshSilence {
        from: Place,
        to: Place,
        since: Nanos,
    },
    /// A client requests a job.
    CreateJob(usize),
    FaultBegins(usize),
    FaultEnds(usize),
    /// No new operations are started from now on.
    Drain,
    CheckRecovery,
    CheckBound,
    CheckEnd,
}

/// A process's timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    /// Periodic tick of the controller or daemon.
    Tick,
    /// Attempt to reach the controller.
    Connect,
    /// Time-out of an attempt to open a stream.
    OpenTimeout(StreamId),
    /// The next step of a controller that leads or follows.
    Election,
    /// Report statistics to the controller.
    Heartbeat,
    /// Deadline of a state machine.
    Machine,
    /// Deadlines of hand-overs and operations.
    Group,
    /// The application starts an operation.
    Application,
    /// Ranks that may lack a sum are no longer waited for.
    Goodbye,
    /// The process exits.
    Exit,
}

/// State common to all processes.
struct ProcessState {
    name: String,
    alive: bool,
    /// Number of active faults that stop the process.
    stopped: u32,
    incarnation: u32,
    clock: Clock,
    random: Random,
    /// Events held while the process is stopped.
    held: Vec<Event>,
}

/// A job of the scenario.
struct Job {
    /// Number allocated by the controller.
    id: Option<u32>,
    /// Incarnation of the store that allocated the number.
    incarnation: u64,
    /// Attempts to create it.
    attempts: u32,
    first: Place,
    size: u32,
    oracle: Oracle,
    /// Operations below this number complete before the ranks leave.
    last: Option<u64>,
    /// Reason that excuses an error.
    excuse: Option<String>,
}

/// The complete state of a run.
pub struct World {
    scenario: Scenario,
    fabric: Fabric,
    topology: Topology,
    addresses: BTreeMap<SocketAddr, Place>,
    queue: Queue<Event>,
    trace: Trace,
    report: Report,
    processes: Vec<ProcessState>,
    controllers: Vec<ControllerProcess>,
    register: Register,
    aggregators: Vec<AggregatorProcess>,
    ranks: Vec<RankProcess>,
    /// Index of the first rank.
    first_rank: Place,
    /// Index of the second controller.
    first_standby: Place,
    jobs: Vec<Job>,
    network: Network,
    adversary: Option<Adversary>,
    streams: Streams,
    mesh: Mesh,
    active: Active,
    checks: checks::Checks,
    over: bool,
}

impl World {
    /// The world before its first event.
    pub fn new(scenario: &Scenario, lines: bool) -> World {
        let fabric = scenario.build_fabric();
        let topology = fabric.topology();
        let mut processes = vec![ProcessState::new(scenario, Process::Controller, "controller")];
        let mut addresses = BTreeMap::new();
        let aggregators = AggregatorProcess::all(scenario, &fabric);
        for (number, aggregator) in aggregators.iter().enumerate() {
            addresses.insert(aggregator.address, processes.len());
            let process = Process::Aggregator(number as u32);
            processes.push(ProcessState::new(scenario, process, &aggregator.name));
        }
        let first_rank = processes.len();
        let (mut ranks, mut jobs) = (Vec::new(), Vec::new());
        for (number, shape) in scenario.jobs.iter().enumerate() {
            let (first, size) = (processes.len(), shape.hosts.len() as u32);
            for rank in 0..size {
                let host = &fabric.hosts[shape.hosts[rank as usize] as usize];
                let port = 20_000 + 100 * number as u16 + rank as u16;
                let process = RankProcess::new(number, rank, size, scenario, host, port);
                addresses.insert(process.address, processes.len());
                let name = format!("rank {rank} of job #{number}");
                let id = Process::Rank(number as u32, rank);
                processes.push(ProcessState::new(scenario, id, &name));
                ranks.push(process);
            }
            let oracle = Oracle::new(scenario.seed, number as u64, shape);
            let (id, incarnation, attempts, last, excuse) = (None, 0, 0, None, None);
            jobs.push(Job { id, incarnation, attempts, first, size, oracle, last, excuse });
        }
        let first_standby = processes.len();
        for standby in 0..scenario.standbys {
            let name = format!("controller {}", standby + 2);
            processes.push(ProcessState::new(scenario, Process::Standby(standby), &name));
        }
        let mut world = World {
            network: Network::new(scenario, &fabric, &topology, &aggregators, &ranks),
            adversary: Adversary::new(scenario),
            controllers: ControllerProcess::all(scenario),
            register: Register::default(),
            streams: Streams::new(),
            mesh: Mesh::new(),
            active: Active::default(),
            checks: checks::Checks::default(),
            queue: Queue::new(),
            trace: Trace::new(lines),
            report: Report { seed: scenario.seed, ..Report::default() },
            scenario: scenario.clone(),
            fabric,
            topology,
            addresses,
            processes,
            aggregators,
            ranks,
            first_rank,
            first_standby,
            jobs,
            over: false,
        };
        world.set_up();
        world
    }

    fn set_up(&mut self) {
        for index in 0..self.controllers.len() {
            self.start_controller(index, crate::fault::StoreAfter::Kept);
        }
        for number in (0..self.jobs.len()).filter(|&job| self.is_spoiled(job)).collect::<Vec<_>>() {
            self.jobs[number].excuse = Some("a member of it is hostile".to_owned());
        }
        for place in 1..self.first_rank {
            self.start_aggregator(place);
        }
        for number in 0..self.jobs.len() {
            let at = 5 * MS + self.scenario.jobs[number].starts_ms * MS;
            self.queue.at(at, Event::CreateJob(number));
        }
        for (number, fault) in self.scenario.faults.iter().enumerate() {
            self.queue.at(fault.at_ms * MS, Event::FaultBegins(number));
            if let Some(end) = fault.end_ms().filter(|_| fault.for_ms != Some(0)) {
                self.queue.at(end * MS, Event::FaultEnds(number));
            }
        }
        let jobs_start = self.scenario.jobs.iter().map(|job| job.starts_ms).max().unwrap_or(0);
        let calm = (self.scenario.faults_end_ms() + 1).max(jobs_start + 1000) * MS;
        let recovery = if self.has_standbys() { RECOVERY_OF_SEVERAL } else { RECOVERY };
        self.queue.at(calm + recovery, Event::CheckRecovery);
        self.queue.at(calm + recovery + SECOND, Event::Drain);
        self.queue.at(calm + BOUND, Event::CheckBound);
        let timeout = self.scenario.operation_timeout_ms * MS;
        self.queue.at(calm + BOUND + 2 * timeout, Event::CheckEnd);
    }

    /// Runs until all jobs have ended or an invariant is violated.
    pub fn run(&mut self) {
        while !self.over {
            let Some(event) = self.queue.next() else { return };
            self.report.events += 1;
            self.handle(event);
        }
    }

    /// Returns the report and the trace.
    pub fn into_report(mut self) -> (Report, Vec<String>) {
        self.report.digest = self.trace.digest();
        self.report.simulated_ns = self.queue.now();
        (self.report, self.trace.into_lines())
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Packet { to, .. } if !self.processes[to].alive => {}
            Event::Packet { to, .. } if self.processes[to].stopped > 0 => {
                let held = &mut self.processes[to].held;
                if held.len() < SOCKET_BUFFER {
                    held.push(event);
                }
            }
            Event::Packet { from, to, ce, mut bytes } => self.packet(from, to, ce, &mut bytes),
            Event::Timer { place, incarnation, timer } => {
                let process = &mut self.processes[place];
                if !process.alive || process.incarnation != incarnation {
                    return;
                }
                if process.stopped > 0 {
                    process.held.push(event);
                    return;
                }
                self.timer(place, timer);
            }
            Event::Up(stream) => self.stream_up(stream),
            Event::Down(stream) => self.stream_down(stream),
            Event::SessionEnded(stream) => self.session_ended(stream, false),
            Event::KeepAlive { stream, side, since } => self.keep_alive(stream, side, since),
            Event::Mesh { from, to } => self.mesh_arrives(from, to),
            Event::MeshSilence { from, to, since } => self.mesh_silence(from, to, since),
            Event::CreateJob(job) => self.create_job(job),
            Event::FaultBegins(number) => self.fault_begins(number),
            Event::FaultEnds(number) => self.fault_ends(number),
            Event::Drain => self.drain(),
            Event::CheckRecovery => self.check_recovery(),
            Event::CheckBound => self.check_bound(),
            Event::CheckEnd => self.check_end(),
        }
    }

    fn packet(&mut self, from: Place, to: Place, ce: bool, bytes: &mut [u8]) {
        self.trace.note(self.queue.now(), 1, (from as u64) << 32 | to as u64);
        if to < self.first_rank {
            self.aggregator_on_packet(from, to, ce, bytes);
        } else {
            self.rank_on_packet(from, to, ce, bytes);
        }
    }

    fn timer(&mut self, place: Place, timer: Timer) {
        match timer {
            Timer::Tick if self.controller_index(place).is_some() => self.controller_tick(place),
            Timer::Election => self.election(place),
            Timer::Tick => self.aggregator_tick(place),
            Timer::Connect => self.connect(place),
            Timer::OpenTimeout(stream) => self.open_timeout(place, stream),
            Timer::Heartbeat => self.heartbeat(place),
            Timer::Machine if place < self.first_rank => self.aggregator_timeout(place),
            Timer::Machine => self.rank_timeout(place),
            Timer::Group => self.group_timeout(place),
            Timer::Application => self.application(place),
            Timer::Goodbye => self.goodbye_timeout(place),
            Timer::Exit => self.exit(place),
        }
    }

    /// Local time of a process.
    fn local(&self, place: Place) -> Time {
        Time(self.processes[place].clock.local(self.queue.now()))
    }

    /// Starts a timer that expires after `local_ns` of the process's own time.
    fn after(&mut self, place: Place, local_ns: Nanos, timer: Timer) {
        let process = &self.processes[place];
        let (ns, incarnation) = (process.clock.duration(local_ns), process.incarnation);
        self.queue.after(ns, Event::Timer { place, incarnation, timer });
    }

    /// Starts a timer that expires when the process's clock reaches `deadline`.
    fn at_local(&mut self, place: Place, deadline: Time, timer: Timer) {
        let process = &self.processes[place];
        let (at, incarnation) = (process.clock.global(deadline.0), process.incarnation);
        self.queue.at(at, Event::Timer { place, incarnation, timer });
    }

    fn port(&self, address: SocketAddr) -> PortId {
        PortId(self.addresses.get(&address).map_or(u32::MAX, |&place| place as u32))
    }

    /// The index of a place among the controllers.
    fn controller_index(&self, place: Place) -> Option<usize> {
        match place {
            CONTROLLER => Some(0),
            _ => place.checked_sub(self.first_standby).map(|standby| standby + 1),
        }
    }

    fn controller_place(&self, index: usize) -> Place {
        if index == 0 { CONTROLLER } else { self.first_standby + index - 1 }
    }

    fn is_up(&self, place: Place) -> bool {
        self.processes[place].alive && self.processes[place].stopped == 0
    }

    fn log(&mut self, place: Place, what: Arguments<'_>) {
        if self.trace.is_on() {
            self.trace.log(self.queue.now(), &self.processes[place].name, what);
        }
    }

    /// Records a violation. A violation that leaves the job's sums correct does not end the run.
    pub fn violation(&mut self, class: Class, rule: &'static str, what: String) {
        let violation = Violation { class, rule, at: self.queue.now(), what };
        self.trace.log(self.queue.now(), &"VIOLATION", format_args!("{violation}"));
        self.report.violations.push(violation);
        self.over |= class < Class::Control;
    }
}

impl ProcessState {
    fn new(scenario: &Scenario, process: Process, name: &str) -> ProcessState {
        let key = match process {
            Process::Controller => [10, 0, 0],
            Process::Standby(number) => [14, number.into(), 0],
            Process::Aggregator(number) => [11, number.into(), 0],
            Process::Rank(job, rank) => [12, job.into(), rank.into()],
        };
        let mut random = Random::of(scenario.seed, &key);
        let drift = u64::from(scenario.noise.drift_permille.min(100));
        let permille = random.within(1000 - drift..=1000 + drift);
        ProcessState {
            name: name.to_owned(),
            alive: false,
            stopped: 0,
            incarnation: 0,
            clock: Clock::new(random.below(1000 * SECOND), permille),
            random,
            held: Vec::new(),
        }
    }
}

/// Number of packets held for a stopped process.
const SOCKET_BUFFER: usize = 256;
/// Time within which a job must be back on its trees after all faults have ended.
const RECOVERY: Nanos = 2 * SECOND;
/// The same with several controllers, after the end of a partition.
const RECOVERY_OF_SEVERAL: Nanos = 5 * SECOND;
/// Time within which a job must have ended: no operations are started from one second after recovery.
const BOUND: Nanos = 45 * SECOND;
