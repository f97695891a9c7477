//! From a job's hosts and servers to leases, paths and workers.

use std::collections::BTreeMap;

use netsum_proto::PortId;
use netsum_proto::atp::{
    Lease, Members, Neighbour, Place, Rack, Server, ServerLease, Switch, Worker, WorkerConfig,
};
use netsum_proto::panama::resolve;
use netsum_topo::NodeId;
use netsum_wire::atp::Level;
use netsum_wire::{Epoch, JobId, TreeId};

use super::{Atp, Node, ROW_BYTES, SlotConfig};
use crate::aggregation::machines::{End, Machines};
use crate::aggregation::payload::Payload;
use crate::aggregation::protocol::Protocol;
use crate::aggregation::{Aggregation, Done, SlotSharing};
use crate::network::Network;

/// A job that reduces in slots: where its workers and servers are.
pub(crate) struct Places<'a> {
    pub placement: &'a [u32],
    pub servers: &'a [u32],
}

impl<P: Payload> Aggregation<P> {
    /// Installs a job of `atp`: leases at the racks of workers and servers, a worker per host. Returns the number of
    /// the first worker. Errors are the first that refuses.
    pub(crate) fn add_slot_job(
        &mut self,
        net: &mut Network,
        job: u32,
        hosts: &Places,
        config: &SlotConfig,
    ) -> Result<u32, String> {
        let first = self.slots.next_worker();
        let wiring = Wiring { first, job, epoch: Epoch(1), sharing: self.sharing, config };
        let stands = self.slots.lease(net, &wiring, hosts)?;
        let (now, ranks) = (net.now(), hosts.placement.len() as u32);
        let places = stands.places;
        let worker = |rank: u32| {
            Worker::new(
                now,
                WorkerConfig {
                    job: JobId(job),
                    epoch: Epoch(1),
                    ranks,
                    places: places[rank as usize].clone(),
                    window_max: config.window_max,
                    fragment_bytes: config.fragment_bytes,
                    slots: wiring.sharing.slots,
                    congestion: config.congestion,
                },
            )
        };
        Ok(self.slots.add_workers(net, job, hosts.placement, stands.up, worker))
    }

