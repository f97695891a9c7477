//! Installs jobs of `atp`: leases, paths and workers for a job's hosts and servers.

use std::collections::BTreeMap;

use netsum_lease::{Granted, Racks, Terms, leases};
use netsum_proto::atp::{Node, Scaling, Server, Switch, Worker, WorkerConfig, WorkerPosition};
use netsum_proto::{Aggregator, Lease, PortId, WorkerMachine};
use netsum_topo::{AggregationTree, Child, NodeId, Parent, TreeNode};
use netsum_wire::{Epoch, JobId, Rank, TreeId};

use super::{Atp, ROW_BYTES, SlotConfig};
use crate::aggregation::machines::{End, Machines, Ports};
use crate::aggregation::payload::Payload;
use crate::aggregation::{Aggregation, SlotSharing};
use crate::network::Network;

/// A job's hosts: those of its workers and of its servers.
pub(crate) struct Places<'a> {
    pub placement: &'a [u32],
    pub servers: &'a [u32],
}

impl<P: Payload> Aggregation<P> {
    /// Installs a job of `atp`: leases at the racks of workers and servers, a worker per host. Returns the number of
    /// the first worker. Errors are those of the first switch that refuses.
    pub(crate) fn add_slot_job(
        &mut self,
        net: &mut Network,
        job: u32,
        hosts: &Places,
        config: &SlotConfig,
    ) -> Result<u32, String> {
        let first = self.slots.next_worker();
        let wiring = Wiring { first, job, epoch: Epoch(1), sharing: self.sharing, config };
        let paths = self.slots.lease(net, &wiring, hosts)?;
        let (now, ranks) = (net.now(), hosts.placement.len() as u32);
        let places = paths.places;
        let worker = |rank: u32| {
            Worker::new(
                now,
                WorkerConfig {
                    job: JobId(job),
                    epoch: Epoch(1),
                    rank: Rank(rank),
                    ranks,
                    copies: config.copies,
                    places: places[rank as usize].clone(),
                    window_max: config.window_max,
                    fragment_bytes: config.fragment_bytes,
                    slots: wiring.sharing.slots,
                    congestion: config.congestion,
                    // Unused: integers have no scale.
                    scaling: Scaling::Shared,
                },
            )
        };
        Ok(self.slots.add_workers(net, job, hosts.placement, paths.up, worker))
    }

    /// Moves a job to the next epoch, on live paths.
    pub(crate) fn replan_slots(
        &mut self,
        net: &mut Network,
        job: u32,
        first: u32,
        hosts: &Places,
        config: &SlotConfig,
    ) -> Result<(), String> {
        let machines = &mut self.slots;
        let last = machines.running(first, hosts.placement.len()).next();
        let epoch = last.map_or(Epoch(1), |worker| Epoch(worker.config().epoch.0 + 1));
        let wiring = Wiring { first, job, epoch, sharing: self.sharing, config };
        let paths = machines.lease(net, &wiring, hosts)?;
        let old = Epoch(epoch.0 - 1);
        machines.nodes_mut().for_each(|node| node.revoke(JobId(job), old));
        let now = net.now();
        machines.replace_workers(net, first, paths.up, |rank, last| {
            let places = paths.places[rank].clone();
            Worker::new(now, WorkerConfig { epoch, places, ..last.clone() })
        });
        Ok(())
    }
}

struct Wiring<'a> {
    first: u32,
    job: u32,
    epoch: Epoch,
    sharing: SlotSharing,
    config: &'a SlotConfig,
}

/// For each rank and server: the path to the switch above, and the worker's position beneath the server.
struct WorkerPaths {
    up: Vec<Vec<u32>>,
    places: Vec<Vec<WorkerPosition>>,
}

