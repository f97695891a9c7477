//! A UDP socket with the options that the data path needs.

#![allow(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use libc::c_int;
use netsum_proto::policer::Backlog;
use socket2::{Domain, Protocol, Type};

use super::address::{self, RawAddress};
use super::backlog;
use super::thin::{self, ThinnedSender};
use super::wake::Wake;
use crate::NetError;

/// DSCP 56 marks aggregation packets (PANAMA); ECT(0) lets routers mark instead of drop.
const TRAFFIC_CLASS: c_int = 56 << 2 | 0b10;

/// Requested socket settings.
#[derive(Clone, Copy, Debug)]
pub struct SocketOptions {
    /// Receive buffer in bytes. More than the system's limit needs a privilege; the granted size is reported.
    pub recv_buffer: usize,
    /// Send buffer, bytes.
    pub send_buffer: usize,
    /// Use segmentation and coalescing of trains (UDP_SEGMENT, UDP_GRO).
    pub segmentation: bool,
    /// How long a thread polls for packets before it sleeps. Costs a core; saves a wake-up (some 10 µs).
    pub spin: Duration,
}

impl Default for SocketOptions {
    fn default() -> Self {
        SocketOptions {
            recv_buffer: 64 << 20,
            send_buffer: 16 << 20,
            segmentation: true,
            spin: Duration::ZERO,
        }
    }
}

/// Socket settings granted by the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketReport {
    /// Receive buffer in bytes as the system counts them, including its metadata.
    pub recv_buffer: usize,
    /// Send buffer, bytes as the system counts them.
    pub send_buffer: usize,
    /// Whether trains are segmented on sending.
    pub segments_on_send: bool,
    /// Whether trains are coalesced on receipt.
    pub joins_on_receipt: bool,
    /// Whether congestion marks of received packets are visible.
    pub sees_ecn: bool,
}

/// A non-blocking UDP socket that never lets the network fragment a packet.
#[derive(Debug)]
pub struct Socket {
    socket: socket2::Socket,
    local: SocketAddr,
    report: SocketReport,
    spin: Duration,
}

impl Socket {
    /// Binds `address`; port 0 lets the system choose.
    ///
    /// Errors: `Bind`, or `Option` for an option without which packets could be lost silently. Options that only
    /// improve speed are tried, and reported by [`Socket::report`].
    pub fn bind(address: SocketAddr, options: &SocketOptions) -> Result<Socket, NetError> {
        Socket::bind_with(address, options, |_| Ok(()))
    }

    /// The same; `prepare` sets options that binding depends on.
    pub(super) fn bind_with(
        address: SocketAddr,
        options: &SocketOptions,
        prepare: impl FnOnce(&socket2::Socket) -> io::Result<()>,
    ) -> Result<Socket, NetError> {
        let failed = |source| NetError::Bind { what: "UDP socket", address, source };
        let domain = Domain::for_address(address);
        let socket = socket2::Socket::new(domain, Type::DGRAM, Some(Protocol::UDP));
        let socket = socket.map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        prepare(&socket).map_err(failed)?;
        socket.bind(&address.into()).map_err(failed)?;
        let local = socket.local_addr().map_err(failed)?.as_socket();
        let report = configure(&socket, address.is_ipv6(), options)?;
        Ok(Socket { socket, local: local.unwrap_or(address), report, spin: options.spin })
    }

    /// The address bound.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Settings granted by the system.
    pub fn report(&self) -> SocketReport {
        let send_buffer = self.socket.send_buffer_size().unwrap_or(self.report.send_buffer);
        SocketReport { send_buffer, ..self.report }
    }

    /// Sets the send buffer to `bytes` as the system counts them, within its limits.
    pub fn limit_send_buffer(&self, bytes: usize) {
        grow(&self.socket, libc::SO_SNDBUF, libc::SO_SNDBUFFORCE, bytes);
    }

    /// Sleeps until a packet arrives, `wake` is rung or `timeout` has passed. True if there may be a packet.
    pub fn wait(&self, wake: &Wake, timeout: Duration) -> bool {
        self.poll_for(libc::POLLIN, Some(wake), timeout)
    }

    /// Sleeps until `wake` is rung or `timeout` has passed.
    pub fn wait_for(&self, wake: &Wake, timeout: Duration) {
        self.poll_for(0, Some(wake), timeout);
    }

