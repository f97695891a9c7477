//! What the simulator must know of a protocol beyond what `proto`'s traits say: how its packets travel.

use netsum_proto::{Aggregator, PortId, Time, WorkerMachine};
use netsum_wire::Format;

use super::payload::Payload;

/// What travels behind a header.
pub type Owned<R> = <<R as Protocol>::Payload as Payload>::Owned;

/// Header of a protocol's packets.
pub type Header<R> = <<R as Protocol>::Node as Aggregator>::Header;

/// One of `proto`'s protocols: nodes that add (switches, servers), workers that contribute, packets between them.
pub trait Protocol: Sized {
    /// What packets carry.
    type Payload: Payload;
    /// Machine of a switch or a server.
    type Node: Aggregator + Send;
    /// Machine of a worker.
    type Worker: WorkerMachine<Header = Header<Self>> + Send;

    /// Stands in packets and timers, so that each comes to the machines of its protocol.
    const NUMBER: u16;

    /// What workers sum.
    const FORMAT: Format;

    /// A node takes a packet from a neighbour; what it drops it counts.
    fn handle(
        node: &mut Self::Node,
        now: Time,
        from: PortId,
        ce: bool,
        header: &Header<Self>,
        payload: &Owned<Self>,
    );

    /// A node's next packet, and the neighbour that it is for.
    fn poll_node(node: &mut Self::Node) -> Option<(PortId, Header<Self>, Owned<Self>)>;

    /// Memory that a node uses, and the most that it may; pools are taken as a whole, by leases.
    fn memory(_: &Self::Node) -> (u64, u64) {
        (0, 0)
    }
}
