//! Statistics of a switch.

use std::net::SocketAddr;
use std::sync::Arc;

use netsum_proto::panama::TreeCounters;
use netsum_proto::policer::TenantCounters;
use netsum_proto::registry::PoolCounters;
use netsum_proto::{Lateness, LeaseKey, atp};
use rustc_hash::FxHashMap;

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
    /// Key of the lease; its tree is the pool.
    pub lease: LeaseKey,
    /// Whether the kernel serves it.
    pub in_kernel: bool,
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

/// One data thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadSnapshot {
    /// Its leases.
    pub leases: u64,
    /// Packets that it has received and handed over to the thread of their lease: trains with packets of several trees.
    pub handed_over: u64,
    /// The same for which there was no room; they are lost.
    pub lost: u64,
    /// Its processor time.
    pub cpu: CpuTime,
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
    /// Processor time of all data threads.
    pub cpu: CpuTime,
    /// The data threads.
    pub threads: Vec<ThreadSnapshot>,
}

impl SwitchSnapshot {
    /// The sum over all threads of a switch with that memory, in the order of threads. Panics without any.
    pub(super) fn sum(all: Vec<SwitchSnapshot>, memory_limit: u64) -> SwitchSnapshot {
        let mut all = all.into_iter();
        let mut sum = all.next().expect("a switch has a thread");
        for mut other in all {
            add_each(&mut sum.neighbours, other.neighbours, |n| n.address, Neighbour::add);
            add_each(&mut sum.drops, other.drops, |drop| drop.0, |a, b| a.1 += b.1);
            add_each(&mut sum.tenants, other.tenants, |tenant| tenant.0.clone(), |a, b| a.1 += b.1);
            sum.trees.append(&mut other.trees);
            sum.slots.append(&mut other.slots);
            sum.servers.append(&mut other.servers);
            sum.pools.append(&mut other.pools);
            sum.children.append(&mut other.children);
            sum.threads.append(&mut other.threads);
            sum.slots_held += other.slots_held;
            sum.slots_limit += other.slots_limit;
            sum.rows_used += other.rows_used;
            sum.failures += other.failures;
            sum.memory_used += other.memory_used;
            sum.memory_reserved += other.memory_reserved;
            sum.cpu += other.cpu;
        }
        sum.memory_limit = memory_limit;
        sum.neighbours.sort_by_key(|n| n.address);
        sum.trees.sort_by_key(|tree| (tree.lease.job, tree.lease.tree));
        // Stable: within a lease, children stay in its order.
        sum.children.sort_by_key(|child| (child.lease.job, child.lease.tree));
        sum
    }
}

impl Neighbour {
    fn add(&mut self, other: Neighbour) {
        self.received += other.received;
        self.sent += other.sent;
        self.marked += other.marked;
    }
}

/// Adds entries to those of the same name.
fn add_each<T, K: Eq + std::hash::Hash>(
    sum: &mut Vec<T>,
    others: Vec<T>,
    name: impl Fn(&T) -> K,
    add: impl Fn(&mut T, T),
) {
    let places: FxHashMap<K, usize> = sum.iter().map(&name).zip(0..).collect();
    for other in others {
        match places.get(&name(&other)) {
            Some(&place) => add(&mut sum[place], other),
            None => sum.push(other),
        }
    }
}
