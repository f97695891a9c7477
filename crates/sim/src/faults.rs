//! Faults of a run and their effects.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use netsum_topo::{AggregationTree, EdgeId, NodeId};

use crate::aggregation::{Payload, Places, SlotConfig, TreeConfig};
use crate::job::{JobSpec, Scheme};
use crate::simulation::{Simulation, servers_of};

/// One event: a fault begins or ends. Faults of one kind at one place may overlap; each holds until its own end event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// A link begins or stops losing this share of its packets, independently of other loss faults on it.
    Loss {
        /// Directed link.
        link: u32,
        /// Above 0, at most 1.
        share: f64,
        /// Whether the fault ends.
        over: bool,
    },
    /// An edge fails or is restored.
    Edge {
        /// Edge; both directions are affected.
        edge: u32,
        /// Whether the edge is restored.
        alive: bool,
    },
    /// A switch fails with all its links and its memory, or is restored with empty memory.
    Switch {
        /// Node.
        node: u32,
        /// Whether the switch is restored.
        alive: bool,
    },
    /// Routing converges to the live topology; jobs whose trees lost a part are planned again.
    Converge,
    /// From its next step on, a host computes slower by this factor, or at normal speed again.
    Straggler {
        /// Host.
        host: u32,
        /// At least 1.
        factor: f64,
        /// Whether the fault ends.
        over: bool,
    },
}

/// Faults in effect.
#[derive(Default)]
pub(crate) struct InForce {
    /// Loss shares by link.
    losses: HashMap<u32, Vec<f64>>,
    /// Number of faults that hold an edge down: faults of the edge and of its ends.
    edges: HashMap<u32, u32>,
    switches: HashMap<NodeId, u32>,
    /// Slowdown factors by host.
    factors: HashMap<u32, Vec<f64>>,
}

impl InForce {
    /// Whether a switch is down.
    pub(crate) fn is_dead(&self, switch: NodeId) -> bool {
        self.switches.contains_key(&switch)
    }

    /// Edges that are down, each with a load so high that a plan takes it last.
    pub(crate) fn dead_edges(&self) -> HashMap<EdgeId, u64> {
        self.edges.keys().map(|&edge| (EdgeId(edge), 1 << 32)).collect()
    }
}

/// Increments or decrements a count; true if it becomes 0.
fn count<K: Eq + Hash>(of: &mut HashMap<K, u32>, key: K, ends: bool) -> bool {
    let count = of.remove(&key).unwrap_or(0);
    let left = if ends { count.saturating_sub(1) } else { count + 1 };
    if left > 0 {
        of.insert(key, left);
    }
    left == 0
}

/// Adds a value, or removes one equal value; returns the rest.
fn keep(of: &mut HashMap<u32, Vec<f64>>, key: u32, value: f64, ends: bool) -> &[f64] {
    let values = of.entry(key).or_default();
    match (ends, values.iter().position(|&v| v == value)) {
        (true, Some(at)) => drop(values.remove(at)),
        (true, None) => {}
        (false, _) => values.push(value),
    }
    values
}

impl<P: Payload> Simulation<P> {
    pub(crate) fn apply(&mut self, fault: Fault) {
        match fault {
            Fault::Loss { link, share, over } => {
                // Losses are independent. The formula returns the share of a single fault bit for bit.
                let either = |a: f64, &b: &f64| a + b - a * b;
                let shares = keep(&mut self.in_force.losses, link, share, over);
                self.net.set_loss(link, shares.iter().fold(0.0, either), self.seed);
            }
            Fault::Edge { edge, alive } => self.hold(edge, alive),
            Fault::Switch { node, alive } => {
                let topology = self.net.topology();
                let edges: Vec<u32> =
                    topology.neighbours(NodeId(node)).iter().map(|(_, edge)| edge.0).collect();
                edges.into_iter().for_each(|edge| self.hold(edge, alive));
                count(&mut self.in_force.switches, NodeId(node), alive);
                if !alive {
                    self.kill(node);
                }
            }
            Fault::Converge => self.converge(),
            Fault::Straggler { host, factor, over } => {
                let factors = keep(&mut self.in_force.factors, host, factor, over);
                self.hosts.jobs.slow.insert(host, factors.iter().product());
            }
        }
    }

    /// Adds or removes a fault that holds an edge down.
    fn hold(&mut self, edge: u32, ends: bool) {
        let alive = count(&mut self.in_force.edges, edge, ends);
        self.net.set_alive(edge, alive);
    }

