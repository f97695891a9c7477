//! Element types, and how elements combine.

use std::fmt;
use std::str::FromStr;

/// Element type of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Dtype {
    /// IEEE binary32.
    F32 = 0,
    /// IEEE binary16, added in binary32.
    F16 = 1,
    /// bfloat16, added in binary32.
    Bf16 = 2,
    /// Two's complement, wrapping.
    I32 = 3,
    /// Two's complement, wrapping.
    I64 = 4,
    /// IEEE binary64; hosts only.
    F64 = 5,
    /// Two's complement, wrapping.
    I8 = 6,
    /// Wrapping; hosts only.
    U8 = 7,
    /// Two's complement, wrapping; hosts only.
    I16 = 8,
    /// One byte, 0 or 1; sum is "or", product is "and"; hosts only.
    Bool = 9,
    /// int16 whose contributions are int8 (`narrow`); wrapping.
    I16FromI8 = 10,
    /// bfloat16 whose contributions are E4M3 (`narrow`), added as integers.
    Bf16FromE4m3 = 11,
    /// bfloat16 whose contributions are E5M2 (`narrow`), added as integers.
    Bf16FromE5m2 = 12,
}

impl Dtype {
    /// All dtypes, in code order.
    pub const ALL: [Dtype; 13] = [
        Dtype::F32,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::I32,
        Dtype::I64,
        Dtype::F64,
        Dtype::I8,
        Dtype::U8,
        Dtype::I16,
        Dtype::Bool,
        Dtype::I16FromI8,
        Dtype::Bf16FromE4m3,
        Dtype::Bf16FromE5m2,
    ];

    /// Bytes per element of a buffer, and of a result.
    pub const fn size(self) -> usize {
        match self {
            Dtype::I8 | Dtype::U8 | Dtype::Bool => 1,
            Dtype::F16 | Dtype::Bf16 | Dtype::I16 => 2,
            Dtype::I16FromI8 | Dtype::Bf16FromE4m3 | Dtype::Bf16FromE5m2 => 2,
            Dtype::F32 | Dtype::I32 => 4,
            Dtype::I64 | Dtype::F64 => 8,
        }
    }

    /// Bytes per element of a partial: of the type in which elements are added.
    pub const fn accumulator_size(self) -> usize {
        match self {
            Dtype::F16 | Dtype::Bf16 | Dtype::Bf16FromE4m3 | Dtype::Bf16FromE5m2 => 4,
            other => other.size(),
        }
    }

    /// Whether contributions have fewer bytes than results: one.
    pub const fn is_narrow(self) -> bool {
        matches!(self, Dtype::I16FromI8 | Dtype::Bf16FromE4m3 | Dtype::Bf16FromE5m2)
    }

    /// Whether switches can add it; other types use the host path.
    pub const fn in_network(self) -> bool {
        let ordinary = matches!(
            self,
            Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::I32 | Dtype::I64 | Dtype::I8
        );
        ordinary || self.is_narrow()
    }

    /// Name in frameworks; of a narrow type, those of its results and of its contributions.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "float32",
            Dtype::F16 => "float16",
            Dtype::Bf16 => "bfloat16",
            Dtype::I32 => "int32",
            Dtype::I64 => "int64",
            Dtype::F64 => "float64",
            Dtype::I8 => "int8",
            Dtype::U8 => "uint8",
            Dtype::I16 => "int16",
            Dtype::Bool => "bool",
            Dtype::I16FromI8 => "int16_from_int8",
            Dtype::Bf16FromE4m3 => "bfloat16_from_e4m3",
            Dtype::Bf16FromE5m2 => "bfloat16_from_e5m2",
        }
    }

    pub(crate) const fn from_code(code: u8) -> Option<Dtype> {
        if (code as usize) < Self::ALL.len() { Some(Self::ALL[code as usize]) } else { None }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Dtype {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let found = Self::ALL.into_iter().find(|d| d.name() == name);
        found.ok_or_else(|| UnknownName("dtype", name.into()))
    }
}

