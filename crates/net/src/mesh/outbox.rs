//! Messages queued or in flight to one peer.
//!
//! Small messages are sent at once while the peer has room for them ([`ALLOWANCE`]); others are announced and wait
//! until the peer has a matching receive. So a busy peer never stores more than the allowance, and a message that it
//! waits for is never queued behind one that it does not want yet.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::error::MeshError;
use super::frame::{Channel, Frame, HEADER_LEN, Key};
use super::limits::{ALLOWANCE, Limits, cost};
use crate::{Buffer, Loan};

/// Payload of a message.
#[derive(Clone, Debug)]
pub enum Payload {
    /// Owned bytes.
    Bytes(Vec<u8>),
    /// Bytes of a buffer, lent until the sender is notified that the message has been sent.
    Buffer(Loan),
}

impl Payload {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Payload::Bytes(bytes) => bytes.len(),
            Payload::Buffer(loan) => loan.bytes().len(),
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Payload::Bytes(bytes) => bytes,
            Payload::Buffer(loan) => loan.bytes(),
        }
    }

    /// Converts the payload to shared memory without copying.
    fn as_loan(&mut self) -> &Loan {
        if let Payload::Bytes(bytes) = self {
            let buffer = Buffer::from_vec(std::mem::take(bytes));
            *self = Payload::Buffer(buffer.lend(0..buffer.len()));
        }
        match self {
            Payload::Buffer(loan) => loan,
            Payload::Bytes(_) => unreachable!("changed above"),
        }
    }
}

/// Called once when a message's bytes have been handed to the kernel, or cannot be sent any more.
pub type OnSent = Box<dyn FnOnce(Result<(), MeshError>) + Send>;

/// A message to one peer.
pub(super) struct Message {
    pub(super) key: Key,
    pub(super) fingerprint: u32,
    pub(super) payload: Payload,
    pub(super) deadline: Option<Instant>,
    pub(super) done: Option<OnSent>,
}

/// Outcomes to report after all locks are released.
pub(super) type Reports = Vec<(OnSent, Result<(), MeshError>)>;

pub(super) struct Outbox {
    urgent: VecDeque<Item>,
    bulk: VecDeque<Item>,
    current: Option<Current>,
    announced: FxHashMap<u64, Message>,
    next_id: u64,
    /// Bytes of eager messages that the peer has not acknowledged as freed.
    unfreed: u64,
    closed: Option<MeshError>,
    pub(super) bytes: u64,
    limits: Limits,
    /// Messages that were posted or lent and whose bytes are still being read, by number or by id.
    in_flight: FxHashMap<u64, InFlight>,
    next_number: u64,
}

/// A frame for a transport that reads the payload asynchronously.
pub(super) struct Post<'a> {
    pub(super) header: &'a [u8; HEADER_LEN],
    /// Number for [`Outbox::completed`].
    pub(super) number: u64,
    pub(super) payload: Option<(&'a Loan, Range<usize>)>,
    /// Whether the receiver must process the frame in order with the others that have this set.
    pub(super) in_order: bool,
}

struct InFlight {
    message: Message,
    /// Reason and time if the message was given up; its sender is notified when the bytes are free.
    given_up: Option<(MeshError, Instant)>,
}

enum Item {
    Bare(Frame),
    Eager(Message),
    /// The rest of an announced message from byte `at`.
    Data {
        id: u64,
        at: usize,
        message: Message,
    },
}

/// The frame that is being written.
struct Current {
    header: [u8; HEADER_LEN],
    item: Item,
    /// The part of the message's payload that belongs to this frame.
    segment: Range<usize>,
    /// Bytes of header and segment already written.
    written: usize,
}

/// State of the queue after [`Outbox::drain`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Drained {
    /// Nothing is left.
    Empty,
    /// The socket accepts no more bytes at present.
    Blocked,
}

