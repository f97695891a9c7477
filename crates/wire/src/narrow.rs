//! Types whose contributions are narrower than their sums: one byte up, exact sums on the way, two bytes down.
//!
//! A buffer has the type of the results, and its elements are numbers of the narrow type, which the worker's rounding
//! ([`crate::shared_scale`]) sees to. Switches add integers, so the bits of a sum do not depend on the order of
//! arrival:
//!
//! | dtype | contribution | added as | result |
//! |---|---|---|---|
//! | `int16_from_int8` | int8 | int16, wrapping | int16 |
//! | `bfloat16_from_e4m3` | E4M3 | int32, in multiples of 2⁻⁹, wrapping | bfloat16, rounded once |
//! | `bfloat16_from_e5m2` | E5M2 | the same | the same |
//!
//! E4M3 and E5M2 are the 8-bit floats of the OCP specification (sign, 4 or 5 bits of exponent, 3 or 2 of mantissa). All
//! finite values of E4M3 are multiples of 2⁻⁹. Those of E5M2 that are not, which are below 2⁻⁷, are rounded to such
//! multiples before they are sent; 24 binades remain. Neither has infinities or NaNs here: larger values become the
//! largest finite one.
//!
//! Sums of n values of magnitude at most m are exact while n · m · 2⁹ < 2³¹ (int8: n · m < 2¹⁵).

use half::bf16;

use crate::element::Element;
use crate::format::Dtype;
use crate::reduce::wide;

/// log2 of the unit of sums of 8-bit floats.
const UNIT_LOG2: i32 = -9;
/// Units per 1.
pub(crate) const UNITS: f32 = 512.0;

/// An 8-bit float: its bits of mantissa, its bias, and its largest finite value.
#[derive(Clone, Copy)]
pub(crate) struct Minifloat {
    mantissa: u32,
    bias: i32,
    pub(crate) largest: f32,
}

pub(crate) const E4M3: Minifloat = Minifloat { mantissa: 3, bias: 7, largest: 448.0 };
pub(crate) const E5M2: Minifloat = Minifloat { mantissa: 2, bias: 15, largest: 57_344.0 };

impl Minifloat {
    /// The nearest value that can be sent, ties to even; a number beyond the largest value becomes that, a NaN 0.
    #[inline(always)]
    pub(crate) fn round(self, x: f32) -> f32 {
        // 1.5 · 2¹⁴: added to a small number it leaves a multiple of 2⁻⁹.
        const MAGIC: f32 = 24_576.0;
        let bits = x.to_bits();
        let (sign, magnitude) = (bits & 0x8000_0000, bits & 0x7fff_ffff);
        let dropped = 23 - self.mantissa;
        let half = (1 << (dropped - 1)) - 1 + (magnitude >> dropped & 1);
        let normal = f32::from_bits((magnitude + half) & !((1 << dropped) - 1));
        let small = (f32::from_bits(magnitude) + MAGIC) - MAGIC;
        // From here on, neighbouring numbers are at least a unit apart.
        let least = f32::from_bits(((127 + UNIT_LOG2 + self.mantissa as i32) as u32) << 23);
        let rounded = if f32::from_bits(magnitude) < least { small } else { normal };
        let rounded = if rounded > self.largest { self.largest } else { rounded };
        let rounded = if magnitude > 0x7f80_0000 { 0.0 } else { rounded };
        f32::from_bits(rounded.to_bits() | sign)
    }

    /// The largest value that can be sent and is at most `limit`.
    pub(crate) fn at_most(self, limit: f32) -> f32 {
        // Without the bits that a value of this size has no room for.
        let dropped = 23 - self.mantissa;
        f32::from_bits(limit.min(self.largest).to_bits() >> dropped << dropped)
    }

    /// The byte of a value that can be sent.
    #[inline(always)]
    pub(crate) fn to_byte(self, x: f32) -> u8 {
        let bits = x.to_bits();
        let magnitude = bits & 0x7fff_ffff;
        let normal = (magnitude >> (23 - self.mantissa))
            .wrapping_sub(((127 - self.bias) as u32) << self.mantissa);
        // Below the least normal number the mantissa counts units; only E4M3 reaches there.
        let least = f32::from_bits(((128 - self.bias) as u32) << 23);
        let magnitude = f32::from_bits(magnitude);
        let code = if magnitude < least { (magnitude * UNITS) as u32 } else { normal };
        (bits >> 24 & 0x80) as u8 | (code & 0x7f) as u8
    }

    #[inline(always)]
    fn nearest_byte(self, element: [u8; 2]) -> u8 {
        self.to_byte(self.round(bf16::from_le_bytes(element).to_f32()))
    }

