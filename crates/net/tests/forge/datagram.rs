//! Datagrams under any source address, as root can write them.

use std::net::{IpAddr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};

/// What the IP and UDP headers of a forged packet say.
#[derive(Clone, Copy)]
pub struct Ip {
    /// Whether the packet has a UDP checksum; IPv4 allows none.
    pub checksum: bool,
    /// Whether it is marked by congestion (CE).
    pub ce: bool,
}

pub const PLAIN: Ip = Ip { checksum: true, ce: false };

/// A raw socket.
pub struct Spoofer(Socket);

impl Spoofer {
    /// `None`: this process may not have one.
    pub fn new() -> Option<Spoofer> {
        let raw = Protocol::from(libc::IPPROTO_RAW);
        Socket::new(Domain::IPV4, Type::RAW, Some(raw)).ok().map(Spoofer)
    }

    pub fn send(&self, from: SocketAddr, to: SocketAddr, packet: &[u8], ip: Ip) {
        let bytes = datagram(from, to, packet, ip);
        self.0.send_to(&bytes, &to.into()).expect("loopback takes a datagram");
    }
}

/// IPv4 and UDP headers before a packet; the system fills in lengths and checksum of IP.
fn datagram(from: SocketAddr, to: SocketAddr, packet: &[u8], ip: Ip) -> Vec<u8> {
    let octets = |address: SocketAddr| match address.ip() {
        IpAddr::V4(v4) => v4.octets(),
        IpAddr::V6(_) => unreachable!("all are on loopback"),
    };
    let len = (8 + packet.len() as u16).to_be_bytes();
    let mut udp =
        [&from.port().to_be_bytes()[..], &to.port().to_be_bytes(), &len, &[0, 0]].concat();
    udp.extend_from_slice(packet);
    if ip.checksum {
        let pseudo = [&octets(from)[..], &octets(to), &[0, 17], &len, &udp].concat();
        let sum = !ones_sum(&pseudo);
        udp[6..8].copy_from_slice(&(if sum == 0 { 0xffff } else { sum }).to_be_bytes());
    }
    let tos = if ip.ce { 0xe3 } else { 0xe2 };
    let mut bytes = vec![0x45, tos, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0];
    bytes.extend(octets(from));
    bytes.extend(octets(to));
    bytes.extend(udp);
    bytes
}

/// Ones' complement sum of 16-bit words (RFC 1071).
fn ones_sum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&low| u32::from(low));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
