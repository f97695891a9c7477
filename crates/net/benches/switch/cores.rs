//! A thread on one core.

#![allow(unsafe_code)]

/// Moves the calling thread, and threads that it starts later, to `core`.
pub fn pin(core: usize) {
    // SAFETY: the set is plain bits, zero is a value; the call reads it only.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if result != 0 {
        let error = std::io::Error::last_os_error();
        eprintln!("cannot use core {core} alone ({error}); the two sides share cores");
    }
}
