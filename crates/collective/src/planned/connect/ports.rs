//! The listening sockets of a rank, and the addresses that it publishes.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};

use netsum_net::mesh::{SECRET_LEN, Streams};
use netsum_net::unguessable_name;
use serde::{Deserialize, Serialize};

/// Addresses to which a rank's neighbours connect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortAddress {
    /// For paths that `ways` does not name.
    pub(super) tcp: SocketAddr,
    /// By name of the vertex from which a path arrives, the address of this rank's end.
    pub(super) ways: BTreeMap<String, IpAddr>,
    /// Where shared memory can be passed: an id that is equal for processes that may share memory, and a name.
    pub(super) machine: String,
    pub(super) unix: String,
    pub(super) secret: [u8; SECRET_LEN],
}

/// A rank's open ports.
#[derive(Debug)]
pub struct Ports {
    pub(super) tcp: TcpListener,
    pub(super) unix: Option<UnixListener>,
    pub(super) address: PortAddress,
    /// If ranks have credentials: connections between hosts are TLS.
    pub(super) streams: Option<Streams>,
}

impl Ports {
    /// Listens at `tcp` (port 0: any), on all addresses if `ways` names some, and for processes of this machine.
    ///
    /// `ways`: by name of the neighbouring vertex (a GPU, or a switch between) the own address on the link to it; such
    /// links use TCP there. `secret`: what neighbours must send.
    pub fn open(
        tcp: SocketAddr,
        ways: BTreeMap<String, IpAddr>,
        secret: [u8; SECRET_LEN],
    ) -> io::Result<Ports> {
        let everywhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let at = if ways.is_empty() { tcp } else { SocketAddr::new(everywhere, tcp.port()) };
        let listener = TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        // The name is local to the network namespace, which `machine` identifies.
        let name = unguessable_name("netsum-plan")?;
        let unix = UnixAddress::from_abstract_name(&name)
            .and_then(|address| UnixListener::bind_addr(&address))
            .and_then(|unix| unix.set_nonblocking(true).map(|()| unix))
            .ok();
        let machine = unix.as_ref().and_then(|_| machine()).unwrap_or_default();
        let tcp = SocketAddr::new(tcp.ip(), port);
        let address = PortAddress { tcp, ways, machine, unix: name, secret };
        Ok(Ports { tcp: listener, unix, address, streams: None })
    }

    /// Makes TCP connections TLS between the seats of `streams`, if there are credentials.
    pub fn secured(self, streams: Option<Streams>) -> Ports {
        Ports { streams, ..self }
    }

    /// The address for neighbours.
    pub fn address(&self) -> &PortAddress {
        &self.address
    }
}

impl PortAddress {
    /// Equal for ranks of one machine and network namespace; empty if unknown.
    pub(crate) fn machine(&self) -> &str {
        &self.machine
    }

    /// An address with TCP only.
    pub fn tcp(tcp: SocketAddr, secret: [u8; SECRET_LEN]) -> PortAddress {
        let (ways, machine, unix) = (BTreeMap::new(), String::new(), String::new());
        PortAddress { tcp, ways, machine, unix, secret }
    }
}

/// An id of the machine and network namespace.
fn machine() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = std::fs::metadata("/proc/self/ns/net").ok()?;
    Some(format!("{}/{}", boot.trim(), namespace.ino()))
}
