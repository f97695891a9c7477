//! A connection to a neighbour, with a thread that sends and one that receives.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use crossbeam_channel::Sender;
use netsum_net::stream::{Connection, read_exact, write_all};
use parking_lot::{Condvar, Mutex};

/// A message between neighbours.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) operation: u64,
    pub(super) body: Body,
}

#[derive(Debug, Clone)]
pub(super) enum Body {
    /// The sender takes part in the operation, which it has called with this fingerprint.
    Ready { fingerprint: u32 },
    /// A chunk of one flow: a partial sum on its way to the root, or data on its way from the root.
    Chunk { flow: u32, chunk: u32, up: bool, bytes: Arc<Vec<u8>> },
    /// All ranks beyond the sender have all results; payload: the longest duration of each flow there, in microseconds.
    Complete { micros: Arc<Vec<u8>> },
    /// All ranks have all results; payload: the shares of the next operation, if they have changed.
    AllComplete { shares: Arc<Vec<u8>> },
}

impl Body {
    /// Payload after the header.
    fn payload(&self) -> Option<&Arc<Vec<u8>>> {
        match self {
            Body::Ready { .. } => None,
            Body::Chunk { bytes, .. } => Some(bytes),
            Body::Complete { micros: words } | Body::AllComplete { shares: words } => Some(words),
        }
    }

    fn payload_mut(&mut self) -> Option<&mut Arc<Vec<u8>>> {
        match self {
            Body::Ready { .. } => None,
            Body::Chunk { bytes, .. } => Some(bytes),
            Body::Complete { micros: words } | Body::AllComplete { shares: words } => Some(words),
        }
    }
}

/// An event of a peer link, for the engine.
pub(super) struct LinkEvent {
    /// Index of the peer link.
    pub(super) peer_link: usize,
    /// A message, or why the peer link has ended.
    pub(super) what: Result<Message, LinkLoss>,
}

/// Why a peer link has ended.
#[derive(Debug, Clone)]
pub(super) struct LinkLoss {
    pub(super) reason: String,
    /// Whether the link failed: it accepted no data, or had no answer. The neighbour may be alive.
    pub(super) dead: bool,
}

impl From<std::io::Error> for LinkLoss {
    fn from(error: std::io::Error) -> LinkLoss {
        let reason = match error.kind() {
            ErrorKind::UnexpectedEof => "the connection was closed".to_owned(),
            _ => error.to_string(),
        };
        LinkLoss { reason, dead: is_dead(error.kind()) }
    }
}

/// Whether an error of a connection indicates a dead link.
pub(super) fn is_dead(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::TimedOut
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown
    )
}

/// A connected neighbour. When dropped, sends what is queued: the neighbour may still need it.
pub(super) struct PeerLink {
    connection: Arc<dyn Connection>,
    outbox: Arc<SendQueue>,
    sender: Option<JoinHandle<()>>,
}

/// Messages to be sent, lowest chunk numbers first, so that all flows advance together, and forwarded chunks do not
/// wait behind all that begin here.
#[derive(Default)]
struct SendQueue {
    queue: Mutex<Queue>,
    filled: Condvar,
    bytes: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    waiting: BinaryHeap<Reverse<Waiting>>,
    pushed: u64,
    closed: bool,
}

/// Ordered by urgency, then by insertion.
struct Waiting {
    urgency: u64,
    number: u64,
    message: Message,
}

impl PeerLink {
    pub(super) fn new(
        place: usize,
        connection: Arc<dyn Connection>,
        news: Sender<LinkEvent>,
    ) -> std::io::Result<PeerLink> {
        let outbox = Arc::new(SendQueue::default());
        let (reader, writer, messages) = (connection.clone(), connection.clone(), outbox.clone());
        let lost = news.clone();
        let sender = thread::Builder::new().name(format!("link-{place}-to")).spawn(move || {
            if let Err(error) = send(&*writer, &messages) {
                let what = Err(error.into());
                // If the channel is full, the receiving thread reports the loss.
                let _ = lost.try_send(LinkEvent { peer_link: place, what });
            }
        })?;
        thread::Builder::new().name(format!("link-{place}-from")).spawn(move || {
            let reason = receive(&*reader, place, &news);
            // The engine may have ended first.
            let _ = news.send(LinkEvent { peer_link: place, what: Err(reason) });
        })?;
        Ok(PeerLink { connection, outbox, sender: Some(sender) })
    }

