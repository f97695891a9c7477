//! What the worker's thread does.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use netsum_proto::atp::{Event, Worker};
use netsum_proto::{Drop, DropCounters};
use netsum_wire::atp::{HEADER_LEN, Header};
use rustc_hash::FxHashMap;

use super::worker::{Command, SlotEvent, SlotOperation, SlotPlan, SlotStats};
use crate::NetError;
use crate::clock::{Clock, CpuTime};
use crate::udp::{Message, RecvBatch, SendBatch, Socket, Wake};

/// Commands wake the thread, and deadlines are shorter while anything is in flight.
const SLEEP: Duration = Duration::from_secs(1);
/// After a receive error, so that a broken socket does not burn a core.
const AFTER_ERROR: Duration = Duration::from_millis(100);
/// Quantised payload that waits for one call: more would leave the second-level cache before it is sent.
const CALL_BYTES: usize = 256 << 10;

pub(super) struct Thread {
    socket: Socket,
    inbox: Receiver<Command>,
    events: Sender<SlotEvent>,
    wake: Arc<Wake>,
    clock: Clock,
    plan: Option<(Worker, SlotPlan)>,
    operations: FxHashMap<u64, SlotOperation>,
    /// Submitted before the plan came.
    backlog: Vec<SlotOperation>,
    outbound: SendBatch<Range<usize>>,
    /// Packets that wait in `outbound`.
    packets: Vec<u8>,
    drops: DropCounters,
}

impl Thread {
    pub(super) fn new(
        socket: Socket,
        inbox: Receiver<Command>,
        events: Sender<SlotEvent>,
        wake: Arc<Wake>,
    ) -> Thread {
        Thread {
            socket,
            inbox,
            events,
            wake,
            clock: Clock::start(),
            plan: None,
            operations: FxHashMap::default(),
            backlog: Vec::new(),
            outbound: SendBatch::new(),
            packets: Vec::new(),
            drops: DropCounters::default(),
        }
    }

    /// Works until it is told to stop.
    pub(super) fn run(mut self) {
        let mut batch = RecvBatch::new();
        loop {
            if self.wake.take() && self.obey() {
                return;
            }
            let got = batch.recv(&self.socket);
            let messages = *got.as_ref().unwrap_or(&0);
            for message in 0..messages {
                self.take(&batch, batch.message(message));
            }
            self.keep_time();
            self.send();
            self.report();
            if let Err(source) = got {
                self.tell(SlotEvent::Io(NetError::Io { what: "receiving from switches", source }));
                self.socket.wait(&self.wake, AFTER_ERROR);
            } else if messages == 0 {
                self.socket.wait(&self.wake, self.until_deadline());
            }
        }
    }

    fn take(&mut self, batch: &RecvBatch, message: Message) {
        for place in message.packets() {
            let taken = match Header::decode(batch.bytes(place)) {
                Ok((header, payload)) => self.take_packet(message, &header, payload),
                Err(error) => Err(error.into()),
            };
            if let Err(reason) = taken {
                self.drops.count(reason);
            }
        }
    }

    fn take_packet(
        &mut self,
        message: Message,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), Drop> {
        let (machine, plan) = self.plan.as_mut().ok_or(Drop::NoLease)?;
        let from = plan.next_hops.get(usize::from(header.tree.0)).ok_or(Drop::NoLease)?;
        if *from != message.from {
            return Err(Drop::UnknownSender);
        }
        let now = self.clock.now();
        let Some(accepted) = machine.handle(now, message.ce, header)? else { return Ok(()) };
        let operation = self.operations.get_mut(&accepted.id);
        let operation = operation.expect("the machine knows submitted operations only");
        let elements = accepted.content.elements().unwrap_or(0..0);
        let place = bytes_of(operation, &elements);
        machine.read(&accepted, payload, operation.buffer.slice_mut(place));
        Ok(())
    }

    fn keep_time(&mut self) {
        let now = self.clock.now();
        if let Some((machine, _)) = &mut self.plan
            && machine.poll_timeout().is_some_and(|due| due <= now)
        {
            machine.handle_timeout(now);
        }
    }

