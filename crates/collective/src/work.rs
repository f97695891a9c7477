//! A caller's handle to an operation.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netsum_net::Process;
use parking_lot::{Condvar, Mutex};

use crate::Error;
use crate::call::Call;

/// Called once when an operation is done.
type OnDone = Box<dyn FnOnce() + Send>;

/// Makes progress on behalf of a waiting caller: for a short while, at most until the given time, or until the
/// predicate holds.
pub(crate) type Helper = Box<dyn Fn(Option<Instant>, &dyn Fn() -> bool) + Send + Sync>;

/// A handle to an asynchronous operation. Its memory is free when the operation is done, with or without an error.
#[derive(Clone)]
pub struct Work(Holder);

#[derive(Clone)]
enum Holder {
    Open(Arc<Shared>),
    /// The operation succeeded within the call, before an object was made: description, time of the call, and the
    /// sender of a message.
    Ended(OperationSummary, Instant, Option<u32>),
}

struct Shared {
    operation: OperationSummary,
    called: Instant,
    state: Mutex<State>,
    done: Condvar,
    helper: Option<Helper>,
    maker: Process,
}

impl Shared {
    /// In a forked process no thread completes the operation.
    fn foreign(&self) -> Option<Error> {
        (!self.maker.is_this()).then(|| Error::Forked { process: self.maker.id() })
    }
}

/// Description of an operation, formatted for errors only.
#[derive(Clone)]
pub(crate) enum OperationSummary {
    /// A numbered collective.
    Collective(Call, u64),
    /// A message to a rank.
    Send { bytes: usize, to: u32, tag: u64 },
    /// A message from a rank, or from any.
    Receive { bytes: usize, from: Option<u32>, tag: u64 },
    /// Any other operation.
    Other(String),
}

impl fmt::Display for OperationSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OperationSummary::Collective(call, sequence) => {
                write!(f, "{call} (operation #{sequence}, {} bytes)", call.bytes())
            }
            OperationSummary::Send { bytes, to, tag } => {
                write!(f, "send of {bytes} bytes to rank {to} (tag {tag})")
            }
            OperationSummary::Receive { bytes, from: Some(from), tag } => {
                write!(f, "receive of {bytes} bytes from rank {from} (tag {tag})")
            }
            OperationSummary::Receive { bytes, from: None, tag } => {
                write!(f, "receive of {bytes} bytes from any rank (tag {tag})")
            }
            OperationSummary::Other(words) => f.write_str(words),
        }
    }
}

#[derive(Default)]
struct State {
    outcome: Option<Result<(), Error>>,
    source: Option<u32>,
    ended: Option<Instant>,
    callbacks: Vec<OnDone>,
}

impl Work {
    pub(crate) fn new(operation: OperationSummary, called: Instant) -> Work {
        Work::helped(operation, called, None)
    }

    /// An operation that `helper` advances while a caller waits for it.
    pub(crate) fn helped(
        operation: OperationSummary,
        called: Instant,
        helper: Option<Helper>,
    ) -> Work {
        let state = Mutex::new(State::default());
        let (done, maker) = (Condvar::new(), Process::this());
        let shared = Shared { operation, called, state, done, helper, maker };
        Work(Holder::Open(Arc::new(shared)))
    }

    /// An operation that succeeded within the call.
    #[inline]
    pub(crate) fn ended_at_once(operation: OperationSummary, called: Instant) -> Work {
        Work(Holder::Ended(operation, called, None))
    }

    /// A receive that succeeded within the call.
    #[inline]
    pub(crate) fn received_at_once(
        operation: OperationSummary,
        called: Instant,
        source: u32,
    ) -> Work {
        Work(Holder::Ended(operation, called, Some(source)))
    }

    /// An operation that failed within the call.
    pub(crate) fn failed(operation: String, error: Error) -> Work {
        let work = Work::new(OperationSummary::Other(operation), Instant::now());
        work.complete(Err(error));
        work
    }

    /// Ends when all of `works` have; its error is the first of theirs.
    pub(crate) fn of_all(works: Vec<Work>) -> Work {
        if let [work] = works.as_slice() {
            return work.clone();
        }
        let called = works.iter().map(Work::called).min().unwrap_or_else(Instant::now);
        let all = Work::new(OperationSummary::Other(format!("{} operations", works.len())), called);
        if works.is_empty() {
            all.complete(Ok(()));
        }
        let left = Arc::new(Mutex::new((works.len(), Ok(()))));
        for work in works {
            let (all, left, one) = (all.clone(), left.clone(), work.clone());
            work.on_done(move || {
                let mut left = left.lock();
                left.0 -= 1;
                if let (Ok(()), Some(error)) = (&left.1, one.error()) {
                    left.1 = Err(error);
                }
                let outcome = (left.0 == 0).then(|| left.1.clone());
                drop(left);
                outcome.into_iter().for_each(|outcome| all.complete(outcome));
            });
        }
        all
    }

