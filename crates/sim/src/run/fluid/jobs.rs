//! Jobs among fluid flows.
//!
//! The connections of a collective advance together: no rank of a ring is ahead of its neighbours by more than a share,
//! and no contribution to a tree by more than a window. So what a job sends at once is one flow of the fluid over all
//! links that it uses, each as often as connections cross it. A link that others use gives it one share per connection.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet};
use std::sync::Arc;

use netsum_topo::{AggregationTree, Child, NodeId};
use rustc_hash::FxHashMap;

use super::Pipes;
use crate::aggregation::OVERHEAD_BYTES;
use crate::config::Jobs as Specs;
use crate::fluid::Use;
use crate::job::{HostAlgorithm, JobRecord, JobSpec, Scheme, StepRecord};
use crate::network::Network;
use crate::random::Random;
use crate::routes::outgoing;
use crate::simulation::Around;

/// All jobs of a run, by number.
pub(super) struct Jobs<'a> {
    jobs: Vec<Job<'a>>,
    /// Times, jobs, and what happens then.
    timers: BinaryHeap<Reverse<(u64, u32, Event)>>,
    /// Number of trees through each switch: the next job is planned around them.
    load: HashMap<NodeId, u64>,
    random: Random,
    active: usize,
    pub(super) steps: Vec<StepRecord>,
    pub(super) finished: Vec<JobRecord>,
    /// Jobs without trees, which use the ring, with the reason.
    pub(super) refused: Vec<(u32, String)>,
}

struct Job<'a> {
    spec: &'a JobSpec,
    phases: Vec<Phase>,
    switches: Vec<NodeId>,
    step: u32,
    began_ps: u64,
    reduce_start_ps: u64,
    /// Buckets of this step that are ready, and that are reduced. They are reduced one after the other.
    ready: usize,
    reduced: usize,
    /// Of the bucket that is being reduced.
    phase: Option<usize>,
    /// Flows of the phase that are not complete.
    flowing: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The last packets of a phase have arrived.
    Arrived,
    /// The next bucket is ready.
    Ready,
    Start,
}

/// What all ranks do at the same time, as often as `times` in a row.
struct Phase {
    flows: Vec<Arc<[Use]>>,
    size: Size,
    times: u64,
    /// Links of a path, one of each kind of path: they differ in rates or propagation times.
    paths: Vec<Vec<u32>>,
}

/// Bytes of each flow of a phase.
enum Size {
    /// A step of this number between hosts: that of the largest share.
    Step(HostAlgorithm, u32, u32),
    /// A share of each of so many trees, in fragments.
    Trees(u64, u64),
}

