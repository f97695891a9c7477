//! From a plan's trees to `panama`'s paths, installed leases and workers.

use netsum_lease::{Granted, Terms, leases};
use netsum_proto::atp::Claim;
use netsum_proto::panama::{Switch, Worker, WorkerConfig, buffers_per_fragment};
use netsum_proto::{Aggregator, Lease, PortId, WorkerMachine};
use netsum_topo::{AggregationTree, Child, NodeId, TreeNode};
use netsum_wire::{Epoch, JobId, Rank, TreeId};

use super::Aggregation;
use super::machines::{End, Machines, Ports};
use super::panama::{Panama, TreeConfig};
use super::payload::Payload;
use crate::network::Network;

impl<P: Payload> Aggregation<P> {
    /// Installs a job of `panama`: its trees' leases, and a worker per host. Returns the number of the first worker;
    /// the others follow by rank. Errors are the first switch's that refuses.
    pub(crate) fn add_tree_job(
        &mut self,
        net: &mut Network,
        job: u32,
        trees: &[AggregationTree],
        placement: &[u32],
        config: &TreeConfig,
    ) -> Result<u32, String> {
        let first = self.trees.next_worker();
        let trees = &with_copies(trees, config.copies);
        let config = &self.granted(job, trees, config);
        let memory_bytes = self.memory_bytes;
        let wiring = Wiring { first, job, epoch: Epoch(1), memory_bytes, config };
        let up = self.trees.lease(net, &wiring, trees, placement)?;
        let now = net.now();
        let worker = |rank| {
            Worker::new(
                now,
                WorkerConfig {
                    job: JobId(job),
                    epoch: Epoch(1),
                    rank: Rank(rank),
                    ranks: placement.len() as u32,
                    trees: trees.len() as u8,
                    copies: config.copies,
                    window_max: config.window_max,
                    fragment_bytes: config.fragment_bytes,
                    congestion: config.congestion,
                    partial: config.release_permille < 1000,
                },
            )
        };
        Ok(self.trees.add_workers(net, job, placement, up, worker))
    }

    /// Moves a job to the next epoch on other trees: what the hosts do when a switch dies. The workers tell each
    /// other what they have; what nobody has is summed again. Errors leave the job without trees.
    pub(crate) fn replan_trees(
        &mut self,
        net: &mut Network,
        job: u32,
        first: u32,
        trees: &[AggregationTree],
        placement: &[u32],
        config: &TreeConfig,
    ) -> Result<(), String> {
        let trees = &with_copies(trees, config.copies);
        let config = &self.granted(job, trees, config);
        let machines = &mut self.trees;
        let last = machines.running(first, placement.len()).next();
        let epoch = last.map_or(Epoch(1), |worker| Epoch(worker.config().epoch.0 + 1));
        let wiring = Wiring { first, job, epoch, memory_bytes: self.memory_bytes, config };
        let up = machines.lease(net, &wiring, trees, placement)?;
        machines.nodes_mut().for_each(|switch| switch.revoke(JobId(job), Epoch(epoch.0 - 1)));
        let now = net.now();
        machines.replace_workers(net, first, up, |_, last| {
            let (trees, window_max) = (trees.len() as u8, config.window_max);
            Worker::new(now, WorkerConfig { epoch, trees, window_max, ..last.clone() })
        });
        Ok(())
    }
}

impl<P: Payload> Aggregation<P> {
    /// What a controller grants of what a job asks for: no more in flight than every switch of its trees has a share for,
    /// beside all that have leases there.
    fn granted(&self, job: u32, trees: &[AggregationTree], config: &TreeConfig) -> TreeConfig {
        let fragment_bytes = P::memory(self.memory_bytes).cost(config.fragment_bytes);
        let share = |node: &TreeNode| {
            let machine = self.trees.nodes().find(|&(number, _)| number == node.switch.0);
            let leases = machine.into_iter().flat_map(|(_, switch)| switch.leases());
            let others = leases.filter(|lease| lease.job != JobId(job)).count() as u64;
            let own = trees.iter().filter(|tree| tree.node(node.switch).is_some()).count() as u64;
            // As switches divide it: a share for one more.
            let bytes = self.memory_bytes / (others + own + 1);
            bytes / (buffers_per_fragment(node.children.len()) * fragment_bytes)
        };
        let least = trees.iter().flat_map(|tree| &tree.nodes).map(share).min();
        let most = u64::from(config.window_max);
        TreeConfig { window_max: least.unwrap_or(most).clamp(1, most) as u16, ..*config }
    }
}