impl Outbox {
    pub(super) fn new(limits: Limits) -> Outbox {
        Outbox {
            limits,
            in_flight: FxHashMap::default(),
            next_number: 0,
            urgent: VecDeque::new(),
            bulk: VecDeque::new(),
            current: None,
            announced: FxHashMap::default(),
            next_id: 0,
            unfreed: 0,
            closed: None,
            bytes: 0,
        }
    }

    /// Queues a message, or reports at once that the outbox is closed.
    pub(super) fn push(&mut self, message: Message, reports: &mut Reports) {
        if let Some(reason) = &self.closed {
            report(message, Err(reason.clone()), reports);
            return;
        }
        let len = message.payload.len();
        let cost = cost(len);
        let urgent = message.key.channel == Channel::Control;
        let item = if len <= self.limits.eager && self.unfreed + cost <= ALLOWANCE {
            self.unfreed += cost;
            Item::Eager(message)
        } else {
            let id = self.next_id;
            self.next_id += 1;
            let (key, fingerprint) = (message.key, message.fingerprint);
            self.announced.insert(id, message);
            Item::Bare(Frame::Announce { key, fingerprint, id, len: len as u64 })
        };
        if urgent { self.urgent.push_back(item) } else { self.bulk.push_back(item) }
    }

    /// Whether a message of that length can be sent before anything else, without being announced.
    #[inline]
    pub(super) fn can_send_now(&self, len: usize) -> bool {
        self.closed.is_none()
            && self.is_flushed()
            && len <= self.limits.eager
            && self.unfreed + cost(len) <= ALLOWANCE
    }

    /// Records that such a message has been sent.
    #[inline]
    pub(super) fn sent_now(&mut self, len: usize) {
        self.unfreed += cost(len);
        self.bytes += (HEADER_LEN + len) as u64;
    }

    /// Whether the outbox is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Queues a frame without payload, ahead of bulk.
    pub(super) fn push_bare(&mut self, frame: Frame) {
        if self.closed.is_none() {
            self.urgent.push_back(Item::Bare(frame));
        }
    }

    /// Queues a goodbye after everything else.
    pub(super) fn push_last(&mut self, frame: Frame) {
        if self.closed.is_none() {
            self.bulk.push_back(Item::Bare(frame));
        }
    }

    /// Handles the peer's request for an announced message; an unknown id belongs to a cancelled message.
    pub(super) fn ready(&mut self, id: u64) {
        if let Some(message) = self.announced.remove(&id) {
            let urgent = message.key.channel == Channel::Control;
            let item = Item::Data { id, at: 0, message };
            if urgent { self.urgent.push_back(item) } else { self.bulk.push_back(item) }
        }
    }

    /// Handles the peer's request to read an announced message in place; an unknown id belongs to a cancelled message.
    pub(super) fn lend(&mut self, id: u64) {
        if let Some(message) = self.announced.remove(&id) {
            let bytes = message.payload.bytes();
            let (at, len) = (bytes.as_ptr() as u64, bytes.len());
            self.bytes += len as u64;
            // The message has an owner while in flight, so its bytes stay in place.
            self.in_flight.insert(id, InFlight { message, given_up: None });
            self.push_bare(Frame::Lent { id, at, len });
        }
    }

    pub(super) fn credit(&mut self, bytes: u64) {
        self.unfreed = self.unfreed.saturating_sub(bytes);
    }

    /// Closes the outbox; all waiting senders are notified. True if the stream is between two frames.
    pub(super) fn close(&mut self, reason: &MeshError, reports: &mut Reports) -> bool {
        if self.closed.is_some() {
            return false;
        }
        self.closed = Some(reason.clone());
        let between = self.current.as_ref().is_none_or(|current| current.written == 0);
        let items = self.urgent.drain(..).chain(self.bulk.drain(..));
        let items = items.chain(self.current.take().map(|current| current.item));
        for message in items.filter_map(Item::message) {
            report(message, Err(reason.clone()), reports);
        }
        for (_, message) in self.announced.drain() {
            report(message, Err(reason.clone()), reports);
        }
        // A peer that has left normally may have received messages in flight.
        if !matches!(reason, MeshError::Left { .. }) {
            self.give_up_in_flight(|_| true, reason);
        }
        between
    }

