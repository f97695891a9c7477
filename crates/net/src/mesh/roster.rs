//! The ranks of a group and their addresses.

use std::net::SocketAddr;

use netsum_identity::{Identity, SEAT_KEY_LEN};

/// Bytes of a rank's secret.
pub const SECRET_LEN: usize = 16;

/// Transport of messages between hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// TCP connections.
    #[default]
    Tcp,
    /// Any transport of UCX, such as InfiniBand and RoCE; TCP connections additionally show which ranks are alive.
    Ucx,
}

impl Network {
    /// All networks.
    pub const ALL: [Network; 2] = [Network::Tcp, Network::Ucx];

    /// Name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Network::Tcp => "tcp",
            Network::Ucx => "ucx",
        }
    }
}

/// One rank, from the rendezvous.
#[derive(Clone, Debug)]
pub struct Seat {
    /// Listening address.
    pub address: SocketAddr,
    /// Secret that a connecting rank must send.
    pub secret: [u8; SECRET_LEN],
    /// The network's address of the rank, if it has addresses of its own ([`super::Listener::network_address`]).
    pub network_address: Option<Vec<u8>>,
    /// Who has the seat, if its process has credentials ([`super::Listener::occupant`]).
    pub occupant: Option<Occupant>,
}

/// Who has a seat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupant {
    /// The identity in the process's certificate; ranks may have the same.
    pub identity: Identity,
    /// Public key whose private half only this rank has.
    pub key: [u8; SEAT_KEY_LEN],
}

/// All ranks of a group.
#[derive(Clone, Debug)]
pub struct Roster {
    /// Distinguishes groups on the same hosts.
    pub group: u64,
    /// This process's index in `seats`.
    pub rank: u32,
    /// Seats by rank.
    pub seats: Vec<Seat>,
}
