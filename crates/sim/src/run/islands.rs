//! Islands: what runs on links that nothing else uses.
//!
//! Packets affect each other where they share a queue or the memory of a switch, and hosts where they send to each
//! other. If routes are fixed, it is known before a run which links may carry packets between two hosts. Flows and jobs
//! that may meet on some link are on one island. What happens on an island does not depend on any other, so that each
//! can be simulated alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::config::Built;
use crate::faults::Fault;
use crate::job::{ENDLESS, JobSpec, Scheme};
use crate::routes::PathChoice;
use crate::simulation::Simulation;
use crate::workload::FlowSpec;

/// The islands of a run. Those with jobs are numbered from 1 in the order of their first jobs; 0 stands for all others.
pub(super) struct Islands {
    /// By link, its island; empty: there is only one.
    pub by_link: Arc<[u32]>,
    /// Uplink of each host.
    uplinks: Vec<u32>,
}

/// What a run simulates.
pub(super) struct Work<'a> {
    /// By number.
    pub flows: &'a [FlowSpec],
    /// By number, with their names.
    pub jobs: &'a [(String, JobSpec)],
}

impl Islands {
    /// One island.
    fn one() -> Islands {
        Islands { by_link: Arc::default(), uplinks: Vec::new() }
    }

    /// The islands on which this work is. `simulation` makes one in which nothing has been announced.
    pub(super) fn find(
        work: &Work,
        built: &Built,
        simulation: impl FnOnce() -> Simulation,
    ) -> Islands {
        if work.jobs.is_empty() || !has_fixed_routes(built) || work.is_connected(built) {
            return Islands::one();
        }
        let Some(planned) = with_plans(work, simulation()) else { return Islands::one() };
        let net = planned.network();
        let mut links = work.links(&planned);
        // Queues that share memory.
        (0..net.link_count()).for_each(|link| links.join_all(net.siblings(link).iter().copied()));
        let uplinks: Vec<u32> = (0..net.hosts()).map(|host| net.uplink(host)).collect();
        let mut numbers = BTreeMap::new();
        for (_, job) in work.jobs {
            let root = links.root(uplinks[job.placement[0] as usize]);
            let next = numbers.len() as u32 + 1;
            numbers.entry(root).or_insert(next);
        }
        let mut number = |link| numbers.get(&links.root(link)).copied().unwrap_or(0);
        let by_link: Arc<[u32]> = (0..net.link_count()).map(&mut number).collect();
        let islands = Islands { by_link, uplinks };
        let elsewhere = work.flows.iter().any(|flow| islands.of_host(flow.src) == 0);
        if numbers.len() == 1 && !elsewhere { Islands::one() } else { islands }
    }

    /// The number of the last island.
    pub(super) fn last(&self) -> u32 {
        self.by_link.iter().copied().max().unwrap_or(0)
    }

    /// The island of a link.
    pub(super) fn of_link(&self, link: u32) -> u32 {
        self.by_link.get(link as usize).copied().unwrap_or(0)
    }

    /// The island of a host.
    pub(super) fn of_host(&self, host: u32) -> u32 {
        self.uplinks.get(host as usize).map_or(0, |&uplink| self.of_link(uplink))
    }
}

/// Whether every flow of a run keeps its path, and jobs keep their trees.
fn has_fixed_routes(built: &Built) -> bool {
    let moves = |(_, fault): &(u64, Fault)| match fault {
        Fault::Edge { .. } | Fault::Switch { .. } | Fault::Converge => true,
        Fault::Loss { .. } | Fault::Straggler { .. } => false,
    };
    built.switching.paths != PathChoice::Packet && !built.faults.iter().any(moves)
}

