//! A run: the network, the hosts' flows, and what is recorded of them.

use std::collections::{BTreeMap, HashMap, HashSet};

use netsum_plan::{Request, aggregation_trees};
use netsum_topo::{AggregationTree, NodeId, Topology};

use crate::aggregation::{Aggregation, Counts, Hosts, Kind as Protocol, NODE, Payload, WORKER};
use crate::error::SimError;
use crate::faults::Fault;
use crate::job::{BUCKET, JOB_START, JobRecord, JobSpec, Jobs, Scheme, StepRecord};
use crate::network::{Happening, Network, Switching};
use crate::packet::Kind;
use crate::routes::PathChoice;
use crate::tcp::TcpConfig;
use crate::transport::{Owner, Progress, RTO, SLOT, Transport};
use crate::workload::FlowSpec;

/// A flow that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    /// Place in the workload, from 0.
    pub number: u32,
    /// What was asked for.
    pub spec: FlowSpec,
    /// When the last byte reached the receiver.
    pub end_ps: u64,
    /// Segments sent again.
    pub resent: u64,
    /// Time-outs.
    pub timeouts: u32,
}

impl FlowRecord {
    /// Flow completion time: from the start to the last byte at the receiver.
    pub fn fct_ps(&self) -> u64 {
        self.end_ps - self.spec.start_ps
    }
}

/// Timer classes; see [`crate::transport`] for its own.
const CLASS: u64 = 0x7f << 56;
const FLOW_START: u64 = 1 << 56;
const FAULT: u64 = 7 << 56;

/// One simulation. `P` says what aggregation packets carry.
pub struct Simulation<P: Payload = Counts> {
    pub(crate) net: Network,
    transport: Transport,
    pub(crate) aggregation: Aggregation<P>,
    pub(crate) jobs: Jobs,
    /// Jobs that have not started, by number of their announcement.
    announced: Vec<Option<JobSpec>>,
    waiting_jobs: u32,
    /// Trees that use a switch: the next job is planned around them.
    load: HashMap<NodeId, u64>,
    /// Trees at work, by job.
    pub(crate) trees: BTreeMap<u32, Vec<AggregationTree>>,
    pub(crate) dead: HashSet<NodeId>,
    faults: Vec<Fault>,
    pub(crate) seed: u64,
    pub(crate) refused: Vec<(u32, String)>,
    arrivals: Box<dyn Iterator<Item = FlowSpec> + Send>,
    upcoming: Option<FlowSpec>,
    /// Flows that were started, by number.
    specs: Vec<FlowSpec>,
    finished: Vec<FlowRecord>,
    stop_with_jobs: bool,
    checked: bool,
    checks_at_hop: u64,
}

/// Packet-hops between two audits of a checked run.
const AUDIT_HOPS: u64 = 20_000;

/// Aggregation memory of a switch in PANAMA's study.
pub const MEMORY_BYTES: u64 = 64_000_000;

impl Simulation {
    /// A simulation at time 0 without anything to do, whose aggregation packets carry counts.
    pub fn new(
        topology: &Topology,
        switching: Switching,
        tcp: TcpConfig,
        seed: u64,
    ) -> Result<Simulation, SimError> {
        Simulation::with_payload(topology, switching, tcp, seed, MEMORY_BYTES)
    }
}

impl<P: Payload> Simulation<P> {
    /// A simulation at time 0 without anything to do; switches have `memory_bytes` for sums.
    pub fn with_payload(
        topology: &Topology,
        switching: Switching,
        tcp: TcpConfig,
        seed: u64,
        memory_bytes: u64,
    ) -> Result<Simulation<P>, SimError> {
        let spraying = switching.paths == PathChoice::Packet;
        Ok(Simulation {
            aggregation: Aggregation::new(topology.node_count(), memory_bytes),
            jobs: Jobs::default(),
            announced: Vec::new(),
            waiting_jobs: 0,
            load: HashMap::new(),
            trees: BTreeMap::new(),
            dead: HashSet::new(),
            faults: Vec::new(),
            seed,
            refused: Vec::new(),
            net: Network::new(topology, switching)?,
            transport: Transport::new(tcp, seed, spraying),
            arrivals: Box::new(std::iter::empty()),
            upcoming: None,
            specs: Vec::new(),
            finished: Vec::new(),
            stop_with_jobs: false,
            checked: cfg!(debug_assertions),
            checks_at_hop: 0,
        })
    }

    /// Checks conservation and order all the time, not only at the end of `run`.
    pub fn check(&mut self) {
        self.checked = true;
    }

    /// `run` ends when the last job does.
    pub fn stop_with_jobs(&mut self) {
        self.stop_with_jobs = true;
    }

