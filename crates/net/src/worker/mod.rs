//! The worker's data thread: the protocol of its plan on one UDP socket.
//!
//! One thread owns socket, state machine and the buffers of operations at work. Contributions go to the
//! wire out of the caller's buffer (`panama`) or quantised from it, results are written over them in place, and
//! the last window of results is kept besides, so that after a tree's death the workers can complete each other.

mod epoch;
mod machine;
mod queue;
mod retained;
mod thread;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use netsum_proto::handover::{Finished, Progress};
use netsum_proto::panama::{Submission, TreeStats};
use netsum_proto::{DropCounters, WorkerConfig};
use netsum_wire::TreeId;
use netsum_wire::tag::JobKey;

use crate::clock::CpuTime;
use crate::udp::{SendFailures, Socket, SocketOptions, SocketReport, Traffic, Wake};
use crate::{Buffer, NetError};

/// A job's plan as one worker needs it.
#[derive(Clone, Debug)]
pub struct WorkerPlan {
    /// For the state machine.
    pub config: WorkerConfig,
    /// Where to send, by tree; results from elsewhere are not taken.
    pub switches: Vec<SocketAddr>,
}

/// An allreduce in place.
#[derive(Debug)]
pub struct TreeOperation {
    /// What to reduce. Its id is the caller's, unique among operations at work.
    pub submission: Submission,
    /// `numel` elements; sums replace them as they come.
    pub buffer: Buffer,
}

/// What an epoch left undone: the submission's fragments are those without a result.
pub type Remaining = TreeOperation;

/// What a driver reports.
#[derive(Debug)]
pub enum Event {
    /// Every sum is in the buffer, of which the driver holds no handle any more.
    Done {
        /// Operation.
        id: u64,
        /// Ranks (mod 64) that some fragment lacks.
        missing: u64,
    },
    /// The workers do not agree on what they reduce; the operation will not end.
    Mismatch {
        /// Operation.
        id: u64,
    },
    /// A tree has not answered for this long. Repeated while it lasts.
    Silent {
        /// Tree.
        tree: TreeId,
        /// How long.
        for_ns: u64,
    },
    /// The socket fails, or (`Stopped`) the thread has died and every later call gets empty answers.
    Io(NetError),
}

impl From<netsum_proto::Event> for Event {
    fn from(event: netsum_proto::Event) -> Event {
        match event {
            netsum_proto::Event::Done { id, missing } => Event::Done { id, missing },
            netsum_proto::Event::Mismatch { id } => Event::Mismatch { id },
            netsum_proto::Event::Silent { tree, for_ns } => Event::Silent { tree, for_ns },
        }
    }
}

/// All of a worker's figures at one moment.
#[derive(Clone, Debug, Default)]
pub struct WorkerStats {
    /// By tree of the epoch; empty without one.
    pub trees: Vec<TreeStats>,
    /// Fragments that have a number in this epoch.
    pub submitted: u64,
    /// Packets that came from this plan's switches.
    pub received: Traffic,
    /// Packets that left, in all epochs.
    pub sent: Traffic,
    /// Packets that were not taken, by reason.
    pub drops: DropCounters,
    /// Packets that the system did not take.
    pub failures: SendFailures,
    /// What the system gave the socket.
    pub socket: Option<SocketReport>,
    /// The data thread's.
    pub cpu: CpuTime,
}

/// Bytes in the host's output queue until a rate is known.
const INITIAL_QUEUE: usize = 128 << 10;

/// A running worker; dropping it stops the thread.
pub struct WorkerDriver {
    commands: Sender<Command>,
    wake: Arc<Wake>,
    thread: Option<JoinHandle<()>>,
    local: SocketAddr,
}

/// What the thread is asked to do.
enum Command {
    /// With the number that every tree starts at.
    Begin(WorkerPlan, Option<JobKey>, u64),
    Submit(TreeOperation),
    Freeze(Sender<Progress>),
    Fetch(Vec<u64>, Sender<Vec<Option<Vec<u8>>>>),
    Deliver(Vec<(u64, Vec<u8>)>),
    Resolve(Finished, Sender<Vec<Remaining>>),
    CancelAll(Sender<()>),
    Stats(Sender<WorkerStats>),
    Stop,
}

impl WorkerDriver {
    /// Binds a port of `bind` and starts the thread `netsum-io`. Events come by the receiver, which never
    /// makes the driver wait.
    pub fn start(bind: IpAddr) -> Result<(WorkerDriver, Receiver<Event>), NetError> {
        WorkerDriver::start_with(bind, &SocketOptions::default())
    }

