//! Wires with a length: frames that come in at one device leave at its partner some time later, both ways.
//!
//! For networks of namespaces on kernels that cannot delay packets themselves (no `netem`): one process in a namespace of its
//! own, with both devices of every wire. Offloads pass: a train of segments goes through as one frame.
//!
//!     delay_line MICROSECONDS DEVICE-DEVICE…

#![allow(unsafe_code)] // Packet sockets have no safe interface in std or socket2.

use std::collections::VecDeque;
use std::error::Error;
use std::ffi::CString;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let usage = "usage: delay_line MICROSECONDS DEVICE-DEVICE…";
    let delay = Duration::from_micros(words.next().ok_or(usage)?.parse()?);
    let mut ends = Vec::new();
    for wire in words {
        let (a, b) = wire.split_once('-').ok_or(usage)?;
        for device in [a, b] {
            ends.push(open(device).map_err(|error| format!("{device}: {error}"))?);
        }
    }
    println!("ready");
    io::stdout().flush()?;
    Ok(carry(&ends, delay)?)
}

/// All frames that come in at a device, and a way to send on it.
fn open(device: &str) -> io::Result<Socket> {
    let name = CString::new(device)?;
    // SAFETY: the name ends with 0 and lives through the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(i32::from(protocol))))?;
    // Headers of checksums and segments that are still to be done come and go with the frames.
    option(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
    option(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
    option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, SOCKET_BYTES)?;
    // SAFETY: sockaddr_ll is a valid address of its length once family, protocol and index are set; the rest is 0.
    let ((), address) = unsafe {
        SockAddr::try_init(|storage, length| {
            let link = storage.cast::<libc::sockaddr_ll>();
            (*link).sll_family = libc::AF_PACKET as u16;
            (*link).sll_protocol = protocol;
            (*link).sll_ifindex = index as i32;
            *length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            Ok(())
        })?
    };
    socket.bind(&address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn option(socket: &Socket, level: i32, name: i32, value: libc::c_int) -> io::Result<()> {
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value is an int that lives through the call, and its length is given.
    let done = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Ends 2i and 2i + 1 are those of a wire. Runs until it is killed.
fn carry(ends: &[Socket], delay: Duration) -> io::Result<()> {
    // All frames wait equally long, so they leave in the order in which they came.
    let mut waiting: VecDeque<(Instant, usize, Vec<u8>)> = VecDeque::new();
    let mut buffer = vec![0; FRAME_MAX];
    let mut polled: Vec<libc::pollfd> = ends
        .iter()
        .map(|end| libc::pollfd { fd: end.as_raw_fd(), events: libc::POLLIN, revents: 0 })
        .collect();
    loop {
        let now = Instant::now();
        while let Some((due, to, frame)) = waiting.front() {
            if *due > now {
                break;
            }
            // What a device refuses (it is down, its queue is full) is lost, as on a wire.
            let _ = (&ends[*to]).write(frame);
            waiting.pop_front();
        }
        let left = waiting.front().map(|(due, ..)| due.saturating_duration_since(now));
        wait(&mut polled, left)?;
        for end in (0..ends.len()).filter(|&end| polled[end].revents != 0) {
            // An error: no more packets, or the device is down.
            while let Ok(length) = (&ends[end]).read(&mut buffer) {
                waiting.push_back((Instant::now() + delay, end ^ 1, buffer[..length].to_vec()));
            }
        }
    }
}

/// Until a frame comes, or for so long.
fn wait(polled: &mut [libc::pollfd], at_most: Option<Duration>) -> io::Result<()> {
    let time = at_most.map(|time| libc::timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: time.subsec_nanos() as libc::c_long,
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the array has as many entries as are told, and the time, if there is one, lives through the call.
    let found = unsafe {
        libc::ppoll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, time, std::ptr::null())
    };
    let error = io::Error::last_os_error();
    if found < 0 && error.kind() != ErrorKind::Interrupted { Err(error) } else { Ok(()) }
}

/// A train of segments with its headers.
const FRAME_MAX: usize = 70_000;
const SOCKET_BYTES: libc::c_int = 8 << 20;