impl<P: Payload> Machines<Atp<P>> {
    /// Jobs that have a broken path; each once.
    pub(crate) fn cut_off(&self, net: &Network) -> Vec<u32> {
        let broken_path = |job: &JobId, epoch: Epoch, paths: &[PortId]| {
            let path = paths.iter().find(|path| !net.is_path_alive(path.0));
            path.map(|_| (job.0, epoch))
        };
        let mut jobs = Vec::new();
        for (_, node) in self.nodes() {
            let Node::Switch(switch) = node else { continue };
            for (lease, ..) in switch.leases() {
                let neighbours = lease.members.neighbours().chain([lease.parent]);
                let paths: Vec<PortId> = neighbours.collect();
                jobs.extend(broken_path(&lease.job, lease.epoch, &paths).map(|(job, _)| job));
            }
        }
        jobs.sort_unstable();
        jobs.dedup();
        jobs
    }

    /// Jobs that have a lease at a node.
    pub(crate) fn jobs_at(&self, node: u32) -> Vec<u32> {
        let here = self.nodes().filter(|&(number, _)| number == node);
        let switches = here.filter_map(|(_, node)| match node {
            Node::Switch(switch) => Some(switch),
            Node::Server(_) => None,
        });
        switches.flat_map(Switch::leases).map(|(lease, ..)| lease.job.0).collect()
    }

    fn lease(
        &mut self,
        net: &mut Network,
        wiring: &Wiring,
        hosts: &Places,
    ) -> Result<WorkerPaths, String> {
        let ranks = hosts.placement.len();
        let mut worker_paths =
            WorkerPaths { up: vec![Vec::new(); ranks], places: vec![Vec::new(); ranks] };
        let (mut trees, mut ports) = (Vec::new(), Ports::default());
        let halves = if wiring.config.copies { 2 } else { 1 };
        let servers = std::iter::repeat_n(hosts.servers, halves).flatten();
        for (tree, &server) in (0..).zip(servers) {
            let paths = &mut (&mut ports, &mut worker_paths.up);
            let tree = self.tree(net, wiring, hosts.placement, TreeId(tree), server, paths)?;
            let racks = Racks::of(&tree).map_err(|error| error.to_string())?;
            for (rank, places) in (0..).zip(&mut worker_paths.places) {
                places.push(racks.place(rank).expect("a tree has every rank"));
            }
            trees.push(tree);
        }
        let terms = Terms {
            job: JobId(wiring.job),
            epoch: wiring.epoch,
            protocol: netsum_topo::Protocol::Atp,
            trees: &trees,
            copies: wiring.config.copies,
            window: wiring.config.window_max,
            fragment_bytes: wiring.config.fragment_bytes,
            release_permille: 1000,
            slot_space: wiring.sharing.slots,
            claim: wiring.config.claim,
        };
        let granted = leases(&terms, |tree, node, neighbour| ports.at(tree, node, neighbour));
        for Granted { node, lease, .. } in granted.map_err(|error| error.to_string())? {
            self.install(net, wiring, node, lease)?;
        }
        Ok(worker_paths)
    }

