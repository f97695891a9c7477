//! Aggregation in switches: `proto`'s worker and switch machines on the simulated network, unchanged.

mod payload;
mod trees;

use netsum_proto::panama::{
    Event, Fragments, LeaseError, Submission, Switch, Transmit, TreeCounters, TreeStats, Worker,
};
use netsum_proto::{CongestionRule, PortId, Time};
use netsum_wire::Epoch;
use netsum_wire::JobId;
use netsum_wire::panama::Header;

use crate::network::Network;
use crate::packet::{Kind, Packet};

pub use payload::{Counts, FORMAT, Payload, value};

/// Timer keys of workers carry this class (bits 56 to 62).
pub(crate) const WORKER: u64 = 5 << 56;

/// How a job's trees are driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeConfig {
    /// The most fragments in flight per tree.
    pub window_max: u16,
    /// Payload of a full fragment.
    pub fragment_bytes: u16,
    /// Answer to marks.
    pub congestion: CongestionRule,
    /// Children, in thousandths, that suffice to release a sum.
    pub release_permille: u16,
}

impl Default for TreeConfig {
    fn default() -> Self {
        TreeConfig {
            window_max: 512,
            fragment_bytes: 1408,
            congestion: CongestionRule::Panama,
            release_permille: 1000,
        }
    }
}

/// On the wire before the payload: what TCP's segments have in [`crate::tcp::TcpConfig`] below IP (2), then IPv4,
/// UDP and the header of the protocol.
pub const OVERHEAD_BYTES: u16 = 2 + 20 + 8 + netsum_wire::panama::HEADER_LEN as u16;

/// An operation is complete at a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Job.
    pub job: u32,
    /// Worker.
    pub rank: u32,
    /// Operation.
    pub id: u64,
}

/// What the protocol did that it must not. The simulator's checks find these; a sound protocol has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When.
    pub at_ps: u64,
    /// Job.
    pub job: u32,
    /// What is wrong.
    pub what: String,
}

/// Result payload that is handed to whoever checks sums: rank, operation, first element, payload.
pub type Inspector<P> = Box<dyn FnMut(u32, u32, u64, u64, &<P as Payload>::Owned) + Send>;

struct WorkerState {
    machine: Worker,
    job: u32,
    rank: u32,
    ranks: u32,
    uplink: u32,
    /// Path to the switch above, by tree.
    up: Vec<u32>,
    timer_is_set: bool,
}

/// Where a path ends, and what is there.
#[derive(Clone, Copy)]
enum End {
    Switch { node: u32, from: PortId },
    Worker(u32),
}

/// All aggregators and workers.
pub struct Aggregation<P: Payload> {
    /// By node of the network; only switches that have had a lease.
    switches: Vec<Option<Switch<P>>>,
    workers: Vec<Option<WorkerState>>,
    ends: Vec<End>,
    in_flight: Vec<(Header, P::Owned)>,
    unused: Vec<u32>,
    memory_bytes: u64,
    /// Operations that were completed.
    pub done: Vec<Done>,
    /// What must not be.
    pub violations: Vec<Violation>,
    inspector: Option<Inspector<P>>,
}

impl<P: Payload> Aggregation<P> {
    /// Nothing yet; each switch that gets a lease has so much memory for sums.
    pub fn new(nodes: usize, memory_bytes: u64) -> Self {
        Aggregation {
            switches: std::iter::repeat_with(|| None).take(nodes).collect(),
            workers: Vec::new(),
            ends: Vec::new(),
            in_flight: Vec::new(),
            unused: Vec::new(),
            memory_bytes,
            done: Vec::new(),
            violations: Vec::new(),
            inspector: None,
        }
    }

    /// Every accepted result is shown to `inspector`: job, rank, operation, first element, payload.
    pub fn inspect(&mut self, inspector: Inspector<P>) {
        self.inspector = Some(inspector);
    }

    /// A worker hands over an allreduce of so many bytes.
    pub fn submit(&mut self, net: &mut Network, worker: u32, id: u64, bytes: u64) {
        let Some(state) = &mut self.workers[worker as usize] else { return };
        state.machine.submit(Submission {
            id,
            format: FORMAT,
            numel: bytes.div_ceil(4).max(1),
            fingerprint: id as u32,
            fragments: Fragments::All,
        });
        self.pump_worker(net, worker);
    }

    /// A `Tree` packet has come to the end of its path.
    #[inline]
    pub fn on_packet(&mut self, net: &mut Network, packet: &Packet) {
        let now = now(net);
        let handle = packet.seq as usize;
        match self.ends[packet.flow as usize] {
            End::Switch { node, from } => {
                self.unused.push(packet.seq);
                if let Some(switch) = &mut self.switches[node as usize] {
                    let (header, payload) = &self.in_flight[handle];
                    // A drop has a reason, which the machine counts.
                    let _ = switch.handle(now, from, packet.ce(), header, P::view(payload));
                    self.pump_switch(net, node);
                }
            }
            End::Worker(worker) => {
                self.take_result(net, worker, packet);
                self.unused.push(packet.seq);
                self.pump_worker(net, worker);
            }
        }
    }

    /// The network lost a `Tree` packet.
    pub fn forget(&mut self, handle: u32) {
        self.unused.push(handle);
    }

