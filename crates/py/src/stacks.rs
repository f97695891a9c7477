//! Call stacks of the interpreter, for [`netsum_collective::responder`].
//!
//! A Python thread writes them on request. If it does not get the interpreter lock in time, the program is in C code, or
//! computes without ever yielding the lock; then the interpreter's own function for crash reports writes the stacks as
//! text, which needs no lock.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::prelude::*;
use serde_json::{Value, json};

/// The socket to the Python thread.
struct Asker {
    stream: BufReader<UnixStream>,
    /// The beginning of a line.
    line: Vec<u8>,
    /// Number of the last question.
    number: u64,
    /// When the first question was asked since the thread's last answer.
    unanswered: Option<Instant>,
}

/// Lets the responder get stacks from the thread at the other end of a socket, which it takes over: for each line, a
/// number, that thread writes a line of JSON with this number as "id".
#[pyfunction]
pub(crate) fn answer_stacks(socket: c_int) {
    // SAFETY: the caller has detached the descriptor from its Python object and hands it over.
    let stream = unsafe { UnixStream::from_raw_fd(socket) };
    let stream = BufReader::new(stream);
    let asker = Asker { stream, line: Vec::new(), number: 0, unanswered: None };
    let asker = Mutex::new(asker);
    netsum_collective::responder::set_stacks(Box::new(move |patience| {
        let until = Instant::now() + patience;
        let mut asker = asker.try_lock_until(until)?;
        if let Some(answer) = asker.ask(until) {
            asker.unanswered = None;
            return Some(answer);
        }
        let silent_s = asker.unanswered.map_or(0.0, |since| since.elapsed().as_secs_f64());
        Some(json!({ "silent_s": silent_s, "dump": dump() }))
    }));
}

impl Asker {
    fn ask(&mut self, until: Instant) -> Option<Value> {
        self.number += 1;
        self.unanswered.get_or_insert_with(Instant::now);
        writeln!(self.stream.get_mut(), "{}", self.number).ok()?;
        loop {
            let left = until.checked_duration_since(Instant::now()).filter(|l| !l.is_zero())?;
            self.stream
                .get_mut()
                .set_read_timeout(Some(left.max(Duration::from_millis(1))))
                .ok()?;
            // What has been read is in `line` even if the time is over.
            self.stream.read_until(b'\n', &mut self.line).ok().filter(|&n| n > 0)?;
            let answer: Value = serde_json::from_slice(&std::mem::take(&mut self.line)).ok()?;
            // An earlier question's answer may have been late.
            if answer["id"] == self.number {
                return Some(answer);
            }
        }
    }
}

/// `_Py_DumpTracebackThreads`: descriptor, interpreter (null: the main one), current thread (null: unknown).
type DumpThreads = unsafe extern "C" fn(c_int, *mut c_void, *mut c_void) -> *const c_char;

/// The stacks of all threads as text, without the interpreter lock; `None` if this interpreter has no such function.
fn dump() -> Option<String> {
    // SAFETY: the name is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_Py_DumpTracebackThreads".as_ptr()) };
    if found.is_null() {
        return None;
    }
    // SAFETY: the interpreter's function has this type from Python 3.5 on.
    let dump: DumpThreads = unsafe { std::mem::transmute(found) };
    // SAFETY: the name is a C string; the descriptor is new and belongs to the file alone.
    let mut file = unsafe {
        let descriptor = libc::memfd_create(c"netsum-stacks".as_ptr(), libc::MFD_CLOEXEC);
        if descriptor < 0 {
            return None;
        }
        File::from_raw_fd(descriptor)
    };
    // SAFETY: faulthandler calls it in this way from threads without the lock: it reads the frames of threads that do not
    // yield the lock, allocates nothing, and checks what it reads.
    unsafe { dump(file.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut()) };
    file.rewind().ok()?;
    let mut text = Vec::new();
    file.take(DUMP_MAX).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Some hundred threads.
const DUMP_MAX: u64 = 128 << 10;
