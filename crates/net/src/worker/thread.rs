//! The data thread, and callers that do its work while they wait.
//!
//! Whoever holds the lock of [`Thread`] drives the machine. A caller that has nothing to do but to wait for its operation
//! ([`Shared::help`]) sends and receives by itself, which saves two wake-ups of threads. Meanwhile the data thread
//! sleeps: without operations it waits for commands only, and the caller has not rung for its own.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use netsum_proto::handover::{Finished, Progress};
use netsum_proto::{DropCounters, DropReason, Secrets, Time};
use netsum_wire::TreeId;
use parking_lot::Mutex;

use super::epoch::{Active, Epoch};
use super::machine::{self, Operations, Packet};
use super::queue::SmallQueue;
use super::{
    Command, Event, INITIAL_QUEUE, Remaining, Taker, TreeOperation, WorkerPlan, WorkerStats,
};
use crate::NetError;
use crate::clock::{Clock, CpuTime};
use crate::udp::{BatchSpan, RecvBatch, SendBatch, Sent, Socket, Traffic, Wake};
use crate::unknown_versions::UnknownVersions;

/// Maximum sleep: commands wake the thread, and deadlines are shorter while anything is in flight.
const SLEEP: Duration = Duration::from_secs(1);
/// Maximum sleep of a caller that helps: its operation may end elsewhere.
const HELP_SLEEP: Duration = Duration::from_millis(10);
/// Pause after a receive error, so that a broken socket does not use a whole core.
const AFTER_ERROR: Duration = Duration::from_millis(100);
/// Maximum bytes of packets per send call: more quantised payloads would leave the second-level cache before they are
/// sent.
const SCRATCH_BYTES: usize = 256 << 10;

/// What the data thread shares with callers.
pub(super) struct Shared {
    thread: Mutex<Thread>,
    socket: Arc<Socket>,
    wake: Arc<Wake>,
}

thread_local! {
    /// Whether this thread drives a machine at the moment: it cannot wait for whoever does.
    static DRIVES: Cell<bool> = const { Cell::new(false) };
}

/// See [`DRIVES`].
pub(super) fn is_driving() -> bool {
    DRIVES.get()
}

/// What there is to wait for.
enum Sleep {
    /// Commands alone: no operation is active.
    Commands(Duration),
    Packets(Duration),
    /// Packets, or that the host's output queue has room.
    PacketsOrRoom(Duration),
}

pub(super) struct Thread {
    socket: Arc<Socket>,
    batch: RecvBatch,
    /// Whether a caller has executed the command to stop.
    stopped: bool,
    /// Of the data thread, when it was last rung for.
    cpu: CpuTime,
    inbox: Receiver<Command>,
    events: Sender<Event>,
    taker: Option<Taker>,
    wake: Arc<Wake>,
    clock: Clock,
    epoch: Option<Epoch>,
    operations: Operations,
    /// Operations submitted without an epoch.
    backlog: Vec<TreeOperation>,
    outbound: SendBatch<Packet>,
    queue: SmallQueue,
    /// Headers and quantised payloads of the packets in `outbound`.
    scratch: Vec<u8>,
    received: Traffic,
    sent_before: Traffic,
    /// Number of trees, each of which is a destination.
    trees: usize,
    drops: DropCounters,
    receive_errors: u64,
    unknown_versions: UnknownVersions,
}

impl Shared {
    pub(super) fn new(
        socket: Socket,
        send_buffer: usize,
        inbox: Receiver<Command>,
        events: Sender<Event>,
        wake: Arc<Wake>,
    ) -> Shared {
        let socket = Arc::new(socket);
        let thread = Thread::new(socket.clone(), send_buffer, inbox, events, wake.clone());
        Shared { thread: Mutex::new(thread), socket, wake }
    }