    /// Whether there were jobs, and all are complete.
    pub fn jobs_are_over(&self) -> bool {
        !self.announced.is_empty() && self.waiting_jobs + self.jobs.active == 0
    }

    /// Flows in the order of their starts; replaces what was there.
    pub fn set_flows(&mut self, flows: impl Iterator<Item = FlowSpec> + Send + 'static) {
        self.arrivals = Box::new(flows);
        self.announce_next();
    }

    /// The network.
    pub fn network(&self) -> &Network {
        &self.net
    }

    /// The hosts' flows.
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Aggregators and workers.
    pub fn aggregation(&mut self) -> &mut Aggregation<P> {
        &mut self.aggregation
    }

    /// Flows that have started and are not complete: number, and payload that has come; by number.
    pub fn unfinished(&self) -> Vec<(u32, u64)> {
        let mut all: Vec<(u32, u64)> = self.transport.unfinished().collect();
        all.sort_unstable();
        all
    }

    /// Announces a fault.
    pub fn add_fault(&mut self, at_ps: u64, fault: Fault) {
        self.net.set_timer(at_ps, FAULT | self.faults.len() as u64);
        self.faults.push(fault);
    }

    /// Announces a job; jobs are numbered as they start.
    pub fn add_job(&mut self, spec: JobSpec) {
        self.net.set_timer(spec.start_ps, JOB_START | self.announced.len() as u64);
        self.announced.push(Some(spec));
        self.waiting_jobs += 1;
    }

    /// Steps of jobs that were completed since the last call.
    pub fn take_steps(&mut self) -> Vec<StepRecord> {
        std::mem::take(&mut self.jobs.steps)
    }

    /// Jobs that were completed since the last call.
    pub fn take_jobs(&mut self) -> Vec<JobRecord> {
        std::mem::take(&mut self.jobs.finished)
    }

    /// Jobs that got no tree and use the ring instead, and why.
    pub fn refused(&self) -> &[(u32, String)] {
        &self.refused
    }

    /// Flows that have started.
    pub fn started(&self) -> &[FlowSpec] {
        &self.specs
    }

    /// Flows that were completed since the last call.
    pub fn take_finished(&mut self) -> Vec<FlowRecord> {
        std::mem::take(&mut self.finished)
    }

    /// Runs up to and including `until_ps`, or as far as there is anything to do; true if that was the end of it.
    /// Audits at the end.
    pub fn run(&mut self, until_ps: u64) -> bool {
        while let Some(happening) = self.net.next(until_ps) {
            match happening {
                Happening::Packet(_, packet) if packet.kind() == Kind::Tree => {
                    self.aggregation.on_packet(&mut self.net, &packet);
                }
                Happening::Packet(_, packet) => {
                    if let Some(progress) = self.transport.on_packet(&mut self.net, &packet) {
                        self.on_progress(progress);
                    }
                }
                Happening::Timer(key) => self.on_timer(key),
            }
            self.settle();
            if self.stop_with_jobs && self.jobs_are_over() {
                break;
            }
            if self.checked && self.net.hops() >= self.checks_at_hop {
                self.checks_at_hop = self.net.hops() + AUDIT_HOPS;
                self.net.audit();
                self.aggregation.audit();
            }
        }
        self.net.audit();
        self.aggregation.audit();
        let busy = self.transport.active + self.jobs.active + self.waiting_jobs;
        self.upcoming.is_none() && busy == 0 || self.stop_with_jobs && self.jobs_are_over()
    }

    fn on_timer(&mut self, key: u64) {
        match key & CLASS {
            FLOW_START => self.start_flow(),
            RTO | SLOT => self.transport.on_timer(&mut self.net, key),
            BUCKET => {
                let (net, transport) = (&mut self.net, &mut self.transport);
                self.jobs.on_bucket(net, transport, &mut self.aggregation, key);
            }
            WORKER => self.aggregation.on_worker_timer(&mut self.net, key),
            NODE => self.aggregation.on_node_timer(&mut self.net, key),
            FAULT => self.apply(self.faults[key as u32 as usize]),
            JOB_START => self.start_job(key as u32),
            _ => unreachable!("a timer of nobody"),
        }
    }

    /// Passes on what machines have said in the meantime.
    #[inline]
    fn settle(&mut self) {
        while let Some((protocol, handle)) = self.net.lost.pop() {
            self.aggregation.forget(protocol, handle);
        }
        while let Some(done) = self.aggregation.pop_done() {
            if self.jobs.on_done(&mut self.net, done.job, done.rank) {
                self.release(done.job);
                self.jobs.remove(&mut self.net, &mut self.transport, done.job);
            }
        }
    }

