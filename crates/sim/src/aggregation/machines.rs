//! All nodes and workers of one protocol on the simulated network.

use netsum_proto::{PortId, Time};
use netsum_topo::{AggregationTree, NodeId};

use super::payload::Payload;
use super::protocol::{Owned, Protocol, WorkerEvent};
use super::{Done, NODE, Violation, WORKER};
use crate::network::Network;
use crate::packet::{Kind, Packet};
use crate::timer::Timer;

/// Results are handed to whoever checks sums: job, rank, operation, first element, payload.
pub type Inspector<T> = Box<dyn FnMut(u32, u32, u64, u64, &T) + Send>;

pub(super) struct WorkerState<R: Protocol> {
    pub machine: R::Worker,
    pub job: u32,
    pub rank: u32,
    pub ranks: u32,
    pub uplink: u32,
    /// Path to the node above, by tree.
    pub up: Vec<u32>,
    pub timer: Timer,
}

struct NodeState<R: Protocol> {
    machine: R::Node,
    timer: Timer,
}

/// Where a path ends, and what is there.
#[derive(Clone, Copy)]
pub(super) enum End {
    Node { node: u32, from: PortId },
    Worker(u32),
    Nowhere,
}

/// The machines of one protocol.
pub struct Machines<R: Protocol> {
    /// By node of the network; only those that have had a lease.
    nodes: Vec<Option<NodeState<R>>>,
    pub(super) workers: Vec<Option<WorkerState<R>>>,
    pub(super) ends: Vec<End>,
    in_flight: Vec<(R::Header, Owned<R>)>,
    unused: Vec<u32>,
    pub(super) done: Vec<Done>,
    pub(super) violations: Vec<Violation>,
    inspector: Option<Inspector<Owned<R>>>,
}

impl<R: Protocol> Machines<R> {
    pub(super) fn new(nodes: usize) -> Self {
        Machines {
            nodes: std::iter::repeat_with(|| None).take(nodes).collect(),
            workers: Vec::new(),
            ends: Vec::new(),
            in_flight: Vec::new(),
            unused: Vec::new(),
            done: Vec::new(),
            violations: Vec::new(),
            inspector: None,
        }
    }

    /// Every accepted result is shown to `inspector`.
    pub fn inspect(&mut self, inspector: Inspector<Owned<R>>) {
        self.inspector = Some(inspector);
    }

    /// A worker hands over an allreduce of so many bytes.
    pub(super) fn submit(&mut self, net: &mut Network, worker: u32, id: u64, bytes: u64) {
        let Some(state) = &mut self.workers[worker as usize] else { return };
        R::submit(&mut state.machine, id, bytes.div_ceil(4).max(1));
        self.pump_worker(net, worker);
    }

    /// A packet has come to the end of its path.
    #[inline]
    pub(super) fn on_packet(&mut self, net: &mut Network, packet: &Packet) {
        match self.ends[packet.flow as usize] {
            End::Node { node, from } => {
                self.unused.push(packet.seq);
                if let Some(state) = &mut self.nodes[node as usize] {
                    let (header, payload) = &self.in_flight[packet.seq as usize];
                    R::handle(&mut state.machine, now(net), from, packet.ce(), header, payload);
                    self.pump_node(net, node);
                }
            }
            End::Worker(worker) => {
                self.take_result(net, worker, packet);
                self.unused.push(packet.seq);
                self.pump_worker(net, worker);
            }
            End::Nowhere => self.unused.push(packet.seq),
        }
    }

    /// The network lost a packet.
    pub(super) fn forget(&mut self, handle: u32) {
        self.unused.push(handle);
    }

    pub(super) fn on_worker_timer(&mut self, net: &mut Network, worker: u32) {
        let Some(state) = &mut self.workers[worker as usize] else { return };
        state.timer.ring(net.now_ps());
        let now = now(net);
        if R::timeout(&state.machine).is_some_and(|at| at <= now) {
            R::on_timeout(&mut state.machine, now);
        }
        self.pump_worker(net, worker);
    }

