//! A run: the network, the hosts' flows, and the records of completed work.

pub(crate) mod repeats;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use netsum_plan::{Request, aggregation_trees};
use netsum_topo::{AggregationTree, EdgeId, NodeId, Topology};
use netsum_wire::MAX_SCOPED_RANKS;

pub use crate::aggregation::MEMORY_BYTES;
use crate::aggregation::{Aggregation, Counts, Kind as Protocol, Payload, Places};
use crate::error::SimError;
use crate::faults::{Fault, InForce};
pub use crate::hosts::FlowRecord;
use crate::hosts::{FAULT, HostSide, Hosts, MOMENT};
use crate::job::{
    Installed, JOB_START, JobRecord, JobSpec, LEASES, Lease, Scheme, StepRecord, Work,
};
use crate::network::{Network, Switching};
use crate::partition::Threads;
use crate::routes::PathChoice;
use crate::tcp::TcpConfig;
use crate::timer::CLASS;
use crate::transport::Transport;
use crate::windows;
use crate::workload::FlowSpec;
pub use repeats::Skipped;
use repeats::{Repeats, WORDS_MAX};

/// An audit looks at every link, which costs a few packet-hops each: it comes after this many per link.
const AUDIT_HOPS_PER_LINK: u64 = 128;

/// One simulation. `P`: the payload of aggregation packets.
pub struct Simulation<P: Payload = Counts> {
    pub(crate) net: Network,
    pub(crate) aggregation: Aggregation<P>,
    pub(crate) hosts: Hosts,
    /// Jobs that have not started, by number.
    announced: BTreeMap<u32, JobSpec>,
    /// Times of job starts and faults, which concern hosts and switches at once.
    control_ps: BTreeSet<u64>,
    /// Number of trees through each switch: the next job is planned around them.
    load: HashMap<NodeId, u64>,
    /// Trees in use, by job.
    pub(crate) trees: BTreeMap<u32, Vec<AggregationTree>>,
    pub(crate) in_force: InForce,
    faults: Vec<Fault>,
    pub(crate) seed: u64,
    /// Jobs that use the ring instead of their scheme, with the reason.
    refused: Vec<(u32, String)>,
    /// Number of the next lease of a group.
    next_lease: u32,
    /// Jobs that have lost a part of their trees and have no replacement yet, with the reason.
    pub(crate) stalled: BTreeMap<u32, String>,
    pub(crate) checked: bool,
    /// Packet-hops at which a part of a run ends with an audit.
    audit_at_hops: u64,
    pub(crate) repeats: Repeats,
}

impl Simulation {
    /// An empty simulation at time 0 whose aggregation packets carry counts.
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
    /// An empty simulation at time 0; switches have `memory_bytes` for sums.
    pub fn with_payload(
        topology: &Topology,
        switching: Switching,
        tcp: TcpConfig,
        seed: u64,
        memory_bytes: u64,
    ) -> Result<Simulation<P>, SimError> {
        Simulation::on_threads(topology, switching, tcp, seed, memory_bytes, Threads::ONE)
    }

    /// Like `with_payload`, run by several threads; the results do not depend on their number. A fabric that has a link
    /// without propagation time is run by one thread.
    pub fn on_threads(
        topology: &Topology,
        switching: Switching,
        tcp: TcpConfig,
        seed: u64,
        memory_bytes: u64,
        threads: Threads,
    ) -> Result<Simulation<P>, SimError> {
        let net = Network::in_regions(topology, switching, threads)?;
        let spraying = switching.paths == PathChoice::Packet;
        Ok(Simulation {
            aggregation: Aggregation::new(net.region_of(), memory_bytes),
            hosts: Hosts::new(tcp, seed, spraying),
            announced: BTreeMap::new(),
            control_ps: BTreeSet::new(),
            load: HashMap::new(),
            trees: BTreeMap::new(),
            in_force: InForce::default(),
            faults: Vec::new(),
            seed,
            refused: Vec::new(),
            next_lease: LEASES,
            stalled: BTreeMap::new(),
            net,
            checked: cfg!(debug_assertions),
            audit_at_hops: 0,
            repeats: Repeats::default(),
        })
    }