    fn start_job(&mut self, announced: u32) {
        let Some(spec) = self.announced[announced as usize].take() else { return };
        self.waiting_jobs -= 1;
        let number = self.jobs.next_number();
        let installed = match spec.scheme {
            Scheme::Hosts { .. } => None,
            _ => match self.install(number, &spec) {
                Ok(installed) => Some(installed),
                Err(reason) => {
                    self.release(number);
                    self.refused.push((number, reason));
                    None
                }
            },
        };
        self.jobs.begin(&mut self.net, spec, installed);
    }

    /// Leases what a job needs in the network; its protocol, and the first of its workers.
    fn install(&mut self, number: u32, spec: &JobSpec) -> Result<(Protocol, u32), String> {
        let placement = &spec.placement;
        match &spec.scheme {
            Scheme::Trees { trees, config } => {
                let trees = self.plan(number, spec, usize::from(*trees))?;
                let net = &mut self.net;
                let first = self.aggregation.add_tree_job(net, number, &trees, placement, config);
                Ok((Protocol::Trees, first?))
            }
            Scheme::Slots { servers, config } => {
                let servers = servers_of(spec, *servers);
                let hosts = Hosts { placement, servers: &servers };
                let first = self.aggregation.add_slot_job(&mut self.net, number, &hosts, config);
                Ok((Protocol::Slots, first?))
            }
            Scheme::Pool(config) => {
                let trees = self.plan(number, spec, 1)?;
                let net = &mut self.net;
                let first =
                    self.aggregation.add_pool_job(net, number, &trees[0], placement, config);
                Ok((Protocol::Pools, first?))
            }
            Scheme::Hosts { .. } => unreachable!("hosts need nothing in the network"),
        }
    }

    fn release(&mut self, job: u32) {
        self.aggregation.remove_job(self.net.now_ps(), job);
        self.unload(job);
    }

    /// A job's trees load no switch any more.
    pub(crate) fn unload(&mut self, job: u32) {
        for switch in self.trees.remove(&job).iter().flatten().flat_map(|tree| tree.switches()) {
            self.load.entry(switch).and_modify(|trees| *trees -= 1);
        }
    }

    pub(crate) fn plan(
        &mut self,
        job: u32,
        spec: &JobSpec,
        trees: usize,
    ) -> Result<Vec<AggregationTree>, String> {
        let topology = self.net.topology();
        let placement: Vec<NodeId> = spec.placement.iter().map(|&host| NodeId(host)).collect();
        let live = topology.switches().filter(|switch| !self.dead.contains(switch)).collect();
        let mut load = self.load.clone();
        if !spec.roots.is_empty() {
            // Whatever else there is to do, a switch that is not asked for comes after those that are.
            let others = topology.switches().filter(|switch| !spec.roots.contains(&switch.0));
            others.for_each(|switch| *load.entry(switch).or_default() += 1 << 32);
        }
        let request = Request {
            topology,
            placement: &placement,
            live: &live,
            max_trees: trees,
            load: &load,
            links: &HashMap::new(),
            order: None,
        };
        let planned = aggregation_trees(&request).map_err(|error| error.to_string())?;
        for switch in planned.iter().flat_map(|tree| tree.switches()) {
            *self.load.entry(switch).or_default() += 1;
        }
        self.trees.insert(job, planned.clone());
        Ok(planned)
    }

    fn on_progress(&mut self, progress: Progress) {
        match progress {
            Progress::Complete { number, resent, timeouts } => self.finished.push(FlowRecord {
                number,
                spec: self.specs[number as usize],
                end_ps: self.net.now_ps(),
                resent,
                timeouts,
            }),
            Progress::Messages(Owner::Job(job, stream), count) => {
                let (net, transport) = (&mut self.net, &mut self.transport);
                self.jobs.on_messages(net, transport, (job, stream, count));
            }
            Progress::Messages(..) => {}
        }
    }

    fn announce_next(&mut self) {
        self.upcoming = self.arrivals.next();
        if let Some(spec) = self.upcoming {
            self.net.set_timer(spec.start_ps.max(self.net.now_ps()), FLOW_START);
        }
    }

    fn start_flow(&mut self) {
        let Some(spec) = self.upcoming.take() else { return };
        let number = self.specs.len() as u32;
        self.specs.push(spec);
        let flow = self.transport.open(spec.src, spec.dst, Owner::Workload(number), true);
        self.transport.submit(&mut self.net, flow, spec.bytes);
        self.announce_next();
    }
}

/// Hosts of a job's servers: those that it names, or its own, far from each other.
pub(crate) fn servers_of(spec: &JobSpec, servers: u8) -> Vec<u32> {
    if !spec.servers.is_empty() {
        return spec.servers.clone();
    }
    let (workers, servers) = (spec.placement.len(), usize::from(servers));
    let servers = servers.min(workers);
    (0..servers).map(|server| spec.placement[server * workers / servers]).collect()
}