    /// Handles the revocation of messages in flight: the receiver accepts none of them any more.
    pub(super) fn revoke(&mut self, reason: &MeshError, reports: &mut Reports) {
        for (_, InFlight { message, given_up }) in self.in_flight.drain() {
            let why = given_up.map_or_else(|| reason.clone(), |(why, _)| why);
            report(message, Err(why), reports);
        }
    }

    /// Whether nothing is queued, announced or in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.is_flushed() && self.announced.is_empty() && self.in_flight.is_empty()
    }

    /// Whether messages selected by `which` are in flight.
    pub(super) fn is_in_flight(&self, which: impl Fn(&Message) -> bool) -> bool {
        self.in_flight.values().any(|in_flight| which(&in_flight.message))
    }

    /// Whether a message is in flight that was given up before `then`.
    pub(super) fn is_stuck_since(&self, then: Instant) -> bool {
        let early = |(_, when): &(MeshError, Instant)| *when < then;
        self.in_flight.values().any(|in_flight| in_flight.given_up.as_ref().is_some_and(early))
    }

    fn give_up_in_flight(&mut self, which: impl Fn(&Message) -> bool, reason: &MeshError) {
        for in_flight in self.in_flight.values_mut().filter(|in_flight| which(&in_flight.message)) {
            in_flight.given_up.get_or_insert_with(|| (reason.clone(), Instant::now()));
        }
    }

    /// Passes all queued frames to `post`, which returns whether the payload is already free; if not,
    /// [`Outbox::completed`] is called later.
    pub(super) fn post_all(
        &mut self,
        mut post: impl FnMut(Post<'_>) -> Result<bool, String>,
        reports: &mut Reports,
    ) -> Result<(), String> {
        while let Some(mut current) = self.next() {
            let number = self.next_number;
            self.next_number += 1;
            let in_order = matches!(
                current.item,
                Item::Eager(_) | Item::Bare(Frame::Announce { .. } | Frame::Goodbye)
            );
            let payload = current
                .item
                .message_mut()
                .map(|message| (message.payload.as_loan(), current.segment.clone()));
            let header = &current.header;
            let free = post(Post { header, number, payload, in_order });
            self.bytes += (HEADER_LEN + current.segment.len()) as u64;
            match free {
                Ok(false) if !matches!(current.item, Item::Bare(_)) => {
                    let message = current.item.message().expect("the frame has a message");
                    self.in_flight.insert(number, InFlight { message, given_up: None });
                }
                Ok(_) => self.written(current, reports),
                Err(reason) => {
                    // The message is reported with all others when the connection ends.
                    self.current = Some(current);
                    return Err(reason);
                }
            }
        }
        Ok(())
    }

    /// Handles that the transport has finished with a message in flight: its memory is free.
    pub(super) fn completed(
        &mut self,
        number: u64,
        outcome: Result<(), MeshError>,
        reports: &mut Reports,
    ) {
        let Some(InFlight { message, given_up }) = self.in_flight.remove(&number) else { return };
        let why = given_up.map(|(reason, _)| reason);
        let outcome = match (why, &self.closed) {
            (Some(reason), _) => Err(reason),
            (None, Some(reason)) if outcome.is_err() => Err(reason.clone()),
            (None, _) => outcome,
        };
        report(message, outcome, reports);
    }

    /// Whether nothing is queued.
    pub(super) fn is_flushed(&self) -> bool {
        self.current.is_none() && self.urgent.is_empty() && self.bulk.is_empty()
    }

    /// Gives up the messages that `which` selects and reports `reason` to their senders. The rest of a partly sent
    /// message is copied first: the peer receives it whole, and the sender's memory is free.
    pub(super) fn release(
        &mut self,
        which: impl Fn(&Message) -> bool,
        reason: &MeshError,
        reports: &mut Reports,
    ) {
        let mut give_up = |message: Message| report(message, Err(reason.clone()), reports);
        let ids: Vec<u64> =
            self.announced.iter().filter(|(_, m)| which(m)).map(|(&id, _)| id).collect();
        for message in ids.iter().filter_map(|id| self.announced.remove(id)) {
            give_up(message);
        }
        for queue in [&mut self.urgent, &mut self.bulk] {
            for mut item in std::mem::take(queue) {
                let started = matches!(item, Item::Data { at, .. } if at > 0);
                match item.message_mut() {
                    Some(message) if which(message) && started => give_up(detach(message)),
                    Some(message) if which(message) => {
                        if let Item::Eager(message) = &item {
                            self.unfreed -= cost(message.payload.len());
                        }
                        give_up(item.message().expect("the item has a message"));
                        continue;
                    }
                    _ => {}
                }
                queue.push_back(item);
            }
        }
        self.give_up_in_flight(&which, reason);
        if let Some(message) = self.current.as_mut().and_then(|c| c.item.message_mut())
            && which(message)
        {
            give_up(detach(message));
        }
    }

    /// Writes until nothing is left or `write` would block.
    pub(super) fn drain(
        &mut self,
        mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
        reports: &mut Reports,
    ) -> io::Result<Drained> {
        loop {
            let Some(current) = self.current.take().or_else(|| self.next()) else {
                return Ok(Drained::Empty);
            };
            let current = self.current.insert(current);
            match current.write(&mut write) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    current.written += n;
                    self.bytes += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Drained::Blocked),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
            if current.written == HEADER_LEN + current.segment.len() {
                let current = self.current.take().expect("set above");
                self.written(current, reports);
            }
        }
    }

    fn next(&mut self) -> Option<Current> {
        let item = self.urgent.pop_front().or_else(|| {
            let last = matches!(self.bulk.front(), Some(Item::Bare(Frame::Goodbye)));
            if last && !self.in_flight.is_empty() { None } else { self.bulk.pop_front() }
        })?;
        let (frame, segment) = match &item {
            Item::Bare(frame) => (*frame, 0..0),
            Item::Eager(Message { key, fingerprint, payload, .. }) => {
                let len = payload.len();
                (Frame::Eager { key: *key, fingerprint: *fingerprint, len }, 0..len)
            }
            Item::Data { id, at, message } => {
                let len = self.limits.segment.min(message.payload.len() - at);
                (Frame::Data { id: *id, len }, *at..at + len)
            }
        };
        Some(Current { header: frame.encode(), item, segment, written: 0 })
    }

    fn written(&mut self, current: Current, reports: &mut Reports) {
        match current.item {
            Item::Bare(_) => {}
            Item::Eager(message) => report(message, Ok(()), reports),
            Item::Data { id, message, .. } => {
                let at = current.segment.end;
                if at == message.payload.len() {
                    report(message, Ok(()), reports);
                } else if message.key.channel == Channel::Control {
                    self.urgent.push_front(Item::Data { id, at, message });
                } else {
                    self.bulk.push_front(Item::Data { id, at, message });
                }
            }
        }
    }
}

