//! Memory that processes of one host share: a memfd that cannot change its size, and its mapping.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Creates `len` zero bytes that this user alone can open. `name`: as shown in /proc.
pub(crate) fn create(name: &CStr, len: usize) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a C string that outlives the call; the returned descriptor is owned.
    let fd = unsafe {
        let fd = libc::memfd_create(name.as_ptr(), flags);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    // SAFETY: calls on a live descriptor that access no memory of this process.
    let done = unsafe {
        // A memfd is created open to all; only access to this process protects it then.
        libc::fchmod(fd.as_raw_fd(), 0o600) == 0
            && libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) == 0
            && libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS) == 0
    };
    if done { Ok(fd) } else { Err(io::Error::last_os_error()) }
}

/// Checks that a received descriptor is like those of [`create`]: if the file could shrink, the next access would kill
/// this process. Errors: it is not.
pub(crate) fn check(fd: &OwnedFd, len: usize) -> io::Result<()> {
    // SAFETY: a zeroed stat is valid and filled by fstat; both calls are on a live descriptor.
    let (seals, found) = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        let known = libc::fstat(fd.as_raw_fd(), &raw mut stat) == 0;
        (libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS), if known { stat.st_size } else { -1 })
    };
    if seals < 0 || seals & SEALS != SEALS || found != len as libc::off_t {
        let problem = "the memory it passed is not what was agreed";
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    Ok(())
}

/// The mapping of a whole memfd.
pub(crate) struct Map {
    start: *mut u8,
    len: usize,
}

// SAFETY: an address; users follow rules for the memory there.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps a file of `len` bytes that [`create`] made or [`check`] accepted.
    pub(crate) fn new(fd: &OwnedFd, len: usize) -> io::Result<Map> {
        let (read_write, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice; the file is as long as the mapping and is sealed,
        // so no access can fault.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), len, read_write, shared, fd.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Map { start: start.cast(), len })
    }

    /// The first byte; aligned to a page.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with that length and unmapped once; owners keep the map while they use it.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn shared_memory_is_its_users_alone() {
        let fd = create(c"netsum-test", 4096).unwrap();
        let mode = std::fs::File::from(fd).metadata().unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