    /// Quantises and sends, a call at a time, while the window allows.
    fn send(&mut self) {
        while self.fill() {
            let packets = &self.packets;
            self.outbound.flush(&self.socket, |place| [&packets[place.clone()], &[]]);
            self.packets.clear();
        }
    }

    /// False if there is nothing to send.
    fn fill(&mut self) -> bool {
        let Some((machine, _)) = &mut self.plan else { return false };
        let now = self.clock.now();
        while self.packets.len() < CALL_BYTES {
            let Some(mut outgoing) = machine.poll_transmit(now) else { break };
            let start = self.packets.len();
            let payload = start + HEADER_LEN;
            self.packets.resize(payload + outgoing.header.payload_len(), 0);
            if let Some((id, _)) = outgoing.payload {
                let operation = &self.operations[&id];
                let elements = |r: Range<u64>| operation.buffer.slice(bytes_of(operation, &r));
                machine.write(&mut outgoing, elements, &mut self.packets[payload..]);
            }
            let head = self.packets[start..].first_chunk_mut().expect("it was resized");
            outgoing.header.encode(head);
            let place = start..self.packets.len();
            self.outbound.push(outgoing.header.tree.0.into(), place);
        }
        !self.packets.is_empty()
    }

    /// Passes the machine's events on. The buffer is let go first: who hears of it may use it.
    fn report(&mut self) {
        while let Some(event) = self.plan.as_mut().and_then(|(machine, _)| machine.poll_event()) {
            match event {
                Event::Done { id } => {
                    self.operations.remove(&id);
                    self.tell(SlotEvent::Done { id });
                }
                Event::Mismatch { id } => self.tell(SlotEvent::Mismatch { id }),
                Event::Silent { tree, for_ns } => self.tell(SlotEvent::Silent { tree, for_ns }),
            }
        }
    }

    fn tell(&self, event: SlotEvent) {
        // Nobody listens if the caller is about to stop us.
        let _ = self.events.send(event);
    }

    fn until_deadline(&self) -> Duration {
        let due = self.plan.as_ref().and_then(|(machine, _)| machine.poll_timeout());
        due.map_or(SLEEP, |due| Duration::from_nanos(due.since(self.clock.now())).min(SLEEP))
    }

    /// Does what was asked; true if that is to stop.
    fn obey(&mut self) -> bool {
        while let Ok(command) = self.inbox.try_recv() {
            match command {
                Command::Begin(plan) => {
                    for (tree, next_hop) in plan.next_hops.iter().enumerate() {
                        self.outbound.set_destination(tree, *next_hop);
                    }
                    let machine = Worker::new(self.clock.now(), plan.config.clone());
                    self.plan = Some((machine, plan));
                    let backlog = std::mem::take(&mut self.backlog);
                    backlog.into_iter().for_each(|operation| self.submit(operation));
                }
                Command::Submit(operation) => self.submit(operation),
                Command::Stats(reply) => {
                    // Who asked may have gone; then nobody needs the answer.
                    let _ = reply.send(self.stats());
                }
                Command::Stop => {
                    self.say_goodbye();
                    return true;
                }
            }
        }
        false
    }

    fn submit(&mut self, operation: SlotOperation) {
        let Some((machine, _)) = &mut self.plan else {
            self.backlog.push(operation);
            return;
        };
        let submission = operation.submission.clone();
        let twice = self.operations.insert(submission.what.id, operation);
        assert!(twice.is_none(), "operation {} is at work already", submission.what.id);
        machine.submit(submission);
    }

    fn say_goodbye(&mut self) {
        if let Some((machine, _)) = &mut self.plan
            && machine.outstanding().next().is_none()
        {
            machine.finish();
            self.send();
        }
    }

    fn stats(&self) -> SlotStats {
        let machine = self.plan.as_ref().map(|(machine, _)| machine);
        SlotStats {
            trees: machine.map_or_else(Vec::new, |machine| machine.tree_stats().collect()),
            drops: self.drops.clone(),
            failures: self.outbound.failures(),
            cpu: CpuTime::of_this_thread(),
        }
    }
}

/// Bytes of the buffer that hold these elements.
fn bytes_of(operation: &SlotOperation, elements: &Range<u64>) -> Range<usize> {
    let size = operation.submission.what.format.dtype.size() as u64;
    (elements.start * size) as usize..(elements.end * size) as usize
}
