//! Converts between the elements of buffers and the payload of packets.

use std::ops::Range;

use netsum_wire::Arithmetic;
use netsum_wire::fixed::{Exponent, Fit, dequantise, narrow, quantise, widen};

use super::work::{Accepted, Content, Outgoing};
use super::worker::{Stage, Worker};
use crate::worker::WorkerMachine;

impl Worker {
    /// Writes the payload of a packet of `poll_transmit`; `out` has its length. Sets the header's overflow flag if the
    /// integers may not fit.
    ///
    /// `elements`: bytes of the operation's buffer that hold a range of its elements.
    pub(super) fn write_payload<'a>(
        &self,
        outgoing: &mut Outgoing,
        elements: impl Fn(Range<u64>) -> &'a [u8],
        out: &mut [u8],
    ) {
        let Some((_, content)) = &outgoing.payload else { return };
        match content {
            Content::Exponents(numbers) => {
                for (g, out) in numbers.clone().zip(out.as_chunks_mut().0) {
                    let found = self.operations.first().find(g);
                    let operation = found.expect("it follows its exponents");
                    let (_, range) = operation.fragment(g);
                    let exponent = Exponent::of(operation.submission.format.dtype, elements(range));
                    *out = exponent.to_wire().to_le_bytes();
                }
            }
            Content::Words(range, words) => words.write(elements(range.clone()), out),
            Content::Scaled(range, scale) => {
                let (dtype, from) = (self.dtype_of(outgoing), elements(range.clone()));
                let fit = quantise(dtype, from, *scale, self.config().ranks, out);
                outgoing.header.flags.overflow = fit == Fit::Overflows;
            }
            Content::Floats(range) => {
                widen(self.dtype_of(outgoing), elements(range.clone()), out);
            }
        }
    }

    /// Reads the payload of a result that `handle` accepted. `out`: bytes of the operation's buffer that hold the
    /// content's elements; empty for exponents, which the machine stores.
    pub(super) fn read_payload(&mut self, accepted: &Accepted, payload: &[u8], out: &mut [u8]) {
        match &accepted.content {
            Content::Exponents(numbers) => {
                let values = payload.as_chunks().0.iter().map(|&b| i32::from_le_bytes(b));
                self.set_exponents(numbers.clone(), values.map(Exponent::from_wire));
            }
            Content::Words(_, words) => words.read(payload, out),
            Content::Scaled(_, scale) => dequantise(accepted.dtype, payload, *scale, out),
            Content::Floats(_) => narrow(accepted.dtype, payload, out),
        }
    }

    fn set_exponents(&mut self, numbers: Range<u64>, exponents: impl Iterator<Item = Exponent>) {
        for (g, exponent) in numbers.zip(exponents) {
            let Some(operation) = self.operations.first_mut().find_mut(g) else { return };
            let offset = (g - operation.numbers().start) as usize;
            if let Stage::Shared { scales, known } = &mut operation.state {
                scales[offset] = Some(exponent);
                *known += scales[*known..].iter().take_while(|s| s.is_some()).count();
            }
        }
    }

    fn dtype_of(&self, outgoing: &Outgoing) -> netsum_wire::Dtype {
        let operation = self.in_flight(&outgoing.header);
        let operation = operation.expect("a number in flight has an operation");
        operation.submission.format.dtype
    }
}

impl Content {
    /// Elements of the operation's buffer that a result replaces; none for exponents.
    pub fn elements(&self) -> Option<Range<u64>> {
        match self {
            Content::Exponents(_) => None,
            Content::Words(range, _) | Content::Scaled(range, _) | Content::Floats(range) => {
                Some(range.clone())
            }
        }
    }

    /// Number of words of the payload.
    pub(super) fn len(&self) -> u64 {
        match self {
            Content::Words(range, words) => words.count(range.end - range.start),
            Content::Exponents(range) | Content::Scaled(range, _) | Content::Floats(range) => {
                range.end - range.start
            }
        }
    }

    /// Length of the payload in bytes.
    pub fn payload_len(&self) -> usize {
        self.len() as usize * Arithmetic::ELEMENT_BYTES
    }
}