    /// Queues a message; the loss of a peer link is reported as an event.
    pub(super) fn send(&self, message: Message) {
        self.outbox.push(message);
    }

    /// Bytes to be sent.
    pub(super) fn queued(&self) -> usize {
        self.outbox.bytes.load(Ordering::Relaxed)
    }

    /// "TCP", "TLS", "shared memory".
    pub(super) fn medium(&self) -> &'static str {
        self.connection.medium()
    }

    /// Ends the link at once; queued messages are lost.
    pub(super) fn abandon(&self) {
        self.connection.close();
    }
}

impl Drop for PeerLink {
    fn drop(&mut self) {
        self.outbox.close();
        if let Some(sender) = self.sender.take() {
            // The panic hook has reported a panic.
            let _ = sender.join();
        }
        // The receiver ends with the neighbour's connection, or when the channel has no reader.
        self.connection.end();
    }
}

impl Message {
    fn len(&self) -> usize {
        self.body.payload().map_or(0, |bytes| bytes.len())
    }

    fn header(&self) -> [u8; HEADER] {
        let (kind, a, b) = match self.body {
            Body::Ready { fingerprint } => (READY, fingerprint, 0),
            Body::Chunk { flow, chunk, up: true, .. } => (UP, flow, chunk),
            Body::Chunk { flow, chunk, up: false, .. } => (DOWN, flow, chunk),
            Body::Complete { .. } => (COMPLETE, 0, 0),
            Body::AllComplete { .. } => (ALL_COMPLETE, 0, 0),
        };
        let mut header = [0u8; HEADER];
        header[..8].copy_from_slice(&self.operation.to_le_bytes());
        header[8..12].copy_from_slice(&a.to_le_bytes());
        header[12..16].copy_from_slice(&b.to_le_bytes());
        header[16..20].copy_from_slice(&(self.len() as u32).to_le_bytes());
        header[20] = kind;
        header
    }

    /// Parses a header; the bytes of a chunk follow. Errors: what is invalid.
    fn parse(header: &[u8; HEADER]) -> Result<(Message, usize), String> {
        let word = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let (a, b, len) = (word(8), word(12), word(16) as usize);
        let chunk = |up| Body::Chunk { flow: a, chunk: b, up, bytes: Arc::default() };
        let body = match header[20] {
            READY => Body::Ready { fingerprint: a },
            UP => chunk(true),
            DOWN => chunk(false),
            COMPLETE => Body::Complete { micros: Arc::default() },
            ALL_COMPLETE => Body::AllComplete { shares: Arc::default() },
            kind => return Err(format!("it sent a message of unknown kind {kind}")),
        };
        if len > CHUNK_MAX || len > 0 && body.payload().is_none() {
            return Err(format!("it sent a message of {len} bytes, more than is possible"));
        }
        let operation = u64::from(word(0)) | u64::from(word(4)) << 32;
        Ok((Message { operation, body }, len))
    }
}

/// Panics if a header is accepted whose payload is longer than a chunk, or belongs to no message; for fuzz targets.
pub(crate) fn check_header(bytes: &[u8]) {
    let Some((header, _)) = bytes.split_first_chunk() else { return };
    if let Ok((message, len)) = Message::parse(header) {
        assert!(len <= CHUNK_MAX && (len == 0 || message.body.payload().is_some()), "{len} bytes");
    }
}

impl SendQueue {
    fn push(&self, message: Message) {
        self.bytes.fetch_add(message.len(), Ordering::Relaxed);
        let mut queue = self.queue.lock();
        queue.pushed += 1;
        let urgency = match message.body {
            Body::Chunk { chunk, .. } => 1 + u64::from(chunk),
            _ => 0,
        };
        let number = queue.pushed;
        queue.waiting.push(Reverse(Waiting { urgency, number, message }));
        drop(queue);
        self.filled.notify_one();
    }

