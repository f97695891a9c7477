//! What a switch tells of itself.

use std::net::SocketAddr;

use netsum_proto::panama::TreeCounters;
use netsum_proto::registry::PoolCounters;
use netsum_proto::{LeaseKey, atp};

use crate::clock::CpuTime;
use crate::udp::{SendFailures, SocketReport, Traffic};

/// A neighbour's traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its address. Port 0 stands for neighbours that this host had under leases long gone.
    pub address: SocketAddr,
    /// From it.
    pub received: Traffic,
    /// To it.
    pub sent: Traffic,
    /// Packets of `received` that the network marked.
    pub marked: u64,
}

/// One lease at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeSnapshot {
    /// Which.
    pub lease: LeaseKey,
    /// Fragments in flight that it may have here now.
    pub window_cap: u16,
    /// Aggregation memory set aside for them, bytes.
    pub memory_reserved: u64,
    /// What happened in it.
    pub counters: TreeCounters,
}

/// A lease of `atp` at a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotSnapshot {
    /// Which.
    pub lease: LeaseKey,
    /// The kernel serves it.
    pub in_kernel: bool,
    /// Slots that it holds now.
    pub held: u32,
    /// What happened in it.
    pub counters: atp::Counters,
}

/// A lease of `atp` at a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerSnapshot {
    /// Which.
    pub lease: LeaseKey,
    /// Memory set aside for it, bytes.
    pub memory_reserved: u64,
    /// What happened in it.
    pub counters: atp::ServerCounters,
}

/// A static pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSnapshot {
    /// Which; its tree is 0.
    pub lease: LeaseKey,
    /// Slots.
    pub slots: u16,
    /// What happened in it.
    pub counters: PoolCounters,
}

/// All of a switch's figures at one moment.
#[derive(Clone, Debug)]
pub struct SwitchSnapshot {
    /// By neighbour.
    pub neighbours: Vec<Neighbour>,
    /// Trees of `panama`.
    pub trees: Vec<TreeSnapshot>,
    /// Leases of `atp` at a switch.
    pub slots: Vec<SlotSnapshot>,
    /// Leases of `atp` at a server.
    pub servers: Vec<ServerSnapshot>,
    /// Static pools.
    pub pools: Vec<PoolSnapshot>,
    /// Slots in use, of all leases.
    pub slots_held: u32,
    /// Slots.
    pub slots_limit: u32,
    /// Rows in use by a server's fragments or a switch's slots and pools, and packets on their way through.
    pub rows_used: u64,
    /// Dropped packets by reason.
    pub drops: Vec<(&'static str, u64)>,
    /// Packets that the system did not take.
    pub failures: SendFailures,
    /// Aggregation memory in use, bytes.
    pub memory_used: u64,
    /// Aggregation memory that leases have reserved, bytes; of a server, its rows.
    pub memory_reserved: u64,
    /// Aggregation memory, bytes.
    pub memory_limit: u64,
    /// What the system gave the socket.
    pub socket: SocketReport,
    /// The data thread's.
    pub cpu: CpuTime,
}
