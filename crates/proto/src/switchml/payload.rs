//! Converts between the elements of buffers and the payload of packets.

use std::ops::Range;

use netsum_wire::fixed::{Exponent, Fit, dequantise, quantise};

use super::work::{Accepted, Content, Outgoing};
use super::worker::Worker;
use crate::worker::WorkerMachine;

/// Replaces an exponent if some value is not finite.
const NOT_FINITE: i16 = i16::MAX;

impl Worker {
    /// Writes the payload of a packet of `poll_transmit`, and the exponent into its header; `out` has the
    /// payload's length. `elements`: bytes of the operation's buffer that hold a range of its elements.
    pub(super) fn write_payload<'a>(
        &self,
        outgoing: &mut Outgoing,
        elements: impl Fn(Range<u64>) -> &'a [u8],
        out: &mut [u8],
    ) {
        let Some((_, content)) = &outgoing.payload else { return };
        let operation = self.operation_of(&outgoing.header);
        let operation = operation.expect("a packet in flight has an operation");
        let dtype = operation.state.what.format.dtype;
        match content {
            Content::Nothing => {}
            Content::Words(range, words) => words.write(elements(range.clone()), out),
            Content::NotFinite(_) => out.fill(0),
            Content::Scaled(range, scale) => {
                let ranks = self.config().workers.into();
                let fit = quantise(dtype, elements(range.clone()), *scale, ranks, out);
                debug_assert_eq!(fit, Fit::Fits, "the exponent is the greatest of all");
            }
        }
        if let Some(next) = &outgoing.next {
            let exponent = Exponent::of(dtype, elements(next.clone()));
            let travels = i16::try_from(exponent.to_wire()).unwrap_or(NOT_FINITE);
            outgoing.header.next_exponent = travels;
        }
    }

    /// Writes the payload of a result that `handle` accepted into `out`: bytes of the operation's buffer
    /// that hold the content's elements, if it has any.
    pub(super) fn read_payload(&self, accepted: &Accepted, payload: &[u8], out: &mut [u8]) {
        match &accepted.content {
            Content::Nothing => {}
            Content::Words(_, words) => words.read(payload, out),
            Content::Scaled(_, scale) => dequantise(accepted.dtype, payload, *scale, out),
            Content::NotFinite(_) => {
                let nans: Vec<u8> =
                    (0..payload.len() / 4).flat_map(|_| f32::NAN.to_le_bytes()).collect();
                netsum_wire::fixed::narrow(accepted.dtype, &nans, out);
            }
        }
    }
}