    /// Builds the tree of one server and its paths. A worker in the server's rack counts as a rack of its own.
    fn tree(
        &mut self,
        net: &mut Network,
        wiring: &Wiring,
        placement: &[u32],
        id: TreeId,
        server: u32,
        (ports, ups): &mut (&mut Ports, &mut Vec<Vec<u32>>),
    ) -> Result<AggregationTree, String> {
        let rack_of = |net: &Network, host: u32| net.far_end(net.uplink(host));
        let top = rack_of(net, server);
        let racks = by_rack(placement, |host| rack_of(net, host), top);
        let (root, middle) = (NodeId(server), NodeId(top));
        let (to_server, from_server) = self.add_way(net, &[net.uplink(server) ^ 1]);
        self.set_end(to_server, End::Node { node: server, from: PortId(from_server) });
        self.set_end(from_server, End::Node { node: top, from: PortId(to_server) });
        ports.set(id, root, Child::Switch(middle), PortId(from_server));
        ports.set(id, middle, Child::Switch(root), PortId(to_server));
        let below = |switch| Some(Parent { switch, via: Vec::new() });
        let mut members = Vec::new();
        let mut nodes = Vec::new();
        for (rack, (switch, ranks)) in racks.iter().enumerate() {
            let here = NodeId(*switch);
            if *switch != top {
                let host = placement[ranks[0] as usize];
                let entropy = (wiring.job ^ u32::from(id.0) << 8 ^ (rack as u32) << 4) as u16;
                let way = net.way(host, server, entropy).ok_or_else(|| {
                    let name = |node| net.topology().name(NodeId(node));
                    format!("there is no path from {} to {}", name(host), name(server))
                })?;
                // Between the two racks, without the hosts' own links.
                let (rising, falling) = self.add_way(net, &way[1..way.len() - 1]);
                self.set_end(rising, End::Node { node: top, from: PortId(falling) });
                self.set_end(falling, End::Node { node: *switch, from: PortId(rising) });
                ports.set(id, middle, Child::Switch(here), PortId(falling));
                ports.set(id, here, Child::Switch(middle), PortId(rising));
                let children = ranks.iter().copied().map(Child::Rank).collect();
                nodes.push(TreeNode { switch: here, children, parent: below(middle) });
                members.push(Child::Switch(here));
            } else {
                members.extend(ranks.iter().copied().map(Child::Rank));
            }
            for &rank in ranks {
                let (up, down) = self.add_way(net, &[net.uplink(placement[rank as usize])]);
                self.set_end(up, End::Node { node: *switch, from: PortId(down) });
                self.set_end(down, End::Worker(wiring.first + rank));
                ports.set(id, here, Child::Rank(rank), PortId(down));
                ups[rank as usize].push(up);
            }
        }
        let above = [
            TreeNode { switch: root, children: vec![Child::Switch(middle)], parent: None },
            TreeNode { switch: middle, children: members, parent: below(root) },
        ];
        Ok(AggregationTree { root, nodes: above.into_iter().chain(nodes).collect() })
    }

    fn install(
        &mut self,
        net: &Network,
        wiring: &Wiring,
        node: NodeId,
        lease: Lease,
    ) -> Result<(), String> {
        let (now, name) = (net.now(), net.topology().name(node));
        let rows = || P::rows(ROW_BYTES);
        match lease {
            Lease::Server(lease) => {
                let new = || Node::Server(Server::new(ROW_BYTES, rows()));
                let Node::Server(machine) = self.node(node.0, new) else {
                    unreachable!("hosts have no switch")
                };
                machine.install(now, lease).map_err(|error| format!("server {name}: {error}"))
            }
            Lease::Slots(lease) => {
                let new = || Node::Switch(Switch::new(wiring.sharing.switch(), rows()));
                let Node::Switch(machine) = self.node(node.0, new) else {
                    unreachable!("switches have no server")
                };
                machine.install(now, lease).map_err(|error| format!("switch {name}: {error}"))
            }
            Lease::Tree(_) | Lease::Pool(_) => unreachable!("they are of other protocols"),
        }
    }
}

/// Ranks by rack switch, in the order of first ranks; ranks at switch `top` form racks of one.
fn by_rack(placement: &[u32], rack_of: impl Fn(u32) -> u32, top: u32) -> Vec<(u32, Vec<u32>)> {
    let mut racks: Vec<(u32, Vec<u32>)> = Vec::new();
    let mut known = BTreeMap::new();
    for (rank, &host) in (0..).zip(placement) {
        let switch = rack_of(host);
        let at = if switch == top { None } else { known.get(&switch).copied() };
        match at {
            Some(at) => {
                let (_, ranks): &mut (u32, Vec<u32>) = &mut racks[at];
                ranks.push(rank);
            }
            None => {
                known.insert(switch, racks.len());
                racks.push((switch, vec![rank]));
            }
        }
    }
    racks
}
