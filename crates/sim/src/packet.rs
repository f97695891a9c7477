//! What travels: 32 bytes, two to a cache line.

/// What a packet is.
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

/// A packet, or a run of equal ones that wait in a host.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Packet {
    /// When its last bit reaches the far end of the link that it is on; set by the link.
    pub at_ps: u64,
    /// Flow; for `Tree`, the path.
    pub flow: u32,
    /// Segment; for `Ack`, the first segment that is awaited; for `Tree`, whatever the sender wants.
    pub seq: u32,
    /// `Data` in its host: how many segments, from `seq` on, stand here; `Ack`: the segment acknowledged.
    pub aux: u32,
    /// Link by which it came to where it waits.
    pub ingress: u32,
    /// Host to which it goes; for `Tree`, the number of the protocol.
    pub dst: u16,
    /// On the wire.
    pub bytes: u16,
    /// What decides between paths of equal length.
    pub entropy: u16,
    pub(crate) flags: u8,
    pub(crate) unused: u8,
}

const KIND: u8 = 3;
const CE: u8 = 4;
const ECE: u8 = 8;

/// No link: the packet was made here.
pub const NO_LINK: u32 = u32::MAX;

impl Packet {
    /// A packet as its maker hands it over.
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

    /// What it is.
    #[inline]
    pub fn kind(&self) -> Kind {
        match self.flags & KIND {
            0 => Kind::Data,
            1 => Kind::Ack,
            _ => Kind::Tree,
        }
    }

    /// Congestion experienced.
    #[inline]
    pub fn ce(&self) -> bool {
        self.flags & CE != 0
    }

    /// The receiver saw congestion on the segment acknowledged.
    #[inline]
    pub fn ece(&self) -> bool {
        self.flags & ECE != 0
    }

    /// Marks congestion, as a switch does.
    #[inline]
    pub fn mark(&mut self) {
        self.flags |= CE;
    }

    /// Sets the echo.
    #[inline]
    pub fn set_ece(&mut self, ece: bool) {
        self.flags |= if ece { ECE } else { 0 };
    }

    /// Packets that stand here.
    #[inline]
    pub fn run(&self) -> u32 {
        if self.kind() == Kind::Data { self.aux } else { 1 }
    }
}

const _: () = assert!(size_of::<Packet>() == 32);
