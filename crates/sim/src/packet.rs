//! Packets: 32 bytes each, two to a cache line.

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A segment of a flow.
    Data = 0,
    /// The acknowledgement of one segment.
    Ack = 1,
    /// A packet of an aggregation protocol, on a path of its own ([`crate::network::Network::add_path`]).
    Tree = 2,
}

/// A packet, or a run of equal packets that wait in a host.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Packet {
    /// When its last bit reaches the far end of its current link; set by the link.
    pub at_ps: u64,
    /// Flow; for `Tree`, the path.
    pub flow: u32,
    /// Segment; for `Ack`, the next expected segment; for `Tree`, free for the sender.
    pub seq: u32,
    /// `Data` in its host: number of segments in the run, from `seq` on; `Ack`: the segment acknowledged.
    pub aux: u32,
    /// The link by which the packet came to its current node.
    pub ingress: u32,
    /// Destination host; for `Tree`, the protocol number.
    pub dst: u16,
    /// Length on the wire.
    pub bytes: u16,
    /// Hash input that selects among paths of equal length; for `Tree`, the socket of the sending host.
    pub entropy: u16,
    pub(crate) flags: u8,
    pub(crate) unused: u8,
}

const KIND: u8 = 3;
const CE: u8 = 4;
const ECE: u8 = 8;

/// No ingress link: the packet was made at this node.
pub const NO_LINK: u32 = u32::MAX;

impl Packet {
    /// A new packet, not marked and on no link.
    pub fn new(kind: Kind, flow: u32, seq: u32, bytes: u16) -> Packet {
        Packet {
            at_ps: 0,
            flow,
            seq,
            aux: 1,
            ingress: NO_LINK,
            dst: 0,
            bytes,
            entropy: 0,
            flags: kind as u8,
            unused: 0,
        }
    }

    /// The packet's kind.
    #[inline]
    pub fn kind(&self) -> Kind {
        match self.flags & KIND {
            0 => Kind::Data,
            1 => Kind::Ack,
            _ => Kind::Tree,
        }
    }

    /// Whether congestion was experienced (CE).
    #[inline]
    pub fn ce(&self) -> bool {
        self.flags & CE != 0
    }

    /// Whether the receiver saw congestion on the acknowledged segment (ECE).
    #[inline]
    pub fn ece(&self) -> bool {
        self.flags & ECE != 0
    }

    /// Sets the CE mark.
    #[inline]
    pub fn mark(&mut self) {
        self.flags |= CE;
    }

    /// Sets the echo (ECE).
    #[inline]
    pub fn set_ece(&mut self, ece: bool) {
        self.flags |= if ece { ECE } else { 0 };
    }

    /// Number of packets in the run.
    #[inline]
    pub fn run(&self) -> u32 {
        if self.kind() == Kind::Data { self.aux } else { 1 }
    }
}

const _: () = assert!(size_of::<Packet>() == 32);