    /// Blocks until the operation is done, at most `timeout`. A timeout here leaves the operation running.
    #[inline]
    pub fn wait(&self, timeout: Option<Duration>) -> Result<(), Error> {
        if self.open().is_none() {
            return Ok(());
        }
        let done = match timeout {
            Some(timeout) => self.wait_at_most(timeout),
            None => {
                self.wait_until_done();
                true
            }
        };
        if done { self.outcome() } else { Err(self.still_running()) }
    }

    /// Blocks until the operation is done or `timeout` has passed; returns whether it is done.
    pub fn wait_at_most(&self, timeout: Duration) -> bool {
        let Some(shared) = self.open().filter(|shared| shared.foreign().is_none()) else {
            return true;
        };
        self.help(shared, Instant::now().checked_add(timeout));
        let mut state = shared.state.lock();
        let running = |state: &mut State| state.outcome.is_none();
        !shared.done.wait_while_for(&mut state, running, timeout).timed_out()
    }

    pub(crate) fn wait_until_done(&self) {
        let Some(shared) = self.open().filter(|shared| shared.foreign().is_none()) else { return };
        self.help(shared, None);
        let mut state = shared.state.lock();
        shared.done.wait_while(&mut state, |state| state.outcome.is_none());
    }

    fn help(&self, shared: &Shared, until: Option<Instant>) {
        if let Some(helper) = &shared.helper {
            helper(until, &|| self.is_done());
        }
    }

    /// The shared state, unless the operation ended within the call.
    #[inline]
    fn open(&self) -> Option<&Arc<Shared>> {
        match &self.0 {
            Holder::Open(shared) => Some(shared),
            Holder::Ended(..) => None,
        }
    }

    /// The error of a wait that timed out.
    pub fn still_running(&self) -> Error {
        Error::Timeout {
            operation: self.operation(),
            elapsed: self.elapsed(),
            missing: "it is still running".to_owned(),
        }
    }

    /// The outcome; an error while the operation is running.
    pub fn outcome(&self) -> Result<(), Error> {
        let Some(shared) = self.open() else { return Ok(()) };
        if let Some(error) = shared.foreign() {
            return Err(error);
        }
        let outcome = shared.state.lock().outcome.clone();
        outcome.unwrap_or_else(|| Err(self.still_running()))
    }

    /// Whether it is done, with or without an error.
    pub fn is_done(&self) -> bool {
        let ended = |shared: &Shared| shared.state.lock().outcome.is_some();
        self.open().is_none_or(|shared| shared.foreign().is_some() || ended(shared))
    }

    /// The error, if it failed.
    pub fn error(&self) -> Option<Error> {
        self.open()?.state.lock().outcome.as_ref().and_then(|outcome| outcome.clone().err())
    }

    /// The sender of a received message.
    pub fn source_rank(&self) -> Option<u32> {
        match &self.0 {
            Holder::Open(shared) => shared.state.lock().source,
            Holder::Ended(_, _, source) => *source,
        }
    }

    /// Description of the operation.
    pub(crate) fn about(&self) -> &OperationSummary {
        match &self.0 {
            Holder::Open(shared) => &shared.operation,
            Holder::Ended(operation, ..) => operation,
        }
    }

    /// Time of the call.
    pub(crate) fn called(&self) -> Instant {
        match &self.0 {
            Holder::Open(shared) => shared.called,
            Holder::Ended(_, called, _) => *called,
        }
    }

    /// Time of completion, if it is done; for operations that ended within the call, the time of the call.
    pub(crate) fn ended(&self) -> Option<Instant> {
        match &self.0 {
            Holder::Open(shared) => shared.state.lock().ended,
            Holder::Ended(_, called, _) => Some(*called),
        }
    }

    /// Calls `callback` when the operation is done, or immediately if it is; on the thread that completes it, so it
    /// must be short.
    pub fn on_done(&self, callback: impl FnOnce() + Send + 'static) {
        let Some(shared) = self.open() else { return callback() };
        let mut state = shared.state.lock();
        if state.outcome.is_none() {
            state.callbacks.push(Box::new(callback));
            return;
        }
        drop(state);
        callback();
    }

    /// Name, shape, sequence number and bytes, as text.
    pub fn operation(&self) -> String {
        self.about().to_string()
    }

    /// Time since the call.
    pub fn elapsed(&self) -> Duration {
        self.called().elapsed()
    }

    /// Completes the operation; only the first outcome counts.
    pub(crate) fn complete(&self, outcome: Result<(), Error>) {
        self.finish(outcome, None);
    }

    pub(crate) fn complete_from(&self, source: u32) {
        self.finish(Ok(()), Some(source));
    }

    fn finish(&self, outcome: Result<(), Error>, source: Option<u32>) {
        let outcome = outcome.map_err(|error| error.during(&self.operation(), self.elapsed()));
        let Some(shared) = self.open() else { return };
        let mut state = shared.state.lock();
        if state.outcome.is_some() {
            return;
        }
        state.outcome = Some(outcome);
        state.source = source;
        state.ended = Some(Instant::now());
        let callbacks = std::mem::take(&mut state.callbacks);
        shared.done.notify_all();
        drop(state);
        callbacks.into_iter().for_each(|callback| callback());
    }
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Work({}, done: {})", self.operation(), self.is_done())
    }
}