    /// Moves a job to the next epoch on paths that stand; as with trees, what some workers have and others lack is
    /// taken for handed over at once.
    pub(crate) fn replan_slots(
        &mut self,
        net: &mut Network,
        job: u32,
        first: u32,
        hosts: &Places,
        config: &SlotConfig,
    ) -> Result<(), String> {
        let machines = &mut self.slots;
        let range = first as usize..first as usize + hosts.placement.len();
        let states: Vec<_> = range.clone().filter_map(|w| machines.worker(w as u32)).collect();
        let progress: Vec<_> = states.iter().map(|worker| worker.progress()).collect();
        let finished = resolve(&progress).finished;
        let epoch = states.first().map_or(Epoch(1), |w| Epoch(w.config().epoch.0 + 1));
        let wiring = Wiring { first, job, epoch, sharing: self.sharing, config };
        let stands = machines.lease(net, &wiring, hosts)?;
        let old = Epoch(epoch.0 - 1);
        machines.nodes_mut().for_each(|node| Atp::<P>::revoke(node, JobId(job), old));
        let now = net.now();
        let machines = machines.on_hosts();
        for ((worker, up), places) in range.clone().zip(stands.up).zip(stands.places) {
            let Some(state) = &mut machines.workers[worker] else { continue };
            let config = WorkerConfig { epoch, places, ..state.machine.config().clone() };
            let open: Vec<u64> = state.machine.outstanding().map(|s| s.id).collect();
            let old = std::mem::replace(&mut state.machine, Worker::new(now, config));
            let rest = old.remaining(&finished);
            let complete = open.into_iter().filter(|id| rest.iter().all(|s| s.what.id != *id));
            let (job, rank) = (state.job, state.rank);
            machines.done.extend(complete.map(|id| Done { job, rank, id }));
            rest.into_iter().for_each(|submission| state.machine.submit(submission));
            state.up = up;
        }
        range.for_each(|worker| machines.pump_worker(&mut net.regions[0], worker as u32));
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

/// By rank, and for each by server: path to the switch above, place beneath the server.
struct Stands {
    up: Vec<Vec<u32>>,
    places: Vec<Vec<Place>>,
}

impl<P: Payload> Machines<Atp<P>> {
    /// Jobs of whose packets some cannot come through; each once.
    pub(crate) fn cut_off(&self, net: &Network) -> Vec<u32> {
        let stands = |job: &JobId, epoch: Epoch, paths: &[PortId]| {
            let path = paths.iter().find(|path| !net.path_stands(path.0));
            path.map(|_| (job.0, epoch))
        };
        let mut jobs = Vec::new();
        for (_, node) in self.nodes() {
            let Node::Switch(switch) = node else { continue };
            for (lease, ..) in switch.leases() {
                let neighbours = lease.members.neighbours().chain([lease.parent]);
                let paths: Vec<PortId> = neighbours.collect();
                jobs.extend(stands(&lease.job, lease.epoch, &paths).map(|(job, _)| job));
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
    ) -> Result<Stands, String> {
        let ranks = hosts.placement.len();
        let mut stands = Stands { up: vec![Vec::new(); ranks], places: vec![Vec::new(); ranks] };
        for (tree, &server) in hosts.servers.iter().enumerate() {
            self.lease_server(
                net,
                wiring,
                hosts.placement,
                TreeId(tree as u8),
                server,
                &mut stands,
            )?;
        }
        Ok(stands)
    }

    /// Leases one server and the switches below it. Workers in the server's own rack are racks of one.
    fn lease_server(
        &mut self,
        net: &mut Network,
        wiring: &Wiring,
        placement: &[u32],
        tree: TreeId,
        server: u32,
        stands: &mut Stands,
    ) -> Result<(), String> {
        let rack_of = |net: &Network, host: u32| net.far_end(net.uplink(host));
        let top = rack_of(net, server);
        let racks = by_rack(placement, |host| rack_of(net, host), top);
        let down = net.uplink(server) ^ 1;
        let (to_server, from_server) = self.add_way(net, &[down]);
        self.set_end(to_server, End::Node { node: server, from: PortId(from_server) });
        self.set_end(from_server, End::Node { node: top, from: PortId(to_server) });
        let server_fan_in = racks.len() as u8;
        let mut members = Vec::new();
        for (rack, (switch, ranks)) in racks.iter().enumerate() {
            let host = placement[ranks[0] as usize];
            let workers = ranks.len() as u8;
            let above = match *switch == top {
                true => None,
                false => {
                    let entropy = (wiring.job ^ u32::from(tree.0) << 8 ^ (rack as u32) << 4) as u16;
                    let way = net.way(host, server, entropy).ok_or_else(|| {
                        let name = |node| net.topology().name(NodeId(node));
                        format!("there is no way from {} to {}", name(host), name(server))
                    })?;
                    // Between the two racks: without the hosts' own links.
                    let (rising, falling) = self.add_way(net, &way[1..way.len() - 1]);
                    self.set_end(rising, End::Node { node: top, from: PortId(falling) });
                    self.set_end(falling, End::Node { node: *switch, from: PortId(rising) });
                    Some((rising, falling))
                }
            };
            let mut below = Vec::new();
            for (bit, &rank) in ranks.iter().enumerate() {
                let (up, down) = self.add_way(net, &[net.uplink(placement[rank as usize])]);
                self.set_end(up, End::Node { node: *switch, from: PortId(down) });
                self.set_end(down, End::Worker(wiring.first + rank));
                stands.up[rank as usize].push(up);
                stands.places[rank as usize].push(Place {
                    level: if above.is_some() { Level::Rack } else { Level::Server },
                    worker: bit as u8,
                    rack_fan_in: workers,
                    rack: rack as u8,
                    server_fan_in,
                });
                below.push(PortId(down));
            }
            let port = match above {
                None => below[0],
                Some((rising, falling)) => {
                    let workers = below;
                    let of = Members::Rack { workers, rack: rack as u8, racks: server_fan_in };
                    self.install(net, wiring, tree, *switch, of, PortId(rising))?;
                    PortId(falling)
                }
            };
            members.push(Rack { port, workers });
        }
        self.install(
            net,
            wiring,
            tree,
            top,
            Members::Server { racks: members },
            PortId(to_server),
        )?;
        let lease = ServerLease {
            job: JobId(wiring.job),
            epoch: wiring.epoch,
            tree,
            neighbours: vec![Neighbour {
                port: PortId(from_server),
                racks: u32::MAX >> (32 - racks.len().min(32)),
                workers: u32::MAX,
            }],
            racks: racks.into_iter().map(|(_, ranks)| ranks).collect(),
            window: wiring.config.window_max,
            fragment_bytes: wiring.config.fragment_bytes,
            slots: wiring.sharing.slots,
        };
        let now = net.now();
        let node = self.node(server, || Node::Server(Server::new(ROW_BYTES, P::rows(ROW_BYTES))));
        let Node::Server(machine) = node else { unreachable!("hosts have no switch") };
        let name = net.topology().name(NodeId(server));
        machine.install(now, lease).map_err(|error| format!("server {name}: {error}"))
    }

    fn install(
        &mut self,
        net: &Network,
        wiring: &Wiring,
        tree: TreeId,
        switch: u32,
        members: Members,
        parent: PortId,
    ) -> Result<(), String> {
        let lease = Lease {
            job: JobId(wiring.job),
            epoch: wiring.epoch,
            tree,
            members,
            parent,
            window: wiring.config.window_max,
            fragment_bytes: wiring.config.fragment_bytes,
            claim: wiring.config.claim,
        };
        let new = || Node::Switch(Switch::new(wiring.sharing.switch(), P::rows(ROW_BYTES)));
        let Node::Switch(machine) = self.node(switch, new) else {
            unreachable!("switches have no server")
        };
        let name = net.topology().name(NodeId(switch));
        machine.install(net.now(), lease).map_err(|error| format!("switch {name}: {error}"))
    }
}

/// Ranks by the switch of their rack, in the order of first ranks; those at `top` each alone.
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
