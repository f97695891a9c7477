//! A connection through memory that two processes of one host share.
//!
//! One process makes the memory (a memfd of fixed size) and passes it through a Unix socket, which both keep: it
//! reveals the death of the other.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use parking_lot::Mutex;

use super::half::{ReceiveHalf, SendHalf, end, refuse};
use super::{Connection, pass};
use crate::memfd::{self, Map};
use crate::ring::{Bytes, Positions, SharedBytes};

/// Bytes both ways through two rings in shared memory.
pub struct SharedMemory {
    /// The two rings, for announcing their end.
    outgoing: SharedBytes,
    incoming: SharedBytes,
    sending: Mutex<SendHalf<SharedBytes>>,
    receiving: Mutex<ReceiveHalf<SharedBytes>>,
    socket: UnixStream,
    patience: Duration,
}

impl SharedMemory {
    /// Makes memory and passes it to the peer behind `socket`, together with `hello`.
    ///
    /// `patience`: how long a write waits for a peer that does not read.
    pub fn offer(socket: UnixStream, hello: &[u8], patience: Duration) -> io::Result<SharedMemory> {
        let fd = memfd::create(c"netsum-lane", LEN)?;
        pass::send(&socket, hello, &fd)?;
        let map = Map::new(&fd, LEN)?;
        Ok(SharedMemory::new(map, socket, 0, patience))
    }

    /// Accepts memory that a peer passes, and fills `hello` with the bytes that came along.
    ///
    /// Waits as long as the socket's read timeout allows. Errors: no memory arrived, or it differs from what
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
        let map = Arc::new(map);
        let (outgoing, incoming) = (|| ring(&map, side), || ring(&map, 1 - side));
        let sending = Mutex::new(SendHalf::new(outgoing()));
        let receiving = Mutex::new(ReceiveHalf::new(incoming()));
        let (outgoing, incoming) = (outgoing(), incoming());
        SharedMemory { outgoing, incoming, sending, receiving, socket, patience }
    }

    /// Whether the peer's end of the socket is closed: nothing is sent on it after the beginning.
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
        self.receiving.lock().read(bytes, SPINS, || self.gone())
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        self.sending.lock().write(bytes, self.patience, SPINS, || self.gone())
    }

    fn end(&self) {
        end(self.outgoing.positions());
    }

    fn close(&self) {
        end(self.outgoing.positions());
        refuse(self.incoming.positions());
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
fn ring(map: &Arc<Map>, from: usize) -> SharedBytes {
    SharedBytes::new(map, from * CONTROL, 2 * CONTROL + from * CAPACITY as usize, CAPACITY)
}

/// Bytes per direction: several chunks, and within the second-level cache of most processors.
const CAPACITY: u32 = 1 << 20;
/// Bytes of each direction's positions: a page.
const CONTROL: usize = 4096;
const LEN: usize = 2 * CONTROL + 2 * CAPACITY as usize;
const _: () = assert!(size_of::<Positions<AtomicU32>>() <= CONTROL && CAPACITY.is_power_of_two());
/// Number of polls of the other side's position before sleeping: a few hundred nanoseconds, less than a system call.
const SPINS: u32 = 200;
