//! All nodes and workers of one protocol on the simulated network.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use netsum_proto::handover::resolve;
use netsum_proto::operations::{Fragments, Submission};
use netsum_proto::panama::visit_header;
use netsum_proto::{
    AcceptedResult, Aggregator, Event, OutgoingPacket, PortId, Time, WorkerMachine,
};
use netsum_topo::{AggregationTree, Child, NodeId};
use netsum_wire::{Epoch, JobId, PacketHeader, TreeId};

use super::panama::{Panama, UDP_BYTES};
use super::payload::Payload;
use super::protocol::{Header, Owned, Protocol};
use super::{Done, NODE, Operation, ROOM, Violation, WORKER, begin_order};
use crate::capture::{Capture, Place, SERVER_PORT, SWITCH_PORT, worker_port};
use crate::network::{Network, Region};
use crate::packet::{Kind, Packet};
use crate::timer::Timer;
use crate::visit::Visitor;

/// Callback for every accepted result: job, rank, operation, first element, payload.
pub type Inspector<T> = Box<dyn FnMut(u32, u32, u64, u64, &T) + Send>;

/// A capture to which the machines of all protocols write.
pub type SharedCapture = Arc<Mutex<Capture>>;

pub(super) struct WorkerState<R: Protocol> {
    pub machine: R::Worker,
    pub job: u32,
    pub rank: u32,
    pub ranks: u32,
    /// The first tree that copies what one rank sends, if there are any.
    pub copied: Option<u8>,
    pub uplink: u32,
    /// Path to the node above, by tree.
    pub up: Vec<u32>,
    pub timer: Timer,
}

struct NodeState<R: Protocol> {
    machine: R::Node,
    timer: Timer,
}

/// The end of a path, and the machine there.
#[derive(Clone, Copy)]
pub(super) enum End {
    Node { node: u32, from: PortId },
    Worker(u32),
    Nowhere,
}

/// Ports of a tree's node: the path to each neighbour is the port by which the node knows it.
#[derive(Default)]
pub(super) struct Ports(HashMap<(TreeId, NodeId, Child), PortId>);

impl Ports {
    pub(super) fn set(&mut self, tree: TreeId, node: NodeId, neighbour: Child, port: PortId) {
        self.0.insert((tree, node, neighbour), port);
    }

    /// The port of a neighbour that has a path.
    pub(super) fn at(&self, tree: TreeId, node: NodeId, neighbour: Child) -> PortId {
        self.0[&(tree, node, neighbour)]
    }
}

/// A worker's configuration.
type Config<R> = <<R as Protocol>::Worker as WorkerMachine>::Config;

/// A packet's header and payload. On links, packets carry a handle to it.
pub(super) type Parcel<R> = (Header<R>, Owned<R>);

/// The machines of one protocol.
pub struct Machines<R: Protocol> {
    /// By region of the network; workers are on hosts and therefore in the first region.
    pub(super) residents: Vec<Residents<R>>,
    /// Region of each node.
    region_of: Arc<[u8]>,
}

/// The machines of one protocol in one region, aligned so that regions share no cache line.
#[repr(align(128))]
pub(crate) struct Residents<R: Protocol> {
    /// By node of the network; `None` for nodes that have never had a lease.
    nodes: Vec<Option<NodeState<R>>>,
    pub(super) workers: Vec<Option<WorkerState<R>>>,
    ends: Vec<End>,
    in_flight: Vec<Parcel<R>>,
    unused: Vec<u32>,
    pub(super) done: Vec<Done>,
    violations: Vec<Violation>,
    inspector: Option<Inspector<Owned<R>>>,
    /// Whether the first worker of a job has come to another round since this was last asked.
    round: bool,
    capture: Option<SharedCapture>,
}