    /// Clears a switch's memory. Jobs that had leases there need new ones, even if the switch is back by then.
    fn kill(&mut self, node: u32) {
        let uses = |tree: &AggregationTree| tree.node(NodeId(node)).is_some();
        let over_trees = self.trees.iter().filter(|(_, trees)| trees.iter().any(uses));
        let in_slots = self.aggregation.slots.jobs_at(node);
        let jobs: Vec<u32> = over_trees.map(|(&job, _)| job).chain(in_slots).collect();
        let name = self.net.topology().name(NodeId(node));
        let lost = jobs.into_iter().map(|job| (job, format!("switch {name} has died")));
        self.stalled.extend(lost);
        self.aggregation.kill_switch(node);
    }

    fn converge(&mut self) {
        self.net.reroute();
        let fallen = self.trees.iter().filter(|(_, trees)| !self.are_trees_alive(trees));
        let mut hit: BTreeSet<u32> = fallen.map(|(&job, _)| job).collect();
        hit.extend(self.aggregation.slots.cut_off(&self.net));
        hit.extend(self.stalled.keys());
        for job in hit {
            match self.replan(job) {
                Ok(()) => self.stalled.remove(&job),
                Err(reason) => self.stalled.insert(job, reason),
            };
        }
    }

    /// Moves a job to live trees. On an error the job has no leases (a pool keeps its own) until the next attempt.
    fn replan(&mut self, job: u32) -> Result<(), String> {
        let Some((spec, first)) = self.hosts.jobs.in_network(job) else { return Ok(()) };
        let spec = spec.clone();
        let outcome = match &spec.scheme {
            Scheme::Trees { trees, config } => self.replan_trees(job, first, &spec, *trees, config),
            Scheme::Slots { servers, config } => {
                self.replan_slots(job, first, &spec, *servers, config)
            }
            Scheme::Pool(_) => return self.check_pool(job),
            Scheme::Hosts { .. } => Ok(()),
        };
        if outcome.is_err() {
            self.unload(job);
            // Some switches may have installed a lease that another refused.
            let locals = self.aggregation.locals(&mut self.net, self.checked);
            locals.for_each(|mut local| local.revoke(job));
        }
        outcome
    }

    fn replan_trees(
        &mut self,
        job: u32,
        first: u32,
        spec: &JobSpec,
        trees: u8,
        config: &TreeConfig,
    ) -> Result<(), String> {
        self.unload(job);
        let trees = self.plan(job, spec, usize::from(trees))?;
        if !self.are_trees_alive(&trees) {
            return Err("every tree would have a link that is down".to_owned());
        }
        self.aggregation.replan_trees(&mut self.net, job, first, &trees, &spec.placement, config)
    }

    fn replan_slots(
        &mut self,
        job: u32,
        first: u32,
        spec: &JobSpec,
        servers: u8,
        config: &SlotConfig,
    ) -> Result<(), String> {
        let servers = servers_of(spec, servers);
        if let Some(reason) = self.cut_off(spec.placement.iter().chain(&servers)) {
            return Err(reason);
        }
        let hosts = Places { placement: &spec.placement, servers: &servers };
        self.aggregation.replan_slots(&mut self.net, job, first, &hosts, config)
    }

    /// A pool cannot move; if its switch is alive, its workers wait for a path to it.
    fn check_pool(&self, job: u32) -> Result<(), String> {
        if !self.aggregation.pools.is_leased(job) {
            return Err(
                "its pool has died; a job with a static pool ends with the switch of the pool"
                    .to_owned(),
            );
        }
        match self.trees.get(&job).is_none_or(|trees| self.are_trees_alive(trees)) {
            true => Ok(()),
            false => Err("the way to its pool is down".to_owned()),
        }
    }

    /// A message that names the first of these hosts whose link is down.
    pub(crate) fn cut_off<'a>(&self, hosts: impl IntoIterator<Item = &'a u32>) -> Option<String> {
        let is_cut = |host: &&u32| !self.net.is_alive(self.net.uplink(**host) / 2);
        let host = hosts.into_iter().find(is_cut)?;
        Some(format!("the link of {} is down", self.net.topology().name(NodeId(*host))))
    }

    /// Whether every part of these trees is alive.
    pub(crate) fn are_trees_alive(&self, trees: &[AggregationTree]) -> bool {
        trees.iter().all(|tree| self.is_tree_alive(tree))
    }

    /// Whether every part of a tree is alive.
    pub(crate) fn is_tree_alive(&self, tree: &AggregationTree) -> bool {
        let topology = self.net.topology();
        let alive = |a: NodeId, b: NodeId| {
            topology.edge_between(a, b).is_some_and(|edge| self.net.is_alive(edge.0))
        };
        tree.switches().all(|switch| !self.in_force.is_dead(switch))
            && tree.nodes.iter().all(|node| {
                let Some(parent) = &node.parent else { return true };
                let way: Vec<NodeId> =
                    [&[node.switch], parent.via.as_slice(), &[parent.switch]].concat();
                way.windows(2).all(|w| alive(w[0], w[1]))
            })
    }
}
