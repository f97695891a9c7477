//! Reduce operations of callers, and the local computation before and after the sum.

use std::fmt;

use netsum_net::Buffer;
use netsum_wire::{Dtype, ReduceOp, average, scale};

use crate::Error;

/// The reduce operation that a caller requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Combine {
    /// An operation of the wire format.
    Plain(ReduceOp),
    /// A sum divided by the number of ranks.
    Average,
    /// The sum of every rank's values multiplied by the rank's own factor.
    ScaledSum(f64),
}

impl Combine {
    /// The operation that is performed on the wire.
    pub fn reduce_op(self) -> ReduceOp {
        match self {
            Combine::Plain(op) => op,
            Combine::Average | Combine::ScaledSum(_) => ReduceOp::Sum,
        }
    }
}

impl Combine {
    /// Code that must be equal on all ranks; factors may differ.
    pub(crate) fn code(self) -> u64 {
        match self {
            Combine::Plain(op) => op as u64,
            Combine::Average => 100,
            Combine::ScaledSum(_) => 101,
        }
    }
}

impl fmt::Display for Combine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Combine::Plain(op) => f.write_str(op.name()),
            Combine::Average => f.write_str("avg"),
            Combine::ScaledSum(_) => f.write_str("premul_sum"),
        }
    }
}

/// Checks that the combination is defined for the type.
pub(crate) fn check_combination(dtype: Dtype, how: Combine) -> Result<(), Error> {
    let float = matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::F64);
    let bitwise = matches!(how.reduce_op(), ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor);
    let divides = matches!(how, Combine::Average | Combine::ScaledSum(_));
    // Sums of narrow contributions are in units of their own.
    let simple = matches!(how, Combine::Plain(ReduceOp::Sum | ReduceOp::Min | ReduceOp::Max));
    if float && bitwise || dtype == Dtype::Bool && divides || dtype.is_narrow() && !simple {
        return Err(Error::Unsupported(format!("{how} is not defined for {dtype}")));
    }
    Ok(())
}

/// A copy of the input for `prepare` to change, if it changes it and the input must be preserved.
pub(crate) fn own_copy(how: Combine, input: &Buffer) -> Option<Buffer> {
    match how {
        Combine::ScaledSum(_) => Some(Buffer::from_vec(input.slice(0..input.len()).to_vec())),
        Combine::Plain(_) | Combine::Average => None,
    }
}

/// Scales the values before a scaled sum.
pub(crate) fn prepare(how: Combine, dtype: Dtype, buffer: &mut Buffer) {
    if let Combine::ScaledSum(factor) = how {
        scale(dtype, buffer.slice_mut(0..buffer.len()), factor);
    }
}

/// Divides the sum for an average.
pub(crate) fn conclude(how: Combine, dtype: Dtype, buffer: &mut Buffer, ranks: u32) {
    if how == Combine::Average {
        average(dtype, buffer.slice_mut(0..buffer.len()), ranks);
    }
}
