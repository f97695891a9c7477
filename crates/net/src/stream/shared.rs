//! A connection through memory that two processes of one host share.
//!
//! One makes the memory (a memfd that can neither grow nor shrink) and passes it through a Unix socket, which both
//! keep: it is how the death of the other is seen.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use parking_lot::Mutex;

use super::ring::{Control, Ring};
use super::{Connection, pass};

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
        let fd = create()?;
        pass::send(&socket, hello, &fd)?;
        let map = Map::new(&fd)?;
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
        check(&fd)?;
        let map = Map::new(&fd)?;
        Ok(SharedMemory::new(map, socket, 1, patience))
    }

    fn new(map: Map, socket: UnixStream, side: usize, patience: Duration) -> SharedMemory {
        let (sending, receiving) = (map.ring(side), map.ring(1 - side));
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

/// The memory of one connection, mapped.
struct Map {
    start: *mut u8,
}

// SAFETY: an address; what lies there is reached through the rings.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    fn new(fd: &OwnedFd) -> io::Result<Map> {
        let (read_write, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice; the file is as long as the mapping and is sealed,
        // so no access can fault.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), LEN, read_write, shared, fd.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Map { start: start.cast() })
    }

    /// The ring in which side `from` writes.
    fn ring(&self, from: usize) -> Ring {
        // SAFETY: both offsets are within the mapping, and the first is aligned as pages are; fresh memory is zero,
        // which is an empty ring.
        unsafe {
            Ring {
                control: self.start.add(from * CONTROL).cast::<Control>(),
                data: self.start.add(2 * CONTROL + from * CAPACITY as usize),
                capacity: CAPACITY,
            }
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with that length and unmapped once; the rings into it are fields of the same struct
        // and are not used after it is dropped.
        unsafe { libc::munmap(self.start.cast(), LEN) };
    }
}

fn create() -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a C string that is constant; the descriptor that comes back is ours.
    let fd = unsafe {
        let fd = libc::memfd_create(c"netsum-lane".as_ptr(), flags);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    // SAFETY: calls on a live descriptor that touch no memory of ours.
    let done = unsafe {
        libc::ftruncate(fd.as_raw_fd(), LEN as libc::off_t) == 0
            && libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS) == 0
    };
    if done { Ok(fd) } else { Err(io::Error::last_os_error()) }
}

/// A file that could shrink would kill us at the next access.
fn check(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: a zeroed stat is valid and filled by fstat; both calls are on a live descriptor.
    let (seals, len) = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        let known = libc::fstat(fd.as_raw_fd(), &raw mut stat) == 0;
        (libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS), if known { stat.st_size } else { -1 })
    };
    if seals < 0 || seals & SEALS != SEALS || len != LEN as libc::off_t {
        let problem = "the memory it passed is not that of a lane";
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    Ok(())
}

/// Bytes of each direction: several chunks, and within the second-level cache of most processors.
const CAPACITY: u32 = 1 << 20;
/// A page for each direction's words.
const CONTROL: usize = 4096;
const LEN: usize = 2 * CONTROL + 2 * CAPACITY as usize;
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
const _: () = assert!(size_of::<Control>() <= CONTROL && CAPACITY.is_power_of_two());
