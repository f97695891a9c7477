//! The worker's data thread: the protocol of its plan on one UDP socket.
//!
//! One thread owns the socket, the state machine and the buffers of active operations. Contributions are sent from the
//! caller's buffer (`panama`) or quantised from it, results are written over them in place, and the last window of
//! results is retained, so that workers can complete each other after a tree's failure.

mod epoch;
mod machine;
mod parts;
mod queue;
mod retained;
mod thread;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use netsum_proto::handover::{Finished, Progress};
use netsum_proto::panama::{Submission, TreeStats};
use netsum_proto::{DropCounters, Refusal, Secrets, WorkerConfig};
use netsum_wire::TreeId;

use crate::NetError;
use crate::clock::CpuTime;
use crate::udp::{SendFailures, Socket, SocketOptions, SocketReport, Traffic, Wake};

pub use parts::Parts;

/// The parts of a job's plan that one worker needs.
#[derive(Clone, Debug)]
pub struct WorkerPlan {
    /// Configuration of the state machine.
    pub config: WorkerConfig,
    /// Destination of each tree; results from other senders are dropped.
    pub switches: Vec<SocketAddr>,
}

/// A collective.
#[derive(Debug)]
pub struct TreeOperation {
    /// The submission. Its id is chosen by the caller and unique among active operations.
    pub submission: Submission,
    /// `numel` elements. Results replace them as they arrive.
    pub buffer: Parts,
}

/// The unfinished part of an operation after an epoch: the submission's fragments are those without a result. The
/// operation may have been reported as done: another rank lacks a result to which this rank contributes once more, from
/// memory of the driver's own.
pub type Remaining = TreeOperation;

/// An event of a driver.
#[derive(Debug)]
pub enum Event {
    /// All sums are in the buffer, which the driver has released.
    Done {
        /// Id of the operation.
        id: u64,
        /// Ranks (mod 64) that are missing in some fragment.
        missing: u64,
    },
    /// The workers disagree on the parameters of the operation, which will not complete.
    Mismatch {
        /// Id of the operation.
        id: u64,
        /// As in [`netsum_proto::Event::Mismatch`].
        named: Option<u32>,
    },
    /// Whose packets a switch has refused; follows `Mismatch`.
    Refused {
        /// Id of the operation.
        id: u64,
        /// These ranks (mod 64).
        ranks: u64,
        /// How their packets compare with this worker's.
        refusal: Refusal,
    },
    /// A tree has not answered for this long. Repeated while the silence lasts.
    Silent {
        /// The tree.
        tree: TreeId,
        /// Duration, nanoseconds.
        for_ns: u64,
    },
    /// The socket failed, or (`Stopped`) the thread has died and later calls return empty results.
    Io(NetError),
}

impl From<netsum_proto::Event> for Event {
    fn from(event: netsum_proto::Event) -> Event {
        match event {
            netsum_proto::Event::Done { id, missing } => Event::Done { id, missing },
            netsum_proto::Event::Mismatch { id, named } => Event::Mismatch { id, named },
            netsum_proto::Event::Refused { id, ranks, refusal } => {
                Event::Refused { id, ranks, refusal }
            }
            netsum_proto::Event::Silent { tree, for_ns } => Event::Silent { tree, for_ns },
        }
    }
}

/// All statistics of a worker at one moment.
#[derive(Clone, Debug, Default)]
pub struct WorkerStats {
    /// By tree of the epoch; empty without an epoch.
    pub trees: Vec<TreeStats>,
    /// Number of fragments submitted in this epoch.
    pub submitted: u64,
    /// Packets received from this plan's switches.
    pub received: Traffic,
    /// Packets sent in all epochs.
    pub sent: Traffic,
    /// Dropped packets, by reason.
    pub drops: DropCounters,
    /// Packets that the system refused to send.
    pub failures: SendFailures,
    /// Socket options granted by the system.
    pub socket: Option<SocketReport>,
    /// CPU time of the data thread.
    pub cpu: CpuTime,
}

/// Limit of bytes in the host's output queue before the rate is measured.
const INITIAL_QUEUE: usize = 128 << 10;

/// A running worker; dropping it stops the thread.
pub struct WorkerDriver {
    commands: Sender<Command>,
    wake: Arc<Wake>,
    shared: Arc<thread::Shared>,
    thread: Option<JoinHandle<()>>,
    local: SocketAddr,
}

/// Takes an event on the data thread, or returns it for the receiver.
type Taker = Box<dyn Fn(Event) -> Option<Event> + Send>;

/// A request to the thread.
enum Command {
    HandEvents(Taker),
    /// With the initial number of every tree.
    Begin(WorkerPlan, Option<Secrets>, u64),
    Secure(Secrets),
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
    /// Binds a port of `bind` and starts the thread `netsum-io`. Events are sent to the receiver, which never blocks
    /// the driver.
    pub fn start(bind: IpAddr) -> Result<(WorkerDriver, Receiver<Event>), NetError> {
        WorkerDriver::start_with(bind, &SocketOptions::default())
    }