    /// The data thread, until a command stops it.
    pub(super) fn run(&self) {
        let _reporter = PanicReporter(self.thread.lock().events.clone());
        let mut busy = Instant::now();
        loop {
            let mut thread = self.thread.lock();
            let _driving = Driving::begin();
            let rung = self.wake.take();
            if rung {
                // Callers that help execute commands, too, and their processor time is not this thread's.
                thread.cpu = CpuTime::of_this_thread();
            }
            if thread.stopped || rung && thread.execute() {
                return;
            }
            let spin = self.socket.spin();
            if thread.turn() > 0 {
                if !spin.is_zero() {
                    busy = Instant::now();
                }
            } else if busy.elapsed() < spin {
                drop(thread);
                std::hint::spin_loop();
            } else {
                let sleep = thread.sleep();
                drop(thread);
                match sleep {
                    Sleep::Commands(timeout) => self.socket.wait_for(&self.wake, timeout),
                    Sleep::Packets(timeout) => _ = self.socket.wait(&self.wake, timeout),
                    Sleep::PacketsOrRoom(timeout) => {
                        self.socket.wait_or_send(&self.wake, timeout);
                    }
                }
            }
        }
    }

    /// Does the data thread's work on this thread until `done`, or while there is any; at least until commands are
    /// executed that it was not rung for. `interrupted` is asked now and then whether to stop.
    pub(super) fn help(&self, done: &dyn Fn() -> bool, interrupted: &dyn Fn() -> bool) {
        loop {
            let Some(mut thread) = self.thread.try_lock() else {
                // Its holder may have looked for commands before.
                return self.wake.ring();
            };
            let driving = Driving::begin();
            let _reporter = PanicReporter(thread.events.clone());
            thread.stopped |= thread.execute();
            while thread.turn() > 0 && !done() {}
            let idle = thread.operations.is_empty();
            let sleep = thread.sleep();
            drop(thread);
            drop(driving);
            let (timeout, room) = match sleep {
                Sleep::Packets(timeout) => (timeout, false),
                Sleep::PacketsOrRoom(timeout) => (timeout, true),
                // The coordinator has the rest.
                Sleep::Commands(_) => return,
            };
            if idle || done() || interrupted() {
                // The data thread watches the socket again.
                return self.wake.ring();
            }
            self.socket.wait_alone(room, timeout.min(HELP_SLEEP));
        }
    }
}

/// Sets [`DRIVES`] while it lives.
struct Driving;

impl Driving {
    fn begin() -> Driving {
        DRIVES.set(true);
        Driving
    }
}

impl std::ops::Drop for Driving {
    fn drop(&mut self) {
        DRIVES.set(false);
    }
}

impl Thread {
    fn new(
        socket: Arc<Socket>,
        send_buffer: usize,
        inbox: Receiver<Command>,
        events: Sender<Event>,
        wake: Arc<Wake>,
    ) -> Thread {
        let clock = Clock::start();
        let queue = SmallQueue::new(clock.now(), INITIAL_QUEUE, send_buffer);
        Thread {
            socket,
            batch: RecvBatch::new(),
            stopped: false,
            cpu: CpuTime::default(),
            inbox,
            events,
            taker: None,
            wake,
            clock,
            epoch: None,
            operations: Operations::default(),
            backlog: Vec::new(),
            outbound: SendBatch::new(),
            queue,
            scratch: Vec::new(),
            received: Traffic::default(),
            sent_before: Traffic::default(),
            trees: 0,
            drops: DropCounters::default(),
            receive_errors: 0,
            unknown_versions: UnknownVersions::default(),
        }
    }

    /// Receives, sends and reports once; returns the number of received messages.
    fn turn(&mut self) -> usize {
        let got = match self.batch.recv(&self.socket) {
            Ok(got) => got,
            Err(error) => {
                self.receive_failed(error);
                0
            }
        };
        self.take(got);
        self.keep_time();
        self.send();
        self.report();
        got
    }

