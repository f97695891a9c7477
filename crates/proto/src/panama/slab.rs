//! Memory of real numbers: each buffer holds a packet ready to send, with header and payload in one piece.

use netsum_wire::Parties;
use netsum_wire::panama::{HEADER_LEN, Header};
use netsum_wire::{Encoding, Input, reduce};

use super::lease::MAX_CHILDREN;
use super::memory::{Divisible, Memory};

/// Handle of a buffer in a [`Slab`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferId(u32);

impl BufferId {
    /// Its number: small, and unique among the buffers in use.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A sum under way, outside of the slab, so that its inputs may be in the slab.
pub struct OpenSum {
    buffer: BufferId,
    bytes: Box<[u8]>,
}

impl OpenSum {
    /// Adds the `inputs` of `positions` positions, in the order that `netsum_wire::reduce` documents. Panics if a lone
    /// contribution is longer than the sum.
    #[inline]
    pub fn add<'a>(
        &mut self,
        header: &Header,
        positions: usize,
        input: impl Fn(usize) -> Option<Input<'a>>,
    ) {
        let (mut few, mut many);
        let inputs: &mut [Option<Input<'_>>] = if positions <= FEW_CHILDREN {
            few = [None; FEW_CHILDREN];
            &mut few[..positions]
        } else {
            many = [None; MAX_CHILDREN];
            &mut many[..positions]
        };
        for (position, place) in inputs.iter_mut().enumerate() {
            *place = input(position);
        }
        if let Parties::FromOne(_) = header.parties {
            // One rank contributes: its bits are the result.
            if let Some(only) = inputs.iter().flatten().next() {
                self.bytes[HEADER_LEN..][..only.bytes.len()].copy_from_slice(only.bytes);
            }
            return;
        }
        let n = usize::from(header.n_elems);
        reduce(header.format, inputs, n, &mut self.bytes[HEADER_LEN..], encoding(header));
    }
}

/// Buffers of a few sizes within a limit of bytes. They are created on first use and kept; nothing is allocated once a
/// job is warm.
pub struct Slab {
    entries: Vec<Entry>,
    classes: Vec<Class>,
    freed: Vec<BufferId>,
    /// Ids whose memory was freed.
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

/// Most nodes have no more children; setting up 64 inputs takes longer than adding four.
const FEW_CHILDREN: usize = 8;
/// Sizes are multiples of this, so that fragments of 1,400 and of 1,408 bytes share buffers.
const CLASS_STEP: usize = 512;

impl Slab {
    /// `limit`: maximum bytes of all buffers together.
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
        let entry = &self.entries[buffer.index()];
        &entry.bytes[..entry.len]
    }

    /// Bytes in buffers that are in use.
    pub fn used(&self) -> u64 {
        let free = |c: &Class| c.free.len() as u64 * class_bytes(c.payload);
        self.held - self.classes.iter().map(free).sum::<u64>()
    }

    /// Reserves a buffer for a packet with this header, with nothing written yet; `None` if the memory is full.
    #[inline]
    pub fn reserve(&mut self, header: &Header) -> Option<BufferId> {
        let payload = header.payload_len().next_multiple_of(CLASS_STEP);
        let class = self.class(payload);
        let buffer = match self.classes[class].free.pop() {
            Some(buffer) => buffer,
            None => self.make(class)?,
        };
        let entry = &mut self.entries[buffer.index()];
        entry.len = HEADER_LEN + header.payload_len();
        entry.encoding = encoding(header);
        Some(buffer)
    }

    /// Writes the header of a reserved buffer.
    #[inline]
    pub fn write_header(&mut self, buffer: BufferId, header: &Header) {
        let bytes = &mut self.entries[buffer.index()].bytes;
        header.encode(bytes.first_chunk_mut().expect("a buffer holds a header"));
    }

    /// The payload of a reserved buffer, to be written.
    #[inline]
    pub fn payload_mut(&mut self, buffer: BufferId) -> &mut [u8] {
        let entry = &mut self.entries[buffer.index()];
        &mut entry.bytes[HEADER_LEN..entry.len]
    }

