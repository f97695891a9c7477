//! Python callbacks run on a small pool: a callback may block on another operation, so it must never run on the threads
//! that complete operations.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, unbounded};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::SIGNAL_CHECK;

/// Two, as Gloo has run loops: a callback that waits does not delay the next one.
const THREADS: usize = 2;
/// How long the end of the interpreter waits for callbacks that have begun; one may block.
const END_PATIENCE: Duration = Duration::from_secs(5);
const END_POLL: Duration = Duration::from_millis(1);

struct Pool {
    /// Process id: a forked child has none of its parent's threads.
    process: u32,
    queue: Sender<Py<PyAny>>,
    running: Arc<Running>,
}

/// Callbacks that have begun, and whether others may.
#[derive(Default)]
struct Running {
    count: AtomicUsize,
    ends: AtomicBool,
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
    let running = Arc::new(Running::default());
    for _ in 0..THREADS {
        let (inbox, running) = (inbox.clone(), running.clone());
        std::thread::spawn(move || {
            for callback in inbox {
                running.count.fetch_add(1, Ordering::SeqCst);
                if !running.ends.load(Ordering::SeqCst) {
                    run(&callback);
                }
                running.count.fetch_sub(1, Ordering::SeqCst);
            }
        });
    }
    Pool { process, queue, running }
}

/// Lets no more callbacks begin, and waits for those that have: when the interpreter has ended, a thread that asks for
/// its lock is unwound, which C++ code above it answers by ending the process.
#[pyfunction]
pub(crate) fn end_callbacks(py: Python<'_>) {
    let pool = POOL.lock();
    let known = pool.as_ref().filter(|pool| pool.process == std::process::id());
    let Some(running) = known.map(|pool| pool.running.clone()) else { return };
    drop(pool);
    running.ends.store(true, Ordering::SeqCst);
    py.detach(|| {
        let until = Instant::now() + END_PATIENCE;
        while running.count.load(Ordering::SeqCst) > 0 && Instant::now() < until {
            std::thread::sleep(END_POLL);
        }
    });
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
