//! The state of a socket's receive buffer.

#![allow(unsafe_code)]

use std::os::fd::RawFd;

use netsum_proto::policer::Backlog;

/// Number and order of the system's figures of a socket (linux/sock_diag.h).
const FIGURES: usize = 9;
const RECEIVED: usize = 0;
const RECEIVE_BUFFER: usize = 1;
const DROPS: usize = 8;

/// Bytes that wait in the receive buffer, its size, and packets dropped because it was full; zeros if unknown.
pub(super) fn of_socket(socket: RawFd) -> Backlog {
    let mut figures = [0u32; FIGURES];
    let mut bytes = size_of_val(&figures) as libc::socklen_t;
    // SAFETY: the descriptor is the caller's open socket, and the call writes at most `bytes` bytes into `figures`.
    let result = unsafe {
        libc::getsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            figures.as_mut_ptr().cast(),
            &mut bytes,
        )
    };
    if result != 0 {
        return Backlog::default();
    }
    Backlog {
        queued: figures[RECEIVED].into(),
        limit: figures[RECEIVE_BUFFER].into(),
        dropped: figures[DROPS].into(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

    use crate::udp::{Socket, SocketOptions};

    #[test]
    fn a_full_buffer_is_seen() {
        let options = SocketOptions { recv_buffer: 8 << 10, ..SocketOptions::default() };
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let socket = Socket::bind(any, &options).unwrap();
        let empty = socket.backlog();
        assert_eq!((empty.queued, empty.dropped), (0, 0));
        assert!(empty.limit >= 8 << 10, "{empty:?}");
        let sender = UdpSocket::bind(any).unwrap();
        for _ in 0..100 {
            sender.send_to(&[0; 1_000], socket.local_addr()).unwrap();
        }
        let full = socket.backlog();
        assert!(full.queued > full.limit / 2 && full.dropped > 0, "{full:?}");
    }
}