    /// As `start`, with socket options; the send buffer is the most that the worker ever uses of it.
    pub fn start_with(
        bind: IpAddr,
        options: &SocketOptions,
    ) -> Result<(WorkerDriver, Receiver<Event>), NetError> {
        let most = options.send_buffer;
        let options = SocketOptions { send_buffer: most.min(INITIAL_QUEUE), ..*options };
        let socket = Socket::bind(SocketAddr::new(bind, 0), &options)?;
        let local = socket.local_addr();
        let wake = Arc::new(Wake::new()?);
        let (commands, inbox) = unbounded();
        let (outbox, events) = unbounded();
        let worker = thread::Thread::new(socket, most, inbox, outbox, wake.clone());
        let name = "netsum-io";
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || worker.run())
            .map_err(|source| NetError::Thread { name, source })?;
        let driver = WorkerDriver { commands, wake, thread: Some(thread), local };
        Ok((driver, events))
    }

    /// Where switches send results.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Starts an epoch; only at first, or after `resolve` or `cancel_all`. Operations that were submitted
    /// since go first. Panics if the plan has not one switch per tree.
    pub fn begin(&self, plan: WorkerPlan) {
        self.begin_with(plan, None);
    }

    /// The same for a job whose packets carry tags under `key`; `None`: they carry none. Protocol `panama` has no tags.
    pub fn begin_with(&self, plan: WorkerPlan, key: Option<JobKey>) {
        self.begin_starting_at(plan, key, 0);
    }

    /// As `begin_with`, with a machine that starts at number `first` ([`netsum_proto::Worker::starting_at`]). All of the
    /// job's switches must start there too.
    pub fn begin_starting_at(&self, plan: WorkerPlan, key: Option<JobKey>, first: u64) {
        let (trees, switches) = (plan.config.settings().trees, plan.switches.len());
        assert_eq!(trees, switches, "a plan names one switch per tree");
        self.send_command(Command::Begin(plan, key, first));
    }

    /// Starts an operation; without an epoch it waits for one. Panics if the buffer is too small.
    pub fn submit(&self, operation: TreeOperation) {
        let Submission { format, numel, .. } = operation.submission;
        let needed = numel * format.dtype.size() as u64;
        let len = operation.buffer.len() as u64;
        assert!(needed <= len, "{numel} {} in {len} bytes", format.dtype);
        self.send_command(Command::Submit(operation));
    }

    /// Stops the epoch: once this returns nothing more is sent or accepted.
    pub fn freeze(&self) -> Progress {
        self.ask(Command::Freeze).unwrap_or_default()
    }

    /// Results by fragment of the frozen epoch, in elements; `None` for one that is not retained.
    pub fn fetch(&self, fragments: &[u64]) -> Vec<Option<Vec<u8>>> {
        let answer = self.ask(|reply| Command::Fetch(fragments.to_vec(), reply));
        answer.unwrap_or_else(|| vec![None; fragments.len()])
    }

    /// Writes results that a peer served to their places. Wrong lengths and unknown fragments are left out
    /// and counted as drops.
    pub fn deliver(&self, results: Vec<(u64, Vec<u8>)>) {
        self.send_command(Command::Deliver(results));
    }

    /// Ends the frozen epoch. Operations that `finished` completes are reported done; the others come back
    /// in their order, as do whole those submitted since the freeze.
    pub fn resolve(&self, finished: Finished) -> Vec<Remaining> {
        let answer = self.ask(|reply| Command::Resolve(finished, reply));
        answer.unwrap_or_default()
    }

    /// Ends the epoch and forgets all operations without an event; once this returns no buffer is touched.
    pub fn cancel_all(&self) {
        self.ask(Command::CancelAll);
    }

    /// All figures.
    pub fn stats(&self) -> WorkerStats {
        self.ask(Command::Stats).unwrap_or_default()
    }

    /// Says goodbye to the switches, stops the thread and closes the socket.
    pub fn stop(mut self) {
        self.end();
    }

    /// `None` if the thread has died.
    fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Option<T> {
        let (reply, answer) = bounded(1);
        self.send_command(command(reply));
        answer.recv().ok()
    }

    fn send_command(&self, command: Command) {
        // A dead thread has reported itself by an event.
        if self.commands.send(command).is_ok() {
            self.wake.ring();
        }
    }

    fn end(&mut self) {
        self.send_command(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for WorkerDriver {
    fn drop(&mut self) {
        self.end();
    }
}