impl Current {
    fn write(
        &self,
        write: &mut impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let payload = match &self.item {
            Item::Bare(_) => &[][..],
            Item::Eager(message) | Item::Data { message, .. } => {
                &message.payload.bytes()[self.segment.clone()]
            }
        };
        match self.written.checked_sub(HEADER_LEN) {
            Some(at) => write(&[IoSlice::new(&payload[at..])]),
            None => {
                let header = IoSlice::new(&self.header[self.written..]);
                write(&[header, IoSlice::new(payload)])
            }
        }
    }
}

impl Item {
    fn message(self) -> Option<Message> {
        match self {
            Item::Bare(_) => None,
            Item::Eager(message) | Item::Data { message, .. } => Some(message),
        }
    }

    fn message_mut(&mut self) -> Option<&mut Message> {
        match self {
            Item::Bare(_) => None,
            Item::Eager(message) | Item::Data { message, .. } => Some(message),
        }
    }
}

/// Replaces the message by a copy and returns the original, to be reported.
fn detach(message: &mut Message) -> Message {
    let copy = Payload::Bytes(message.payload.bytes().to_vec());
    Message {
        key: message.key,
        fingerprint: message.fingerprint,
        payload: std::mem::replace(&mut message.payload, copy),
        deadline: message.deadline.take(),
        done: message.done.take(),
    }
}