/// The simulation with the trees, slots and pools of all jobs, if they do not depend on when jobs begin and end.
fn with_plans(work: &Work, mut simulation: Simulation) -> Option<Simulation> {
    let planned = || work.jobs().filter(|(_, job)| is_planned(job));
    let last_ps = planned().map(|(_, job)| job.start_ps).max();
    // A single worker may end at once.
    let stays = |job: &JobSpec| {
        job.steps == ENDLESS || Some(job.start_ps) == last_ps && job.placement.len() > 1
    };
    planned().all(|(_, job)| stays(job)).then(|| {
        planned().for_each(|(number, job)| simulation.add_numbered_job(number, job.clone()));
        simulation.start_jobs();
        simulation
    })
}

/// Whether a job reduces in switches, or at servers to which it has paths of its own.
fn is_planned(job: &JobSpec) -> bool {
    !matches!(job.scheme, Scheme::Hosts { .. })
}

impl Work<'_> {
    /// The jobs with their numbers.
    pub(super) fn jobs(&self) -> impl Iterator<Item = (u32, &JobSpec)> {
        (0..).zip(self.jobs.iter().map(|(_, job)| job))
    }

    /// Whether all hosts that do anything are connected by flows and jobs: then there is one island.
    fn is_connected(&self, built: &Built) -> bool {
        let mut hosts = Sets::new(built.topology.hosts().count() as u32);
        self.flows.iter().for_each(|flow| hosts.join_all([flow.src, flow.dst]));
        let all = |job: &JobSpec| job.placement.clone().into_iter().chain(job.servers.clone());
        self.jobs().for_each(|(_, job)| hosts.join_all(all(job)));
        let active = self.flows.iter().map(|flow| flow.src);
        let active = active.chain(self.jobs().map(|(_, job)| job.placement[0]));
        let roots: BTreeSet<u32> = active.map(|host| hosts.root(host)).collect();
        roots.len() == 1
    }

    /// The links, those together that may carry packets which depend on each other.
    fn links(&self, planned: &Simulation) -> Sets {
        let net = planned.network();
        let mut links = Sets::new(net.link_count());
        // Jobs in the network are planned around each other and share switches' memory, for lack of which some use rings.
        let firsts =
            self.jobs().filter(|(_, job)| is_planned(job)).map(|(_, job)| job.placement[0]);
        links.join_all(net.links_of_paths().chain(firsts.map(|host| net.uplink(host))));
        let on_rings: BTreeSet<u32> = planned.on_rings().collect();
        let between_hosts = |(number, job): &(u32, &JobSpec)| {
            !is_planned(job) || job.work.is_some() || on_rings.contains(number)
        };
        let mut hosts = Sets::new(net.hosts());
        self.flows.iter().for_each(|flow| hosts.join_all([flow.src, flow.dst]));
        for (_, job) in self.jobs().filter(between_hosts) {
            hosts.join_all(job.placement.iter().copied());
        }
        // Data go one way and acknowledgements the other.
        hosts.all().for_each(|set| links.join_all(net.links_between(&set)));
        links
    }
}

/// Disjoint sets of the numbers below some bound.
struct Sets(Vec<u32>);

impl Sets {
    /// A set for each number.
    fn new(count: u32) -> Sets {
        Sets((0..count).collect())
    }

    /// The number that stands for a set.
    fn root(&mut self, mut number: u32) -> u32 {
        while self.0[number as usize] != number {
            // Ways to the root become shorter each time.
            let next = self.0[number as usize];
            self.0[number as usize] = self.0[next as usize];
            number = next;
        }
        number
    }

    fn join_all(&mut self, numbers: impl IntoIterator<Item = u32>) {
        let mut numbers = numbers.into_iter();
        let Some(first) = numbers.next() else { return };
        let first = self.root(first);
        for number in numbers {
            let root = self.root(number);
            self.0[root as usize] = first;
        }
    }

    /// The sets of several numbers.
    fn all(&mut self) -> impl Iterator<Item = Vec<u32>> + use<> {
        let mut sets = BTreeMap::<u32, Vec<u32>>::new();
        (0..self.0.len() as u32).for_each(|n| sets.entry(self.root(n)).or_default().push(n));
        sets.into_values().filter(|set| set.len() > 1)
    }
}