    /// Checks conservation and order during the run, not only at the end of `run`. Runs of all sizes look ahead.
    pub fn check(&mut self) {
        self.checked = true;
        self.net.always_look_ahead();
    }

    /// `run` ends with the last job, plus one propagation time of a link.
    pub fn stop_with_jobs(&mut self) {
        self.hosts.stop_with_jobs = true;
    }

    /// With `stop_with_jobs`, when a run could end with the last job, if that is known. `run` goes no further than there
    /// or to the time that `end_at` sets since.
    pub(crate) fn jobs_over_ps(&self) -> Option<u64> {
        Some(self.hosts.jobs_over_ps).filter(|&over_ps| over_ps != u64::MAX)
    }

    /// `run` goes no further than this.
    pub(crate) fn end_at(&mut self, at_ps: u64) {
        self.hosts.stop_at_ps = at_ps;
    }

    /// Whether jobs were announced.
    pub(crate) fn has_jobs(&self) -> bool {
        self.hosts.announced_jobs > 0
    }

    /// Sets the island of each link: what happens on one does not affect the others. Nothing is skipped then.
    pub(crate) fn set_islands(&mut self, island_of: &Arc<[u32]>) {
        self.net.set_islands(island_of);
    }

    /// Simulates everything. Otherwise a run of one thread skips what repeats itself exactly; the results are the same.
    pub fn simulate_repeats(&mut self) {
        self.repeats.is_off = true;
    }

    /// States that may come back take a part of the memory that they may take in one simulation alone.
    pub(crate) fn share_memory(&mut self, simulations: usize) {
        self.repeats.words_max = WORDS_MAX / simulations;
    }

    /// Nothing is looked at from outside before `until_ps`: `run` may skip repetitions beyond the time that it is
    /// given, up to this one.
    pub fn may_skip_to(&mut self, until_ps: u64) {
        self.repeats.until_ps = until_ps;
    }

    /// What was skipped so far.
    pub fn skipped(&self) -> Skipped {
        self.repeats.skipped
    }

    /// Whether there were jobs and all are complete.
    pub fn jobs_are_over(&self) -> bool {
        self.hosts.jobs_are_over()
    }

    /// Sets the workload: flows in order of their starts, numbered in this order.
    pub fn set_flows(&mut self, flows: impl Iterator<Item = FlowSpec> + Send + 'static) {
        self.set_numbered_flows((0..).zip(flows));
    }

    /// The same for flows that have numbers among those of several simulations; the numbers ascend.
    pub(crate) fn set_numbered_flows(
        &mut self,
        flows: impl Iterator<Item = (u32, FlowSpec)> + Send + 'static,
    ) {
        self.hosts.set_flows(&mut self.net.regions[0], flows);
    }

    /// The network.
    pub fn network(&self) -> &Network {
        &self.net
    }

    /// The hosts' flows.
    pub fn transport(&self) -> &Transport {
        &self.hosts.transport
    }

    /// Aggregators and workers.
    pub fn aggregation(&mut self) -> &mut Aggregation<P> {
        &mut self.aggregation
    }

    /// Flows that have started and are not complete, each with the payload bytes received; by number.
    pub fn unfinished(&self) -> Vec<(u32, FlowSpec, u64)> {
        let unfinished = self.hosts.transport.unfinished();
        let mut all: Vec<_> = unfinished
            .map(|(number, received)| (number, self.hosts.spec(number), received))
            .collect();
        all.sort_unstable_by_key(|&(number, ..)| number);
        all
    }

    /// Schedules a fault.
    pub fn add_fault(&mut self, at_ps: u64, fault: Fault) {
        self.net.set_timer(at_ps, FAULT | self.faults.len() as u64);
        self.control_ps.insert(at_ps);
        self.faults.push(fault);
    }

