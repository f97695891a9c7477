//! Reading a message in its sender's memory: one copy, if the kernel allows it.
//!
//! Containers and hardened systems forbid it (ptrace's rules); messages then go through the rings. Every rank publishes
//! the address of a random number: a rank that reads it there has found the right process and may read. The number is
//! read again with every message, in case another process has got the process id of one that died.

#![allow(unsafe_code)]

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// A rank's identity in shared memory. Zeros mean not published.
#[repr(C, align(128))]
pub(super) struct Identity {
    pid: AtomicU32,
    at: AtomicU64,
    nonce: AtomicU64,
}

impl Identity {
    /// `own` must not move while messages are lent.
    pub(super) fn publish(&self, own: &Nonce) {
        self.at.store((&raw const *own.0) as u64, Ordering::Relaxed);
        self.nonce.store(*own.0, Ordering::Relaxed);
        self.pid.store(std::process::id(), Ordering::Release);
    }
}

/// A random number that others can read.
pub(super) struct Nonce(Box<u64>);

impl Nonce {
    pub(super) fn new() -> Nonce {
        Nonce(Box::new(RandomState::new().hash_one(std::process::id()) | 1))
    }
}

/// Whether a rank's memory can be read: determined once, with the first message that is long enough.
#[derive(Default)]
pub(super) struct Access(AtomicU8);

impl Access {
    pub(super) fn is_allowed(&self, identity: &Identity) -> bool {
        match self.0.load(Ordering::Relaxed) {
            UNKNOWN if identity.pid.load(Ordering::Acquire) != 0 => {
                let allowed = read(identity, 0, &mut []).is_ok();
                self.0.store(if allowed { ALLOWED } else { DENIED }, Ordering::Relaxed);
                allowed
            }
            known => known == ALLOWED,
        }
    }
}

/// Fills `to` from that address of the process that published its identity. Errors: the kernel does not allow it, there
/// is no such memory, or it is another process.
pub(super) fn read(identity: &Identity, at: u64, to: &mut [u8]) -> io::Result<()> {
    let wanted = to.len() + size_of::<u64>();
    let mut nonce = 0u64;
    let piece = |start: *mut libc::c_void, len| libc::iovec { iov_base: start, iov_len: len };
    let local = [piece(to.as_mut_ptr().cast(), to.len()), piece((&raw mut nonce).cast(), 8)];
    let nonce_at = identity.at.load(Ordering::Relaxed);
    let remote = [piece(at as *mut _, to.len()), piece(nonce_at as *mut _, 8)];
    let pid = identity.pid.load(Ordering::Acquire) as libc::pid_t;
    // SAFETY: the kernel writes to the local pieces only, which are owned and have the given length; it checks the
    // remote ones.
    let count = unsafe { libc::process_vm_readv(pid, local.as_ptr(), 2, remote.as_ptr(), 2, 0) };
    match usize::try_from(count) {
        Err(_) => Err(io::Error::last_os_error()),
        Ok(count) if count != wanted => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) if nonce != identity.nonce.load(Ordering::Relaxed) => {
            Err(io::Error::other("it is another process"))
        }
        Ok(_) => Ok(()),
    }
}

const UNKNOWN: u8 = 0;
const ALLOWED: u8 = 1;
const DENIED: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity { pid: AtomicU32::new(0), at: AtomicU64::new(0), nonce: AtomicU64::new(0) }
    }

    #[test]
    fn memory_is_read_only_of_the_process_that_published_its_identity() {
        let (identity, access, own) = (identity(), Access::default(), Nonce::new());
        assert!(!access.is_allowed(&identity), "nothing is published yet");
        identity.publish(&own);
        if !access.is_allowed(&identity) {
            return println!("skipped: this system lets nobody read another's memory");
        }
        let (from, mut to) = (vec![7u8; 1000], vec![0; 1000]);
        let at = from.as_ptr() as u64;
        assert!(read(&identity, at, &mut to).is_ok() && to == from);
        assert_eq!(
            read(&identity, 8, &mut to).map_err(|e| e.raw_os_error()),
            Err(Some(libc::EFAULT))
        );
        identity.nonce.fetch_add(1, Ordering::Relaxed);
        let other = read(&identity, at, &mut to).map_err(|e| e.to_string());
        assert_eq!(other, Err("it is another process".to_owned()));
        assert!(!Access::default().is_allowed(&identity));
    }
}