impl<R: Protocol> Machines<R> {
    pub(super) fn new(region_of: &Arc<[u8]>) -> Self {
        let regions = region_of.iter().max().map_or(1, |&last| usize::from(last) + 1);
        let new = || Residents::new(region_of.len());
        Machines {
            residents: std::iter::repeat_with(new).take(regions).collect(),
            region_of: Arc::clone(region_of),
        }
    }

    /// Shows every accepted result to `inspector`.
    pub fn inspect(&mut self, inspector: Inspector<Owned<R>>) {
        self.on_hosts().inspector = Some(inspector);
    }

    /// Records every packet that arrives at a machine.
    pub(super) fn capture(&mut self, capture: &SharedCapture) {
        self.residents.iter_mut().for_each(|each| each.capture = Some(Arc::clone(capture)));
    }

    /// The machines of the region that contains the hosts: its workers.
    pub(super) fn on_hosts(&mut self) -> &mut Residents<R> {
        &mut self.residents[0]
    }

    /// A node fails: its leases and sums are lost.
    pub(super) fn kill(&mut self, node: u32) {
        self.at(node).nodes[node as usize] = None;
    }

    /// The machine of a node; `new` creates it at the first lease.
    pub(super) fn node(&mut self, node: u32, new: impl FnOnce() -> R::Node) -> &mut R::Node {
        let state = &mut self.at(node).nodes[node as usize];
        &mut state
            .get_or_insert_with(|| NodeState { machine: new(), timer: Timer::default() })
            .machine
    }

