//! One direction of a connection through shared memory: a ring of bytes on which both sides can sleep.

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::futex::Futex;
use crate::ring::{Bytes, Positions, Reader, Waiting, Writer};
use crate::word::Word;

/// Whether an `extra` word is set: the writer will write no more, or the reader will read no more.
fn is_set(word: &impl Word) -> bool {
    word.load(Ordering::Acquire) != 0
}

/// The writing side.
pub(super) struct SendHalf<R> {
    writer: Writer<R>,
}

impl<R: Bytes<Word: Futex>> SendHalf<R> {
    pub(super) fn new(room: R) -> SendHalf<R> {
        SendHalf { writer: Writer::new(room) }
    }

    /// Writes as much as there is room for, waiting for room at most for `patience`. Errors: the reader has closed.
    pub(super) fn write(
        &mut self,
        bytes: &[u8],
        patience: Duration,
        spins: u32,
        gone: impl Fn() -> bool,
    ) -> io::Result<usize> {
        let mut since = None;
        loop {
            if is_set(&self.writer.room.positions().reader.extra) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let count = self.writer.write(bytes, usize::MAX)?;
            if count > 0 {
                wake(&self.writer.room.positions().reader.waiting);
                return Ok(count);
            }
            if since.get_or_insert_with(Instant::now).elapsed() >= patience {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.wait(spins)?;
            if gone() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
    }

    /// Waits for room, for the end, or for a while.
    fn wait(&mut self, spins: u32) -> io::Result<()> {
        for _ in 0..spins {
            if self.writer.free(1)? > 0 {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.writer.room.positions().writer.waiting.raise();
        let room = self.writer.free(1);
        let Positions { writer, reader } = self.writer.room.positions();
        if room == Ok(0) && !is_set(&reader.extra) {
            writer.waiting.word().wait(1, LOOK_AGAIN);
        }
        writer.waiting.lower();
        room.map(drop).map_err(io::Error::from)
    }
}

/// The reading side.
pub(super) struct ReceiveHalf<R> {
    reader: Reader<R>,
}

impl<R: Bytes<Word: Futex>> ReceiveHalf<R> {
    pub(super) fn new(room: R) -> ReceiveHalf<R> {
        ReceiveHalf { reader: Reader::new(room) }
    }

    /// Reads available bytes, waiting for at least one; 0 at the end.
    pub(super) fn read(
        &mut self,
        bytes: &mut [u8],
        spins: u32,
        gone: impl Fn() -> bool,
    ) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let mut last_look = false;
        loop {
            let Positions { writer, reader } = self.reader.room.positions();
            if is_set(&reader.extra) {
                return Ok(0);
            }
            let ended = is_set(&writer.extra);
            let mut at = 0;
            let count = self.reader.read(bytes.len(), |part| {
                bytes[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            })?;
            if count > 0 {
                if self.reader.is_worth_publishing() && self.reader.publish() {
                    self.reader.room.positions().writer.waiting.word().wake();
                }
                return Ok(count);
            }
            if ended {
                return Ok(0);
            }
            if last_look {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            self.wait(spins);
            // Bytes that a process wrote before it died are still available.
            last_look = gone();
        }
    }

    /// Waits for bytes, for the end, or for a while.
    fn wait(&self, spins: u32) {
        for _ in 0..spins {
            if self.reader.has_bytes() {
                return;
            }
            std::hint::spin_loop();
        }
        let Positions { writer, reader } = self.reader.room.positions();
        reader.waiting.raise();
        if !self.reader.has_bytes() && !is_set(&writer.extra) && !is_set(&reader.extra) {
            reader.waiting.word().wait(1, LOOK_AGAIN);
        }
        reader.waiting.lower();
    }
}

/// Announces that no more bytes will be written.
pub(super) fn end(positions: &Positions<impl Futex>) {
    positions.writer.extra.store(1, Ordering::Release);
    wake(&positions.reader.waiting);
}

/// Announces that no more bytes will be read.
pub(super) fn refuse(positions: &Positions<impl Futex>) {
    positions.reader.extra.store(1, Ordering::Release);
    wake(&positions.writer.waiting);
    wake(&positions.reader.waiting);
}

fn wake(side: &Waiting<impl Futex>) {
    if side.take() {
        side.word().wake();
    }
}

/// A process that dies wakes no one: interval of checks for its death.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