    /// Sets which packets a link loses, by number in the order of their arrival at its far end, from 0; they ascend.
    pub fn drop_packets(&mut self, link: u32, packets: &[u64]) {
        self.net.drop_packets(link, packets);
    }

    /// Schedules a job; jobs are numbered in the order of these calls.
    pub fn add_job(&mut self, spec: JobSpec) {
        self.add_numbered_job(self.hosts.announced_jobs, spec);
    }

    /// Schedules a job that has a number among the jobs of several simulations.
    pub(crate) fn add_numbered_job(&mut self, number: u32, spec: JobSpec) {
        self.net.set_timer(spec.start_ps, JOB_START | u64::from(number));
        self.control_ps.insert(spec.start_ps);
        self.announced.insert(number, spec);
        self.hosts.announced_jobs += 1;
        self.hosts.waiting_jobs += 1;
    }

    /// Steps completed since the last call.
    pub fn take_steps(&mut self) -> Vec<StepRecord> {
        std::mem::take(&mut self.hosts.jobs.steps)
    }

    /// Jobs completed since the last call.
    pub fn take_jobs(&mut self) -> Vec<JobRecord> {
        std::mem::take(&mut self.hosts.jobs.finished)
    }

    /// Jobs that do not run by their scheme, with the reason: jobs without leases in the network use the ring; jobs
    /// that lost their trees and have no others yet, or that have an unreachable host, are stalled.
    pub fn refused(&self) -> Vec<(u32, String)> {
        let ring = self.refused.iter().map(|(job, why)| (*job, format!("uses the ring: {why}")));
        let still = self.hosts.jobs.at_work().filter_map(|(job, spec)| {
            self.obstacle(job, spec).map(|why| (job, format!("stands still: {why}")))
        });
        ring.chain(still).collect()
    }

    /// Why a job cannot continue now.
    fn obstacle(&self, job: u32, spec: &JobSpec) -> Option<String> {
        if spec.work.is_some() {
            let lost = |lease| {
                let (group, _) = self.hosts.jobs.in_network(lease)?;
                self.obstacle(lease, group)
            };
            let cut = || self.cut_off(&spec.placement);
            let stuck = || self.hosts.jobs.stuck(job).map(|node| format!("{node}: waits in vain"));
            return self.hosts.jobs.leases_of(job).find_map(lost).or_else(cut).or_else(stuck);
        }
        if self.hosts.jobs.in_network(job).is_none() {
            // A single worker exchanges nothing.
            let exchanges = spec.placement.len() > 1;
            return exchanges.then(|| self.cut_off(&spec.placement)).flatten();
        }
        if let Some(why) = self.stalled.get(&job) {
            return Some(why.clone());
        }
        let servers = match spec.scheme {
            Scheme::Slots { servers, .. } => servers_of(spec, servers),
            _ => Vec::new(),
        };
        let fallen = self.trees.get(&job).is_some_and(|trees| !self.are_trees_alive(trees));
        let cut = self.cut_off(spec.placement.iter().chain(&servers));
        cut.or_else(|| fallen.then(|| "a link of its trees is down".to_owned()))
    }

    /// Flows completed since the last call.
    pub fn take_finished(&mut self) -> Vec<FlowRecord> {
        std::mem::take(&mut self.hosts.finished)
    }

    /// Runs up to and including `until_ps`, or until nothing is left to do; true in the latter case. Audits
    /// now and then, and at the end in the latter case.
    pub fn run(&mut self, until_ps: u64) -> bool {
        match self.net.regions.len() {
            1 => {
                self.watch();
                while let Some(key) = self.host_side().run(until_ps) {
                    if key == MOMENT {
                        self.on_moment(until_ps);
                    } else {
                        self.repeats.forget();
                        self.on_control(key);
                        self.watch();
                    }
                }
            }
            _ => self.run_threads(until_ps),
        }
        let hosts = &self.hosts;
        let is_over = hosts.are_idle() || hosts.stop_with_jobs && hosts.jobs_are_over();
        if self.checked || is_over || self.net.hops() >= self.audit_at_hops {
            self.audit();
        }
        is_over
    }

