//! Loading, combining and storing one element. Everything here inlines into the loops of `reduce`.

use half::{bf16, f16};

/// The type in which elements are combined.
pub(crate) trait Accumulator: Copy + Default + Element<Acc = Self> {
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    fn bit_and(self, other: Self) -> Self;
    fn bit_or(self, other: Self) -> Self;
    fn bit_xor(self, other: Self) -> Self;
    /// Divides a sum of `count` elements; integers truncate towards zero.
    fn divide(self, count: u32) -> Self;
    /// Multiplies by a real factor; integers truncate towards zero.
    fn scale(self, factor: f64) -> Self;
    /// NaNs differ between machines (sign, payload); all stored NaNs are this one.
    fn canonical(self) -> Self;
}

/// Encoding of an element in a buffer: little-endian, of any alignment.
pub(crate) trait Element {
    type Acc: Accumulator;
    type Bytes: Bytes;
    /// How a worker contributes it.
    type Contribution: Element<Acc = Self::Acc>;
    fn load(bytes: Self::Bytes) -> Self::Acc;
    fn store(acc: Self::Acc) -> Self::Bytes;
}

/// An array of bytes. Loops over slices of whole arrays are vectorised; loops over runs whose length is an associated
/// constant of a trait are not.
pub(crate) trait Bytes: Copy + 'static {
    fn whole(bytes: &[u8]) -> &[Self];
    fn whole_mut(bytes: &mut [u8]) -> &mut [Self];
}

impl<const N: usize> Bytes for [u8; N] {
    #[inline(always)]
    fn whole(bytes: &[u8]) -> &[Self] {
        bytes.as_chunks().0
    }
    #[inline(always)]
    fn whole_mut(bytes: &mut [u8]) -> &mut [Self] {
        bytes.as_chunks_mut().0
    }
}

macro_rules! float_accumulator {
    ($t:ident, $nan:expr) => {
        impl Accumulator for $t {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                if self.is_nan() || other.is_nan() {
                    $t::NAN
                } else if self < other {
                    self
                } else if other < self {
                    other
                } else {
                    // Equal: the same bits, or zeros of different signs, of which -0 is the lesser.
                    $t::from_bits(self.to_bits() | other.to_bits())
                }
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                if self.is_nan() || other.is_nan() {
                    $t::NAN
                } else if self > other {
                    self
                } else if other > self {
                    other
                } else {
                    $t::from_bits(self.to_bits() & other.to_bits())
                }
            }
            #[inline(always)]
            fn bit_and(self, other: Self) -> Self {
                $t::from_bits(self.to_bits() & other.to_bits())
            }
            #[inline(always)]
            fn bit_or(self, other: Self) -> Self {
                $t::from_bits(self.to_bits() | other.to_bits())
            }
            #[inline(always)]
            fn bit_xor(self, other: Self) -> Self {
                $t::from_bits(self.to_bits() ^ other.to_bits())
            }
            #[inline(always)]
            fn divide(self, count: u32) -> Self {
                self / count as $t
            }
            #[inline(always)]
            fn scale(self, factor: f64) -> Self {
                self * factor as $t
            }
            #[inline(always)]
            fn canonical(self) -> Self {
                if self.is_nan() { $t::from_bits($nan) } else { self }
            }
        }

        impl Element for $t {
            type Acc = $t;
            type Bytes = [u8; size_of::<$t>()];
            type Contribution = $t;
            #[inline(always)]
            fn load(bytes: Self::Bytes) -> $t {
                $t::from_le_bytes(bytes)
            }
            #[inline(always)]
            fn store(acc: $t) -> Self::Bytes {
                acc.to_le_bytes()
            }
        }
    };
}

float_accumulator!(f32, 0x7fc0_0000);
float_accumulator!(f64, 0x7ff8_0000_0000_0000);

macro_rules! integer_accumulator {
    ($t:ident) => {
        impl Accumulator for $t {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                Ord::min(self, other)
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                Ord::max(self, other)
            }
            #[inline(always)]
            fn bit_and(self, other: Self) -> Self {
                self & other
            }
            #[inline(always)]
            fn bit_or(self, other: Self) -> Self {
                self | other
            }
            #[inline(always)]
            fn bit_xor(self, other: Self) -> Self {
                self ^ other
            }
            #[inline(always)]
            fn divide(self, count: u32) -> Self {
                (i128::from(self) / i128::from(count)) as $t
            }
            #[inline(always)]
            fn scale(self, factor: f64) -> Self {
                (self as f64 * factor) as $t
            }
            #[inline(always)]
            fn canonical(self) -> Self {
                self
            }
        }

        impl Element for $t {
            type Acc = $t;
            type Bytes = [u8; size_of::<$t>()];
            type Contribution = $t;
            #[inline(always)]
            fn load(bytes: Self::Bytes) -> $t {
                $t::from_le_bytes(bytes)
            }
            #[inline(always)]
            fn store(acc: $t) -> Self::Bytes {
                acc.to_le_bytes()
            }
        }
    };
}

integer_accumulator!(i8);
integer_accumulator!(u8);
integer_accumulator!(i16);
integer_accumulator!(i32);
integer_accumulator!(i64);

/// A boolean; combines as an integer and is stored as 0 or 1.
pub(crate) struct Truth;

impl Element for Truth {
    type Acc = u8;
    type Bytes = [u8; 1];
    type Contribution = Truth;
    #[inline(always)]
    fn load(bytes: [u8; 1]) -> u8 {
        u8::from(bytes[0] != 0)
    }
    #[inline(always)]
    fn store(acc: u8) -> [u8; 1] {
        [u8::from(acc != 0)]
    }
}

macro_rules! half_element {
    ($t:ident, $nan:expr) => {
        impl Element for $t {
            type Acc = f32;
            type Bytes = [u8; 2];
            type Contribution = $t;
            #[inline(always)]
            fn load(bytes: [u8; 2]) -> f32 {
                $t::from_le_bytes(bytes).to_f32()
            }
            #[inline(always)]
            fn store(acc: f32) -> [u8; 2] {
                let bits = if acc.is_nan() { $nan } else { $t::from_f32(acc).to_bits() };
                bits.to_le_bytes()
            }
        }
    };
}

half_element!(f16, 0x7e00);
half_element!(bf16, 0x7fc0);