    fn sleep(&mut self) -> Sleep {
        let timeout = self.until_deadline();
        if self.operations.is_empty() && self.epoch.as_ref().is_none_or(|epoch| epoch.quiet) {
            return Sleep::Commands(timeout);
        }
        match self.queue.has_room(|| self.socket.writable()) {
            true => Sleep::Packets(timeout),
            false => Sleep::PacketsOrRoom(timeout),
        }
    }

    fn take(&mut self, messages: usize) {
        let now = self.clock.now();
        for i in 0..messages {
            let message = self.batch.message(i);
            for place in message.packets() {
                let first_byte = self.batch.bytes_mut(place).first().copied().unwrap_or_default();
                if let Err(reason) = self.take_packet(now, message.from, message.ce, place) {
                    self.drops.count(reason);
                    if reason == DropReason::UnknownVersion {
                        self.unknown_versions.warn("worker", message.from, first_byte);
                    }
                }
            }
        }
    }

    fn take_packet(
        &mut self,
        now: Time,
        from: SocketAddr,
        ce: bool,
        place: BatchSpan,
    ) -> Result<(), DropReason> {
        let packet = self.batch.bytes_mut(place);
        let epoch = self.epoch.as_mut().filter(|epoch| !epoch.frozen);
        let epoch = epoch.ok_or(DropReason::NoLease)?;
        if !epoch.expects(from) {
            return Err(DropReason::UnknownSender);
        }
        let (switches, tags, received) = (&epoch.switches, &mut epoch.tags, &mut self.received);
        let sender = |tree: TreeId, packet: &mut [u8]| {
            // Before the tag, whose check costs more than the address of the sender.
            let switch = switches.get(usize::from(tree.0)).ok_or(DropReason::NoLease)?;
            if *switch != from {
                return Err(DropReason::UnknownSender);
            }
            tags.open(tree, packet)?;
            received.count(1, packet.len() as u64);
            Ok(())
        };
        let (operations, retained) = (&mut self.operations, &mut epoch.retained);
        machine::take(&mut epoch.worker, now, ce, packet, sender, operations, retained)
    }

    fn keep_time(&mut self) {
        let now = self.clock.now();
        if let Some(bytes) = self.queue.measure(now, self.received.bytes) {
            self.socket.limit_send_buffer(bytes);
        }
        if let Some(epoch) = self.running() {
            let due = epoch.worker.poll_timeout();
            if due.is_some_and(|due| due <= now) {
                epoch.worker.handle_timeout(now);
            }
        }
    }

    /// Sends as much as the windows and the host's queue allow. The rest stays in the machine, so that packets are
    /// current when they are sent, and their round-trip time is that of the network.
    fn send(&mut self) {
        let now = self.clock.now();
        while self.queue.has_room(|| self.socket.writable()) && self.fill(now) {
            let (scratch, operations) = (&self.scratch, &self.operations);
            self.outbound.flush(&self.socket, |packet| {
                let head = &scratch[packet.head.clone()];
                match &packet.payload {
                    Some((id, place)) => {
                        let buffer = &operations[id].operation.buffer;
                        [head, buffer.slice(place.clone())]
                    }
                    None => [head, &[]],
                }
            });
            self.scratch.clear();
        }
    }

    /// Fills `outbound` from the machine; false if the machine has nothing to send.
    fn fill(&mut self, now: Time) -> bool {
        let Some(epoch) = self.epoch.as_mut().filter(|epoch| !epoch.frozen) else {
            return false;
        };
        let sealed = epoch.tags.are_sealed();
        while self.queue.has_room(|| false)
            && self.scratch.len() < SCRATCH_BYTES
            && let Some((tree, mut packet)) = machine::poll_transmit(
                &mut epoch.worker,
                now,
                sealed,
                &self.operations,
                &mut self.scratch,
            )
        {
            let payload = packet.payload.as_ref();
            let payload = payload
                .map_or(&[][..], |(id, at)| self.operations[id].operation.buffer.slice(at.clone()));
            let start = packet.head.start;
            let apart = match epoch.tags.seal_last(tree, &mut self.scratch, start, payload) {
                true => {
                    packet.payload = None;
                    0
                }
                false => payload.len(),
            };
            packet.head = start..self.scratch.len();
            self.queue.fill(packet.head.len() + apart);
            self.outbound.push(tree.0.into(), packet);
        }
        !self.outbound.is_empty()
    }

