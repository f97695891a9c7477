//! What goes wrong in a run, and when.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use netsum_topo::{AggregationTree, EdgeId, NodeId};

use crate::aggregation::{Payload, Places, SlotConfig, TreeConfig};
use crate::job::{JobSpec, Scheme};
use crate::simulation::{Simulation, servers_of};

/// One event: a fault begins, or ends. Faults of one kind in one place may overlap; each that has begun holds until it
/// has ended itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// A link loses this share of its packets, whatever else loses some there, or does so no more.
    Loss {
        /// Link, one direction.
        link: u32,
        /// Above 0, at most 1.
        share: f64,
        /// Whether it ends.
        over: bool,
    },
    /// An edge dies, or comes back.
    Edge {
        /// Both directions.
        edge: u32,
        /// Whether it is back.
        alive: bool,
    },
    /// A switch dies with all its links and all that it holds, or comes back empty.
    Switch {
        /// Node.
        node: u32,
        /// Whether it is back.
        alive: bool,
    },
    /// Routes follow what is alive; jobs whose trees have lost a part get others.
    Converge,
    /// A host computes so many times as long from its next step on, or does so no more.
    Straggler {
        /// Host.
        host: u32,
        /// At least 1.
        factor: f64,
        /// Whether it ends.
        over: bool,
    },
}

/// Faults that have begun and have not ended.
#[derive(Default)]
pub(crate) struct InForce {
    /// Shares by link.
    losses: HashMap<u32, Vec<f64>>,
    /// How many hold an edge down: its own faults, and its ends'.
    edges: HashMap<u32, u32>,
    switches: HashMap<NodeId, u32>,
    /// Factors by host.
    factors: HashMap<u32, Vec<f64>>,
}

impl InForce {
    /// Whether a switch is down.
    pub(crate) fn is_dead(&self, switch: NodeId) -> bool {
        self.switches.contains_key(&switch)
    }

    /// Edges that are down, each so full that a plan takes it last.
    pub(crate) fn dead_edges(&self) -> HashMap<EdgeId, u64> {
        self.edges.keys().map(|&edge| (EdgeId(edge), 1 << 32)).collect()
    }
}

/// Counts one more or one less; true if that leaves none.
fn count<K: Eq + Hash>(of: &mut HashMap<K, u32>, key: K, ends: bool) -> bool {
    let count = of.remove(&key).unwrap_or(0);
    let left = if ends { count.saturating_sub(1) } else { count + 1 };
    if left > 0 {
        of.insert(key, left);
    }
    left == 0
}

/// Adds a value, or takes one that is equal away; those that are left.
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
                // Each draws by itself. Written so that one alone is its own share, to the bit.
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

    /// One fault more or less that holds an edge down.
    fn hold(&mut self, edge: u32, ends: bool) {
        let alive = count(&mut self.in_force.edges, edge, ends);
        self.net.set_alive(edge, alive);
    }

    /// A switch loses all that it holds; jobs that had leases there need others, also where it is back by then.
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
        let fallen = self.trees.iter().filter(|(_, trees)| !self.stand(trees));
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

    /// Moves a job on to what is alive. Errors leave it without leases (a pool with what it has), until it is tried again.
    fn replan(&mut self, job: u32) -> Result<(), String> {
        let Some((spec, first)) = self.hosts.jobs.in_network(job) else { return Ok(()) };
        let spec = spec.clone();
        let outcome = match &spec.scheme {
            Scheme::Trees { trees, config } => self.replan_trees(job, first, &spec, *trees, config),
            Scheme::Slots { servers, config } => {
                self.replan_slots(job, first, &spec, *servers, config)
            }
            Scheme::Pool(_) => return self.pool_stands(job),
            Scheme::Hosts { .. } => Ok(()),
        };
        if outcome.is_err() {
            self.unload(job);
            // Some switches may have granted what others refuse.
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
        if !self.stand(&trees) {
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

    /// A pool cannot move; while it is there, its workers wait for the way to it.
    fn pool_stands(&self, job: u32) -> Result<(), String> {
        if !self.aggregation.pools.is_leased(job) {
            return Err(
                "its pool has died; a job with a static pool ends with the switch of the pool"
                    .to_owned(),
            );
        }
        match self.trees.get(&job).is_none_or(|trees| self.stand(trees)) {
            true => Ok(()),
            false => Err("the way to its pool is down".to_owned()),
        }
    }

    /// The first of these hosts whose link is down, in words.
    pub(crate) fn cut_off<'a>(&self, hosts: impl IntoIterator<Item = &'a u32>) -> Option<String> {
        let is_cut = |host: &&u32| !self.net.is_alive(self.net.uplink(**host) / 2);
        let host = hosts.into_iter().find(is_cut)?;
        Some(format!("the link of {} is down", self.net.topology().name(NodeId(*host))))
    }

    /// Whether all of these trees is alive.
    pub(crate) fn stand(&self, trees: &[AggregationTree]) -> bool {
        trees.iter().all(|tree| self.stands(tree))
    }

    /// Whether all of a tree is alive.
    pub(crate) fn stands(&self, tree: &AggregationTree) -> bool {
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
