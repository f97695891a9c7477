//! From a plan's trees to leases, paths and workers.

use netsum_proto::panama::{Child, Lease, WorkerConfig, resolve};
use netsum_topo::{AggregationTree, Child as Below, NodeId};
use netsum_wire::{Rank, TreeId};

use super::*;

impl<P: Payload> Aggregation<P> {
    /// Installs a job: its trees' leases, and a worker per host. Returns the number of the first worker; the
    /// others follow by rank. Errors are the first switch's that refuses, by node.
    pub fn add_job(
        &mut self,
        net: &mut Network,
        job: u32,
        trees: &[AggregationTree],
        placement: &[u32],
        config: &TreeConfig,
    ) -> Result<u32, (u32, LeaseError)> {
        let first = self.workers.len() as u32;
        let up = self.lease(net, job, Epoch(1), first, trees, placement, config)?;
        for (rank, (&host, up)) in placement.iter().zip(up).enumerate() {
            let machine = Worker::new(
                now(net),
                WorkerConfig {
                    job: JobId(job),
                    epoch: Epoch(1),
                    rank: Rank(rank as u32),
                    ranks: placement.len() as u32,
                    trees: trees.len() as u8,
                    window_max: config.window_max,
                    fragment_bytes: config.fragment_bytes,
                    congestion: config.congestion,
                    partial: config.release_permille < 1000,
                },
            );
            self.workers.push(Some(WorkerState {
                machine,
                job,
                rank: rank as u32,
                ranks: placement.len() as u32,
                uplink: net.uplink(host),
                up,
                timer_is_set: false,
            }));
        }
        Ok(first)
    }

    /// Moves a job to the next epoch on other trees: what the hosts do when a switch dies. The workers tell each
    /// other what they have; what nobody has is summed again. What some lack and others have, a window at most, is
    /// taken for handed over at once. Errors leave the job without trees.
    pub fn replan(
        &mut self,
        net: &mut Network,
        job: u32,
        first: u32,
        trees: &[AggregationTree],
        placement: &[u32],
        config: &TreeConfig,
    ) -> Result<(), (u32, LeaseError)> {
        let range = first as usize..first as usize + placement.len();
        let states = || self.workers[range.clone()].iter().flatten();
        let progress: Vec<_> = states().map(|w| w.machine.progress()).collect();
        let finished = resolve(&progress).finished;
        let epoch = states().next().map_or(Epoch(1), |w| Epoch(w.machine.config().epoch.0 + 1));
        let up = self.lease(net, job, epoch, first, trees, placement, config)?;
        for switch in self.switches.iter_mut().flatten() {
            switch.revoke(JobId(job), Epoch(epoch.0 - 1));
        }
        for (worker, up) in range.clone().zip(up) {
            let Some(state) = &mut self.workers[worker] else { continue };
            let config =
                WorkerConfig { epoch, trees: trees.len() as u8, ..state.machine.config().clone() };
            let open: Vec<u64> = state.machine.outstanding().map(|s| s.id).collect();
            let old = std::mem::replace(&mut state.machine, Worker::new(now(net), config));
            let rest = old.remaining(&finished);
            let complete = open.into_iter().filter(|id| rest.iter().all(|s| s.id != *id));
            let (job, rank) = (state.job, state.rank);
            self.done.extend(complete.map(|id| Done { job, rank, id }));
            rest.into_iter().for_each(|submission| state.machine.submit(submission));
            state.up = up;
        }
        range.for_each(|worker| self.pump_worker(net, worker as u32));
        Ok(())
    }

    /// Leases all nodes of all trees; each rank's path to the switch above, by tree.
    #[allow(clippy::too_many_arguments)] // Whose, which, where.
    fn lease(
        &mut self,
        net: &mut Network,
        job: u32,
        epoch: Epoch,
        first: u32,
        trees: &[AggregationTree],
        placement: &[u32],
        config: &TreeConfig,
    ) -> Result<Vec<Vec<u32>>, (u32, LeaseError)> {
        let mut up = vec![Vec::new(); placement.len()];
        for (index, tree) in trees.iter().enumerate() {
            let mut wiring = Wiring { first, branch: 0, job, epoch, index: index as u8, config };
            self.wire(net, tree, tree.root, None, placement, &mut wiring, &mut up)?;
        }
        Ok(up)
    }

    /// The job is over: leases are taken back, workers are gone.
    pub fn remove_job(&mut self, job: u32) {
        for switch in self.switches.iter_mut().flatten() {
            switch.revoke(JobId(job), Epoch(u16::MAX / 2));
        }
        for worker in &mut self.workers {
            worker.take_if(|w| w.job == job);
        }
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
    ) -> Result<(), (u32, LeaseError)> {
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
            self.ends[rising as usize] = End::Switch { node: node.0, from: PortId(falling) };
            match *child {
                Below::Rank(rank) => {
                    self.ends[falling as usize] = End::Worker(wiring.first + rank);
                    up[rank as usize].push(rising);
                }
                Below::Switch(below) => {
                    self.ends[falling as usize] =
                        End::Switch { node: below.0, from: PortId(rising) };
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
        let memory_bytes = self.memory_bytes;
        let switch = self.switches[node.0 as usize]
            .get_or_insert_with(|| Switch::new(P::memory(memory_bytes)));
        switch.install(now(net), lease).map_err(|error| (node.0, error))
    }

    /// Paths along nodes and back.
    fn add_paths(&mut self, net: &mut Network, way: &[NodeId]) -> (u32, u32) {
        let graph = net.topology();
        let rising: Vec<u32> = way
            .windows(2)
            .map(|w| {
                let edge = graph.edge_between(w[0], w[1]).expect("a tree follows links");
                crate::routes::outgoing(graph, edge.0, w[0])
            })
            .collect();
        let falling: Vec<u32> = rising.iter().rev().map(|link| link ^ 1).collect();
        let paths = (net.add_path(&rising), net.add_path(&falling));
        self.ends.resize(paths.1 as usize + 1, End::Worker(u32::MAX));
        paths
    }
}

struct Wiring<'a> {
    first: u32,
    branch: u8,
    job: u32,
    epoch: Epoch,
    index: u8,
    config: &'a TreeConfig,
}