/// How elements combine. An average is a sum that the worker divides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReduceOp {
    /// Addition.
    Sum = 0,
    /// Minimum; NaN if any is NaN; −0 is less than +0.
    Min = 1,
    /// Maximum; NaN if any is NaN.
    Max = 2,
    /// Multiplication; hosts only.
    Product = 3,
    /// Bitwise and; hosts only, integers.
    BitAnd = 4,
    /// Bitwise or; hosts only, integers.
    BitOr = 5,
    /// Bitwise exclusive or; hosts only, integers.
    BitXor = 6,
}

impl ReduceOp {
    /// All operations, in code order.
    pub const ALL: [ReduceOp; 7] = [
        ReduceOp::Sum,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Product,
        ReduceOp::BitAnd,
        ReduceOp::BitOr,
        ReduceOp::BitXor,
    ];

    /// Whether switches support it.
    pub const fn in_network(self) -> bool {
        matches!(self, ReduceOp::Sum | ReduceOp::Min | ReduceOp::Max)
    }

    /// Name in frameworks.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Product => "product",
            ReduceOp::BitAnd => "band",
            ReduceOp::BitOr => "bor",
            ReduceOp::BitXor => "bxor",
        }
    }

    pub(crate) const fn from_code(code: u8) -> Option<ReduceOp> {
        if (code as usize) < Self::ALL.len() { Some(Self::ALL[code as usize]) } else { None }
    }
}

impl FromStr for ReduceOp {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let found = Self::ALL.into_iter().find(|o| o.name() == name);
        found.ok_or_else(|| UnknownName("operation", name.into()))
    }
}

/// Dtype and operation of one collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Format {
    /// Element type of the workers' buffers.
    pub dtype: Dtype,
    /// Reduce operation.
    pub op: ReduceOp,
}

impl Format {
    /// Whether the bits of a sum of sums in the buffers' type are independent of the order of additions: true unless
    /// additions, or what they are stored in, round.
    pub const fn any_order(self) -> bool {
        let float = matches!(
            self.dtype,
            Dtype::F32
                | Dtype::F16
                | Dtype::Bf16
                | Dtype::F64
                | Dtype::Bf16FromE4m3
                | Dtype::Bf16FromE5m2
        );
        !float || !matches!(self.op, ReduceOp::Sum | ReduceOp::Product)
    }

    /// Whether switches support it.
    pub const fn in_network(self) -> bool {
        self.dtype.in_network() && self.op.in_network()
    }

    /// One byte: dtype in the high half, operation in the low.
    pub const fn code(self) -> u8 {
        (self.dtype as u8) << 4 | self.op as u8
    }

    /// `None` for an unknown code, or one that switches do not support.
    pub const fn from_code(code: u8) -> Option<Format> {
        let (Some(dtype), Some(op)) = (Dtype::from_code(code >> 4), ReduceOp::from_code(code & 15))
        else {
            return None;
        };
        let format = Format { dtype, op };
        if format.in_network() { Some(format) } else { None }
    }
}

/// Encoding of the elements of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// The buffer's own dtype: contributions and results.
    Element,
    /// The type in which elements are added (binary32 for the 16-bit floats): partials.
    Accumulator,
    /// The narrow type of a dtype that has one ([`Dtype::is_narrow`]): its contributions.
    Narrow,
}

impl Encoding {
    /// The encoding of a worker's contribution.
    pub const fn of_contribution(dtype: Dtype) -> Encoding {
        if dtype.is_narrow() { Encoding::Narrow } else { Encoding::Element }
    }

    /// Bytes of one element of `dtype` in this encoding.
    pub const fn size(self, dtype: Dtype) -> usize {
        match self {
            Encoding::Element => dtype.size(),
            Encoding::Accumulator => dtype.accumulator_size(),
            Encoding::Narrow => 1,
        }
    }
}

/// An unknown name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {0} '{1}'")]
pub struct UnknownName(&'static str, String);
