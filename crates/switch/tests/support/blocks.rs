//! Loopback addresses for a test fabric.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The second byte of a loopback block that nobody else has while the socket is open: `netsum.fabric.reservations`
/// reserves blocks in the same way.
pub fn reserve() -> (u8, UnixDatagram) {
    let start = std::process::id();
    let free = (0..50).map(|at| 150 + ((start + at) % 50) as u8).find_map(|block| {
        let name = SocketAddr::from_abstract_name(format!("netsum/loopback-{block}")).unwrap();
        Some((block, UnixDatagram::bind_addr(&name).ok()?))
    });
    free.expect("a loopback block is free")
}