    /// Reports the machine's events.
    fn report(&mut self) {
        while let Some(event) = self.running().and_then(|e| e.worker.poll_event().map(Event::from))
        {
            match event {
                Event::Done { id, missing } => self.done(id, missing),
                event => self.send_event(event),
            }
        }
    }

    /// Releases the buffer before the event is sent, because the receiver of the event may use it.
    fn done(&mut self, id: u64, missing: u64) {
        self.operations.remove(&id);
        self.send_event(Event::Done { id, missing });
    }

    fn send_event(&self, event: Event) {
        let event = match &self.taker {
            Some(take) => take(event),
            None => Some(event),
        };
        // The receiver may be dropped if the caller is about to stop the driver.
        let _ = event.map(|event| self.events.send(event));
    }

    fn receive_failed(&mut self, source: io::Error) {
        self.receive_errors += 1;
        if self.receive_errors.is_power_of_two() {
            let what = "receiving from switches";
            self.send_event(Event::Io(NetError::Io { what, source }));
        }
        self.socket.wait(&self.wake, AFTER_ERROR);
    }

    fn until_deadline(&self) -> Duration {
        let epoch = self.epoch.as_ref().filter(|epoch| !epoch.frozen);
        let due = epoch.and_then(|epoch| epoch.worker.poll_timeout());
        due.map_or(SLEEP, |due| Duration::from_nanos(due.since(self.clock.now())).min(SLEEP))
    }

    /// Executes a command; true if it stops the thread.
    fn execute(&mut self) -> bool {
        while let Ok(command) = self.inbox.try_recv() {
            // Errors mean that the caller has gone and needs no answer.
            match command {
                Command::HandEvents(taker) => self.taker = Some(taker),
                Command::Begin(plan, secrets, first) => self.begin(plan, secrets, first),
                Command::Secure(secrets) => {
                    if let Some(epoch) = &mut self.epoch {
                        epoch.secure(secrets);
                    }
                }
                Command::Submit(operation) => self.submit(operation),
                Command::Freeze(reply) => {
                    let _ = reply.send(self.freeze());
                }
                Command::Fetch(fragments, reply) => {
                    let _ = reply.send(self.fetch(&fragments));
                }
                Command::Deliver(results) => self.deliver(&results),
                Command::Resolve(finished, reply) => {
                    let _ = reply.send(self.resolve(&finished));
                }
                Command::CancelAll(reply) => {
                    self.epoch = None;
                    self.operations.clear();
                    self.backlog.clear();
                    let _ = reply.send(());
                }
                Command::Stats(reply) => {
                    let _ = reply.send(self.stats());
                }
                Command::Stop => {
                    self.send_final_packets();
                    return true;
                }
            }
        }
        false
    }

    fn begin(&mut self, plan: WorkerPlan, secrets: Option<Secrets>, first: u64) {
        assert!(self.operations.is_empty(), "an epoch begins after the last one was resolved");
        self.sent_before = self.sent();
        let epoch = Epoch::new(self.clock.now(), plan, secrets, first);
        for (tree, switch) in epoch.switches.iter().enumerate() {
            self.outbound.set_destination(tree, *switch);
        }
        self.trees = epoch.switches.len();
        self.epoch = Some(epoch);
        for operation in std::mem::take(&mut self.backlog) {
            self.submit(operation);
        }
    }

