//! Sockets of one address among which a filter of the system divides what arrives (SO_REUSEPORT with classic BPF).

#![allow(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use super::socket::{Socket, SocketOptions, set_option};
use crate::NetError;

impl Socket {
    /// Binds `count` sockets, two or more, to one address. The system gives each datagram to the socket whose number `selector`
    /// returns, a filter that sees the datagram's payload.
    ///
    /// The first socket is bound like any other, so an address in use is refused; only then may others join it. Errors:
    /// `Bind`, `Option`.
    pub fn bind_group(
        address: SocketAddr,
        options: &SocketOptions,
        count: usize,
        selector: &mut [libc::sock_filter],
    ) -> Result<Vec<Socket>, NetError> {
        let first = Socket::bind(address, options)?;
        let failed = |source| NetError::Option { option: "SO_REUSEPORT", source };
        set_option(first.inner(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1).map_err(failed)?;
        let address = first.local_addr();
        let mut sockets = vec![first];
        for _ in 1..count {
            let socket = Socket::bind_with(address, options, |socket| {
                set_option(socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)
            })?;
            sockets.push(socket);
        }
        attach(&sockets[0], selector)
            .map_err(|source| NetError::Option { option: "SO_ATTACH_REUSEPORT_CBPF", source })?;
        Ok(sockets)
    }
}

fn attach(socket: &Socket, selector: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(selector.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: selector.as_mut_ptr(),
    };
    // SAFETY: the descriptor is an open socket; the value has the type of the option, and it and the code that it points
    // to live through the call, which only reads them.
    let result = unsafe {
        libc::setsockopt(
            socket.inner().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::RecvBatch;

    /// The socket of the payload's first byte.
    fn by_first_byte() -> [libc::sock_filter; 2] {
        let op = |code: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k: 0 };
        [op(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS), op(libc::BPF_RET | libc::BPF_A)]
    }

    fn divides(host: &str) {
        let any: SocketAddr = format!("{host}:0").parse().unwrap();
        let options = SocketOptions::default();
        let Ok(sockets) = Socket::bind_group(any, &options, 3, &mut by_first_byte()) else {
            return println!("skipped: no {host} here");
        };
        let address = sockets[0].local_addr();
        assert!(sockets.iter().all(|socket| socket.local_addr() == address));
        let peer = std::net::UdpSocket::bind(any).unwrap();
        for (first, copies) in [(0u8, 3), (1, 5), (2, 7)] {
            for _ in 0..copies {
                peer.send_to(&[first, 9], address).unwrap();
            }
        }
        for (number, copies) in [(0, 3), (1, 5), (2, 7)] {
            let mut batch = RecvBatch::new();
            let mut got = 0;
            while let messages @ 1.. = batch.recv(&sockets[number]).unwrap() {
                got += messages;
                let packets = batch.messages().flat_map(|message| batch.packets(message));
                assert!(packets.into_iter().all(|packet| packet[0] == number as u8));
            }
            assert_eq!(got, copies, "socket {number}");
        }
    }

    #[test]
    fn the_filter_selects_the_socket() {
        divides("127.0.0.1");
        divides("[::1]");
    }

    #[test]
    fn an_address_in_use_is_refused_also_that_of_a_group() {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let options = SocketOptions::default();
        let alone = Socket::bind(any, &options).unwrap();
        let group = Socket::bind_group(any, &options, 2, &mut by_first_byte()).unwrap();
        for taken in [alone.local_addr(), group[0].local_addr()] {
            let refused = Socket::bind_group(taken, &options, 2, &mut by_first_byte());
            assert!(matches!(refused, Err(NetError::Bind { .. })), "{refused:?}");
        }
    }
}