impl<P: Payload> Machines<Panama<P>> {
    /// Leases all nodes of all trees; each rank's path to the switch above, by tree.
    fn lease(
        &mut self,
        net: &mut Network,
        wiring: &Wiring,
        trees: &[AggregationTree],
        placement: &[u32],
    ) -> Result<Vec<Vec<u32>>, String> {
        let mut made = Paths { up: vec![Vec::new(); placement.len()], ports: Ports::default() };
        for (index, tree) in trees.iter().enumerate() {
            let id = TreeId(index as u8);
            self.wire(net, (id, tree), tree.root, wiring.first, placement, &mut made);
        }
        let terms = Terms {
            job: JobId(wiring.job),
            epoch: wiring.epoch,
            protocol: netsum_topo::Protocol::Panama,
            trees,
            copies: wiring.config.copies,
            window: wiring.config.window_max,
            fragment_bytes: wiring.config.fragment_bytes,
            release_permille: wiring.config.release_permille,
            slot_space: 0,
            claim: Claim::default(),
        };
        let granted = leases(&terms, |tree, node, neighbour| made.ports.at(tree, node, neighbour));
        for Granted { node, lease, .. } in granted.map_err(|error| error.to_string())? {
            let Lease::Tree(lease) = lease else { unreachable!("leases of panama are of trees") };
            let switch = self.node(node.0, || Switch::new(P::memory(wiring.memory_bytes)));
            let installed = switch.install(net.now(), lease);
            installed.map_err(|error| format!("switch {}: {error}", net.topology().name(node)))?;
        }
        Ok(made.up)
    }

    /// Makes the paths between a node and all below it.
    fn wire(
        &mut self,
        net: &mut Network,
        (id, tree): (TreeId, &AggregationTree),
        node: NodeId,
        first: u32,
        placement: &[u32],
        made: &mut Paths,
    ) {
        let here = tree.node(node).expect("a plan names its nodes");
        for &child in &here.children {
            let way = match child {
                Child::Rank(rank) => vec![NodeId(placement[rank as usize]), node],
                Child::Switch(below) => {
                    let parent = tree.node(below).and_then(|n| n.parent.as_ref());
                    let via = parent.map_or(&[][..], |p| &p.via);
                    [&[below], via, &[node]].concat()
                }
            };
            let (rising, falling) = self.add_paths(net, &way);
            made.ports.set(id, node, child, PortId(falling));
            self.set_end(rising, End::Node { node: node.0, from: PortId(falling) });
            match child {
                Child::Rank(rank) => {
                    self.set_end(falling, End::Worker(first + rank));
                    made.up[rank as usize].push(rising);
                }
                Child::Switch(below) => {
                    made.ports.set(id, below, Child::Switch(node), PortId(rising));
                    self.set_end(falling, End::Node { node: below.0, from: PortId(rising) });
                    self.wire(net, (id, tree), below, first, placement, made);
                }
            }
        }
    }
}

/// The trees of a job: what is copied has trees of its own along the same links.
fn with_copies(trees: &[AggregationTree], copies: bool) -> Vec<AggregationTree> {
    if copies { [trees, trees].concat() } else { trees.to_vec() }
}

/// Paths of a job.
struct Paths {
    /// By rank, the path to the switch above, by tree.
    up: Vec<Vec<u32>>,
    ports: Ports,
}

struct Wiring<'a> {
    first: u32,
    job: u32,
    epoch: Epoch,
    memory_bytes: u64,
    config: &'a TreeConfig,
}
