//! Passes a file descriptor with some bytes to another process, through a Unix socket.

#![allow(unsafe_code)]

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

/// Sends `bytes` and `fd` as one message.
pub(crate) fn send(socket: &UnixStream, bytes: &[u8], fd: &OwnedFd) -> io::Result<()> {
    unless_interrupted(|| send_once(socket, bytes, fd))
}

/// Receives exactly `bytes` and one descriptor. Errors: anything else arrived.
pub(crate) fn receive(socket: &UnixStream, bytes: &mut [u8]) -> io::Result<OwnedFd> {
    unless_interrupted(|| receive_once(socket, bytes))
}

/// Repeats a call interrupted by a signal: a process that was stopped and continued always gets one.
fn unless_interrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

fn send_once(socket: &UnixStream, bytes: &[u8], fd: &OwnedFd) -> io::Result<()> {
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = Control([0; 64]);
    // SAFETY: a zeroed msghdr is valid; the pointers put into it live until the call returns. CMSG_FIRSTHDR gives a
    // pointer into `control`, which is aligned and large enough for one descriptor, or null, which is checked.
    let sent = unsafe {
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(FD_LEN) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        assert!(!header.is_null(), "room for one header");
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(FD_LEN) as _;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(fd.as_raw_fd());
        libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
    };
    match usize::try_from(sent) {
        Ok(count) if count == bytes.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

fn receive_once(socket: &UnixStream, bytes: &mut [u8]) -> io::Result<OwnedFd> {
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = Control([0; 64]);
    let mut found: Option<OwnedFd> = None;
    // SAFETY: as in `send`; the kernel writes within the lengths given. A received descriptor must be closed, so each
    // is owned at once. There is room for one descriptor: of more the kernel closes the rest and sets MSG_CTRUNC.
    let count = unsafe {
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(FD_LEN) as _;
        let count = libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC);
        let header =
            if count < 0 { std::ptr::null_mut() } else { libc::CMSG_FIRSTHDR(&raw const message) };
        if !header.is_null()
            && (*header).cmsg_level == libc::SOL_SOCKET
            && (*header).cmsg_type == libc::SCM_RIGHTS
            && (*header).cmsg_len as u64 == u64::from(libc::CMSG_LEN(FD_LEN))
        {
            let fd = libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned();
            found = Some(OwnedFd::from_raw_fd(fd));
        }
        count
    };
    if count < 0 {
        return Err(io::Error::last_os_error());
    }
    match found {
        Some(fd) if count as usize == bytes.len() => Ok(fd),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it sent no shared memory")),
    }
}

const FD_LEN: u32 = size_of::<RawFd>() as u32;

/// Room for the header of one descriptor, aligned as headers are.
#[repr(C, align(8))]
struct Control([u8; 64]);

const _: () = assert!(
    size_of::<libc::cmsghdr>() + 2 * size_of::<RawFd>() <= 64 && align_of::<libc::cmsghdr>() <= 8
);

#[cfg(test)]
mod tests {
    use std::os::unix::thread::JoinHandleExt;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_signal_does_not_end_a_receive() {
        extern "C" fn nothing(_: i32) {}
        // SAFETY: a zeroed sigaction with a handler is valid, and means that calls are interrupted.
        unsafe {
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
            assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()), 0);
        }
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let receiver = std::thread::spawn(move || {
            let mut bytes = [0; 3];
            receive(&theirs, &mut bytes).map(|_| bytes)
        });
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(20));
            // SAFETY: the thread waits for us, so it lives.
            assert_eq!(unsafe { libc::pthread_kill(receiver.as_pthread_t(), libc::SIGUSR2) }, 0);
        }
        let fd = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        send(&ours, b"abc", &fd).unwrap();
        assert_eq!(receiver.join().unwrap().unwrap(), *b"abc");
    }
}