    /// As `start`, with socket options; the send buffer is the maximum that the worker uses.
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
        let shared = Arc::new(thread::Shared::new(socket, most, inbox, outbox, wake.clone()));
        let worker = shared.clone();
        let name = "netsum-io";
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || worker.run())
            .map_err(|source| NetError::Thread { name, source })?;
        let driver = WorkerDriver { commands, wake, shared, thread: Some(thread), local };
        Ok((driver, events))
    }

    /// The address to which switches send results.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Hands every event to `take` on the data thread, or on one that helps, before the receiver gets it; what `take`
    /// returns goes to the receiver. It must not wait for anything, and what it asks of a driver has no answer (see
    /// [`Self::stats`]).
    pub fn hand_events_to(&self, take: impl Fn(Event) -> Option<Event> + Send + 'static) {
        self.send_command(Command::HandEvents(Box::new(take)));
    }

    /// Starts an epoch; only at first, or after `resolve` or `cancel_all`. Operations submitted in the meantime are
    /// started first. Panics if the plan does not have one switch per tree.
    pub fn begin(&self, plan: WorkerPlan) {
        self.begin_with(plan, None);
    }

    /// As `begin`, for a job whose packets carry tags under `secrets`; `None`: no tags. An epoch must not begin twice
    /// with the same secrets: packet numbers would start again.
    pub fn begin_with(&self, plan: WorkerPlan, secrets: Option<Secrets>) {
        self.begin_starting_at(plan, secrets, 0);
    }

    /// As `begin_with`, with initial number `first` ([`netsum_proto::Worker::starting_at`]). All of the job's switches
    /// must start at the same number.
    pub fn begin_starting_at(&self, plan: WorkerPlan, secrets: Option<Secrets>, first: u64) {
        let (trees, switches) = (plan.config.settings().trees, plan.switches.len());
        assert_eq!(trees, switches, "a plan names one switch per tree");
        self.send_command(Command::Begin(plan, secrets, first));
    }

    /// Seals packets under `secrets` in an epoch that began without keys of hops (`Secrets::Hops` of none): the key may
    /// arrive after the plan. What was sent before, switches have refused; it is sent again.
    pub fn secure(&self, secrets: Secrets) {
        self.send_command(Command::Secure(secrets));
    }

    /// Starts an operation, or queues it until an epoch starts. Panics if the buffer is too small.
    pub fn submit(&self, operation: TreeOperation) {
        self.submit_for_help(operation);
        self.wake.ring();
    }

    /// As `submit`, by a caller that calls [`Self::help`] next.
    pub fn submit_for_help(&self, operation: TreeOperation) {
        let Submission { format, numel, .. } = operation.submission;
        let needed = numel * format.dtype.size() as u64;
        let len = operation.buffer.len() as u64;
        assert!(needed <= len, "{numel} {} in {len} bytes", format.dtype);
        // A dead thread has reported its death by an event.
        let _ = self.commands.send(Command::Submit(operation));
    }

    /// Does the data thread's work on this thread, which has nothing to do but to wait, until `done` or while operations
    /// are active: nobody else need wake up for packets. Returns soon after `interrupted` does. Events may be taken on
    /// this thread ([`Self::hand_events_to`]).
    pub fn help(&self, done: impl Fn() -> bool, interrupted: impl Fn() -> bool) {
        if !thread::is_driving() {
            self.shared.help(&done, &interrupted);
        }
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

    /// Writes results served by a peer into their buffers. Results of wrong length or of unknown fragments are skipped
    /// and counted as drops.
    pub fn deliver(&self, results: Vec<(u64, Vec<u8>)>) {
        self.send_command(Command::Deliver(results));
    }

    /// Ends the frozen epoch. Operations that `finished` completes are reported as done; the others are returned in
    /// their order, operations submitted since the freeze entirely.
    pub fn resolve(&self, finished: Finished) -> Vec<Remaining> {
        let answer = self.ask(|reply| Command::Resolve(finished, reply));
        answer.unwrap_or_default()
    }

    /// Ends the epoch and drops all operations without an event; once this returns no buffer is accessed.
    pub fn cancel_all(&self) {
        self.ask(Command::CancelAll);
    }

    /// All statistics; none within [`Self::hand_events_to`].
    pub fn stats(&self) -> WorkerStats {
        self.ask(Command::Stats).unwrap_or_default()
    }

    /// Sends the final packets to the switches, stops the thread and closes the socket.
    pub fn stop(mut self) {
        self.end();
    }

    /// `None` if the thread has died, or if this thread does its work.
    fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Option<T> {
        if thread::is_driving() {
            return None;
        }
        let (reply, answer) = bounded(1);
        self.send_command(command(reply));
        answer.recv().ok()
    }

    fn send_command(&self, command: Command) {
        // A dead thread has reported its death by an event.
        if self.commands.send(command).is_ok() {
            self.wake.ring();
        }
    }

    fn end(&mut self) {
        self.send_command(Command::Stop);
        let elsewhere = !thread::is_driving();
        if let Some(thread) = self.thread.take().filter(|_| elsewhere) {
            let _ = thread.join();
        }
    }
}

impl Drop for WorkerDriver {
    fn drop(&mut self) {
        self.end();
    }
}
