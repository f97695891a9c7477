//! How a caller wants elements combined, and what a rank computes on its own before and after the sum.

use std::fmt;

use netsum_net::Buffer;
use netsum_wire::{Dtype, ReduceOp, average, scale};

use crate::Error;

/// How a caller wants elements combined.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Combine {
    /// As the wire knows it.
    Plain(ReduceOp),
    /// A sum, divided by the number of ranks in it.
    Average,
    /// Every rank's values times its own factor, then a sum.
    ScaledSum(f64),
}

impl Combine {
    /// What travels.
    pub fn reduce_op(self) -> ReduceOp {
        match self {
            Combine::Plain(op) => op,
            Combine::Average | Combine::ScaledSum(_) => ReduceOp::Sum,
        }
    }
}

impl Combine {
    /// What ranks must agree on; factors may differ.
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

/// Errors: the combination is not defined for the type.
pub(crate) fn check_combination(dtype: Dtype, how: Combine) -> Result<(), Error> {
    let float = matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::F64);
    let bitwise = matches!(how.reduce_op(), ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor);
    let divides = matches!(how, Combine::Average | Combine::ScaledSum(_));
    if float && bitwise || dtype == Dtype::Bool && divides {
        return Err(Error::Unsupported(format!("{how} is not defined for {dtype}")));
    }
    Ok(())
}

/// What `prepare` is to change in place of an input that is to be left alone, if it changes it.
pub(crate) fn own_copy(how: Combine, input: &Buffer) -> Option<Buffer> {
    match how {
        Combine::ScaledSum(_) => Some(Buffer::from_vec(input.slice(0..input.len()).to_vec())),
        Combine::Plain(_) | Combine::Average => None,
    }
}

/// Before a scaled sum.
pub(crate) fn prepare(how: Combine, dtype: Dtype, buffer: &mut Buffer) {
    if let Combine::ScaledSum(factor) = how {
        scale(dtype, buffer.slice_mut(0..buffer.len()), factor);
    }
}

/// After an average.
pub(crate) fn conclude(how: Combine, dtype: Dtype, buffer: &mut Buffer, ranks: u32) {
    if how == Combine::Average {
        average(dtype, buffer.slice_mut(0..buffer.len()), ranks);
    }
}