fn report(message: Message, outcome: Result<(), MeshError>, reports: &mut Reports) {
    if let Some(done) = message.done {
        reports.push((done, outcome));
    }
}

#[cfg(test)]
mod tests {
    use super::super::limits::{self, SEGMENT_MAX};
    use super::*;
    use parking_lot::Mutex;
    use std::sync::Arc;

    fn message(len: usize, done: Option<OnSent>) -> Message {
        let key = Key { channel: Channel::PointToPoint, tag: 1, part: 0 };
        let payload = Payload::Bytes(vec![7; len]);
        Message { key, fingerprint: 0, payload, deadline: None, done }
    }

    fn drain(outbox: &mut Outbox, room: usize) -> (Vec<u8>, Reports) {
        let (mut out, mut reports) = (Vec::new(), Vec::new());
        let write = |parts: &[IoSlice<'_>]| {
            let before = out.len();
            for byte in parts.iter().flat_map(|p| p.iter()) {
                if out.len() == room {
                    break;
                }
                out.push(*byte);
            }
            match out.len() - before {
                0 => Err(io::ErrorKind::WouldBlock.into()),
                n => Ok(n),
            }
        };
        outbox.drain(write, &mut reports).unwrap();
        (out, reports)
    }

    fn header(bytes: &[u8]) -> Frame {
        Frame::decode(bytes[..HEADER_LEN].try_into().unwrap(), SEGMENT_MAX).unwrap()
    }

    #[test]
    fn small_messages_are_announced_once_the_room_is_used_up() {
        let mut outbox = Outbox::new(limits::TCP);
        let mut reports = Vec::new();
        for _ in 0..9 {
            outbox.push(message(SEGMENT_MAX - 80, None), &mut reports);
        }
        let (out, _) = drain(&mut outbox, usize::MAX);
        let last = header(&out[out.len() - HEADER_LEN..]);
        assert!(matches!(last, Frame::Announce { id: 0, .. }), "{last:?}");
        outbox.credit(ALLOWANCE);
        outbox.push(message(1, None), &mut reports);
        let (out, _) = drain(&mut outbox, usize::MAX);
        assert!(matches!(header(&out), Frame::Eager { len: 1, .. }));
    }

    #[test]
    fn urgent_frames_overtake_the_segments_of_a_long_message() {
        let mut outbox = Outbox::new(limits::TCP);
        let mut reports = Vec::new();
        outbox.push(message(2 * SEGMENT_MAX + 5, None), &mut reports);
        assert!(!outbox.is_idle());
        drain(&mut outbox, usize::MAX);
        outbox.ready(0);
        drain(&mut outbox, HEADER_LEN + 1);
        outbox.push_bare(Frame::Ping);
        let (out, _) = drain(&mut outbox, usize::MAX);
        assert_eq!(header(&out[SEGMENT_MAX - 1..]), Frame::Ping);
        let second = header(&out[SEGMENT_MAX - 1 + HEADER_LEN..]);
        assert_eq!(second, Frame::Data { id: 0, len: SEGMENT_MAX });
        assert!(outbox.is_idle());
    }