    /// A buffer's payload as an input of a sum.
    #[inline]
    pub fn input(&self, buffer: BufferId) -> Input<'_> {
        let entry = &self.entries[buffer.index()];
        Input { bytes: &entry.bytes[HEADER_LEN..entry.len], encoding: entry.encoding }
    }

    /// Begins a sum with this header; `None` if the memory is full.
    #[inline]
    pub fn begin_sum(&mut self, header: &Header) -> Option<OpenSum> {
        let buffer = self.reserve(header)?;
        self.write_header(buffer, header);
        Some(OpenSum { buffer, bytes: std::mem::take(&mut self.entries[buffer.index()].bytes) })
    }

    /// Stores the sum's packet.
    #[inline]
    pub fn end_sum(&mut self, sum: OpenSum) -> BufferId {
        self.entries[sum.buffer.index()].bytes = sum.bytes;
        sum.buffer
    }

    /// Changes the limit, down to the bytes in use at least; returns the new one. Unused buffers beyond it are freed.
    pub fn set_limit(&mut self, bytes: u64) -> u64 {
        while self.held > bytes && self.discard(None).is_some() {}
        self.limit = bytes.max(self.held);
        self.limit
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
            self.discard(Some(class))?;
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

    /// Frees the memory of an unused buffer, of another size than that of class `kept`.
    fn discard(&mut self, kept: Option<usize>) -> Option<()> {
        let others = self.classes.iter_mut().enumerate();
        let (_, other) =
            others.into_iter().find(|(i, c)| Some(*i) != kept && !c.free.is_empty())?;
        let buffer = other.free.pop().expect("it is not empty");
        self.entries[buffer.index()].bytes = Box::default();
        self.unused.push(buffer);
        self.held -= class_bytes(other.payload);
        Some(())
    }
}

fn encoding(header: &Header) -> Encoding {
    header.encoding().unwrap_or(Encoding::Element)
}

fn class_bytes(payload: usize) -> u64 {
    (HEADER_LEN + payload) as u64
}

/// Bytes that a fragment of at most `fragment_bytes` takes of a slab.
pub(super) fn buffer_bytes(fragment_bytes: u16) -> u64 {
    class_bytes(usize::from(fragment_bytes).next_multiple_of(CLASS_STEP))
}

impl Divisible for Slab {
    fn set_limit(&mut self, bytes: u64) -> u64 {
        Slab::set_limit(self, bytes)
    }
}

impl Memory for Slab {
    type Payload = [u8];
    type Buffer = BufferId;

    #[inline]
    fn store(&mut self, header: &Header, payload: &[u8]) -> Option<BufferId> {
        let buffer = self.reserve(header)?;
        self.write_header(buffer, header);
        self.payload_mut(buffer).copy_from_slice(payload);
        Some(buffer)
    }

    fn holds(&self, buffer: BufferId, payload: &[u8]) -> bool {
        self.input(buffer).bytes == payload
    }

    fn reduce(
        &mut self,
        header: &Header,
        stored: &[Option<BufferId>],
        arriving: Option<(usize, &Header, &[u8])>,
    ) -> Option<BufferId> {
        let mut sum = self.begin_sum(header)?;
        sum.add(header, stored.len(), |position| match arriving {
            Some((at, header, bytes)) if at == position => {
                Some(Input { bytes, encoding: encoding(header) })
            }
            _ => stored[position].map(|buffer| self.input(buffer)),
        });
        Some(self.end_sum(sum))
    }

    fn mark_resent(&mut self, buffer: BufferId) {
        let entry = &mut self.entries[buffer.index()];
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
            let class = self.entries[buffer.index()].class;
            self.classes[class].free.push(buffer);
        }
    }

    fn cost(&self, fragment_bytes: u16) -> u64 {
        buffer_bytes(fragment_bytes)
    }

    fn limit(&self) -> u64 {
        self.limit
    }
}
