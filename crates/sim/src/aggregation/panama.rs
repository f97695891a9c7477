//! Protocol `panama` as the simulator drives it.

use std::marker::PhantomData;

use netsum_proto::panama::{
    Event, Fragments, Submission, Switch, Transmit, TreeCounters, TreeStats, Worker,
};
use netsum_proto::{CongestionRule, DropCounters, PortId, Time};
use netsum_wire::panama::{HEADER_LEN, Header};
use netsum_wire::{Epoch, JobId};

use super::machines::Machines;
use super::payload::{FORMAT, Payload};
use super::protocol::{Protocol, WorkerEvent};

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
    type Header = Header;
    type Node = Switch<P>;
    type Worker = Worker;

    const NUMBER: u16 = 0;

    #[inline]
    fn wire_bytes(header: &Header) -> u16 {
        OVERHEAD_BYTES + header.payload_len() as u16
    }

    fn missing(header: &Header) -> u32 {
        header.missing.count_ones()
    }

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

    fn flushed(node: &mut Switch<P>) {
        node.flushed();
    }

    fn memory(node: &Switch<P>) -> (u64, u64) {
        (node.memory().used(), node.memory().limit())
    }

    fn leases(node: &Switch<P>) -> usize {
        node.leases().count()
    }

    fn revoke(node: &mut Switch<P>, job: JobId, epoch: Epoch) {
        node.revoke(job, epoch);
    }

    fn submit(worker: &mut Worker, id: u64, numel: u64) {
        let (format, fragments) = (FORMAT, Fragments::All);
        worker.submit(Submission { id, format, numel, fingerprint: id as u32, fragments });
    }

    #[inline]
    fn accept(worker: &mut Worker, now: Time, ce: bool, header: &Header) -> Option<(u64, u64)> {
        let accepted = worker.handle(now, ce, header).ok()??;
        Some((accepted.id, accepted.elements.start))
    }

    #[inline]
    fn poll_worker(worker: &mut Worker, now: Time, rank: u32) -> Option<(u8, Header, P::Owned)> {
        let outgoing = worker.poll_transmit(now)?;
        let payload = match &outgoing.payload {
            Some((id, elements)) => {
                P::contribution(rank, *id, elements.start, elements.end - elements.start)
            }
            None => P::nothing(),
        };
        Some((outgoing.tree.0, outgoing.header, payload))
    }

    fn event(worker: &mut Worker) -> Option<WorkerEvent> {
        Some(match worker.poll_event()? {
            Event::Done { id, .. } => WorkerEvent::Done(id),
            Event::Mismatch { id } => WorkerEvent::Mismatch(id),
            Event::Silent { .. } => WorkerEvent::Silent,
        })
    }

    fn timeout(worker: &Worker) -> Option<Time> {
        worker.poll_timeout()
    }

    fn on_timeout(worker: &mut Worker, now: Time) {
        worker.handle_timeout(now);
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
