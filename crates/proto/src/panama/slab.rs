//! Memory of real numbers: each buffer holds a packet ready to send, header and payload in one piece.

use netsum_wire::panama::{HEADER_LEN, Header};
use netsum_wire::{Encoding, Input, reduce};

use super::lease::MAX_CHILDREN;
use super::memory::Memory;

/// Handle of a buffer in a [`Slab`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferId(u32);

/// Buffers of a few sizes within a limit of bytes. They are made on first use and kept; nothing is
/// allocated once a job is warm.
pub struct Slab {
    entries: Vec<Entry>,
    classes: Vec<Class>,
    freed: Vec<BufferId>,
    /// Entries whose memory was given back.
    unused: Vec<BufferId>,
    limit: u64,
    held: u64,
}

struct Entry {
    bytes: Box<[u8]>,
    len: usize,
    encoding: Encoding,
    class: usize,
}

/// Buffers of one size.
struct Class {
    payload: usize,
    free: Vec<BufferId>,
}

/// Sizes step by this much, so that fragments of 1,400 and of 1,408 bytes share buffers.
const CLASS_STEP: usize = 512;

impl Slab {
    /// `limit`: bytes that all buffers together may take.
    pub fn new(limit: u64) -> Slab {
        Slab {
            entries: Vec::new(),
            classes: Vec::new(),
            freed: Vec::new(),
            unused: Vec::new(),
            limit,
            held: 0,
        }
    }

    /// Header and payload of a stored packet.
    #[inline]
    pub fn packet(&self, buffer: BufferId) -> &[u8] {
        let entry = &self.entries[buffer.0 as usize];
        &entry.bytes[..entry.len]
    }

    /// Bytes in buffers that are in use.
    pub fn used(&self) -> u64 {
        let free = |c: &Class| c.free.len() as u64 * class_bytes(c.payload);
        self.held - self.classes.iter().map(free).sum::<u64>()
    }

    fn take(&mut self, header: &Header) -> Option<BufferId> {
        let payload = header.payload_len().next_multiple_of(CLASS_STEP);
        let class = self.class(payload);
        let buffer = match self.classes[class].free.pop() {
            Some(buffer) => buffer,
            None => self.make(class)?,
        };
        let entry = &mut self.entries[buffer.0 as usize];
        entry.len = HEADER_LEN + header.payload_len();
        entry.encoding = header.kind.encoding().unwrap_or(Encoding::Element);
        let head = entry.bytes.first_chunk_mut().expect("a buffer holds a header");
        header.encode(head);
        Some(buffer)
    }

    fn class(&mut self, payload: usize) -> usize {
        let found = self.classes.iter().position(|c| c.payload == payload);
        found.unwrap_or_else(|| {
            self.classes.push(Class { payload, free: Vec::new() });
            self.classes.len() - 1
        })
    }

    fn make(&mut self, class: usize) -> Option<BufferId> {
        let payload = self.classes[class].payload;
        let bytes = class_bytes(payload);
        while self.held + bytes > self.limit {
            self.discard_other(class)?;
        }
        self.held += bytes;
        let entry = Entry {
            bytes: vec![0; HEADER_LEN + payload].into_boxed_slice(),
            len: 0,
            encoding: Encoding::Element,
            class,
        };
        if let Some(unused) = self.unused.pop() {
            self.entries[unused.0 as usize] = entry;
            return Some(unused);
        }
        self.entries.push(entry);
        Some(BufferId(self.entries.len() as u32 - 1))
    }

    /// Gives the memory of a free buffer of another size back.
    fn discard_other(&mut self, class: usize) -> Option<()> {
        let others = self.classes.iter_mut().enumerate();
        let (_, other) = others.into_iter().find(|(i, c)| *i != class && !c.free.is_empty())?;
        let buffer = other.free.pop().expect("it is not empty");
        self.entries[buffer.0 as usize].bytes = Box::default();
        self.unused.push(buffer);
        self.held -= class_bytes(other.payload);
        Some(())
    }
}

fn class_bytes(payload: usize) -> u64 {
    (HEADER_LEN + payload) as u64
}

impl Memory for Slab {
    type Payload = [u8];
    type Buffer = BufferId;

    #[inline]
    fn store(&mut self, header: &Header, payload: &[u8]) -> Option<BufferId> {
        let buffer = self.take(header)?;
        let entry = &mut self.entries[buffer.0 as usize];
        entry.bytes[HEADER_LEN..entry.len].copy_from_slice(payload);
        Some(buffer)
    }

    fn reduce(
        &mut self,
        header: &Header,
        stored: &[Option<BufferId>],
        arriving: Option<(usize, &Header, &[u8])>,
    ) -> Option<BufferId> {
        let buffer = self.take(header)?;
        let mut out = std::mem::take(&mut self.entries[buffer.0 as usize].bytes);
        let mut inputs = [None; MAX_CHILDREN];
        for (input, stored) in inputs.iter_mut().zip(stored) {
            *input = stored.map(|b| {
                let entry = &self.entries[b.0 as usize];
                Input { bytes: &entry.bytes[HEADER_LEN..entry.len], encoding: entry.encoding }
            });
        }
        if let Some((position, header, bytes)) = arriving {
            let encoding = header.kind.encoding().unwrap_or(Encoding::Element);
            inputs[position] = Some(Input { bytes, encoding });
        }
        let encoding = header.kind.encoding().unwrap_or(Encoding::Element);
        let n = usize::from(header.n_elems);
        reduce(header.format, &inputs[..stored.len()], n, &mut out[HEADER_LEN..], encoding);
        self.entries[buffer.0 as usize].bytes = out;
        Some(buffer)
    }

    fn mark_resent(&mut self, buffer: BufferId) {
        let entry = &mut self.entries[buffer.0 as usize];
        let (mut header, _) =
            Header::decode(&entry.bytes[..entry.len]).expect("a buffer holds a packet");
        header.resent = true;
        header.encode(entry.bytes.first_chunk_mut().expect("a buffer holds a header"));
    }

    fn free(&mut self, buffer: BufferId) {
        self.freed.push(buffer);
    }

    fn flushed(&mut self) {
        for buffer in self.freed.drain(..) {
            let class = self.entries[buffer.0 as usize].class;
            self.classes[class].free.push(buffer);
        }
    }

    fn cost(&self, fragment_bytes: u16) -> u64 {
        class_bytes(usize::from(fragment_bytes).next_multiple_of(CLASS_STEP))
    }

    fn limit(&self) -> u64 {
        self.limit
    }
}