    /// Nodes that have a machine, by number.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (u32, &R::Node)> {
        let at = |(node, &region): (usize, &u8)| {
            let state = self.residents[usize::from(region)].nodes[node].as_ref()?;
            Some((node as u32, &state.machine))
        };
        self.region_of.iter().enumerate().filter_map(at)
    }

    /// What is at the end of a path, if it is a switch or a running worker: its node, or its rank.
    pub(super) fn end_of(&self, path: u32) -> Option<Child> {
        let mut ends = self.residents.iter().filter_map(|r| r.ends.get(path as usize));
        ends.find_map(|end| match *end {
            End::Node { node, .. } => Some(Child::Switch(NodeId(node))),
            End::Worker(worker) => {
                let state = self.residents[0].workers[worker as usize].as_ref()?;
                Some(Child::Rank(state.rank))
            }
            End::Nowhere => None,
        })
    }

    pub(super) fn nodes_mut(&mut self) -> impl Iterator<Item = &mut R::Node> {
        self.residents.iter_mut().flat_map(Residents::nodes_mut)
    }

    /// A worker's machine, if the job still runs.
    pub(super) fn worker(&self, worker: u32) -> Option<&R::Worker> {
        Some(&self.residents[0].workers[worker as usize].as_ref()?.machine)
    }

    /// Whether no job has used the protocol yet.
    pub(super) fn is_unused(&self) -> bool {
        self.residents[0].workers.is_empty()
    }

    /// Number of the next worker.
    pub(super) fn next_worker(&self) -> u32 {
        self.residents[0].workers.len() as u32
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
        let first = self.next_worker();
        let ranks = placement.len() as u32;
        for ((rank, &host), up) in (0..).zip(placement).zip(up) {
            let uplink = net.uplink(host);
            let machine = machine(rank);
            let timer = Timer::default();
            let copied = R::copied(&machine);
            let state = WorkerState { machine, job, rank, ranks, copied, uplink, up, timer };
            self.on_hosts().workers.push(Some(state));
        }
        first
    }

    /// Machines of the running workers among `ranks` workers, beginning with number `first`.
    pub(super) fn running(&self, first: u32, ranks: usize) -> impl Iterator<Item = &R::Worker> {
        (first..first + ranks as u32).filter_map(|worker| self.worker(worker))
    }

    /// Gives each running worker a machine of the next epoch, created by `machine` for a rank from the last plan, and the
    /// paths `up` of its trees. Results that all workers have are not summed again, as after a hand-over; results that
    /// only some workers have, a window at most, count as handed over at once.
    pub(super) fn replace_workers(
        &mut self,
        net: &mut Network,
        first: u32,
        up: Vec<Vec<u32>>,
        machine: impl Fn(usize, &Config<R>) -> R::Worker,
    ) {
        let progress: Vec<_> =
            self.running(first, up.len()).map(|worker| worker.progress()).collect();
        let finished = resolve(&progress).finished;
        let workers = first..first + up.len() as u32;
        let hosts = self.on_hosts();
        for (rank, (worker, up)) in workers.clone().zip(up).enumerate() {
            let Some(state) = &mut hosts.workers[worker as usize] else { continue };
            let new = machine(rank, state.machine.config());
            let open: Vec<u64> = state.machine.outstanding().map(|s| s.id).collect();
            let rest = std::mem::replace(&mut state.machine, new).remaining(&finished);
            let complete = open.into_iter().filter(|id| rest.iter().all(|s| s.id != *id));
            let (job, rank) = (state.job, state.rank);
            hosts.done.extend(complete.map(|id| Done { job, rank, id }));
            rest.into_iter().for_each(|submission| state.machine.submit(submission));
            state.up = up;
        }
        workers.for_each(|worker| hosts.pump_worker(&mut net.regions[0], worker));
    }

    /// Violations of the protocol, by time.
    pub(super) fn violations(&self) -> Vec<Violation> {
        let all = self.residents.iter().flat_map(|residents| &residents.violations);
        let mut all: Vec<Violation> = all.cloned().collect();
        all.sort_by(|a, b| a.at_ps.cmp(&b.at_ps).then_with(|| a.what.cmp(&b.what)));
        all
    }

    /// Checks that no node uses more than its memory. Panics otherwise.
    pub(super) fn audit(&self) {
        self.residents.iter().for_each(Residents::audit);
    }

    /// Adds two paths along nodes, one per direction.
    pub(super) fn add_paths(&mut self, net: &mut Network, way: &[NodeId]) -> (u32, u32) {
        let graph = net.topology();
        let links = way.windows(2).map(|w| {
            let edge = graph.edge_between(w[0], w[1]).expect("a tree follows links");
            crate::routes::outgoing(graph, edge.0, w[0])
        });
        let links: Vec<u32> = links.collect();
        self.add_way(net, &links)
    }

    /// Adds two paths along links, one per direction.
    pub(super) fn add_way(&mut self, net: &mut Network, rising: &[u32]) -> (u32, u32) {
        let falling: Vec<u32> = rising.iter().rev().map(|link| link ^ 1).collect();
        let paths = (net.add_path(rising), net.add_path(&falling));
        for residents in &mut self.residents {
            residents.ends.resize(paths.1 as usize + 1, End::Nowhere);
        }
        paths
    }

    /// Sets the end of a path.
    pub(super) fn set_end(&mut self, path: u32, end: End) {
        self.residents.iter_mut().for_each(|residents| residents.ends[path as usize] = end);
    }

    fn at(&mut self, node: u32) -> &mut Residents<R> {
        &mut self.residents[usize::from(self.region_of[node as usize])]
    }
}

impl<P: Payload> Residents<Panama<P>> {
    /// Visits the state of the machines, and of the contents of packets.
    pub(super) fn visit(&mut self, v: &mut impl Visitor) {
        let Residents {
            nodes,
            workers,
            // They change with the workers and the leases.
            ends: _,
            in_flight,
            // Handles are of no consequence.
            unused: _,
            done,
            violations,
            // With them nothing is compared.
            inspector: _,
            capture: _,
            round: _,
        } = self;
        v.both(done.len() as u32, violations.len() as u32);
        v.both(nodes.len() as u32, workers.len() as u32);
        for (number, state) in nodes.iter_mut().enumerate() {
            let Some(NodeState { machine, timer }) = state else { continue };
            v.same(number as u64);
            machine.visit(v, |v, memory, buffer| memory.visit_stored(buffer, v));
            timer.visit(v);
        }
        for (number, state) in workers.iter_mut().enumerate() {
            let Some(WorkerState {
                machine,
                job: _,
                rank: _,
                ranks: _,
                copied: _,
                uplink: _,
                up: _,
                timer,
            }) = state
            else {
                continue;
            };
            v.same(number as u64);
            machine.visit(v);
            timer.visit(v);
        }
        for handle in v.contents() {
            let (header, payload) = &mut in_flight[handle as usize];
            visit_header(header, v);
            P::visit_owned(payload, v);
        }
    }
}

