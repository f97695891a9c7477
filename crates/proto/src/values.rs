//! Storage of fragments' values for protocols with slots: real numbers in a daemon, counts in the simulator.

use crate::PortId;
use netsum_wire::{Arithmetic, Dtype, Encoding, Format, Input, ReduceOp, reduce};

/// Memory for the values of fragments, by handle.
///
/// A buffer that was returned by `poll_transmit` stays readable until `flushed`, even if it was freed in between.
pub trait Values {
    /// Payload of a packet.
    type Payload: ?Sized;
    /// Handle of stored values.
    type Buffer: Copy;

    /// Stores values; `None` if the memory is full.
    fn store(&mut self, payload: &Self::Payload) -> Option<Self::Buffer>;

    /// Combines values of the same number of elements into stored ones; true if an element saturated.
    fn combine(
        &mut self,
        into: Self::Buffer,
        arithmetic: Arithmetic,
        payload: &Self::Payload,
    ) -> bool;

    /// Adds float32 values in the order that `netsum_wire::reduce` documents, by position, into a new
    /// buffer; `None` if the memory is full.
    fn add_floats(&mut self, inputs: &[Self::Buffer]) -> Option<Self::Buffer>;

    /// Frees a buffer.
    fn free(&mut self, buffer: Self::Buffer);

    /// Reports that every returned buffer has been sent: freed buffers may be reused.
    fn flushed(&mut self);
}

/// Bytes that a row with payloads of at most `row_bytes` takes, including its metadata.
pub fn row_cost(row_bytes: u16) -> u64 {
    u64::from(row_bytes) + ROW_OVERHEAD
}

const ROW_OVERHEAD: u64 = 64;

/// A packet to be sent by a machine that stores values: `H` is its header, `B` a handle of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowTransmit<H, B> {
    /// Neighbour.
    pub to: PortId,
    /// Header.
    pub header: H,
    /// Values of the payload.
    pub payload: Option<B>,
}

/// Handle of a row in [`Rows`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowId(u32);

/// Real numbers in rows of one size, created on first use and kept.
#[derive(Clone, Debug)]
pub struct Rows {
    bytes: Vec<Row>,
    row_bytes: usize,
    most: usize,
    free: Vec<RowId>,
    freed: Vec<RowId>,
}

#[derive(Clone, Debug)]
struct Row {
    bytes: Box<[u8]>,
    len: usize,
}

impl Rows {
    /// At most `most` rows of `row_bytes`.
    pub fn new(most: usize, row_bytes: usize) -> Rows {
        Rows { bytes: Vec::new(), row_bytes, most, free: Vec::new(), freed: Vec::new() }
    }

    /// The stored values.
    #[inline]
    pub fn get(&self, row: RowId) -> &[u8] {
        let row = &self.bytes[row.0 as usize];
        &row.bytes[..row.len]
    }

    /// Number of rows in use.
    pub fn used(&self) -> usize {
        self.bytes.len() - self.free.len() - self.freed.len()
    }

    fn take(&mut self, len: usize) -> Option<RowId> {
        let row = match self.free.pop() {
            Some(row) => row,
            None if self.bytes.len() < self.most => {
                let bytes = vec![0; self.row_bytes].into_boxed_slice();
                self.bytes.push(Row { bytes, len: 0 });
                RowId(self.bytes.len() as u32 - 1)
            }
            None => return None,
        };
        self.bytes[row.0 as usize].len = len;
        Some(row)
    }
}

impl Values for Rows {
    type Payload = [u8];
    type Buffer = RowId;

    #[inline]
    fn store(&mut self, payload: &[u8]) -> Option<RowId> {
        let fits = payload.len() <= self.row_bytes;
        let row = fits.then(|| self.take(payload.len()))??;
        self.bytes[row.0 as usize].bytes[..payload.len()].copy_from_slice(payload);
        Some(row)
    }

    #[inline]
    fn combine(&mut self, into: RowId, arithmetic: Arithmetic, payload: &[u8]) -> bool {
        let row = &mut self.bytes[into.0 as usize];
        arithmetic.combine(&mut row.bytes[..row.len], payload)
    }

    fn add_floats(&mut self, inputs: &[RowId]) -> Option<RowId> {
        let len = self.get(*inputs.first()?).len();
        let sum = self.take(len)?;
        let mut out = std::mem::take(&mut self.bytes[sum.0 as usize].bytes);
        let encoding = Encoding::Element;
        let of = |row: &RowId| Some(Input { bytes: self.get(*row), encoding });
        let inputs: Vec<_> = inputs.iter().map(of).collect();
        let format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };
        reduce(format, &inputs, len / Arithmetic::ELEMENT_BYTES, &mut out[..len], encoding);
        self.bytes[sum.0 as usize].bytes = out;
        Some(sum)
    }

    fn free(&mut self, row: RowId) {
        self.freed.push(row);
    }

    fn flushed(&mut self) {
        self.free.append(&mut self.freed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_row_is_readable_until_flushed_and_reused_afterwards() {
        let mut rows = Rows::new(2, 8);
        let a = rows.store(&[1, 0, 0, 0]).unwrap();
        rows.free(a);
        let b = rows.store(&[2, 0, 0, 0, 3, 0, 0, 0]).unwrap();
        assert_eq!((rows.get(a), rows.used()), (&[1, 0, 0, 0][..], 1));
        assert_eq!(rows.store(&[9]), None, "two rows are all there is");
        rows.flushed();
        assert_eq!(rows.store(&[9]), Some(a));
        assert!(!rows.combine(b, Arithmetic::Wrapping, &[1, 0, 0, 0, 1, 0, 0, 0]));
        assert_eq!(rows.get(b), [3, 0, 0, 0, 4, 0, 0, 0]);
        rows.free(a);
        rows.free(b);
        assert_eq!((rows.store(&[0; 9]), rows.used()), (None, 0), "longer than a row");
    }
}
