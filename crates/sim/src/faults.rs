//! What goes wrong in a run, and when.

use std::collections::HashMap;
use std::hash::Hash;

use netsum_topo::NodeId;

use crate::aggregation::{Payload, Places};
use crate::job::Scheme;
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
                    self.aggregation.kill_switch(node);
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

    fn converge(&mut self) {
        self.net.reroute();
        let mut hit: Vec<u32> = self
            .trees
            .iter()
            .filter(|(_, t)| !t.iter().all(|t| self.stands(t)))
            .map(|(&j, _)| j)
            .collect();
        hit.extend(self.aggregation.slots.cut_off(&self.net));
        hit.sort_unstable();
        for job in hit {
            let outcome = self.replan(job);
            if let Err(reason) = outcome {
                self.refused.push((job, format!("it stands still: {reason}")));
            }
        }
    }

    /// Moves a job on to what is alive.
    fn replan(&mut self, job: u32) -> Result<(), String> {
        let Some((spec, first)) = self.hosts.jobs.in_network(job) else { return Ok(()) };
        let spec = spec.clone();
        let placement = &spec.placement;
        match &spec.scheme {
            Scheme::Trees { trees, config } => {
                self.unload(job);
                let trees = self.plan(job, &spec, usize::from(*trees))?;
                let net = &mut self.net;
                self.aggregation.replan_trees(net, job, first, &trees, placement, config)
            }
            Scheme::Slots { servers, config } => {
                let servers = servers_of(&spec, *servers);
                let hosts = Places { placement, servers: &servers };
                self.aggregation.replan_slots(&mut self.net, job, first, &hosts, config)
            }
            Scheme::Pool(_) => {
                Err("a pool has no other place; protocol switchml ends with its switch".to_owned())
            }
            Scheme::Hosts { .. } => Ok(()),
        }
    }

    /// Whether all of a tree is alive.
    fn stands(&self, tree: &netsum_topo::AggregationTree) -> bool {
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
