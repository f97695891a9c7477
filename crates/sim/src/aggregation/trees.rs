//! From a plan's trees to leases, paths and workers.

use netsum_proto::panama::{Child, Lease, WorkerConfig};
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
        let mut up = vec![Vec::new(); placement.len()];
        for (index, tree) in trees.iter().enumerate() {
            let mut wiring = Wiring { first, branch: 0, job, index: index as u8, config };
            self.wire(net, tree, tree.root, None, placement, &mut wiring, &mut up)?;
        }
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

    /// The job is over: leases are taken back, workers are gone.
    pub fn remove_job(&mut self, job: u32) {
        for switch in self.switches.iter_mut().flatten() {
            switch.revoke(JobId(job), Epoch(1));
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
            epoch: Epoch(1),
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
    index: u8,
    config: &'a TreeConfig,
}