    fn submit(&mut self, operation: TreeOperation) {
        let Some(epoch) = self.epoch.as_mut().filter(|epoch| !epoch.frozen) else {
            self.backlog.push(operation);
            return;
        };
        epoch.worker.submit(operation.submission.clone());
        let active = Active::new(operation);
        let id = active.operation.submission.id;
        let twice = self.operations.insert(id, active);
        assert!(twice.is_none(), "operation {id} is at work already");
    }

    fn freeze(&mut self) -> Progress {
        // Report completions first: they are valid independent of the end of the epoch.
        self.report();
        self.epoch.as_mut().map_or_else(Progress::default, |epoch| {
            epoch.frozen = true;
            epoch.worker.progress()
        })
    }

    fn fetch(&self, fragments: &[u64]) -> Vec<Option<Vec<u8>>> {
        let retained = self.epoch.as_ref().map(|epoch| &epoch.retained);
        let get = |&fragment: &u64| retained?.get(fragment).map(<[u8]>::to_vec);
        fragments.iter().map(get).collect()
    }

    fn deliver(&mut self, results: &[(u64, Vec<u8>)]) {
        let Some(epoch) = self.epoch.as_ref().filter(|epoch| epoch.frozen) else {
            return;
        };
        for (fragment, payload) in results {
            if payload.is_empty() {
                // A packet without elements, which the next epoch does not need.
                continue;
            }
            let place = epoch.worker.place_of(*fragment);
            let active = place.and_then(|(id, at)| Some((self.operations.get_mut(&id)?, at)));
            let Some((active, elements)) = active else {
                self.drops.count(DropReason::Unexpected);
                continue;
            };
            let place = active.bytes(&elements);
            if place.len() == payload.len() {
                active.operation.buffer.result_mut(place).copy_from_slice(payload);
            } else {
                self.drops.count(DropReason::PayloadLength);
            }
        }
    }

    fn resolve(&mut self, finished: &Finished) -> Vec<Remaining> {
        let Some(epoch) = self.epoch.take() else {
            return std::mem::take(&mut self.backlog);
        };
        let mut remaining = Vec::new();
        let repeated = epoch.worker.to_repeat(finished);
        for submission in epoch.worker.remaining(finished) {
            let buffer = match self.operations.remove(&submission.id) {
                Some(active) => active.operation.buffer,
                None => epoch.retained.contributions(&submission, &repeated).into(),
            };
            remaining.push(Remaining { submission, buffer });
        }
        let mut done: Vec<_> = self.operations.drain().collect();
        done.sort_by_key(|(id, _)| *id);
        for (id, active) in done {
            let missing = active.missing;
            drop(active);
            self.send_event(Event::Done { id, missing });
        }
        remaining.append(&mut self.backlog);
        remaining
    }

    fn send_final_packets(&mut self) {
        if let Some(epoch) = self.running()
            && epoch.worker.is_idle()
        {
            epoch.worker.finish();
            self.send();
        }
    }

    fn stats(&self) -> WorkerStats {
        let worker = self.epoch.as_ref().map(|epoch| &epoch.worker);
        WorkerStats {
            trees: worker.map_or_else(Vec::new, |worker| worker.tree_stats()),
            submitted: worker.map_or(0, |worker| worker.submitted()),
            received: self.received,
            sent: self.sent(),
            drops: self.drops.clone(),
            failures: self.outbound.failures(),
            socket: Some(self.socket.report()),
            cpu: self.cpu,
        }
    }

    fn sent(&self) -> Traffic {
        let now = (0..self.trees).map(|index| self.outbound.sent(index));
        now.fold(self.sent_before, |mut sum, sent: Sent| {
            sum += sent.into();
            sum
        })
    }

    fn running(&mut self) -> Option<&mut Epoch> {
        self.epoch.as_mut().filter(|epoch| !epoch.frozen)
    }
}

/// Reports the thread's death if it panics, so that no caller waits for it.
struct PanicReporter(Sender<Event>);

impl std::ops::Drop for PanicReporter {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.send(Event::Io(NetError::Stopped));
        }
    }
}
