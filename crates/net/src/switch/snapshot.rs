//! Statistics of a switch.

use std::net::SocketAddr;
use std::sync::Arc;

use netsum_proto::panama::TreeCounters;
use netsum_proto::policer::TenantCounters;
use netsum_proto::registry::PoolCounters;
use netsum_proto::{Lateness, LeaseKey, atp};

use crate::clock::CpuTime;
use crate::udp::{SendFailures, SocketReport, Traffic};

/// A neighbour's traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its address. Port 0 stands for past neighbours of this host.
    pub address: SocketAddr,
    /// Traffic received from it.
    pub received: Traffic,
    /// Traffic sent to it.
    pub sent: Traffic,
    /// Packets of `received` with a congestion mark.
    pub marked: u64,
}

/// An installed lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeSnapshot {
    /// Key of the lease.
    pub lease: LeaseKey,
    /// Current maximum number of fragments in flight.
    pub window_cap: u16,
    /// Aggregation memory reserved for them, in bytes.
    pub memory_reserved: u64,
    /// Counters.
    pub counters: TreeCounters,
}

/// A lease of `atp` at a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotSnapshot {
    /// Key of the lease.
    pub lease: LeaseKey,
    /// Whether the kernel serves it.
    pub in_kernel: bool,
    /// Slots that it holds.
    pub held: u32,
    /// Counters.
    pub counters: atp::Counters,
}

/// A lease of `atp` at a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerSnapshot {
    /// Key of the lease.
    pub lease: LeaseKey,
    /// Memory reserved for it, in bytes.
    pub memory_reserved: u64,
    /// Counters.
    pub counters: atp::ServerCounters,
}

/// A static pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSnapshot {
    /// Key of the lease; its tree is 0.
    pub lease: LeaseKey,
    /// Number of slots.
    pub slots: u16,
    /// Counters.
    pub counters: PoolCounters,
}

/// How late one child of a lease is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildSnapshot {
    /// Key of the lease.
    pub lease: LeaseKey,
    /// The child's address.
    pub address: SocketAddr,
    /// The meter's figures.
    pub lateness: Lateness,
}

/// All statistics of a switch at one moment.
#[derive(Clone, Debug)]
pub struct SwitchSnapshot {
    /// Traffic by neighbour.
    pub neighbours: Vec<Neighbour>,
    /// Trees of `panama`.
    pub trees: Vec<TreeSnapshot>,
    /// Leases of `atp` at a switch.
    pub slots: Vec<SlotSnapshot>,
    /// Leases of `atp` at a server.
    pub servers: Vec<ServerSnapshot>,
    /// Static pools.
    pub pools: Vec<PoolSnapshot>,
    /// How late children are, by lease. Leases with one child have none, and neither have those that an accelerator or
    /// the kernel serves.
    pub children: Vec<ChildSnapshot>,
    /// Slots in use by all leases.
    pub slots_held: u32,
    /// Number of slots.
    pub slots_limit: u32,
    /// Rows in use by a server's fragments or a switch's slots and pools, and by packets being forwarded.
    pub rows_used: u64,
    /// Dropped packets by reason.
    pub drops: Vec<(&'static str, u64)>,
    /// What tenants have sent, by name.
    pub tenants: Vec<(Arc<str>, TenantCounters)>,
    /// Packets that the system refused.
    pub failures: SendFailures,
    /// Aggregation memory in use, in bytes.
    pub memory_used: u64,
    /// Aggregation memory reserved by leases, in bytes; at a server, its rows.
    pub memory_reserved: u64,
    /// Aggregation memory in total, in bytes.
    pub memory_limit: u64,
    /// Socket settings granted by the system.
    pub socket: SocketReport,
    /// Processor time of the data thread.
    pub cpu: CpuTime,
}