    /// A worker's timer.
    pub fn on_timer(&mut self, net: &mut Network, worker: u32) {
        let Some(state) = &mut self.workers[worker as usize] else { return };
        state.timer_is_set = false;
        let now = now(net);
        if state.machine.poll_timeout().is_some_and(|at| at <= now) {
            state.machine.handle_timeout(now);
        }
        self.pump_worker(net, worker);
    }

    /// A switch dies: its leases and sums are gone, until it is leased again.
    pub fn kill_switch(&mut self, node: u32) {
        self.switches[node as usize] = None;
    }

    /// What happened at each switch, by node, job and tree.
    pub fn tree_counters(&self) -> impl Iterator<Item = (u32, JobId, u8, &TreeCounters)> {
        let switches = self.switches.iter().enumerate();
        let switches = switches.filter_map(|(node, s)| Some((node as u32, s.as_ref()?)));
        switches.flat_map(|(node, s)| {
            s.tree_counters().map(move |(job, tree, c)| (node, job, tree.0, c))
        })
    }

    /// A worker's trees.
    pub fn tree_stats(&self, worker: u32) -> Vec<TreeStats> {
        let state = self.workers[worker as usize].as_ref();
        state.map_or(Vec::new(), |s| s.machine.tree_stats().collect())
    }

    /// Packets that switches did not take, by node, and why.
    pub fn drops(&self) -> impl Iterator<Item = (u32, &netsum_proto::DropCounters)> {
        let switches = self.switches.iter().enumerate();
        switches.filter_map(|(node, s)| Some((node as u32, s.as_ref()?.drops())))
    }

    /// Checks that no switch holds more than its memory and every packet is accounted for. Panics if not.
    pub fn audit(&self) {
        for (node, switch) in self.switches.iter().enumerate() {
            let used = switch.as_ref().map_or(0, |s| s.memory().used());
            assert!(used <= self.memory_bytes, "switch {node} holds {used} bytes");
        }
    }

    fn take_result(&mut self, net: &Network, worker: u32, packet: &Packet) {
        let Some(state) = &mut self.workers[worker as usize] else { return };
        let (header, payload) = &self.in_flight[packet.seq as usize];
        let Ok(Some(accepted)) = state.machine.handle(now(net), packet.ce(), header) else {
            return;
        };
        if let Some(contributions) = P::contributions(payload) {
            let missing = header.missing.count_ones();
            // A bit stands for one rank only where there are no more than 64.
            let right = match state.ranks <= 64 {
                true => contributions == state.ranks - missing.min(state.ranks),
                false => contributions == state.ranks || missing > 0 && contributions < state.ranks,
            };
            if !right {
                self.violations.push(Violation {
                    at_ps: net.now_ps(),
                    job: state.job,
                    what: format!(
                        "a result of {} ranks holds {contributions} contributions and lacks {missing}",
                        state.ranks
                    ),
                });
            }
        }
        if let Some(inspector) = &mut self.inspector {
            inspector(state.job, state.rank, accepted.id, accepted.elements.start, payload);
        }
    }

    fn pump_worker(&mut self, net: &mut Network, worker: u32) {
        let Some(state) = &mut self.workers[worker as usize] else { return };
        let now = now(net);
        while let Some(outgoing) = state.machine.poll_transmit(now) {
            let payload = match &outgoing.payload {
                Some((id, elements)) => {
                    P::contribution(state.rank, *id, elements.start, elements.end - elements.start)
                }
                None => P::nothing(),
            };
            let path = state.up[usize::from(outgoing.tree.0)];
            let packet =
                keep::<P>(&mut self.in_flight, &mut self.unused, path, outgoing.header, payload);
            net.send(state.uplink, packet);
        }
        while let Some(event) = state.machine.poll_event() {
            match event {
                Event::Done { id, .. } => {
                    self.done.push(Done { job: state.job, rank: state.rank, id });
                }
                Event::Mismatch { id } => self.violations.push(Violation {
                    at_ps: net.now_ps(),
                    job: state.job,
                    what: format!("the workers disagree on operation {id}"),
                }),
                Event::Silent { .. } => {}
            }
        }
        if !state.timer_is_set
            && let Some(Time(at_ns)) = state.machine.poll_timeout()
        {
            state.timer_is_set = true;
            net.set_timer((at_ns * 1000).max(net.now_ps()), WORKER | u64::from(worker));
        }
    }

    fn pump_switch(&mut self, net: &mut Network, node: u32) {
        let Some(switch) = &mut self.switches[node as usize] else { return };
        while let Some(transmit) = switch.poll_transmit() {
            let (to, (header, payload)) = match transmit {
                Transmit::Data { to, buffer } => (to, switch.memory().copy(buffer)),
                Transmit::Control { to, header } => (to, (header, P::nothing())),
            };
            let packet = keep::<P>(&mut self.in_flight, &mut self.unused, to.0, header, payload);
            let link = net.path_start(to.0);
            net.send(link, packet);
        }
        switch.flushed();
    }
}

/// Puts a packet where it waits while it travels; `path` is its path, and its port at the sender.
#[inline]
fn keep<P: Payload>(
    in_flight: &mut Vec<(Header, P::Owned)>,
    unused: &mut Vec<u32>,
    path: u32,
    header: Header,
    payload: P::Owned,
) -> Packet {
    let bytes = OVERHEAD_BYTES + header.payload_len() as u16;
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
    Packet::new(Kind::Tree, path, handle, bytes)
}

fn now(net: &Network) -> Time {
    Time(net.now_ps() / 1000)
}
