//! What the simulator needs of a protocol beyond `proto`'s traits: how its packets travel.

use netsum_proto::{Aggregator, PortId, Time, WorkerMachine};
use netsum_wire::Format;

use super::payload::Payload;

/// Payload of a protocol's packets in transit.
pub type Owned<R> = <<R as Protocol>::Payload as Payload>::Owned;

/// Header of a protocol's packets.
pub type Header<R> = <<R as Protocol>::Node as Aggregator>::Header;

/// A protocol of `proto`: nodes that add (switches, servers), workers that contribute, and the packets between them.
pub trait Protocol: Sized {
    /// Payload of packets.
    type Payload: Payload;
    /// Machine of a switch or a server.
    type Node: Aggregator + Send;
    /// Machine of a worker.
    type Worker: WorkerMachine<Header = Header<Self>> + Send;

    /// Number of the protocol in packets and timer keys.
    const NUMBER: u16;

    /// Format of the elements.
    const FORMAT: Format;

    /// Passes a packet from a neighbour to a node, which counts drops.
    fn handle(
        node: &mut Self::Node,
        now: Time,
        from: PortId,
        ce: bool,
        header: &Header<Self>,
        payload: &Owned<Self>,
    );

    /// A node's next packet, and the neighbour it goes to.
    fn poll_node(node: &mut Self::Node) -> Option<(PortId, Header<Self>, Owned<Self>)>;

    /// Whether a result begins another round of its job, for the first worker of the job: states at the beginnings of
    /// rounds may be the same. `first`: the first element of the result within its operation.
    fn begins_round(_worker: &Self::Worker, _: &Header<Self>, _first: u64) -> bool {
        false
    }

    /// The first of a worker's trees that copy what one rank sends.
    fn copied(_: &Self::Worker) -> Option<u8> {
        None
    }

    /// Bytes that a node uses, and its limit. A lease reserves a pool as a whole.
    fn memory(_: &Self::Node) -> (u64, u64) {
        (0, 0)
    }
}
