//! Packets: 32 bytes each, two to a cache line.

use crate::visit::Visitor;

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
    /// `Data` in its host: number of segments in the run, from `seq` on; `Ack`: the segment acknowledged; `Tree`: the
    /// socket of the sending host.
    pub aux: u32,
    /// The link by which the packet came to its current node.
    pub ingress: u32,
    /// Destination host (for `Tree`, the protocol's number) in the low 24 bits, flags above.
    pub(crate) address: u32,
    /// Length on the wire.
    pub bytes: u16,
    /// Hash input that selects among paths of equal length.
    pub entropy: u16,
}

/// Most hosts that packets can address.
pub const HOSTS_MAX: u32 = DST + 1;
const DST: u32 = 0xff_ffff;
const KIND: u32 = 3 << 24;
const CE: u32 = 4 << 24;
const ECE: u32 = 8 << 24;
const DATA: u32 = 0;
const ACK: u32 = 1 << 24;

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
            address: (kind as u32) << 24,
            bytes,
            entropy: 0,
        }
    }

    /// The packet's kind.
    #[inline]
    pub fn kind(&self) -> Kind {
        match self.address & KIND {
            DATA => Kind::Data,
            ACK => Kind::Ack,
            _ => Kind::Tree,
        }
    }

    /// Destination host; for `Tree`, the protocol's number.
    #[inline]
    pub fn dst(&self) -> u32 {
        self.address & DST
    }

    /// The packet with another destination, below [`HOSTS_MAX`].
    #[inline]
    pub fn to(self, dst: u32) -> Packet {
        debug_assert!(dst <= DST, "an address has 24 bits");
        Packet { address: self.address & !DST | dst, ..self }
    }

    /// Whether congestion was experienced (CE).
    #[inline]
    pub fn ce(&self) -> bool {
        self.address & CE != 0
    }

    /// Whether the receiver saw congestion on the acknowledged segment (ECE).
    #[inline]
    pub fn ece(&self) -> bool {
        self.address & ECE != 0
    }

    /// Sets the CE mark.
    #[inline]
    pub fn mark(&mut self) {
        self.address |= CE;
    }

    /// Sets the echo (ECE).
    #[inline]
    pub fn set_ece(&mut self, ece: bool) {
        self.address |= if ece { ECE } else { 0 };
    }

    /// Visits the state. `base`: by flow, the segment from which its segments are counted.
    pub(crate) fn visit(&mut self, v: &mut impl Visitor, base: &[u32]) {
        v.time(&mut self.at_ps);
        self.visit_content(v, base);
    }

    /// Visits the state of a packet that no link has taken yet.
    pub(crate) fn visit_content(&self, v: &mut impl Visitor, base: &[u32]) {
        let Packet { at_ps: _, flow, seq, aux, ingress, address, bytes, entropy } = self;
        let flow_base = || base.get(*flow as usize).copied().unwrap_or(0);
        let (seq, aux) = match *address & KIND {
            DATA => (seq.wrapping_sub(flow_base()), *aux),
            ACK => (seq.wrapping_sub(flow_base()), aux.wrapping_sub(flow_base())),
            _ => {
                v.content(*seq);
                (0, *aux)
            }
        };
        v.both(*flow, seq);
        v.both(aux, *ingress);
        v.both(*address, u32::from(*bytes) << 16 | u32::from(*entropy));
    }

    /// Number of packets in the run.
    #[inline]
    pub fn run(&self) -> u32 {
        if self.kind() == Kind::Data { self.aux } else { 1 }
    }
}

const _: () = assert!(size_of::<Packet>() == 32);
