//! UDP with few system calls: batches of datagrams, each a train of packets that the kernel or the network card
//! segments and coalesces (`UDP_SEGMENT`, `UDP_GRO`).
//!
//! This makes a user-space switch possible on one core: for the network stack a packet costs about as much as a train.
//! If a kernel or a device does not support it, the same calls move single packets.

mod address;
mod backlog;
mod group;
mod recv;
mod send;
mod socket;
mod thin;
mod wake;

pub use recv::{BatchSpan, Message, RecvBatch};
pub use send::{SendBatch, SendFailures, Sent};
pub use socket::{Socket, SocketOptions, SocketReport};
pub use thin::ThinnedSender;
pub use wake::Wake;

use std::ops::AddAssign;

/// Bytes of IPv4 and UDP headers.
const IP_UDP_BYTES: u64 = 28;

/// Packets and their bytes, IP and UDP headers included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Bytes on the wire, without the link's own framing.
    pub bytes: u64,
}

impl Traffic {
    /// Adds packets whose UDP payloads are `bytes` together.
    #[inline]
    pub fn count(&mut self, packets: u64, bytes: u64) {
        self.packets += packets;
        self.bytes += bytes + packets * IP_UDP_BYTES;
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

impl From<Sent> for Traffic {
    fn from(sent: Sent) -> Traffic {
        let mut traffic = Traffic::default();
        traffic.count(sent.packets, sent.bytes);
        traffic
    }
}