    /// The most urgent message; `None` after the end.
    fn pop(&self) -> Option<Message> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(Reverse(Waiting { message, .. })) = queue.waiting.pop() {
                return Some(message);
            }
            if queue.closed {
                return None;
            }
            self.filled.wait(&mut queue);
        }
    }

    fn close(&self) {
        self.queue.lock().closed = true;
        self.filled.notify_one();
    }
}

impl Waiting {
    fn key(&self) -> (u64, u64) {
        (self.urgency, self.number)
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Waiting) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Waiting) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Waiting) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

fn send(connection: &dyn Connection, outbox: &SendQueue) -> std::io::Result<()> {
    while let Some(message) = outbox.pop() {
        write_all(connection, &message.header())?;
        if let Some(bytes) = message.body.payload() {
            write_all(connection, bytes)?;
            outbox.bytes.fetch_sub(bytes.len(), Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Reads messages until the connection ends; returns the reason.
fn receive(connection: &dyn Connection, peer_link: usize, news: &Sender<LinkEvent>) -> LinkLoss {
    let mut header = [0u8; HEADER];
    loop {
        if let Err(error) = read_exact(connection, &mut header) {
            return error.into();
        }
        let (mut message, len) = match Message::parse(&header) {
            Ok(parsed) => parsed,
            Err(reason) => return LinkLoss { reason, dead: false },
        };
        if let Some(bytes) = message.body.payload_mut() {
            let mut filled = vec![0; len];
            if let Err(error) = read_exact(connection, &mut filled) {
                return error.into();
            }
            *bytes = Arc::new(filled);
        }
        if news.send(LinkEvent { peer_link, what: Ok(message) }).is_err() {
            return LinkLoss { reason: "the group is gone".to_owned(), dead: false };
        }
    }
}

/// Maximum bytes of a chunk: a message's length comes from the neighbour.
pub(super) const CHUNK_MAX: usize = 64 << 20;
const HEADER: usize = 21;
const READY: u8 = 1;
const UP: u8 = 2;
const DOWN: u8 = 3;
const COMPLETE: u8 = 4;
const ALL_COMPLETE: u8 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_decode_as_encoded() {
        let bytes = Arc::new(vec![7; 5]);
        for body in [
            Body::Ready { fingerprint: 0xdead_beef },
            Body::Chunk { flow: 3, chunk: 9, up: true, bytes: bytes.clone() },
            Body::Chunk { flow: 3, chunk: 9, up: false, bytes: bytes.clone() },
            Body::Complete { micros: bytes.clone() },
            Body::AllComplete { shares: bytes },
        ] {
            let message = Message { operation: u64::MAX - 7, body };
            let (read, len) = Message::parse(&message.header()).unwrap();
            assert_eq!((read.operation, len), (message.operation, message.len()));
            let same = std::mem::discriminant(&read.body) == std::mem::discriminant(&message.body);
            assert!(same, "{read:?}");
        }
    }

    #[test]
    fn low_chunks_go_first() {
        let outbox = SendQueue::default();
        let chunk = |flow, chunk| Body::Chunk { flow, chunk, up: true, bytes: Arc::default() };
        for body in
            [chunk(0, 5), chunk(1, 2), chunk(0, 2), Body::Complete { micros: Arc::default() }]
        {
            outbox.push(Message { operation: 1, body });
        }
        outbox.close();
        let order: Vec<String> = std::iter::from_fn(|| outbox.pop())
            .map(|message| format!("{:?}", message.body))
            .collect();
        assert!(
            order[0].contains("Complete") && order[1].contains("flow: 1, chunk: 2"),
            "{order:?}"
        );
        assert!(
            order[2].contains("flow: 0, chunk: 2") && order[3].contains("chunk: 5"),
            "{order:?}"
        );
    }

    #[test]
    fn invalid_messages_are_refused() {
        let mut header = Message { operation: 1, body: Body::Ready { fingerprint: 0 } }.header();
        header[16] = 1;
        assert!(Message::parse(&header).unwrap_err().contains("1 bytes"));
        header[20] = 77;
        assert!(Message::parse(&header).unwrap_err().contains("unknown kind 77"));
        header[20] = UP;
        header[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Message::parse(&header).unwrap_err().contains("more than is possible"));
    }
}
