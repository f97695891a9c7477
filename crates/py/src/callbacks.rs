//! Python callbacks run on a small pool: a callback may block on another operation, so it must never run on the threads
//! that complete operations.

use std::cell::{Cell, RefCell};
use std::time::Instant;

use crossbeam_channel::{Sender, unbounded};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::SIGNAL_CHECK;

/// Two, as Gloo has run loops: a callback that waits does not delay the next one.
const THREADS: usize = 2;

struct Pool {
    /// Process id: a forked child has none of its parent's threads.
    process: u32,
    queue: Sender<Py<PyAny>>,
}

static POOL: Mutex<Option<Pool>> = Mutex::new(None);

/// Calls `callback()` soon, on a thread of the pool. An exception is printed, since no caller can catch it.
pub(crate) fn call(callback: Py<PyAny>) {
    let mut pool = POOL.lock();
    let process = std::process::id();
    let pool = match pool.take() {
        Some(known) if known.process == process => pool.insert(known),
        _ => pool.insert(start(process)),
    };
    // The pool lives as long as the process.
    let _ = pool.queue.send(callback);
}

fn start(process: u32) -> Pool {
    let (queue, inbox) = unbounded::<Py<PyAny>>();
    for _ in 0..THREADS {
        let inbox = inbox.clone();
        std::thread::spawn(move || {
            for callback in inbox {
                run(&callback);
            }
        });
    }
    Pool { process, queue }
}

fn run(callback: &Py<PyAny>) {
    // None while the interpreter ends: then nothing waits for the callback either.
    Python::try_attach(|py| {
        if let Err(error) = callback.call0(py) {
            error.write_unraisable(py, Some(callback.bind(py)));
        }
    });
}

thread_local! {
    static LOOKED: Cell<Option<Instant>> = const { Cell::new(None) };
    static INTERRUPT: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Whether a signal's handler has raised (Ctrl-C), for operations that run on the caller's thread; checks from time to
/// time.
pub(crate) fn interrupted() -> bool {
    let now = Instant::now();
    let looked = LOOKED.get().get_or_insert(now).to_owned();
    if now.duration_since(looked) < SIGNAL_CHECK {
        LOOKED.set(Some(looked));
        return false;
    }
    LOOKED.set(Some(now));
    match Python::try_attach(|py| py.check_signals()) {
        Some(Err(interrupt)) => {
            INTERRUPT.set(Some(interrupt));
            true
        }
        Some(Ok(())) => false,
        // The interpreter ends.
        None => true,
    }
}

/// The exception that `interrupted` found on this thread.
pub(crate) fn interrupt() -> Option<PyErr> {
    INTERRUPT.take()
}
