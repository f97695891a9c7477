//! What the simulator must know of a protocol to drive its machines.

use netsum_proto::{PortId, Time};
use netsum_wire::{Epoch, JobId};

use super::payload::Payload;

/// What travels behind a header.
pub type Owned<R> = <<R as Protocol>::Payload as Payload>::Owned;

/// One of `proto`'s protocols: nodes that add (switches, servers), workers that contribute, packets between them.
pub trait Protocol: Sized {
    /// What packets carry.
    type Payload: Payload;
    /// Header of a packet.
    type Header: Copy + Send;
    /// Machine of a switch or a server.
    type Node: Send;
    /// Machine of a worker.
    type Worker: Send;

    /// Stands in packets and timers, so that each comes to the machines of its protocol.
    const NUMBER: u16;

    /// A packet on the wire.
    fn wire_bytes(header: &Self::Header) -> u16;

    /// Contributions that a result lacks, and says so.
    fn missing(_: &Self::Header) -> u32 {
        0
    }

    /// A node takes a packet from a neighbour; what it drops it counts.
    fn handle(
        node: &mut Self::Node,
        now: Time,
        from: PortId,
        ce: bool,
        header: &Self::Header,
        payload: &Owned<Self>,
    );

    /// A node's next packet, and the neighbour that it is for.
    fn poll_node(node: &mut Self::Node) -> Option<(PortId, Self::Header, Owned<Self>)>;

    /// All that a node had to send is sent.
    fn flushed(node: &mut Self::Node);

    /// When `on_node_timeout` must be called.
    fn node_timeout(_: &Self::Node) -> Option<Time> {
        None
    }

    /// A node's deadlines up to `now` have passed.
    fn on_node_timeout(_: &mut Self::Node, _now: Time) {}

    /// Memory that a node uses, and the most that it may; pools are taken as a whole, by leases.
    fn memory(_: &Self::Node) -> (u64, u64) {
        (0, 0)
    }

    /// Jobs that have a lease at a node.
    fn leases(node: &Self::Node) -> usize;

    /// A job's leases at a node end, up to this epoch.
    fn revoke(node: &mut Self::Node, job: JobId, epoch: Epoch);

    /// A worker has an allreduce of so many elements of 4 bytes to do.
    fn submit(worker: &mut Self::Worker, id: u64, numel: u64);

    /// A worker takes a packet; a result that it accepts: operation, and first element.
    fn accept(
        worker: &mut Self::Worker,
        now: Time,
        ce: bool,
        header: &Self::Header,
    ) -> Option<(u64, u64)>;

    /// A worker's next packet, and the tree by which it goes.
    fn poll_worker(
        worker: &mut Self::Worker,
        now: Time,
        rank: u32,
    ) -> Option<(u8, Self::Header, Owned<Self>)>;

    /// What a worker has to say.
    fn event(worker: &mut Self::Worker) -> Option<WorkerEvent>;

    /// When `on_timeout` must be called.
    fn timeout(worker: &Self::Worker) -> Option<Time>;

    /// A worker's deadlines up to `now` have passed.
    fn on_timeout(worker: &mut Self::Worker, now: Time);
}

/// What workers of all protocols say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerEvent {
    /// An operation is complete.
    Done(u64),
    /// The workers do not agree on an operation.
    Mismatch(u64),
    /// No answer for long.
    Silent,
}
