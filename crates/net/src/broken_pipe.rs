//! Signals of broken connections.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

/// Runs `body` without SIGPIPE for this thread, and for the threads that it starts.
///
/// A write to a connection that the peer has ended raises SIGPIPE, which ends the process unless somebody ignores it.
/// The standard library writes without the signal only where it writes a single buffer. Programs in Rust and Python ignore
/// it; a library in a program in C may not decide that. So the thread blocks it meanwhile, takes one that was raised,
/// and leaves the caller's mask as it was.
pub fn without_sigpipe<T>(body: impl FnOnce() -> T) -> T {
    let _blocked = Blocked::begin();
    body()
}

/// Undoes the block when it is dropped; `None`: the signal was blocked before.
struct Blocked(Option<libc::sigset_t>);

impl Blocked {
    fn begin() -> Blocked {
        let mut before = MaybeUninit::zeroed();
        // SAFETY: the set is this function's; a set of zeros is valid, and the call writes to it.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &only_sigpipe(), before.as_mut_ptr());
            let blocked = libc::sigismember(before.as_ptr(), libc::SIGPIPE) == 1;
            Blocked(if blocked { None } else { Some(before.assume_init()) })
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        let Some(before) = &self.0 else { return };
        let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: all pointers are to values that live during the calls.
        unsafe {
            libc::sigtimedwait(&only_sigpipe(), std::ptr::null_mut(), &none);
            libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut());
        }
    }
}

fn only_sigpipe() -> libc::sigset_t {
    let mut set = MaybeUninit::zeroed();
    // SAFETY: the set is this function's; sigemptyset initialises it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGPIPE);
        set.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Write};
    use std::net::{TcpListener, TcpStream};
    use std::process::Command;

    use super::*;

    /// Writes to a connection that the peer has ended; `writev` raises the signal.
    fn write_in_vain() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        drop(listener.accept().unwrap());
        drop(listener);
        while stream.write_vectored(&[IoSlice::new(b"a"), IoSlice::new(b"b")]).is_ok() {}
    }

    #[test]
    #[ignore = "a process of the other test"]
    fn a_program_in_c() {
        // SAFETY: as at the start of a program in C; no handler is involved.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        if std::env::var_os("NETSUM_BARE").is_none() {
            without_sigpipe(write_in_vain);
            without_sigpipe(|| std::thread::spawn(write_in_vain).join().unwrap());
            return;
        }
        write_in_vain();
    }

    #[test]
    fn a_broken_connection_does_not_end_a_program_in_c() {
        let run = |bare: bool| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "broken_pipe::tests::a_program_in_c", "--ignored"]);
            if bare {
                command.env("NETSUM_BARE", "1");
            }
            command.output().unwrap().status
        };
        assert!(run(false).success());
        // Without it, the same writes do.
        assert!(!run(true).success());
    }
}
