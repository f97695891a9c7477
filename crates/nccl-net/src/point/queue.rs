//! Messages of a connection in order, each with its length in front; moved as far as the connection allows.
//!
//! A message: its length in 8 bytes, little-endian, then its bytes.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use netsum_collective::Buffer;

use super::line::Line;

/// Outcome of a message, shared with its request.
#[derive(Default)]
pub(super) struct Outcome {
    /// Bytes that were moved, plus 1; 0: it is not done.
    done: AtomicUsize,
}

impl Outcome {
    pub(super) fn bytes(&self) -> Option<usize> {
        self.done.load(Ordering::Acquire).checked_sub(1)
    }
}

/// Direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Direction {
    Send,
    Receive,
}

struct Item {
    memory: Buffer,
    header: [u8; HEADER_LEN],
    /// Bytes of header and message that were moved.
    moved: usize,
    outcome: Arc<Outcome>,
}

/// The messages of one connection that are not done.
pub(super) struct Queue {
    direction: Direction,
    items: VecDeque<Item>,
}

impl Queue {
    pub(super) fn new(direction: Direction) -> Queue {
        Queue { direction, items: VecDeque::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Adds a message: the bytes to send, or the memory for at most so many.
    pub(super) fn push(&mut self, memory: Buffer) -> Arc<Outcome> {
        let header = (memory.len() as u64).to_le_bytes();
        let outcome = Arc::new(Outcome::default());
        self.items.push_back(Item { memory, header, moved: 0, outcome: outcome.clone() });
        outcome
    }

    /// Drops all messages: none uses NCCL's memory afterwards.
    pub(super) fn clear(&mut self) {
        self.items.clear();
    }

    /// Moves what can be moved without waiting.
    pub(super) fn advance(&mut self, line: &mut dyn Line) -> io::Result<()> {
        while let Some(item) = self.items.front_mut() {
            let all = match self.direction {
                Direction::Send => item.send(line),
                Direction::Receive => item.receive(line),
            };
            match all {
                Ok(Some(bytes)) => {
                    let Some(item) = self.items.pop_front() else { break };
                    // NCCL may use the memory as soon as it sees that the message is done.
                    drop(item.memory);
                    item.outcome.done.store(bytes + 1, Ordering::Release);
                }
                Ok(None) => break,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Item {
    /// Bytes of the message, if it is sent.
    fn send(&mut self, line: &mut dyn Line) -> io::Result<Option<usize>> {
        let bytes = self.memory.len();
        while self.moved < HEADER_LEN + bytes {
            let wrote = match self.moved.checked_sub(HEADER_LEN) {
                None => line.write(&self.header[self.moved..])?,
                Some(at) => line.write(self.memory.slice(at..bytes))?,
            };
            if wrote == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
            self.moved += wrote;
        }
        Ok(line.drain()?.then_some(bytes))
    }

    /// Bytes of the message, if it is received; it may be shorter than the memory.
    fn receive(&mut self, line: &mut dyn Line) -> io::Result<Option<usize>> {
        while self.moved < HEADER_LEN {
            let read = line.read(&mut self.header[self.moved..])?;
            self.moved += some(read)?;
        }
        let length = u64::from_le_bytes(self.header);
        let room = self.memory.len();
        let Some(bytes) = usize::try_from(length).ok().filter(|&bytes| bytes <= room) else {
            let words = format!("the peer sends {length} bytes where {room} are expected");
            return Err(io::Error::new(ErrorKind::InvalidData, words));
        };
        while self.moved < HEADER_LEN + bytes {
            let read = line.read(self.memory.slice_mut(self.moved - HEADER_LEN..bytes))?;
            self.moved += some(read)?;
        }
        Ok(Some(bytes))
    }
}

fn some(read: usize) -> io::Result<usize> {
    if read == 0 {
        return Err(io::Error::new(ErrorKind::UnexpectedEof, "the peer has closed the connection"));
    }
    Ok(read)
}

const HEADER_LEN: usize = 8;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    /// A connection that moves few bytes at a time, and sometimes none.
    struct Pipe {
        bytes: VecDeque<u8>,
        calls: u32,
        closed: bool,
    }

    impl Pipe {
        fn portion(&mut self, wanted: usize) -> io::Result<usize> {
            self.calls = self.calls.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            match (self.calls >> 16) as usize % 4 {
                0 => Err(ErrorKind::WouldBlock.into()),
                some => Ok(some.min(wanted)),
            }
        }
    }

    impl Read for Pipe {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.bytes.is_empty() {
                return if self.closed { Ok(0) } else { Err(ErrorKind::WouldBlock.into()) };
            }
            let portion = self.portion(into.len())?.min(self.bytes.len());
            for (place, byte) in into.iter_mut().zip(self.bytes.drain(..portion)) {
                *place = byte;
            }
            Ok(portion)
        }
    }

    impl Write for Pipe {
        fn write(&mut self, from: &[u8]) -> io::Result<usize> {
            let portion = self.portion(from.len())?;
            self.bytes.extend(&from[..portion]);
            Ok(portion)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Line for Pipe {
        fn drain(&mut self) -> io::Result<bool> {
            Ok(true)
        }
    }

    fn pipe() -> Pipe {
        Pipe { bytes: VecDeque::new(), calls: 1, closed: false }
    }

    #[test]
    fn messages_arrive_in_order_with_their_length() {
        let (mut line, mut sends) = (pipe(), Queue::new(Direction::Send));
        let mut receives = Queue::new(Direction::Receive);
        let messages: Vec<Vec<u8>> = (0..20u8).map(|n| vec![n; usize::from(n) * 7 % 50]).collect();
        let sent: Vec<_> =
            messages.iter().map(|bytes| sends.push(Buffer::from_vec(bytes.clone()))).collect();
        let mut memory: Vec<Buffer> =
            messages.iter().map(|_| Buffer::from_vec(vec![0; 50])).collect();
        let received: Vec<_> =
            memory.iter_mut().map(|buffer| receives.push(buffer.lend_all())).collect();
        while receives.len() > 0 {
            sends.advance(&mut line).unwrap();
            receives.advance(&mut line).unwrap();
        }
        for (n, bytes) in messages.iter().enumerate() {
            assert_eq!(sent[n].bytes(), Some(bytes.len()));
            assert_eq!(received[n].bytes(), Some(bytes.len()));
            assert_eq!(memory[n].slice(0..bytes.len()), bytes);
        }
    }

    #[test]
    fn a_longer_message_and_a_closed_connection_are_errors() {
        let (mut line, mut sends) = (pipe(), Queue::new(Direction::Send));
        let mut receives = Queue::new(Direction::Receive);
        sends.push(Buffer::from_vec(vec![1; 9]));
        let outcome = receives.push(Buffer::from_vec(vec![0; 8]));
        let error = loop {
            sends.advance(&mut line).unwrap();
            if let Err(error) = receives.advance(&mut line) {
                break error;
            }
        };
        assert_eq!(error.to_string(), "the peer sends 9 bytes where 8 are expected");
        assert_eq!(outcome.bytes(), None);
        let mut line = Pipe { closed: true, ..pipe() };
        let mut receives = Queue::new(Direction::Receive);
        receives.push(Buffer::from_vec(vec![0; 8]));
        let error = receives.advance(&mut line).unwrap_err();
        assert_eq!(error.to_string(), "the peer has closed the connection");
    }
}
