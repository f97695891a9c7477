//! One connection to a neighbour, with a thread that sends and one that receives.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use super::PlannedError;

/// A chunk of one flow.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) operation: u64,
    pub(super) flow: u32,
    pub(super) chunk: u32,
    /// A partial sum on its way to the root; else data on its way from it.
    pub(super) up: bool,
    pub(super) bytes: Arc<Vec<u8>>,
}

/// What the engine hears from a lane.
pub(super) enum News {
    Message { from: usize, message: Message },
    Lost { from: usize, reason: String },
}

impl News {
    /// The operation that a message belongs to.
    pub(super) fn operation(&self) -> Option<u64> {
        match self {
            News::Message { message, .. } => Some(message.operation),
            News::Lost { .. } => None,
        }
    }
}

/// A connected neighbour.
pub(super) struct Lane {
    stream: TcpStream,
    queue: Option<Sender<Message>>,
    queued: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Lane {
    pub(super) fn new(
        peer: usize,
        stream: TcpStream,
        news: Sender<News>,
        timeout: Duration,
    ) -> std::io::Result<Lane> {
        stream.set_nodelay(true)?;
        // A neighbour that hangs must not hold us for ever.
        stream.set_write_timeout(Some(timeout))?;
        let (queue, messages) = crossbeam_channel::unbounded();
        let queued = Arc::new(AtomicUsize::new(0));
        let (reader, writer, count) = (stream.try_clone()?, stream.try_clone()?, queued.clone());
        let lost = news.clone();
        let sender = thread::Builder::new().name(format!("to-{peer}")).spawn(move || {
            if let Err(error) = send(writer, &messages, &count) {
                // With a full channel the engine hears of it from the receiver.
                let _ = lost.try_send(News::Lost { from: peer, reason: error.to_string() });
            }
        })?;
        let receiver = thread::Builder::new().name(format!("from-{peer}")).spawn(move || {
            let reason = receive(reader, peer, &news);
            // The engine may have gone first.
            let _ = news.send(News::Lost { from: peer, reason });
        })?;
        Ok(Lane { stream, queue: Some(queue), queued, threads: vec![sender, receiver] })
    }

    /// Queues a message; a lane that is lost is heard of through its news.
    pub(super) fn send(&self, message: Message) {
        self.queued.fetch_add(message.bytes.len(), Ordering::Relaxed);
        if let Some(queue) = &self.queue {
            let _ = queue.send(message);
        }
    }

    /// Bytes that wait to be sent.
    pub(super) fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }
}

impl Drop for Lane {
    /// Sends what is queued: a neighbour may still need it.
    fn drop(&mut self) {
        self.queue = None;
        let receiver = self.threads.pop();
        for sender in self.threads.drain(..) {
            let _ = sender.join();
        }
        let _ = self.stream.shutdown(Shutdown::Write);
        // The receiver ends with the neighbour, or with the channel that nobody reads any more.
        drop(receiver);
    }
}

fn send(
    mut stream: TcpStream,
    messages: &Receiver<Message>,
    queued: &AtomicUsize,
) -> std::io::Result<()> {
    for message in messages {
        let mut header = [0u8; HEADER];
        header[..8].copy_from_slice(&message.operation.to_le_bytes());
        header[8..12].copy_from_slice(&message.flow.to_le_bytes());
        header[12..16].copy_from_slice(&message.chunk.to_le_bytes());
        header[16..20].copy_from_slice(&(message.bytes.len() as u32).to_le_bytes());
        header[20] = u8::from(message.up);
        stream.write_all(&header)?;
        stream.write_all(&message.bytes)?;
        queued.fetch_sub(message.bytes.len(), Ordering::Relaxed);
    }
    Ok(())
}

/// Reads messages until the connection ends; returns why it did.
fn receive(mut stream: TcpStream, from: usize, news: &Sender<News>) -> String {
    loop {
        let mut header = [0u8; HEADER];
        if let Err(error) = stream.read_exact(&mut header) {
            return error.to_string();
        }
        let word = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let length = word(16) as usize;
        if length > MESSAGE_MAX {
            return format!("it sent a message of {length} bytes, more than {MESSAGE_MAX}");
        }
        let mut bytes = vec![0; length];
        if let Err(error) = stream.read_exact(&mut bytes) {
            return error.to_string();
        }
        let operation = u64::from(word(0)) | u64::from(word(4)) << 32;
        let (flow, chunk, up) = (word(8), word(12), header[20] == 1);
        let message = Message { operation, flow, chunk, up, bytes: Arc::new(bytes) };
        if news.send(News::Message { from, message }).is_err() {
            return "the group is gone".to_owned();
        }
    }
}

/// Connections to all `neighbours`; the higher rank of two connects, and says who it is.
pub(super) fn connect(
    rank: usize,
    neighbours: &BTreeSet<usize>,
    listener: &TcpListener,
    addresses: &BTreeMap<usize, SocketAddr>,
    deadline: Instant,
    timeout: Duration,
) -> Result<BTreeMap<usize, TcpStream>, PlannedError> {
    let failed = |peer: usize, reason: String| PlannedError::Unreachable {
        rank: peer,
        address: addresses.get(&peer).map_or("no known address".to_owned(), SocketAddr::to_string),
        within_s: timeout.as_secs_f64(),
        reason,
    };
    let mut streams = BTreeMap::new();
    for &peer in neighbours.iter().filter(|&&peer| peer < rank) {
        let address =
            addresses.get(&peer).ok_or_else(|| failed(peer, "none was given".to_owned()))?;
        let mut stream = loop {
            match TcpStream::connect_timeout(address, timeout) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() >= deadline => {
                    return Err(failed(peer, error.to_string()));
                }
                // It may not listen yet.
                Err(_) => thread::sleep(RETRY),
            }
        };
        let hello = (rank as u32).to_le_bytes();
        stream.write_all(&hello).map_err(|error| failed(peer, error.to_string()))?;
        streams.insert(peer, stream);
    }
    let missing = |streams: &BTreeMap<usize, TcpStream>| {
        neighbours.iter().copied().find(|peer| *peer > rank && !streams.contains_key(peer))
    };
    let broken = |error: std::io::Error| failed(rank, error.to_string());
    listener.set_nonblocking(true).map_err(broken)?;
    while let Some(peer) = missing(&streams) {
        match listener.accept() {
            Ok((mut stream, _)) => {
                let mut hello = [0u8; 4];
                stream.set_nonblocking(false).map_err(broken)?;
                stream.set_read_timeout(Some(timeout)).map_err(broken)?;
                // A stranger that says nothing, or the wrong thing, is turned away.
                let known = stream.read_exact(&mut hello).is_ok();
                let named = u32::from_le_bytes(hello) as usize;
                stream.set_read_timeout(None).map_err(broken)?;
                if known && named > rank && neighbours.contains(&named) {
                    streams.insert(named, stream);
                }
            }
            Err(_) if Instant::now() >= deadline => {
                return Err(failed(peer, "it did not connect".to_owned()));
            }
            Err(_) => thread::sleep(RETRY),
        }
    }
    Ok(streams)
}

const HEADER: usize = 21;
/// Far above any chunk, and far from exhausting memory.
const MESSAGE_MAX: usize = 1 << 30;
const RETRY: Duration = Duration::from_millis(20);
