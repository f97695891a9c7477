//! The in-kernel switch (hw/xdp): protocols `atp` and `switchml` in the driver's hook, in front of the user-space switch.
//!
//! [`Plane`] loads the program, installs leases and reads its counters. The kernel adds fragments and replicates
//! results. Other packets pass to the ordinary socket and state machine, which holds the same leases: of `atp` the end
//! of an epoch and results for children that share an interface, and jobs that the kernel does not support.
//! [`Plane::sweep`] releases slots of `atp` that wait for stragglers.

mod hops;
mod layout;
mod numbers;
mod object;
mod plane;
mod rows;
pub mod stream;

pub use hops::Hop;
pub use numbers::HopNumbers;
pub use plane::{Plane, PlaneOptions, Served, ServedCounters, Verdict};

use std::io;
use std::net::SocketAddrV4;

/// Why the kernel cannot serve a request; user space can.
#[derive(Debug, thiserror::Error)]
pub enum WhyNot {
    /// Missing rights, or a kernel without a required feature.
    #[error("{0}: {1}{advice}", advice = advice(.1))]
    System(&'static str, #[source] io::Error),
    /// Unknown interface.
    #[error("there is no interface {0:?} here; `ip link` lists those that are")]
    NoInterface(String),
    /// The switch needs a specific address.
    #[error("the in-kernel switch needs an IPv4 address of its own to listen at, not {0}")]
    Address(std::net::SocketAddr),
    /// Neighbours with IPv6 addresses.
    #[error("neighbour {0} has no IPv4 address")]
    NotV4(std::net::SocketAddr),
    /// No route.
    #[error("there is no route to {0}")]
    Unreachable(SocketAddrV4),
    /// Its Ethernet address is not resolved yet.
    #[error("the Ethernet address of {0} is not known yet")]
    Resolving(SocketAddrV4),
    /// Reached through an interface that the program is not attached to.
    #[error("{0} is not behind one of the ports that the in-kernel switch has")]
    NotBehindAPort(SocketAddrV4),
    /// Slots in the kernel have one size.
    #[error("fragments of {0} bytes; the in-kernel switch has slots of {most}", most = layout::ROW_BYTES)]
    FragmentBytes(u16),
    /// The kernel's program computes one MAC.
    #[error("packets have tags by {0:?}; the in-kernel switch computes Nh")]
    Mac(netsum_wire::tag::Mac),
    /// A lease must have keys for all its neighbours, or none.
    #[error("keys of {0} hops for {1} neighbours")]
    Keys(usize, usize),
    /// The table of keys is full.
    #[error("the in-kernel switch has room for the keys of {most} hops", most = numbers::MAX_HOPS)]
    Hops,
    /// Another protocol, or a server.
    #[error("the in-kernel switch serves slots of atp and pools of switchml alone")]
    Protocol,
    /// A frame that says "ready" has no room for what another worker sends.
    #[error("a pool of copies is multiplied in user space")]
    Copies,
    /// Results of pools are replicated in the kernel alone, to one worker per interface.
    #[error("several workers of the pool are behind one interface")]
    SharedInterface,
    /// No gap is large enough.
    #[error("the in-kernel switch has no room for a pool of {0} slots")]
    PoolSlots(u16),
    /// The table is full.
    #[error("the in-kernel switch has room for {most} leases", most = layout::MAX_LEASES)]
    Leases,
}

fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            " (it needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, or root)"
        }
        Some(libc::EOPNOTSUPP) => " (the driver has no native XDP)",
        Some(libc::ERANGE) => " (is the MTU, or the peer's, too large for XDP?)",
        Some(libc::EBUSY) => " (another XDP program is there)",
        _ => "",
    }
}
