//! Packets of some senders that the system drops at random, before they reach the receive buffer: a filter of the socket
//! (classic BPF), for which no right is needed.

#![allow(unsafe_code)]

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

/// A sender, and how rare its packets become: one of 2^`halvings` is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThinnedSender {
    /// Its address.
    pub address: SocketAddr,
    /// At most 31.
    pub halvings: u8,
}

/// Replaces what was thinned out before. Trains that the system has joined are kept or dropped as a whole.
pub(super) fn set(socket: RawFd, senders: &[ThinnedSender]) -> io::Result<()> {
    let mut code = program(senders);
    let program = libc::sock_fprog {
        len: u16::try_from(code.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: code.as_mut_ptr(),
    };
    let none: libc::c_int = 0;
    let (option, value, bytes): (_, *const libc::c_void, _) = match senders {
        [] => (libc::SO_DETACH_FILTER, (&raw const none).cast(), size_of_val(&none)),
        _ => (libc::SO_ATTACH_FILTER, (&raw const program).cast(), size_of_val(&program)),
    };
    // SAFETY: the descriptor is the caller's open socket; the value has the type of the option, and it and the code that
    // it points to live through the call.
    let result = unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, option, value, bytes as u32) };
    match (result, io::Error::last_os_error()) {
        (0, _) => Ok(()),
        // There was no filter.
        (_, error) if senders.is_empty() && error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        (_, error) => Err(error),
    }
}

/// Compares the source port first, so that others' packets cost one instruction per sender.
fn program(senders: &[ThinnedSender]) -> Vec<libc::sock_filter> {
    let mut code = vec![load_port()];
    for sender in senders {
        let words = words(sender.address.ip());
        // Behind the comparison of the port: of the address, the draw, and the port again for the next sender.
        let next = 2 * words.len() as u8 + 6;
        code.push(unless_equal(sender.address.port().into(), next));
        for (number, (at, word)) in words.iter().enumerate() {
            code.push(load(libc::SKF_NET_OFF + at));
            code.push(unless_equal(*word, next - 2 * (number as u8 + 1) - 1));
        }
        code.push(load(libc::SKF_AD_OFF + libc::SKF_AD_RANDOM));
        code.push(op(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, (1 << sender.halvings) - 1));
        code.push(unless_equal(0, 1));
        code.push(op(libc::BPF_RET | libc::BPF_K, u32::MAX));
        code.push(op(libc::BPF_RET | libc::BPF_K, 0));
        code.push(load_port());
    }
    code.push(op(libc::BPF_RET | libc::BPF_K, u32::MAX));
    code
}

/// The words of a source address with their places in an IP header.
fn words(ip: IpAddr) -> Vec<(i32, u32)> {
    match ip.to_canonical() {
        IpAddr::V4(v4) => vec![(12, v4.to_bits())],
        IpAddr::V6(v6) => {
            let words = v6.octets();
            let words = words.as_chunks::<4>().0.iter().map(|word| u32::from_be_bytes(*word));
            (8..).step_by(4).zip(words).collect()
        }
    }
}

/// The filter sees a packet from its UDP header on.
fn load_port() -> libc::sock_filter {
    op(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 0)
}

fn load(at: i32) -> libc::sock_filter {
    op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at as u32)
}

fn unless_equal(value: u32, skipped: u8) -> libc::sock_filter {
    let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    libc::sock_filter { code, jt: 0, jf: skipped, k: value }
}

fn op(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::udp::{RecvBatch, Socket, SocketOptions};

    const PACKETS: usize = 400;

    /// Packets of each sender that arrive, of PACKETS that each sends.
    fn arrived(socket: &Socket, senders: &[UdpSocket]) -> Vec<usize> {
        let mut batch = RecvBatch::new();
        let mut counts = vec![0; senders.len()];
        for _ in 0..PACKETS {
            for sender in senders {
                sender.send_to(&[7; 100], socket.local_addr()).unwrap();
            }
            while let messages @ 1.. = batch.recv(socket).unwrap() {
                for message in (0..messages).map(|number| batch.message(number)) {
                    let from = |s: &UdpSocket| s.local_addr().unwrap() == message.from;
                    counts[senders.iter().position(from).unwrap()] += 1;
                }
            }
        }
        counts
    }

    fn thins_out(host: &str) {
        let any: SocketAddr = format!("{host}:0").parse().unwrap();
        let Ok(socket) = Socket::bind(any, &SocketOptions::default()) else {
            return println!("skipped: no {host} here");
        };
        set(socket.fd(), &[]).unwrap();
        let senders: Vec<_> = (0..4).map(|_| UdpSocket::bind(any).unwrap()).collect();
        let thinned = |number: usize, halvings| ThinnedSender {
            address: senders[number].local_addr().unwrap(),
            halvings,
        };
        let mut elsewhere = thinned(3, 31);
        elsewhere.address.set_ip("192.0.2.1".parse().unwrap());
        socket.thin_out(&[thinned(0, 31), thinned(1, 2), elsewhere]);
        let counts = arrived(&socket, &senders);
        assert_eq!((counts[0], counts[2], counts[3]), (0, PACKETS, PACKETS), "{counts:?}");
        // A quarter: 14 standard deviations are to each side.
        assert!((1..PACKETS / 2 + 20).contains(&counts[1]), "{counts:?}");
        socket.thin_out(&[]);
        assert_eq!(arrived(&socket, &senders), [PACKETS; 4]);
    }

    #[test]
    fn senders_are_thinned_out_and_others_are_not() {
        thins_out("127.0.0.1");
        thins_out("[::1]");
    }

    #[test]
    fn as_many_as_the_policer_names_fit() {
        for ip in ["10.0.0.1", "2001:db8::1"] {
            let any = SocketAddr::new("127.0.0.1".parse().unwrap(), 0);
            let socket = Socket::bind(any, &SocketOptions::default()).unwrap();
            let address = |port| SocketAddr::new(ip.parse().unwrap(), port);
            let most = netsum_proto::policer::THINNED_MOST as u16;
            let senders: Vec<_> =
                (0..most).map(|p| ThinnedSender { address: address(p), halvings: 3 }).collect();
            set(socket.fd(), &senders).unwrap();
            let sender = UdpSocket::bind(any).unwrap();
            assert_eq!(arrived(&socket, &[sender]), [PACKETS]);
        }
    }
}
