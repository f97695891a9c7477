//! What goes wrong in a run, and when.

use netsum_topo::NodeId;

use crate::aggregation::{Payload, Places};
use crate::job::Scheme;
use crate::simulation::{Simulation, servers_of};

/// One event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// A link loses this share of its packets from now on.
    Loss {
        /// Link, one direction.
        link: u32,
        /// 0 for none.
        share: f64,
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
    /// A host computes so many times as long from its next step on; 1 is as before.
    Straggler {
        /// Host.
        host: u32,
        /// At least 1.
        factor: f64,
    },
}

impl<P: Payload> Simulation<P> {
    pub(crate) fn apply(&mut self, fault: Fault) {
        match fault {
            Fault::Loss { link, share } => self.net.set_loss(link, share, self.seed),
            Fault::Edge { edge, alive } => self.net.set_alive(edge, alive),
            Fault::Switch { node, alive } => {
                let topology = self.net.topology();
                let edges: Vec<u32> =
                    topology.neighbours(NodeId(node)).iter().map(|(_, edge)| edge.0).collect();
                edges.into_iter().for_each(|edge| self.net.set_alive(edge, alive));
                if !alive {
                    self.aggregation.kill_switch(node);
                    self.dead.insert(NodeId(node));
                } else {
                    self.dead.remove(&NodeId(node));
                }
            }
            Fault::Converge => self.converge(),
            Fault::Straggler { host, factor } => {
                self.hosts.jobs.slow.insert(host, factor);
            }
        }
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
        tree.switches().all(|switch| !self.dead.contains(&switch))
            && tree.nodes.iter().all(|node| {
                let Some(parent) = &node.parent else { return true };
                let way: Vec<NodeId> =
                    [&[node.switch], parent.via.as_slice(), &[parent.switch]].concat();
                way.windows(2).all(|w| alive(w[0], w[1]))
            })
    }
}