    /// Checks the invariants. Panics if one is violated.
    pub fn audit(&mut self) {
        self.net.audit();
        self.aggregation.audit();
        let links = u64::from(self.net.link_count());
        self.audit_at_hops = self.net.hops() + AUDIT_HOPS_PER_LINK * links;
    }

    /// Runs regions in parallel between moments that concern all of them.
    fn run_threads(&mut self, until_ps: u64) {
        loop {
            let control_ps = self.control_ps.first().copied().unwrap_or(u64::MAX);
            self.side_by_side(control_ps.min(until_ps.saturating_add(1)));
            if control_ps > until_ps.min(self.hosts.stop_at_ps) {
                return;
            }
            self.control_ps.pop_first();
            self.net.wait_until(control_ps);
            while let Some(key) = self.host_side().run_timers() {
                self.on_control(key);
            }
        }
    }

    /// Runs everything before `end_ps`.
    fn side_by_side(&mut self, end_ps: u64) {
        let (start_ps, lookahead_ps) = (self.net.now_ps(), self.net.lookahead_ps());
        if end_ps <= start_ps {
            return;
        }
        let mut locals = self.aggregation.locals(&mut self.net, self.checked);
        let local = locals.next().expect("hosts are somewhere");
        let hosts = HostSide { local, hosts: &mut self.hosts };
        windows::run(hosts, locals, start_ps..end_ps, lookahead_ps);
    }

    fn host_side(&mut self) -> HostSide<'_, P> {
        let local = self.aggregation.locals(&mut self.net, self.checked).next();
        HostSide { local: local.expect("hosts are somewhere"), hosts: &mut self.hosts }
    }

    fn on_control(&mut self, key: u64) {
        for job in std::mem::take(&mut self.hosts.ended_jobs) {
            self.unload(job);
        }
        let number = key as u32;
        match key & CLASS == FAULT {
            true => self.apply(self.faults[number as usize]),
            false => self.start_job(number),
        }
    }

    /// Starts all jobs that are announced, at once, and nothing else: to see what they get in the network.
    pub(crate) fn start_jobs(&mut self) {
        let numbers: Vec<u32> = self.announced.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.start_job(number));
    }

    /// Jobs that use the ring instead of their scheme.
    pub(crate) fn on_rings(&self) -> impl Iterator<Item = u32> {
        self.refused.iter().map(|&(job, _)| job)
    }

    fn start_job(&mut self, number: u32) {
        let Some(spec) = self.announced.remove(&number) else { return };
        self.hosts.waiting_jobs -= 1;
        let installed = match (spec.scheme, &spec.work) {
            (Scheme::Hosts { .. }, _) => Installed::Nothing,
            (_, Some(work)) => Installed::Groups(self.install_groups(number, &spec, work)),
            _ => match self.install_or_withdraw(number, &spec) {
                Ok((kind, first)) => Installed::Workers(kind, first),
                Err(reason) => {
                    self.refused.push((number, reason));
                    Installed::Nothing
                }
            },
        };
        self.hosts.jobs.begin(&mut self.net.regions[0], number, spec, installed);
    }

    /// Installs leases for the groups of a schedule that have operations in the network and a host per rank.
    fn install_groups(&mut self, job: u32, spec: &JobSpec, work: &Work) -> Vec<Option<Lease>> {
        let [allreduces, any] = [false, true].map(|all| work.schedule.groups_in_network(all));
        let mut leases = Vec::new();
        for (group, ranks) in work.schedule.groups.iter().enumerate() {
            let copies = spec.scheme.copies() && ranks.len() <= MAX_SCOPED_RANKS as usize;
            let reduces = if copies { any[group] } else { allreduces[group] };
            let hosts: Vec<u32> = ranks.iter().map(|&rank| spec.placement[rank as usize]).collect();
            let apart = hosts.iter().collect::<BTreeSet<_>>().len() == hosts.len();
            if !reduces || !apart || hosts.len() < 2 {
                leases.push(None);
                continue;
            }
            let number = self.next_lease;
            self.next_lease += 1;
            let scheme = spec.scheme.with_copies(copies);
            let spec = JobSpec { placement: hosts, scheme, work: None, ..spec.clone() };
            leases.push(match self.install_or_withdraw(number, &spec) {
                Ok((kind, first_worker)) => Some(Lease { number, kind, first_worker, spec }),
                Err(reason) => {
                    let group = format!(
                        "of the group with ranks {} to {}",
                        ranks[0],
                        ranks[ranks.len() - 1]
                    );
                    self.refused.push((job, format!("{reason}, {group}")));
                    None
                }
            });
        }
        leases
    }

    /// Installs a job's leases, or none of them.
    fn install_or_withdraw(
        &mut self,
        number: u32,
        spec: &JobSpec,
    ) -> Result<(Protocol, u32), String> {
        let outcome = self.install(number, spec);
        if outcome.is_err() {
            for mut local in self.aggregation.locals(&mut self.net, self.checked) {
                local.remove_workers(number);
                local.revoke(number);
            }
            self.unload(number);
        }
        outcome
    }

    /// Installs a job's leases; returns its protocol and the first of its workers.
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
                let hosts = Places { placement, servers: &servers };
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

    /// Removes a job's trees from the load of switches.
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
        let live = topology.switches().filter(|switch| !self.in_force.is_dead(*switch)).collect();
        let around =
            Around { load: &self.load, live: &live, dead_links: &self.in_force.dead_edges() };
        let mut planned = around.plan(topology, spec, trees)?;
        // The planner takes dead links last, but it may take them.
        if planned.iter().any(|tree| self.is_tree_alive(tree)) {
            planned.retain(|tree| self.is_tree_alive(tree));
        }
        for switch in planned.iter().flat_map(|tree| tree.switches()) {
            *self.load.entry(switch).or_default() += 1;
        }
        self.trees.insert(job, planned.clone());
        Ok(planned)
    }
}

