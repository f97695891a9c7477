//! Adapter of protocol `panama` to the simulator.

use std::marker::PhantomData;

use netsum_proto::panama::{Switch, Transmit, TreeCounters, TreeStats, Worker, WorkerConfig};
use netsum_proto::{
    Aggregator, CongestionRule, DropCounters, Lateness, LeaseKey, PortId, Time, WorkerMachine,
};
use netsum_topo::Child;
use netsum_wire::panama::{HEADER_LEN, Header};
use netsum_wire::{Format, JobId};

use super::machines::Machines;
use super::payload::Payload;
use super::protocol::Protocol;
use crate::visit::Visitor;

/// Configuration of a job's trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeConfig {
    /// Maximum number of fragments in flight per tree.
    pub window_max: u16,
    /// Payload of a full fragment.
    pub fragment_bytes: u16,
    /// Reaction to congestion marks.
    pub congestion: CongestionRule,
    /// Share of the children, in thousandths, whose contributions suffice to release a sum.
    pub release_permille: u16,
    /// Whether each tree has a copy, so that the job does all collectives by trees and not allreduces alone.
    pub copies: bool,
}

impl Default for TreeConfig {
    fn default() -> Self {
        TreeConfig {
            window_max: 512,
            fragment_bytes: 1408,
            congestion: CongestionRule::Panama,
            release_permille: 1000,
            copies: false,
        }
    }
}

/// Bytes on the wire before the protocol's header: 2 below IP, as for TCP segments in [`crate::tcp::TcpConfig`], then
/// IPv4 and UDP.
pub(super) const UDP_BYTES: u16 = 2 + 20 + 8;

/// Bytes on the wire before the payload.
pub const OVERHEAD_BYTES: u16 = UDP_BYTES + HEADER_LEN as u16;

/// Fragments of a tree in a round: packets of any whole number of bytes take a whole number of nanoseconds together at
/// 10, 25, 40 and 100 Gbit/s.
const ROUND: u64 = 25;

/// Protocol `panama`.
pub struct Panama<P>(PhantomData<P>);

impl<P: Payload> Protocol for Panama<P> {
    type Payload = P;
    type Node = Switch<P>;
    type Worker = Worker;

    const NUMBER: u16 = 0;

    const FORMAT: Format = super::payload::FORMAT;

    #[inline]
    fn handle(
        node: &mut Switch<P>,
        now: Time,
        from: PortId,
        ce: bool,
        header: &Header,
        payload: &P::Owned,
    ) {
        // The machine counts the reason of a drop.
        let _ = node.handle(now, from, ce, header, P::view(payload));
    }

    #[inline]
    fn poll_node(node: &mut Switch<P>) -> Option<(PortId, Header, P::Owned)> {
        Some(match node.poll_transmit()? {
            Transmit::Data { to, buffer } => {
                let (header, payload) = node.memory().copy(buffer);
                (to, header, payload)
            }
            Transmit::Control { to, header } => (to, header, P::nothing()),
        })
    }

    #[inline]
    fn begins_round(worker: &Worker, header: &Header, first: u64) -> bool {
        let config = worker.config();
        let fragment = first / u64::from(config.fragment_bytes / 4);
        // Counted from the start of the operation, so that rounds begin at the same times in all steps of a training.
        header.tree.0 == 0 && (fragment / u64::from(config.trees)).is_multiple_of(ROUND)
    }

    fn copied(worker: &Worker) -> Option<u8> {
        let config = worker.config();
        config.copies.then_some(config.trees / 2)
    }

    fn memory(node: &Switch<P>) -> (u64, u64) {
        (node.memory().used(), node.memory().limit())
    }
}

impl<P: Payload> Machines<Panama<P>> {
    /// Visits the state of all machines, which are in one region, and of the contents of packets.
    pub(crate) fn visit(&mut self, v: &mut impl Visitor) {
        self.on_hosts().visit(v);
    }

    /// Whether every result or every packet is shown to somebody.
    pub(crate) fn is_watched(&self) -> bool {
        self.residents[0].is_watched()
    }

    /// Number of trees of a worker without copies, and the lowest numbers without a result on the first of them and on
    /// its copy.
    pub(crate) fn origin(&self, worker: u32) -> Option<(u64, [u64; 2])> {
        let worker = self.worker(worker)?;
        let WorkerConfig { trees, copies, .. } = *worker.config();
        let trees = if copies { trees / 2 } else { trees };
        Some((trees.into(), worker.first_open()))
    }

    /// How often the trees of `ranks` workers, beginning with number `first`, can go on by so many fragments within
    /// their operation.
    pub(crate) fn rounds_left(&self, first: u32, ranks: usize, fragments: u64) -> u64 {
        self.running(first, ranks).map(|worker| worker.rounds_left(fragments)).min().unwrap_or(0)
    }

    /// Counters of each switch, by node, job and tree.
    pub fn counters(&self) -> impl Iterator<Item = (u32, JobId, u8, &TreeCounters)> {
        self.nodes().flat_map(|(node, switch)| {
            switch.tree_counters().map(move |(job, tree, c)| (node, job, tree.0, c))
        })
    }

    /// Statistics of a worker's trees.
    pub fn stats(&self, worker: u32) -> Vec<TreeStats> {
        self.worker(worker).map_or(Vec::new(), |worker| worker.tree_stats().collect())
    }

    /// How late each child of each switch is, by node.
    pub fn lateness(&self, now: Time) -> Vec<(u32, LeaseKey, Child, Lateness)> {
        let of = |(node, switch): (u32, &Switch<P>)| {
            let children = switch.lateness(now);
            let named = children.filter_map(move |(key, port, lateness)| {
                Some((node, key, self.end_of(port.0)?, lateness))
            });
            named.collect::<Vec<_>>()
        };
        self.nodes().flat_map(of).collect()
    }

    /// Drop counters of each switch, by node.
    pub fn drops(&self) -> impl Iterator<Item = (u32, &DropCounters)> {
        self.nodes().map(|(node, switch)| (node, switch.drops()))
    }
}
