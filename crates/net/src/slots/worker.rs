//! The worker's handle on its data thread.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use netsum_proto::DropCounters;
use netsum_proto::atp::{Submission, TreeStats, WorkerConfig};
use netsum_wire::TreeId;

use super::worker_thread::Thread;
use crate::clock::CpuTime;
use crate::udp::{SendFailures, Socket, SocketOptions, Wake};
use crate::{Buffer, NetError};

/// A job's plan as one worker needs it.
#[derive(Clone, Debug)]
pub struct SlotPlan {
    /// For the state machine.
    pub config: WorkerConfig,
    /// Where to send, by server; results from elsewhere are not taken.
    pub next_hops: Vec<SocketAddr>,
}

/// An allreduce in place.
#[derive(Clone, Debug)]
pub struct SlotOperation {
    /// What to reduce. Its id is the caller's, unique among operations at work.
    pub submission: Submission,
    /// Its elements; sums replace them as they come.
    pub buffer: Buffer,
}

/// What a driver reports.
#[derive(Debug)]
pub enum SlotEvent {
    /// Every sum is in the buffer, of which the driver holds no handle any more.
    Done {
        /// Operation.
        id: u64,
    },
    /// The workers do not agree on what they reduce; the operation will not end.
    Mismatch {
        /// Operation.
        id: u64,
    },
    /// A server has not answered for this long. Repeated while it lasts.
    Silent {
        /// Server.
        tree: TreeId,
        /// How long.
        for_ns: u64,
    },
    /// The socket fails.
    Io(NetError),
}

/// All of a worker's figures at one moment.
#[derive(Clone, Debug, Default)]
pub struct SlotStats {
    /// By server.
    pub trees: Vec<TreeStats>,
    /// Packets that were not taken, by reason.
    pub drops: DropCounters,
    /// Packets that the system did not take.
    pub failures: SendFailures,
    /// The data thread's.
    pub cpu: CpuTime,
}

/// A worker at work under one plan; dropping it says goodbye and stops the thread.
pub struct SlotWorker {
    commands: Sender<Command>,
    wake: Arc<Wake>,
    thread: Option<JoinHandle<()>>,
    local: SocketAddr,
}

/// What the thread is asked to do.
pub(super) enum Command {
    Begin(SlotPlan),
    Submit(SlotOperation),
    Stats(Sender<SlotStats>),
    Stop,
}

impl SlotWorker {
    /// Binds a port of `bind` and starts the thread `netsum-io`. Events come by the receiver.
    pub fn start(
        bind: IpAddr,
        options: &SocketOptions,
    ) -> Result<(SlotWorker, Receiver<SlotEvent>), NetError> {
        let socket = Socket::bind(SocketAddr::new(bind, 0), options)?;
        let local = socket.local_addr();
        let wake = Arc::new(Wake::new()?);
        let (commands, inbox) = unbounded();
        let (outbox, events) = unbounded();
        let thread = Thread::new(socket, inbox, outbox, wake.clone());
        let name = "netsum-io";
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || thread.run())
            .map_err(|source| NetError::Thread { name, source })?;
        Ok((SlotWorker { commands, wake, thread: Some(thread), local }, events))
    }

    /// Where switches send results.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Starts to work by a plan; once. Panics if it has not a next hop per server.
    pub fn begin(&self, plan: SlotPlan) {
        assert_eq!(plan.config.places.len(), plan.next_hops.len(), "a next hop per server");
        self.tell(Command::Begin(plan));
    }

    /// Starts an operation; before `begin` it waits. Panics if the buffer is too small.
    pub fn submit(&self, operation: SlotOperation) {
        let what = &operation.submission.what;
        let needed = what.numel * what.format.dtype.size() as u64;
        assert!(needed <= operation.buffer.len() as u64, "{needed} bytes in a smaller buffer");
        self.tell(Command::Submit(operation));
    }

    /// All figures; empty ones if the thread has died.
    pub fn stats(&self) -> SlotStats {
        let (reply, answer) = bounded(1);
        self.tell(Command::Stats(reply));
        answer.recv().unwrap_or_default()
    }

    fn tell(&self, command: Command) {
        // A dead thread's events have ended, by which the caller knows.
        if self.commands.send(command).is_ok() {
            self.wake.ring();
        }
    }
}

impl Drop for SlotWorker {
    fn drop(&mut self) {
        self.tell(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