    /// Sleeps until a packet arrives, with `room` the send buffer is half empty, or `timeout` has passed.
    pub fn wait_alone(&self, room: bool, timeout: Duration) {
        let events = if room { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
        self.poll_for(events, None, timeout);
    }

    /// As `wait`, and at most until the send buffer is half empty.
    pub fn wait_or_send(&self, wake: &Wake, timeout: Duration) {
        self.poll_for(libc::POLLIN | libc::POLLOUT, Some(wake), timeout);
    }

    /// Whether the send buffer is half empty.
    pub fn writable(&self) -> bool {
        self.poll_for(libc::POLLOUT, None, Duration::ZERO)
    }

    /// Bytes, as the system counts them, that were sent and have not left this machine's output queues; 0 if unknown.
    pub fn queued(&self) -> usize {
        let mut bytes: libc::c_int = 0;
        // SAFETY: the descriptor is open as long as `self`, and the call writes one int to the place given.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::TIOCOUTQ, &mut bytes) };
        if result == 0 { usize::try_from(bytes).unwrap_or(0) } else { 0 }
    }

    /// State of the receive buffer.
    pub fn backlog(&self) -> Backlog {
        backlog::of_socket(self.fd())
    }

    /// Makes the system drop a part of the packets of these senders, and of no others, before they take room in the
    /// receive buffer.
    pub fn thin_out(&self, senders: &[ThinnedSender]) {
        if let Err(error) = thin::set(self.fd(), senders) {
            tracing::warn!(address = %self.local, %error, "the system cannot drop a part of a flood");
        }
    }

    /// How long a thread polls for packets before it sleeps.
    pub fn spin(&self) -> Duration {
        self.spin
    }

    /// Sleeps until the socket is writable or `timeout` has passed. True if it is.
    pub(super) fn wait_writable(&self, timeout: Duration) -> bool {
        self.poll_for(libc::POLLOUT, None, timeout)
    }

    pub(super) fn inner(&self) -> &socket2::Socket {
        &self.socket
    }

    pub(super) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    pub(super) fn segments_on_send(&self) -> bool {
        self.report.segments_on_send
    }

    /// Logs that a destination gets single packets.
    pub(super) fn warn_of_segments(&self, to: &RawAddress, reason: &io::Error) {
        tracing::warn!(
            address = %self.local, to = %address::decode(&to.0), %reason,
            "the system does not cut packet trains (UDP_SEGMENT) on this path; sending single packets, which is slower"
        );
    }

    fn poll_for(&self, events: libc::c_short, wake: Option<&Wake>, timeout: Duration) -> bool {
        let entry = |fd, events| libc::pollfd { fd, events, revents: 0 };
        // A negative descriptor is one that poll skips.
        let wake_fd = wake.map_or(-1, Wake::fd);
        let own_fd = if events == 0 { -1 } else { self.fd() };
        let mut fds = [entry(own_fd, events), entry(wake_fd, libc::POLLIN)];
        let timeout = libc::timespec {
            tv_sec: timeout.as_secs().min(3600) as _,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // SAFETY: two entries and a time that live through the call; the signal mask may be null.
        let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), 2, &timeout, std::ptr::null()) };
        if let Some(wake) = wake.filter(|_| ready > 0 && fds[1].revents != 0) {
            wake.quiet();
        }
        ready > 0 && fds[0].revents != 0
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn configure(
    socket: &socket2::Socket,
    v6: bool,
    options: &SocketOptions,
) -> Result<SocketReport, NetError> {
    let set = |level, name, value| set_option(socket, level, name, value);
    let required = |option, result: io::Result<()>| {
        result.map_err(|source| NetError::Option { option, source })
    };
    let (level, tos, recv_tos, discover, probe) = if v6 {
        (
            libc::IPPROTO_IPV6,
            libc::IPV6_TCLASS,
            libc::IPV6_RECVTCLASS,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_PMTUDISC_PROBE,
        )
    } else {
        (
            libc::IPPROTO_IP,
            libc::IP_TOS,
            libc::IP_RECVTOS,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_PROBE,
        )
    };
    // "Probe": set "do not fragment", and ignore path MTUs that anybody could have forged.
    required("IP_MTU_DISCOVER", set(level, discover, probe))?;
    required("IP_TOS", set(level, tos, TRAFFIC_CLASS))?;
    let recv_buffer = grow(socket, libc::SO_RCVBUF, libc::SO_RCVBUFFORCE, options.recv_buffer);
    let send_buffer = grow(socket, libc::SO_SNDBUF, libc::SO_SNDBUFFORCE, options.send_buffer);
    let udp = libc::SOL_UDP;
    Ok(SocketReport {
        recv_buffer,
        send_buffer,
        segments_on_send: options.segmentation && set(udp, libc::UDP_SEGMENT, 0).is_ok(),
        joins_on_receipt: options.segmentation && set(udp, libc::UDP_GRO, 1).is_ok(),
        sees_ecn: set(level, recv_tos, 1).is_ok(),
    })
}

/// Requests a buffer of `bytes`, as the system counts them, beyond the system's limit if allowed; returns the granted
/// size.
fn grow(socket: &socket2::Socket, name: c_int, force: c_int, bytes: usize) -> usize {
    let bytes = c_int::try_from(bytes / 2).unwrap_or(c_int::MAX / 2);
    // The system doubles the requested size and limits it without an error.
    if set_option(socket, libc::SOL_SOCKET, force, bytes).is_err() {
        let _ = set_option(socket, libc::SOL_SOCKET, name, bytes);
    }
    let got = match name {
        libc::SO_RCVBUF => socket.recv_buffer_size(),
        _ => socket.send_buffer_size(),
    };
    got.unwrap_or(0)
}

pub(super) fn set_option(
    socket: &socket2::Socket,
    level: c_int,
    name: c_int,
    value: c_int,
) -> io::Result<()> {
    // SAFETY: the value is an int that lives through the call, and its size is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_carry_dscp_56_and_ect0() {
        let any = "127.0.0.1:0".parse().unwrap();
        let socket = Socket::bind(any, &SocketOptions::default()).unwrap();
        assert_eq!(socket.socket.tos_v4().unwrap(), 0xe2);
        let any = "[::1]:0".parse().unwrap();
        if let Ok(socket) = Socket::bind(any, &SocketOptions::default()) {
            assert_eq!(socket.socket.tclass_v6().unwrap(), 0xe2);
        }
    }
}