impl<R: Protocol> Residents<R> {
    fn new(nodes: usize) -> Self {
        Residents {
            nodes: std::iter::repeat_with(|| None).take(nodes).collect(),
            workers: Vec::new(),
            ends: Vec::new(),
            in_flight: Vec::new(),
            unused: Vec::new(),
            done: Vec::new(),
            violations: Vec::new(),
            inspector: None,
            round: false,
            capture: None,
        }
    }

    /// Submits an operation at a worker.
    pub(super) fn submit(&mut self, net: &mut Region, worker: u32, what: Operation) {
        let Some(state) = &mut self.workers[worker as usize] else { return };
        let Operation { id, bytes, pattern } = what;
        let (numel, fingerprint) = (bytes.div_ceil(4).max(1), id as u32);
        let (format, fragments) = (R::FORMAT, Fragments::All);
        state.machine.submit(Submission { id, format, numel, fingerprint, fragments, pattern });
        self.pump_worker(net, worker);
    }

    /// Whether the first worker of a job has come to another round since the last call.
    #[inline]
    pub(super) fn take_round(&mut self) -> bool {
        std::mem::take(&mut self.round)
    }

    /// Whether every result or every packet is shown to somebody.
    pub(super) fn is_watched(&self) -> bool {
        self.inspector.is_some() || self.capture.is_some()
    }

    /// Handles a packet that has reached the end of its path.
    #[inline]
    pub(super) fn on_packet(&mut self, net: &mut Region, packet: &Packet) {
        if let Some(capture) = &self.capture {
            self.record(net, packet, capture);
        }
        match self.ends[packet.flow as usize] {
            End::Node { node, from } => {
                self.unused.push(packet.seq);
                if let Some(state) = &mut self.nodes[node as usize] {
                    let (header, payload) = &self.in_flight[packet.seq as usize];
                    R::handle(&mut state.machine, net.now(), from, packet.ce(), header, payload);
                    self.pump_node(net, node);
                }
            }
            End::Worker(worker) => {
                if self.take_result(net, worker, packet) {
                    let [_, (host, _)] = net.path_ends(packet.flow);
                    begin_order(net, host);
                    self.round = true;
                }
                self.unused.push(packet.seq);
                self.pump_worker(net, worker);
            }
            End::Nowhere => self.unused.push(packet.seq),
        }
    }

    #[cold]
    fn record(&self, net: &Region, packet: &Packet, capture: &SharedCapture) {
        let place = |end: End, (node, is_host): (u32, bool)| {
            let port = match end {
                End::Worker(worker) => worker_port(worker),
                _ if is_host => SERVER_PORT,
                _ => SWITCH_PORT,
            };
            Place { node, port }
        };
        let [from, to] = net.path_ends(packet.flow);
        // Paths are added in pairs (`add_way`): the end of the way back is where the packet comes from.
        let [back, on] = [packet.flow ^ 1, packet.flow].map(|path| self.ends[path as usize]);
        let (header, _) = &self.in_flight[packet.seq as usize];
        let mut content = vec![0; Header::<R>::LEN];
        header.write(&mut content);
        let len = content.len() + header.payload_len();
        let mut capture = capture.lock().unwrap_or_else(PoisonError::into_inner);
        capture.packet(
            net.now_ps(),
            [place(back, from), place(on, to)],
            packet.ce(),
            &content,
            len,
        );
    }