    pub(super) fn on_node_timer(&mut self, net: &mut Network, node: u32) {
        let Some(state) = &mut self.nodes[node as usize] else { return };
        state.timer.ring(net.now_ps());
        let now = now(net);
        if R::node_timeout(&state.machine).is_some_and(|at| at <= now) {
            R::on_node_timeout(&mut state.machine, now);
        }
        self.pump_node(net, node);
    }

    /// A node dies: its leases and sums are gone, until it is leased again.
    pub(super) fn kill(&mut self, node: u32) {
        self.nodes[node as usize] = None;
    }

    /// A job is over: its workers go, and nodes that nobody uses must have their memory back.
    pub(super) fn remove_workers(&mut self, at_ps: u64, job: u32) {
        for worker in &mut self.workers {
            worker.take_if(|w| w.job == job);
        }
        for (node, state) in self.nodes.iter().enumerate() {
            let Some(NodeState { machine, .. }) = state else { continue };
            let (used, _) = R::memory(machine);
            if R::leases(machine) == 0 && used > 0 {
                let what = format!("node {node} keeps {used} of its memory, and has no job");
                self.violations.push(Violation { at_ps, job, what });
            }
        }
    }

    /// The machine of a node; `new` makes it at its first lease.
    pub(super) fn node(&mut self, node: u32, new: impl FnOnce() -> R::Node) -> &mut R::Node {
        let state = &mut self.nodes[node as usize];
        &mut state
            .get_or_insert_with(|| NodeState { machine: new(), timer: Timer::default() })
            .machine
    }

    /// Nodes with a machine.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (u32, &R::Node)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter_map(|(node, s)| Some((node as u32, &s.as_ref()?.machine)))
    }

    pub(super) fn nodes_mut(&mut self) -> impl Iterator<Item = &mut R::Node> {
        self.nodes.iter_mut().flatten().map(|state| &mut state.machine)
    }

    /// A worker's machine, if the job still runs.
    pub(super) fn worker(&self, worker: u32) -> Option<&R::Worker> {
        Some(&self.workers[worker as usize].as_ref()?.machine)
    }

    /// Adds the workers of a job, by rank; returns the number of the first.
    pub(super) fn add_workers(
        &mut self,
        net: &Network,
        job: u32,
        placement: &[u32],
        up: Vec<Vec<u32>>,
        machine: impl Fn(u32) -> R::Worker,
    ) -> u32 {
        let first = self.workers.len() as u32;
        let ranks = placement.len() as u32;
        for ((rank, &host), up) in (0..).zip(placement).zip(up) {
            let uplink = net.uplink(host);
            let machine = machine(rank);
            let timer = Timer::default();
            let state = WorkerState { machine, job, rank, ranks, uplink, up, timer };
            self.workers.push(Some(state));
        }
        first
    }

    /// Checks that no node holds more than its memory. Panics if one does.
    pub(super) fn audit(&self) {
        for (node, machine) in self.nodes() {
            let (used, most) = R::memory(machine);
            assert!(used <= most, "node {node} holds {used} of {most}");
        }
    }

    /// Two paths along nodes, there and back.
    pub(super) fn add_paths(&mut self, net: &mut Network, way: &[NodeId]) -> (u32, u32) {
        let graph = net.topology();
        let links = way.windows(2).map(|w| {
            let edge = graph.edge_between(w[0], w[1]).expect("a tree follows links");
            crate::routes::outgoing(graph, edge.0, w[0])
        });
        let links: Vec<u32> = links.collect();
        self.add_way(net, &links)
    }

    /// Two paths along links, there and back.
    pub(super) fn add_way(&mut self, net: &mut Network, rising: &[u32]) -> (u32, u32) {
        let falling: Vec<u32> = rising.iter().rev().map(|link| link ^ 1).collect();
        let paths = (net.add_path(rising), net.add_path(&falling));
        self.ends.resize(paths.1 as usize + 1, End::Nowhere);
        paths
    }

    fn take_result(&mut self, net: &Network, worker: u32, packet: &Packet) {
        let Some(state) = &mut self.workers[worker as usize] else { return };
        let (header, payload) = &self.in_flight[packet.seq as usize];
        let accepted = R::accept(&mut state.machine, now(net), packet.ce(), header);
        let Some((id, start)) = accepted else { return };
        if let Some(contributions) = R::Payload::contributions(payload) {
            let missing = R::missing(header);
            // A bit stands for one rank only where there are no more than 64.
            let right = match state.ranks <= 64 {
                true => contributions == state.ranks - missing.min(state.ranks),
                false => contributions == state.ranks || missing > 0 && contributions < state.ranks,
            };
            if !right {
                let what = format!(
                    "a result of {} ranks holds {contributions} contributions and lacks {missing}",
                    state.ranks
                );
                self.violations.push(Violation { at_ps: net.now_ps(), job: state.job, what });
            }
        }
        if let Some(inspector) = &mut self.inspector {
            inspector(state.job, state.rank, id, start, payload);
        }
    }

    pub(super) fn pump_worker(&mut self, net: &mut Network, worker: u32) {
        let Some(state) = &mut self.workers[worker as usize] else { return };
        let now = now(net);
        while let Some((tree, header, payload)) =
            R::poll_worker(&mut state.machine, now, state.rank)
        {
            let path = state.up[usize::from(tree)];
            let packet = keep::<R>(&mut self.in_flight, &mut self.unused, path, header, payload);
            net.send(state.uplink, packet);
        }
        while let Some(event) = R::event(&mut state.machine) {
            match event {
                WorkerEvent::Done(id) => {
                    self.done.push(Done { job: state.job, rank: state.rank, id });
                }
                WorkerEvent::Mismatch(id) => self.violations.push(Violation {
                    at_ps: net.now_ps(),
                    job: state.job,
                    what: format!("the workers disagree on operation {id}"),
                }),
                WorkerEvent::Silent => {}
            }
        }
        if let Some(Time(at_ns)) = R::timeout(&state.machine) {
            state.timer.set(net, at_ns * 1000, key::<R>(WORKER, worker));
        }
    }

    pub(super) fn pump_node(&mut self, net: &mut Network, node: u32) {
        let Some(state) = &mut self.nodes[node as usize] else { return };
        while let Some((to, header, payload)) = R::poll_node(&mut state.machine) {
            let packet = keep::<R>(&mut self.in_flight, &mut self.unused, to.0, header, payload);
            let link = net.path_start(to.0);
            net.send(link, packet);
        }
        R::flushed(&mut state.machine);
        if let Some(Time(at_ns)) = R::node_timeout(&state.machine) {
            state.timer.set(net, at_ns * 1000, key::<R>(NODE, node));
        }
    }
}

