//! Protocol `panama` as the simulator drives it.

use std::marker::PhantomData;

use netsum_proto::panama::{Switch, Transmit, TreeCounters, TreeStats, Worker};
use netsum_proto::{Aggregator, CongestionRule, DropCounters, PortId, Time, WorkerMachine};
use netsum_wire::panama::{HEADER_LEN, Header};
use netsum_wire::{Format, JobId};

use super::machines::Machines;
use super::payload::Payload;
use super::protocol::Protocol;

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

/// On the wire before the header of a protocol: what TCP's segments have in [`crate::tcp::TcpConfig`] below IP (2),
/// then IPv4 and UDP.
pub(super) const UDP_BYTES: u16 = 2 + 20 + 8;

/// On the wire before the payload.
pub const OVERHEAD_BYTES: u16 = UDP_BYTES + HEADER_LEN as u16;

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
        // A drop has a reason, which the machine counts.
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

    fn memory(node: &Switch<P>) -> (u64, u64) {
        (node.memory().used(), node.memory().limit())
    }
}

impl<P: Payload> Machines<Panama<P>> {
    /// What happened at each switch, by node, job and tree.
    pub fn counters(&self) -> impl Iterator<Item = (u32, JobId, u8, &TreeCounters)> {
        self.nodes().flat_map(|(node, switch)| {
            switch.tree_counters().map(move |(job, tree, c)| (node, job, tree.0, c))
        })
    }

    /// A worker's trees.
    pub fn stats(&self, worker: u32) -> Vec<TreeStats> {
        self.worker(worker).map_or(Vec::new(), |worker| worker.tree_stats().collect())
    }

    /// Packets that switches did not take, by node, and why.
    pub fn drops(&self) -> impl Iterator<Item = (u32, &DropCounters)> {
        self.nodes().map(|(node, switch)| (node, switch.drops()))
    }
}
