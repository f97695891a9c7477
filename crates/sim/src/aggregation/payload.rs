//! Payloads of aggregation packets: counts for large simulations, real numbers to check results bit for bit.

use netsum_proto::panama::{BufferId, Memory, Slab, visit_header};
use netsum_proto::values::{RowId, Rows, Values};
use netsum_proto::visit::Visitor;
use netsum_wire::panama::{HEADER_LEN, Header};
use netsum_wire::{Arithmetic, Dtype, Format, ReduceOp};

/// Gradients are 32-bit floats.
pub const FORMAT: Format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };

/// Protocols with slots add integers, which have the size of the gradients' floats.
pub const INTEGERS: Format = Format { dtype: Dtype::I32, op: ReduceOp::Sum };

/// Memory of a switch, and the payload of packets.
pub trait Payload: Memory<Buffer: Send> + Sized + Send {
    /// Payload of a packet in transit.
    type Owned: Clone + Send;
    /// Memory of a switch or server of a protocol with slots.
    type Rows: Values<Payload = <Self as Memory>::Payload, Buffer: Send> + Send;

    /// Memory with a limit in bytes.
    fn memory(limit: u64) -> Self;
    /// The payload as `Memory` takes it.
    fn view(owned: &Self::Owned) -> &Self::Payload;
    /// Payload of a packet that has none.
    fn nothing() -> Self::Owned;
    /// A worker's contribution to operation `id`: `elements` elements from `start` on.
    fn contribution(rank: u32, id: u64, start: u64, elements: u64) -> Self::Owned;
    /// Copies a stored packet.
    fn copy(&self, buffer: Self::Buffer) -> (Header, Self::Owned);
    /// Number of contributions in a result, if the payload shows it.
    fn contributions(owned: &Self::Owned) -> Option<u32>;
    /// Bytes in use.
    fn used(&self) -> u64;
    /// Unlimited rows of `row_bytes`.
    fn rows(row_bytes: u16) -> Self::Rows;
    /// Visits a stored packet.
    fn visit_stored(&mut self, buffer: Self::Buffer, v: &mut impl Visitor);
    /// Visits the payload of a packet in transit.
    fn visit_owned(owned: &Self::Owned, v: &mut impl Visitor);
    /// Copies a row.
    fn copy_row(rows: &Self::Rows, row: <Self::Rows as Values>::Buffer) -> Self::Owned;
}

/// Memory that stores a packet's header and its number of contributions.
pub struct Counts {
    packets: Vec<(Header, u32)>,
    unused: Vec<u32>,
    freed: Vec<u32>,
    limit: u64,
    used: u64,
}

/// Bytes of a buffer beside its payload.
const OVERHEAD: u64 = HEADER_LEN as u64;

impl Memory for Counts {
    type Payload = u32;
    type Buffer = u32;

    fn store(&mut self, header: &Header, payload: &u32) -> Option<u32> {
        let bytes = OVERHEAD + header.payload_len() as u64;
        if self.used + bytes > self.limit {
            return None;
        }
        self.used += bytes;
        let packet = (*header, *payload);
        let Some(buffer) = self.unused.pop() else {
            self.packets.push(packet);
            return Some(self.packets.len() as u32 - 1);
        };
        self.packets[buffer as usize] = packet;
        Some(buffer)
    }

    fn holds(&self, buffer: u32, payload: &u32) -> bool {
        self.packets[buffer as usize].1 == *payload
    }

    fn reduce(
        &mut self,
        header: &Header,
        stored: &[Option<u32>],
        arriving: Option<(usize, &Header, &u32)>,
    ) -> Option<u32> {
        let here: u32 = stored.iter().flatten().map(|&b| self.packets[b as usize].1).sum();
        self.store(header, &(here + arriving.map_or(0, |(_, _, n)| *n)))
    }

    fn mark_resent(&mut self, buffer: u32) {
        self.packets[buffer as usize].0.resent = true;
    }

    fn free(&mut self, buffer: u32) {
        self.used -= OVERHEAD + self.packets[buffer as usize].0.payload_len() as u64;
        self.freed.push(buffer);
    }

    fn flushed(&mut self) {
        self.unused.append(&mut self.freed);
    }

    fn cost(&self, fragment_bytes: u16) -> u64 {
        OVERHEAD + u64::from(fragment_bytes)
    }

