//! Who is in a group, and where each rank is reached.

use std::net::SocketAddr;

/// Bytes of a rank's secret.
pub const SECRET_LEN: usize = 16;

/// What carries messages between hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// TCP connections.
    #[default]
    Tcp,
    /// Whatever UCX finds, as InfiniBand and RoCE; TCP connections beside show which ranks are alive.
    Ucx,
}

/// One rank, as the rendezvous gives it.
#[derive(Clone, Debug)]
pub struct Seat {
    /// Where it listens.
    pub address: SocketAddr,
    /// What a rank that connects to it must present.
    pub secret: [u8; SECRET_LEN],
    /// Where the group's network reaches it, if that has addresses of its own ([`super::Listener::network_address`]).
    pub network_address: Option<Vec<u8>>,
}

/// All ranks of a group.
#[derive(Clone, Debug)]
pub struct Roster {
    /// Tells groups apart that share hosts.
    pub group: u64,
    /// This process's index in `seats`.
    pub rank: u32,
    /// By rank.
    pub seats: Vec<Seat>,
}