    /// Frees the content of a packet that the network lost.
    pub(super) fn forget(&mut self, handle: u32) {
        self.unused.push(handle);
    }

    /// Removes a packet's content, which continues in another region, and frees its handle.
    #[inline]
    pub(super) fn give(&mut self, handle: u32) -> Parcel<R> {
        self.unused.push(handle);
        self.in_flight[handle as usize].clone()
    }

    /// Stores a packet's content while the packet travels; returns its handle.
    #[inline]
    pub(super) fn keep(&mut self, parcel: Parcel<R>) -> u32 {
        keep::<R>(&mut self.in_flight, &mut self.unused, parcel)
    }

    pub(super) fn on_worker_timer(&mut self, net: &mut Region, worker: u32) {
        let Some(state) = &mut self.workers[worker as usize] else { return };
        state.timer.ring(net.now_ps());
        let now = net.now();
        if state.machine.poll_timeout().is_some_and(|at| at <= now) {
            state.machine.handle_timeout(now);
        }
        self.pump_worker(net, worker);
    }

    pub(super) fn on_node_timer(&mut self, net: &mut Region, node: u32) {
        let Some(state) = &mut self.nodes[node as usize] else { return };
        state.timer.ring(net.now_ps());
        let now = net.now();
        if state.machine.poll_timeout().is_some_and(|at| at <= now) {
            state.machine.handle_timeout(now);
        }
        self.pump_node(net, node);
    }

    /// Removes the workers of a completed job.
    pub(super) fn remove_workers(&mut self, job: u32) {
        for worker in &mut self.workers {
            worker.take_if(|w| w.job == job);
        }
    }

    /// Revokes a job's leases. Nodes without leases must have freed all their memory.
    pub(super) fn revoke(&mut self, at_ps: u64, job: u32) {
        for (node, state) in self.nodes.iter_mut().enumerate() {
            let Some(NodeState { machine, .. }) = state else { continue };
            machine.revoke(JobId(job), LAST_EPOCH);
            machine.flushed();
            let (used, _) = R::memory(machine);
            if machine.lease_keys().next().is_none() && used > 0 {
                let what = format!("node {node} keeps {used} of its memory, but has no job");
                self.violations.push(Violation { at_ps, job, what });
            }
        }
    }

    fn nodes_mut(&mut self) -> impl Iterator<Item = &mut R::Node> {
        self.nodes.iter_mut().flatten().map(|state| &mut state.machine)
    }

    /// Checks that no node uses more than its memory. Panics otherwise.
    pub(super) fn audit(&self) {
        for (node, state) in self.nodes.iter().enumerate() {
            let Some(NodeState { machine, .. }) = state else { continue };
            let (used, most) = R::memory(machine);
            assert!(used <= most, "node {node} holds {used} of {most}");
        }
    }

    /// Handles a result; true if it begins another round of the job.
    fn take_result(&mut self, net: &Region, worker: u32, packet: &Packet) -> bool {
        let Some(state) = &mut self.workers[worker as usize] else { return false };
        let (header, payload) = &self.in_flight[packet.seq as usize];
        let accepted = state.machine.handle(net.now(), packet.ce(), header);
        // Simulated workers have no buffers in which to keep what others take.
        while state.machine.poll_settled().is_some() {}
        let Ok(Some(accepted)) = accepted else { return false };
        let (id, Some(elements)) = (accepted.id(), accepted.elements()) else { return false };
        if let Some(contributions) = R::Payload::contributions(payload) {
            let missing = header.missing().count_ones();
            let is_copy = state.copied.is_some_and(|first| header.tree().0 >= first);
            let ranks = if is_copy { 1 } else { state.ranks };
            // Bits are ranks modulo 64: they identify ranks only in jobs of at most 64.
            let right = match ranks <= 64 {
                true => contributions == ranks - missing.min(ranks),
                false => contributions == ranks || missing > 0 && contributions < ranks,
            };
            if !right {
                let what = format!(
                    "a result of {ranks} ranks holds {contributions} contributions and lacks {missing}"
                );
                self.violations.push(Violation { at_ps: net.now_ps(), job: state.job, what });
            }
        }
        if let Some(inspector) = &mut self.inspector {
            inspector(state.job, state.rank, id, elements.start, payload);
        }
        state.rank == 0 && R::begins_round(&state.machine, header, elements.start)
    }