    #[test]
    fn a_partly_sent_message_is_finished_from_a_copy() {
        let mut outbox = Outbox::new(limits::TCP);
        let told = Arc::new(Mutex::new(None));
        let by = told.clone();
        let mut reports = Vec::new();
        let done: OnSent = Box::new(move |outcome| *by.lock() = Some(outcome));
        outbox.push(message(100, Some(done)), &mut reports);
        let (first, _) = drain(&mut outbox, HEADER_LEN + 10);
        outbox.release(|m| m.key.tag == 1, &MeshError::Cancelled, &mut reports);
        for (done, outcome) in reports {
            done(outcome);
        }
        assert_eq!(*told.lock(), Some(Err(MeshError::Cancelled)));
        let (rest, _) = drain(&mut outbox, usize::MAX);
        assert_eq!(first.len() + rest.len(), HEADER_LEN + 100);
        assert!(outbox.is_idle());
    }

    #[test]
    fn senders_are_notified_when_a_message_in_flight_completes_and_goodbye_waits_for_it() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let done = || -> Option<OnSent> {
            let told = told.clone();
            Some(Box::new(move |outcome| told.lock().push(outcome)))
        };
        let mut outbox = Outbox::new(Limits { eager: 100, segment: usize::MAX });
        let mut reports = Vec::new();
        let settle = |reports: &mut Reports| {
            reports.drain(..).for_each(|(done, outcome)| done(outcome));
            std::mem::take(&mut *told.lock())
        };
        for _ in 0..3 {
            outbox.push(message(50, done()), &mut reports);
        }
        outbox.push_last(Frame::Goodbye);
        let mut numbers = Vec::new();
        let send = |post: Post<'_>| {
            numbers.push(post.number);
            Ok(false)
        };
        outbox.post_all(send, &mut reports).unwrap();
        assert_eq!((numbers.len(), settle(&mut reports)), (3, Vec::new()));
        outbox.completed(numbers[0], Ok(()), &mut reports);
        assert_eq!(settle(&mut reports), [Ok(())]);
        outbox.release(|_| true, &MeshError::Timeout, &mut reports);
        outbox.completed(numbers[1], Ok(()), &mut reports);
        assert_eq!(settle(&mut reports), [Err(MeshError::Timeout)]);
        assert!(outbox.is_stuck_since(Instant::now()));
        outbox.completed(numbers[2], Ok(()), &mut reports);
        assert!(!outbox.is_idle(), "goodbye is queued");
        let last = |post: Post<'_>| Ok(post.in_order && header(post.header) == Frame::Goodbye);
        outbox.post_all(last, &mut reports).unwrap();
        assert!(outbox.is_idle());
    }

    #[test]
    fn a_message_in_flight_to_a_rank_that_left_may_have_arrived() {
        let left = MeshError::Left { rank: 1 };
        for outcome in [Ok(()), Err(MeshError::Cancelled)] {
            let (told, outcomes) = crossbeam_channel::unbounded();
            let mut outbox = Outbox::new(Limits { eager: 100, segment: usize::MAX });
            let mut reports = Vec::new();
            let done: OnSent = Box::new(move |outcome| told.send(outcome).unwrap());
            outbox.push(message(50, Some(done)), &mut reports);
            outbox.post_all(|_| Ok(false), &mut reports).unwrap();
            outbox.close(&left, &mut reports);
            outbox.completed(0, outcome.clone(), &mut reports);
            reports.drain(..).for_each(|(done, outcome)| done(outcome));
            assert_eq!(outcomes.recv().unwrap(), outcome.map_err(|_| left.clone()));
        }
    }

    #[test]
    fn a_closed_outbox_reports_the_reason() {
        let mut outbox = Outbox::new(limits::TCP);
        let reason = MeshError::Left { rank: 3 };
        let mut reports = Vec::new();
        outbox.push(message(1, Some(Box::new(|_| ()))), &mut reports);
        outbox.close(&reason, &mut reports);
        outbox.push(message(1, Some(Box::new(|_| ()))), &mut reports);
        assert!(reports.iter().all(|(_, outcome)| *outcome == Err(reason.clone())));
        assert_eq!(reports.len(), 2);
    }
}