impl<'a> Jobs<'a> {
    pub(super) fn new(specs: &'a Specs, seed: u64) -> Jobs<'a> {
        let jobs = specs.iter().map(|(_, spec)| Job {
            spec,
            phases: Vec::new(),
            switches: Vec::new(),
            step: 0,
            began_ps: 0,
            reduce_start_ps: 0,
            ready: 0,
            reduced: 0,
            phase: None,
            flowing: 0,
        });
        let starts =
            (0..).zip(specs).map(|(job, (_, spec))| Reverse((spec.start_ps, job, Event::Start)));
        Jobs {
            jobs: jobs.collect(),
            timers: starts.collect(),
            load: HashMap::new(),
            random: Random::derived(seed, "paths of jobs"),
            active: specs.len(),
            steps: Vec::new(),
            finished: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// When the next timer is due; `u64::MAX` without one.
    pub(super) fn next_ps(&self) -> u64 {
        self.timers.peek().map_or(u64::MAX, |timer| timer.0.0)
    }

    pub(super) fn are_over(&self) -> bool {
        self.active == 0
    }

    /// Handles the end of a flow of a job.
    pub(super) fn on_part(&mut self, pipes: &Pipes<'_>, number: u32) {
        let job = &mut self.jobs[number as usize];
        job.flowing -= 1;
        if job.flowing == 0 {
            let at_ps = pipes.now_ps() + job.packets_cost_ps(pipes);
            self.timers.push(Reverse((at_ps, number, Event::Arrived)));
        }
    }

    /// Handles the next timer.
    pub(super) fn on_timer(&mut self, pipes: &mut Pipes<'_>) {
        let Reverse((at_ps, number, event)) = self.timers.pop().expect("a timer is due");
        match event {
            Event::Start => {
                self.wire(pipes, number);
                self.begin_step(number, at_ps);
            }
            Event::Ready => {
                let job = &mut self.jobs[number as usize];
                if job.ready == 0 {
                    job.reduce_start_ps = at_ps;
                }
                job.ready += 1;
                if let Some(next) = job.spec.buckets.get(job.ready) {
                    self.timers.push(Reverse((job.began_ps + next.ready_ps, number, Event::Ready)));
                }
                if job.phase.is_none() {
                    self.reduce(pipes, number, at_ps);
                }
            }
            Event::Arrived => {
                let job = &mut self.jobs[number as usize];
                job.phase = job.phase.map(|phase| phase + 1);
                self.reduce(pipes, number, at_ps);
            }
        }
    }

    /// Begins the next phase; of the next bucket that is ready, if one is complete.
    fn reduce(&mut self, pipes: &mut Pipes<'_>, number: u32, at_ps: u64) {
        let job = &mut self.jobs[number as usize];
        loop {
            let phase = *job.phase.get_or_insert(0);
            if phase < job.phases.len() {
                job.flowing = job.phases[phase].flows.len();
                let bytes = job.wire_bytes(pipes);
                job.phases[phase]
                    .flows
                    .iter()
                    .for_each(|uses| pipes.start_part(number, uses, bytes));
                return;
            }
            job.phase = None;
            job.reduced += 1;
            if job.reduced == job.ready {
                break;
            }
        }
        if job.reduced < job.spec.buckets.len() {
            return;
        }
        let (start_ps, reduce_start_ps) = (job.began_ps, job.reduce_start_ps);
        self.steps.push(StepRecord {
            job: number,
            step: job.step,
            start_ps,
            reduce_start_ps,
            end_ps: at_ps,
        });
        job.step += 1;
        if job.step < job.spec.steps {
            let earliest_ps = job.began_ps + job.spec.period_ps;
            self.begin_step(number, at_ps.max(earliest_ps));
            return;
        }
        let start_ps = job.spec.start_ps;
        self.finished.push(JobRecord { job: number, start_ps, end_ps: at_ps });
        self.active -= 1;
        for switch in std::mem::take(&mut job.switches) {
            self.load.entry(switch).and_modify(|trees| *trees -= 1);
        }
        job.phases.clear();
    }

    fn begin_step(&mut self, number: u32, at_ps: u64) {
        let job = &mut self.jobs[number as usize];
        (job.began_ps, job.ready, job.reduced) = (at_ps, 0, 0);
        let first_ps = at_ps + job.spec.buckets[0].ready_ps;
        self.timers.push(Reverse((first_ps, number, Event::Ready)));
    }

    /// Finds the links that a job uses.
    fn wire(&mut self, pipes: &Pipes<'_>, number: u32) {
        let job = &mut self.jobs[number as usize];
        let net = &pipes.net;
        let algorithm = match job.spec.scheme {
            // Both halves use the same links.
            Scheme::Hosts { algorithm: HostAlgorithm::Shares, .. } => {
                HostAlgorithm::ParameterServer
            }
            Scheme::Hosts { algorithm, .. } => algorithm,
            Scheme::Trees { trees, config } => {
                let live: HashSet<NodeId> = net.topology().switches().collect();
                let around = Around { load: &self.load, live: &live, dead_links: &HashMap::new() };
                match around.plan(net.topology(), job.spec, usize::from(trees)) {
                    Ok(trees) => {
                        let payload = u64::from(config.fragment_bytes);
                        job.phases = vec![of_trees(net, &trees, &job.spec.placement, payload)];
                        job.switches = trees.iter().flat_map(AggregationTree::switches).collect();
                        job.switches.iter().for_each(|&s| *self.load.entry(s).or_default() += 1);
                        return;
                    }
                    Err(reason) => {
                        self.refused.push((number, format!("uses the ring: {reason}")));
                        HostAlgorithm::Ring
                    }
                }
            }
            Scheme::Slots { .. } | Scheme::Pool(_) => unreachable!("configurations are checked"),
        };
        job.phases = of_hosts(net, algorithm, &job.spec.placement, &mut self.random);
    }
}

impl Job<'_> {
    /// The phase under way, and the bytes of a share of it.
    fn share(&self) -> (&Phase, u64) {
        let phase = &self.phases[self.phase.expect("a phase is under way")];
        let (bytes, ranks) =
            (self.spec.buckets[self.reduced].bytes, self.spec.placement.len() as u32);
        let share = match phase.size {
            Size::Step(algorithm, step, rank) => {
                algorithm.step(rank, ranks, step, bytes).sends.iter().map(|send| send.1).max()
            }
            Size::Trees(trees, _) => Some(bytes.div_ceil(trees)),
        };
        (phase, share.unwrap_or(0).max(1))
    }

    /// Bytes on the wire of each flow of the phase.
    fn wire_bytes(&self, pipes: &Pipes<'_>) -> f64 {
        let (phase, share) = self.share();
        match phase.size {
            Size::Step(..) => pipes.wire_bytes(share) * phase.times as f64,
            Size::Trees(_, payload) => {
                (share + share.div_ceil(payload) * u64::from(OVERHEAD_BYTES)) as f64
            }
        }
    }

    /// The time that packets add to the phase.
    fn packets_cost_ps(&self, pipes: &Pipes<'_>) -> u64 {
        let (phase, share) = self.share();
        let cost = |path: &Vec<u32>| match phase.size {
            Size::Step(..) => pipes.packets_cost_ps(path, share),
            Size::Trees(_, payload) => {
                let packet = share.min(payload) + u64::from(OVERHEAD_BYTES);
                let each = |&link: &u32| pipes.net.serialisation_ps(link, packet);
                let all = path.iter().map(|link| each(link) + pipes.net.propagation_ps(*link));
                all.sum::<u64>() - path.iter().map(each).max().unwrap_or(0)
            }
        };
        phase.paths.iter().map(cost).max().unwrap_or(0) * phase.times
    }
}

/// The phases of an allreduce between hosts. A ring's steps are alike.
fn of_hosts(
    net: &Network,
    algorithm: HostAlgorithm,
    placement: &[u32],
    random: &mut Random,
) -> Vec<Phase> {
    let ranks = placement.len() as u32;
    let mut entropies = FxHashMap::default();
    let mut links = Links::new(net);
    let steps = algorithm.steps(ranks, 1 << 40);
    let times = if algorithm == HostAlgorithm::Ring { steps } else { 1 };
    let mut phases = Vec::new();
    for step in (0..steps).step_by(times.max(1) as usize) {
        let mut sender = None;
        for rank in 0..ranks {
            // Bytes do not matter here, as long as each share has some.
            for (to, _) in algorithm.step(rank, ranks, step, 1 << 40).sends {
                sender = Some(rank);
                let entropy = *entropies.entry((rank, to)).or_insert_with(|| random.bits() as u16);
                let [from, to] = [rank, to].map(|rank| placement[rank as usize]);
                let parts = net.parts(from, to, entropy);
                parts.iter().for_each(|&(link, part)| links.add(link, part));
                links.add_path(net.way(from, to, entropy).expect("it has parts"));
            }
        }
        if let Some(rank) = sender {
            let (uses, paths) = links.take();
            let size = Size::Step(algorithm, step, rank);
            phases.push(Phase { flows: vec![uses], size, times: times.into(), paths });
        }
    }
    phases
}

/// The only phase of an allreduce in switches: a flow per tree, up and down all of its links.
fn of_trees(net: &Network, trees: &[AggregationTree], placement: &[u32], payload: u64) -> Phase {
    let graph = net.topology();
    let mut links = Links::new(net);
    let (mut flows, mut paths) = (Vec::new(), Vec::new());
    for tree in trees {
        // By switch of the tree, the links to the root. Parents precede their children.
        let mut above: FxHashMap<NodeId, Vec<u32>> = FxHashMap::default();
        let climb = |links: &mut Links, nodes: &[NodeId]| {
            let up = nodes.windows(2).map(|pair| {
                let edge = graph.edge_between(pair[0], pair[1]).expect("a tree follows links");
                outgoing(graph, edge.0, pair[0])
            });
            let up: Vec<u32> = up.collect();
            up.iter().flat_map(|&link| [link, link ^ 1]).for_each(|link| links.add(link, 1.0));
            up
        };
        for node in &tree.nodes {
            let own = node.parent.as_ref().map_or_else(Vec::new, |parent| {
                let nodes = [&[node.switch][..], &parent.via, &[parent.switch]].concat();
                [climb(&mut links, &nodes), above[&parent.switch].clone()].concat()
            });
            for child in &node.children {
                if let Child::Rank(rank) = *child {
                    let host = NodeId(placement[rank as usize]);
                    let up = [climb(&mut links, &[host, node.switch]), own.clone()].concat();
                    let down: Vec<u32> = up.iter().rev().map(|link| link ^ 1).collect();
                    links.add_path([up, down].concat());
                }
            }
            above.insert(node.switch, own);
        }
        let (uses, kinds) = links.take();
        flows.push(uses);
        paths.extend(kinds);
    }
    Phase { size: Size::Trees(trees.len() as u64, payload), flows, times: 1, paths }
}

/// Collects the links of connections that advance together.
struct Links<'a> {
    net: &'a Network,
    parts: Vec<f64>,
    used: Vec<u32>,
    /// Kinds of paths seen: transmission and propagation times of their links.
    kinds: BTreeSet<Vec<(u64, u64)>>,
    paths: Vec<Vec<u32>>,
}

impl<'a> Links<'a> {
    fn new(net: &'a Network) -> Links<'a> {
        let parts = vec![0.0; net.link_count() as usize];
        Links { net, parts, used: Vec::new(), kinds: BTreeSet::new(), paths: Vec::new() }
    }

    fn add(&mut self, link: u32, part: f64) {
        let sum = &mut self.parts[link as usize];
        if *sum == 0.0 {
            self.used.push(link);
        }
        *sum += part;
    }

    fn add_path(&mut self, path: Vec<u32>) {
        let net = self.net;
        let kind = |&link: &u32| (net.serialisation_ps(link, 1_000_000), net.propagation_ps(link));
        if self.kinds.insert(path.iter().map(kind).collect()) {
            self.paths.push(path);
        }
    }

    /// What was collected since the last call.
    fn take(&mut self) -> (Arc<[Use]>, Vec<Vec<u32>>) {
        self.kinds.clear();
        let uses =
            self.used.drain(..).map(|link| (link, std::mem::take(&mut self.parts[link as usize])));
        (uses.collect(), std::mem::take(&mut self.paths))
    }
}