/// What a job's trees are planned around.
pub(crate) struct Around<'a> {
    /// Number of trees through each switch.
    pub load: &'a HashMap<NodeId, u64>,
    pub live: &'a HashSet<NodeId>,
    /// A load of each dead link that no other link has.
    pub dead_links: &'a HashMap<EdgeId, u64>,
}

impl Around<'_> {
    /// At most `trees` trees for a job, rooted at the switches that it names if possible.
    pub(crate) fn plan(
        &self,
        topology: &Topology,
        spec: &JobSpec,
        trees: usize,
    ) -> Result<Vec<AggregationTree>, String> {
        let placement: Vec<NodeId> = spec.placement.iter().map(|&host| NodeId(host)).collect();
        let mut load = self.load.clone();
        if !spec.roots.is_empty() {
            // Switches that the job does not name as roots come after those that it names, whatever their load.
            let others = topology.switches().filter(|switch| !spec.roots.contains(&switch.0));
            others.for_each(|switch| *load.entry(switch).or_default() += 1 << 32);
        }
        let request = Request {
            topology,
            placement: &placement,
            live: self.live,
            max_trees: trees,
            load: &load,
            links: self.dead_links,
            order: None,
        };
        aggregation_trees(&request).map_err(|error| error.to_string())
    }
}

/// Hosts of a job's servers: those that it names, or worker hosts far from each other.
pub(crate) fn servers_of(spec: &JobSpec, servers: u8) -> Vec<u32> {
    if !spec.servers.is_empty() {
        return spec.servers.clone();
    }
    let (workers, servers) = (spec.placement.len(), usize::from(servers));
    let servers = servers.min(workers);
    (0..servers).map(|server| spec.placement[server * workers / servers]).collect()
}