/// The nodes from a rank's host to the root.
pub(super) fn way_to_root(tree: &AggregationTree, rank: u32, host: u32) -> Vec<NodeId> {
    let mut way = vec![NodeId(host)];
    let mut at =
        tree.nodes.iter().find(|node| node.children.contains(&netsum_topo::Child::Rank(rank)));
    while let Some(node) = at {
        way.push(node.switch);
        let Some(parent) = &node.parent else { break };
        way.extend(&parent.via);
        at = tree.node(parent.switch);
    }
    way
}

fn key<R: Protocol>(class: u64, number: u32) -> u64 {
    class | u64::from(R::NUMBER) << 48 | u64::from(number)
}

/// Puts a packet where it waits while it travels; `path` is its path, and its port at the sender.
#[inline]
fn keep<R: Protocol>(
    in_flight: &mut Vec<(R::Header, Owned<R>)>,
    unused: &mut Vec<u32>,
    path: u32,
    header: R::Header,
    payload: Owned<R>,
) -> Packet {
    let handle = match unused.pop() {
        Some(handle) => {
            in_flight[handle as usize] = (header, payload);
            handle
        }
        None => {
            in_flight.push((header, payload));
            in_flight.len() as u32 - 1
        }
    };
    Packet { dst: R::NUMBER, ..Packet::new(Kind::Tree, path, handle, R::wire_bytes(&header)) }
}

pub(super) fn now(net: &Network) -> Time {
    Time(net.now_ps() / 1000)
}