    /// A byte in units, towards zero if it is none.
    #[inline(always)]
    fn units(self, byte: u8) -> i32 {
        let (exponent, mantissa) =
            (i32::from(byte & 0x7f) >> self.mantissa, i32::from(byte) & ((1 << self.mantissa) - 1));
        // Value: (hidden bit and mantissa) · 2^(exponent − bias − bits of the mantissa).
        let shift = exponent.max(1) - self.bias - self.mantissa as i32 - UNIT_LOG2;
        let whole = mantissa | i32::from(exponent > 0) << self.mantissa;
        let units = if shift < 0 { whole >> -shift } else { whole << shift };
        if byte & 0x80 == 0 { units } else { -units }
    }
}

/// A worker's contribution: elements of a buffer, as numbers of the narrow type that their dtype has, a byte each.
///
/// Elements that are no such numbers become the nearest, ties to even. Panics for a dtype without a narrow type, or
/// unless there are two bytes of elements for each of `out`.
pub fn contribute(dtype: Dtype, elements: &[u8], out: &mut [u8]) {
    let elements = elements.as_chunks::<2>().0;
    assert_eq!(elements.len(), out.len(), "a byte per element");
    match dtype {
        Dtype::I16FromI8 => convert(elements, out, |x| NarrowI8::store(i16::from_le_bytes(x))[0]),
        Dtype::Bf16FromE4m3 => convert(elements, out, |x| E4M3.nearest_byte(x)),
        Dtype::Bf16FromE5m2 => convert(elements, out, |x| E5M2.nearest_byte(x)),
        other => panic!("{other} is contributed as it is"),
    }
}

#[inline(always)]
fn convert(elements: &[[u8; 2]], out: &mut [u8], byte_of: impl Fn([u8; 2]) -> u8) {
    wide::<true>(out.len(), || {
        for (out, element) in out.iter_mut().zip(elements) {
            *out = byte_of(*element);
        }
    });
}

/// An int16 that is contributed as int8.
pub(crate) struct I16FromI8;
/// A contribution of [`I16FromI8`].
pub(crate) struct NarrowI8;

impl Element for I16FromI8 {
    type Acc = i16;
    type Bytes = [u8; 2];
    type Contribution = NarrowI8;
    #[inline(always)]
    fn load(bytes: [u8; 2]) -> i16 {
        i16::from_le_bytes(bytes)
    }
    #[inline(always)]
    fn store(acc: i16) -> [u8; 2] {
        acc.to_le_bytes()
    }
}

impl Element for NarrowI8 {
    type Acc = i16;
    type Bytes = [u8; 1];
    type Contribution = NarrowI8;
    #[inline(always)]
    fn load(bytes: [u8; 1]) -> i16 {
        i16::from(bytes[0] as i8)
    }
    #[inline(always)]
    fn store(acc: i16) -> [u8; 1] {
        [acc.clamp(-128, 127) as i8 as u8]
    }
}

macro_rules! minifloat {
    ($wide:ident, $narrow:ident, $float:expr) => {
        /// A bfloat16 that is contributed as an 8-bit float.
        pub(crate) struct $wide;
        /// Its contribution.
        pub(crate) struct $narrow;

        impl Element for $wide {
            type Acc = i32;
            type Bytes = [u8; 2];
            type Contribution = $narrow;
            #[inline(always)]
            fn load(bytes: [u8; 2]) -> i32 {
                (bf16::from_le_bytes(bytes).to_f32() * UNITS) as i32
            }
            #[inline(always)]
            fn store(acc: i32) -> [u8; 2] {
                bf16_of_units(acc).to_le_bytes()
            }
        }

        impl Element for $narrow {
            type Acc = i32;
            type Bytes = [u8; 1];
            type Contribution = $narrow;
            #[inline(always)]
            fn load(bytes: [u8; 1]) -> i32 {
                $float.units(bytes[0])
            }
            #[inline(always)]
            fn store(acc: i32) -> [u8; 1] {
                [$float.to_byte($float.round(acc as f32 / UNITS))]
            }
        }
    };
}

minifloat!(Bf16FromE4m3, NarrowE4m3, E4M3);
minifloat!(Bf16FromE5m2, NarrowE5m2, E5M2);

/// The bits of the bfloat16 nearest to so many units, ties to even.
#[inline(always)]
fn bf16_of_units(units: i32) -> u16 {
    // A conversion to float32 must not round first: bits below float32's are joined into its last one.
    let magnitude = units.unsigned_abs();
    let sticky = (magnitude & 0xff != 0) as u32;
    let kept = if magnitude >> 24 == 0 { magnitude } else { magnitude & !0xff | sticky << 8 };
    let bits = (kept as f32 / UNITS).to_bits();
    let rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    rounded as u16 | (units >> 16) as u16 & 0x8000
}
