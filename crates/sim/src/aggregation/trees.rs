//! From a plan's trees to `panama`'s leases, paths and workers.

use netsum_proto::PortId;
use netsum_proto::panama::{Child, Lease, Switch, Worker, WorkerConfig, resolve};
use netsum_topo::{AggregationTree, Child as Below, NodeId, TreeNode};
use netsum_wire::{Epoch, JobId, Rank, TreeId};

use super::machines::{End, Machines};
use super::panama::{Panama, TreeConfig};
use super::payload::Payload;
use super::{Aggregation, Done};
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
        let config = &self.granted(job, trees, config);
        let wiring = Wiring::new(first, job, Epoch(1), self.memory_bytes, config);
        let up = self.trees.lease(net, wiring, trees, placement)?;
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
    /// other what they have; what nobody has is summed again. What some lack and others have, a window at most, is
    /// taken for handed over at once. Errors leave the job without trees.
    pub(crate) fn replan_trees(
        &mut self,
        net: &mut Network,
        job: u32,
        first: u32,
        trees: &[AggregationTree],
        placement: &[u32],
        config: &TreeConfig,
    ) -> Result<(), String> {
        let config = &self.granted(job, trees, config);
        let machines = &mut self.trees;
        let range = first as usize..first as usize + placement.len();
        let states: Vec<_> = range.clone().filter_map(|w| machines.worker(w as u32)).collect();
        let progress: Vec<_> = states.iter().map(|worker| worker.progress()).collect();
        let finished = resolve(&progress).finished;
        let epoch = states.first().map_or(Epoch(1), |w| Epoch(w.config().epoch.0 + 1));
        let wiring = Wiring::new(first, job, epoch, self.memory_bytes, config);
        let up = machines.lease(net, wiring, trees, placement)?;
        machines.nodes_mut().for_each(|switch| switch.revoke(JobId(job), Epoch(epoch.0 - 1)));
        let now = net.now();
        let machines = machines.on_hosts();
        for (worker, up) in range.clone().zip(up) {
            let Some(state) = &mut machines.workers[worker] else { continue };
            let config = WorkerConfig {
                epoch,
                trees: trees.len() as u8,
                window_max: config.window_max,
                ..state.machine.config().clone()
            };
            let open: Vec<u64> = state.machine.outstanding().map(|s| s.id).collect();
            let old = std::mem::replace(&mut state.machine, Worker::new(now, config));
            let rest = old.remaining(&finished);
            let complete = open.into_iter().filter(|id| rest.iter().all(|s| s.id != *id));
            let (job, rank) = (state.job, state.rank);
            machines.done.extend(complete.map(|id| Done { job, rank, id }));
            rest.into_iter().for_each(|submission| state.machine.submit(submission));
            state.up = up;
        }
        range.for_each(|worker| machines.pump_worker(&mut net.regions[0], worker as u32));
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
            // As switches divide it: a share for one more, a buffer per child and two for sums.
            let bytes = self.memory_bytes / (others + own + 1);
            bytes / ((node.children.len() as u64 + 2) * fragment_bytes)
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
        mut wiring: Wiring,
        trees: &[AggregationTree],
        placement: &[u32],
    ) -> Result<Vec<Vec<u32>>, String> {
        let mut up = vec![Vec::new(); placement.len()];
        for (index, tree) in trees.iter().enumerate() {
            wiring.begin(index as u8);
            self.wire(net, tree, tree.root, None, placement, &mut wiring, &mut up)?;
        }
        Ok(up)
    }

    /// Leases a node and all below it; `above` is the path to its parent, which is its port there.
    #[allow(clippy::too_many_arguments)] // A walk: where, whose, what it makes.
    fn wire(
        &mut self,
        net: &mut Network,
        tree: &AggregationTree,
        node: NodeId,
        above: Option<u32>,
        placement: &[u32],
        wiring: &mut Wiring,
        up: &mut [Vec<u32>],
    ) -> Result<(), String> {
        let here = tree.node(node).expect("a plan names its nodes");
        let mut children = Vec::new();
        for child in &here.children {
            let way = match *child {
                Below::Rank(rank) => vec![NodeId(placement[rank as usize]), node],
                Below::Switch(below) => {
                    let parent = tree.node(below).and_then(|n| n.parent.as_ref());
                    let via = parent.map_or(&[][..], |p| &p.via);
                    [&[below], via, &[node]].concat()
                }
            };
            let (rising, falling) = self.add_paths(net, &way);
            let ranks = match *child {
                Below::Rank(rank) => vec![rank],
                Below::Switch(below) => tree.ranks_below(below),
            };
            children.push(Child {
                port: PortId(falling),
                ranks: ranks.iter().fold(0, |mask, rank| mask | 1 << (rank % 64)),
                branch: wiring.branch % 32,
            });
            wiring.branch = wiring.branch.wrapping_add(1);
            self.set_end(rising, End::Node { node: node.0, from: PortId(falling) });
            match *child {
                Below::Rank(rank) => {
                    self.set_end(falling, End::Worker(wiring.first + rank));
                    up[rank as usize].push(rising);
                }
                Below::Switch(below) => {
                    self.set_end(falling, End::Node { node: below.0, from: PortId(rising) });
                    self.wire(net, tree, below, Some(rising), placement, wiring, up)?;
                }
            }
        }
        let lease = Lease {
            job: JobId(wiring.job),
            epoch: wiring.epoch,
            tree: TreeId(wiring.index),
            children,
            parent: above.map(PortId),
            slots: wiring.config.window_max,
            fragment_bytes: wiring.config.fragment_bytes,
            release_permille: wiring.config.release_permille,
        };
        let memory_bytes = wiring.memory_bytes;
        let switch = self.node(node.0, || Switch::new(P::memory(memory_bytes)));
        let installed = switch.install(net.now(), lease);
        installed.map_err(|error| format!("switch {}: {error}", net.topology().name(node)))
    }
}

struct Wiring<'a> {
    first: u32,
    branch: u8,
    job: u32,
    epoch: Epoch,
    index: u8,
    memory_bytes: u64,
    config: &'a TreeConfig,
}

impl<'a> Wiring<'a> {
    fn new(first: u32, job: u32, epoch: Epoch, memory_bytes: u64, config: &'a TreeConfig) -> Self {
        Wiring { first, branch: 0, job, epoch, index: 0, memory_bytes, config }
    }

    fn begin(&mut self, index: u8) {
        (self.index, self.branch) = (index, 0);
    }
}