    fn limit(&self) -> u64 {
        self.limit
    }
}

/// Rows that store a number of contributions.
#[derive(Default)]
pub struct CountRows {
    counts: Vec<u32>,
    unused: Vec<u32>,
    freed: Vec<u32>,
}

impl Values for CountRows {
    type Payload = u32;
    type Buffer = u32;

    fn store(&mut self, payload: &u32) -> Option<u32> {
        let Some(row) = self.unused.pop() else {
            self.counts.push(*payload);
            return Some(self.counts.len() as u32 - 1);
        };
        self.counts[row as usize] = *payload;
        Some(row)
    }

    fn combine(&mut self, into: u32, _: Arithmetic, payload: &u32) -> bool {
        self.counts[into as usize] += payload;
        false
    }

    fn add_floats(&mut self, inputs: &[u32]) -> Option<u32> {
        let sum = inputs.iter().map(|&row| self.counts[row as usize]).sum();
        self.store(&sum)
    }

    fn free(&mut self, row: u32) {
        self.freed.push(row);
    }

    fn flushed(&mut self) {
        self.unused.append(&mut self.freed);
    }
}

impl Payload for Counts {
    type Owned = u32;
    type Rows = CountRows;

    fn memory(limit: u64) -> Counts {
        Counts { packets: Vec::new(), unused: Vec::new(), freed: Vec::new(), limit, used: 0 }
    }

    #[inline]
    fn view(owned: &u32) -> &u32 {
        owned
    }

    fn nothing() -> u32 {
        0
    }

    #[inline]
    fn contribution(_: u32, _: u64, _: u64, _: u64) -> u32 {
        1
    }

    #[inline]
    fn copy(&self, buffer: u32) -> (Header, u32) {
        self.packets[buffer as usize]
    }

    #[inline]
    fn contributions(owned: &u32) -> Option<u32> {
        Some(*owned)
    }

    fn used(&self) -> u64 {
        self.used
    }

    fn visit_stored(&mut self, buffer: u32, v: &mut impl Visitor) {
        let (header, contributions) = &mut self.packets[buffer as usize];
        visit_header(header, v);
        v.same((*contributions).into());
    }

    fn visit_owned(contributions: &u32, v: &mut impl Visitor) {
        v.same((*contributions).into());
    }

    fn rows(_: u16) -> CountRows {
        CountRows::default()
    }

    #[inline]
    fn copy_row(rows: &CountRows, row: u32) -> u32 {
        rows.counts[row as usize]
    }
}

impl Payload for Slab {
    type Owned = Vec<u8>;
    type Rows = Rows;

    fn memory(limit: u64) -> Slab {
        Slab::new(limit)
    }

    fn view(owned: &Vec<u8>) -> &[u8] {
        owned
    }

    fn nothing() -> Vec<u8> {
        Vec::new()
    }

    fn contribution(rank: u32, id: u64, start: u64, elements: u64) -> Vec<u8> {
        let values = (start..start + elements).map(|element| value(rank, id, element));
        values.flat_map(f32::to_le_bytes).collect()
    }

    fn copy(&self, buffer: BufferId) -> (Header, Vec<u8>) {
        let packet = Header::decode(self.packet(buffer));
        let (header, payload) = packet.expect("a buffer holds a packet");
        (header, payload.to_vec())
    }

    fn contributions(_: &Vec<u8>) -> Option<u32> {
        None
    }

    fn used(&self) -> u64 {
        Slab::used(self)
    }

    // Elements are inspected, and no two operations have the same.
    fn visit_stored(&mut self, _: BufferId, v: &mut impl Visitor) {
        v.unlike();
    }

    fn visit_owned(_: &Vec<u8>, v: &mut impl Visitor) {
        v.unlike();
    }

    fn rows(row_bytes: u16) -> Rows {
        Rows::new(usize::MAX, row_bytes.into())
    }

    fn copy_row(rows: &Rows, row: RowId) -> Vec<u8> {
        rows.get(row).to_vec()
    }
}

/// A value that differs by rank, operation and element. Sums are rounded, so that a wrong order of additions changes
/// the result.
pub fn value(rank: u32, id: u64, element: u64) -> f32 {
    let bits = crate::random::mix(u64::from(rank) << 40 ^ id << 20 ^ element);
    (bits >> 40) as f32 / 4096.0 - 1000.0
}