    /// Sends what a worker's windows and its small queue allow. The rest stays in the machine, which chooses among its
    /// trees for every packet.
    pub(super) fn pump_worker(&mut self, net: &mut Region, worker: u32) {
        let Some(state) = &mut self.workers[worker as usize] else { return };
        let now = net.now();
        while net.poll_room(state.uplink, (R::NUMBER, worker), key::<R>(ROOM, worker))
            && let Some(outgoing) = state.machine.poll_transmit(now)
        {
            let header = *outgoing.header();
            let payload = match outgoing.operation().zip(outgoing.elements()) {
                Some((id, elements)) => {
                    let count = elements.end - elements.start;
                    R::Payload::contribution(state.rank, id, elements.start, count)
                }
                None => R::Payload::nothing(),
            };
            let path = state.up[usize::from(header.tree().0)];
            let parcel = (header, payload);
            let handle = keep::<R>(&mut self.in_flight, &mut self.unused, parcel);
            net.send(state.uplink, packet::<R>(path, worker, handle, &header));
        }
        while let Some(event) = state.machine.poll_event() {
            match event {
                Event::Done { id, .. } => {
                    self.done.push(Done { job: state.job, rank: state.rank, id });
                }
                Event::Mismatch { id, .. } => self.violations.push(Violation {
                    at_ps: net.now_ps(),
                    job: state.job,
                    what: format!("the workers disagree on operation {id}"),
                }),
                Event::Refused { .. } | Event::Silent { .. } => {}
            }
        }
        if let Some(Time(at_ns)) = state.machine.poll_timeout() {
            state.timer.set(net, at_ns * 1000, key::<R>(WORKER, worker));
        }
    }

    pub(super) fn pump_node(&mut self, net: &mut Region, node: u32) {
        let Some(state) = &mut self.nodes[node as usize] else { return };
        while let Some((to, header, payload)) = R::poll_node(&mut state.machine) {
            let parcel = (header, payload);
            let handle = keep::<R>(&mut self.in_flight, &mut self.unused, parcel);
            net.send(net.path_start(to.0), packet::<R>(to.0, SERVER, handle, &header));
        }
        state.machine.flushed();
        if let Some(Time(at_ns)) = state.machine.poll_timeout() {
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

/// Stores the content of a packet while the packet travels.
#[inline]
fn keep<R: Protocol>(
    in_flight: &mut Vec<Parcel<R>>,
    unused: &mut Vec<u32>,
    parcel: Parcel<R>,
) -> u32 {
    match unused.pop() {
        Some(handle) => {
            in_flight[handle as usize] = parcel;
            handle
        }
        None => {
            in_flight.push(parcel);
            in_flight.len() as u32 - 1
        }
    }
}

/// The packet that represents the content on links; `path` is its path, and its port at the sender.
#[inline]
fn packet<R: Protocol>(path: u32, socket: u32, handle: u32, header: &Header<R>) -> Packet {
    let bytes = UDP_BYTES + (Header::<R>::LEN + header.payload_len()) as u16;
    Packet { aux: socket, ..Packet::new(Kind::Tree, path, handle, bytes) }.to(R::NUMBER.into())
}

/// The socket of a host's server; workers are numbered from 0.
const SERVER: u32 = u32::MAX;
/// An epoch that no job reaches.
const LAST_EPOCH: Epoch = Epoch(u16::MAX / 2);
