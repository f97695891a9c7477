//! A connection through memory that two processes of one host share.
//!
//! One makes the memory (a memfd that can neither grow nor shrink) and passes it through a Unix socket, which both
//! keep: it is how the death of the other is seen.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use parking_lot::Mutex;

use super::ring::{Control, Ring};
use super::{Connection, pass};
use crate::memfd::{self, Map};

/// Bytes both ways through two rings in shared memory.
pub struct SharedMemory {
    _map: Map,
    sending: Ring,
    receiving: Ring,
    /// Bytes written and read so far.
    written: Mutex<u32>,
    read: Mutex<u32>,
    socket: UnixStream,
    patience: Duration,
}

impl SharedMemory {
    /// Makes memory and passes it to the peer behind `socket`, together with `hello`.
    ///
    /// `patience`: how long a write waits for a peer that reads nothing.
    pub fn offer(socket: UnixStream, hello: &[u8], patience: Duration) -> io::Result<SharedMemory> {
        let fd = memfd::create(c"netsum-lane", LEN)?;
        pass::send(&socket, hello, &fd)?;
        let map = Map::new(&fd, LEN)?;
        Ok(SharedMemory::new(map, socket, 0, patience))
    }

    /// Takes memory that a peer passes, and fills `hello` with what came along.
    ///
    /// Waits as long as the socket's read timeout allows. Errors: no memory came, or it is not what
    /// [`SharedMemory::offer`] makes.
    pub fn take(
        socket: UnixStream,
        hello: &mut [u8],
        patience: Duration,
    ) -> io::Result<SharedMemory> {
        let fd = pass::receive(&socket, hello)?;
        memfd::check(&fd, LEN)?;
        let map = Map::new(&fd, LEN)?;
        Ok(SharedMemory::new(map, socket, 1, patience))
    }

    fn new(map: Map, socket: UnixStream, side: usize, patience: Duration) -> SharedMemory {
        let (sending, receiving) = (ring(&map, side), ring(&map, 1 - side));
        let (written, read) = (Mutex::new(0), Mutex::new(0));
        SharedMemory { _map: map, sending, receiving, written, read, socket, patience }
    }

    /// Whether the peer's end of the socket is closed: nothing is ever sent on it after the beginning.
    fn gone(&self) -> bool {
        let mut byte = 0u8;
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: one byte of room at a live address.
        let got = unsafe { libc::recv(self.socket.as_raw_fd(), (&raw mut byte).cast(), 1, flags) };
        let again = io::ErrorKind::WouldBlock;
        got == 0 || got < 0 && io::Error::last_os_error().kind() != again
    }
}

impl Connection for SharedMemory {
    fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        self.receiving.read(&mut self.read.lock(), bytes, || self.gone())
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        self.sending.write(&mut self.written.lock(), bytes, self.patience, || self.gone())
    }

    fn end(&self) {
        self.sending.end();
    }

    fn close(&self) {
        self.sending.end();
        self.receiving.refuse();
    }

    fn medium(&self) -> &'static str {
        "shared memory"
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        self.close();
    }
}

/// The ring in which side `from` writes.
fn ring(map: &Map, from: usize) -> Ring {
    assert!(map.len() == LEN, "the memory of one connection");
    // SAFETY: both offsets are within the mapping, and the first is aligned as pages are; fresh memory is zero, which is
    // an empty ring.
    unsafe {
        Ring {
            control: map.start().add(from * CONTROL).cast::<Control>(),
            data: map.start().add(2 * CONTROL + from * CAPACITY as usize),
            capacity: CAPACITY,
        }
    }
}

/// Bytes of each direction: several chunks, and within the second-level cache of most processors.
const CAPACITY: u32 = 1 << 20;
/// A page for each direction's words.
const CONTROL: usize = 4096;
const LEN: usize = 2 * CONTROL + 2 * CAPACITY as usize;
const _: () = assert!(size_of::<Control>() <= CONTROL && CAPACITY.is_power_of_two());
