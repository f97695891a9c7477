//! Reals as 32-bit integers, so that any order of additions gives the same bits.
//!
//! An element x is sent as q = round(x · scale), ties to even, and a sum Q of q is returned as Q / scale. `scale` is a
//! setting (ATP's is 10⁸), or is computed per fragment from the largest magnitude of all workers (`Scale::shared`):
//! then nothing saturates, and the error adapts to the values.
//!
//! Error of a sum of n elements against the real sum S: at most n · (1/2 + ε·max|q|) / scale + 2ε·|S| with ε = 2⁻²⁴;
//! the two ε are due to the products and to the conversion back. If the scale is a power of two the products are exact
//! and the bound is n / (2 · scale) + ε·|S|.

use half::{bf16, f16};

use crate::format::Dtype;

/// Factor between reals and integers: positive, finite, neither it nor its reciprocal subnormal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale(f32);

/// A power of two that bounds a fragment's magnitudes: every |x| < 2^exponent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Exponent(i32);

/// Outcome of quantisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The sum of as many such fragments as there are ranks fits, in any order of additions.
    Fits,
    /// The sum may not fit, or an element is not finite: these integers must not be summed.
    Overflows,
}

/// ATP's scale, for gradients whose sums stay within ±21.47.
const ATP: f32 = 1e8;
/// Largest power of two whose reciprocal is a normal number.
const MAX_POWER: i32 = 126;
/// Bits of a sum of magnitudes: one less than in int32, so that 2³⁰ itself fits.
const SUM_BITS: i32 = 30;

impl Scale {
    /// The paper's, 10⁸.
    pub const PAPER: Scale = Scale(ATP);

    /// A custom scale; `None` unless it is a normal number between 2⁻¹²⁶ and 2¹²⁶.
    pub fn new(factor: f32) -> Option<Scale> {
        let allowed = 2f32.powi(-MAX_POWER)..=2f32.powi(MAX_POWER);
        allowed.contains(&factor).then_some(Scale(factor))
    }

    /// The largest power of two with which the sum over `ranks` workers of values below
    /// 2^`exponent` cannot overflow; `None` if some value is not finite.
    pub fn shared(exponent: Exponent, ranks: u32) -> Option<Scale> {
        let carry = ranks.max(1).next_power_of_two().trailing_zeros() as i32;
        let power = (SUM_BITS - carry - exponent.0).min(MAX_POWER);
        (exponent != Exponent::NOT_FINITE).then(|| Scale(2f32.powi(power)))
    }

    /// The factor.
    pub fn factor(self) -> f32 {
        self.0
    }
}

impl Exponent {
    /// Some value is infinite or NaN.
    pub const NOT_FINITE: Exponent = Exponent(i32::MAX);

    /// The exponent of elements of `dtype`, little-endian. All zeros have the exponent of the least normal number.
    /// Panics for a dtype that is not float32, float16 or bfloat16.
    pub fn of(dtype: Dtype, elements: &[u8]) -> Exponent {
        let largest = match dtype {
            Dtype::F32 => {
                elements.as_chunks().0.iter().fold(0, |m, b| m.max(magnitude(f32_of(*b))))
            }
            Dtype::F16 => {
                elements.as_chunks().0.iter().fold(0, |m, b| m.max(magnitude(f16_of(*b))))
            }
            Dtype::Bf16 => {
                elements.as_chunks().0.iter().fold(0, |m, b| m.max(magnitude(bf16_of(*b))))
            }
            other => panic!("{other} is not quantised"),
        };
        match largest >> 23 {
            0xff => Exponent::NOT_FINITE,
            biased => Exponent(biased.max(1) - 126),
        }
    }

    /// The value in packets, which are combined by `Arithmetic::Max`.
    pub fn to_wire(self) -> i32 {
        self.0
    }

    /// The exponent of a received maximum; values that no fragment has count as "not finite".
    pub fn from_wire(value: i32) -> Exponent {
        if (-125..=128).contains(&value) { Exponent(value) } else { Exponent::NOT_FINITE }
    }
}

/// Converts elements of `dtype` to integers, both little-endian: `out` gets 4 bytes per element.
///
/// `ranks`: number of workers whose integers will be added. Panics for a dtype that is not float32, float16 or
/// bfloat16.
pub fn quantise(dtype: Dtype, elements: &[u8], scale: Scale, ranks: u32, out: &mut [u8]) -> Fit {
    let largest = match dtype {
        Dtype::F32 => quantise_each(elements.as_chunks().0, scale, out, f32_of),
        Dtype::F16 => quantise_each(elements.as_chunks().0, scale, out, f16_of),
        Dtype::Bf16 => quantise_each(elements.as_chunks().0, scale, out, bf16_of),
        other => panic!("{other} is not quantised"),
    };
    // Rounding to an integer adds at most 1/2, and the conversion of the limit to float32 must not add more.
    let limit = (i32::MAX as u32 / ranks.max(1)) as f32 * (1.0 - f32::EPSILON) - 1.0;
    if largest < magnitude(limit.max(0.0)) { Fit::Fits } else { Fit::Overflows }
}

/// Converts sums to elements of `dtype`, the inverse of `quantise`.
pub fn dequantise(dtype: Dtype, sums: &[u8], scale: Scale, out: &mut [u8]) {
    let sums = sums.as_chunks().0.iter().map(|&b| i32::from_le_bytes(b) as f32 / scale.0);
    match dtype {
        Dtype::F32 => put(out, sums, f32::to_le_bytes),
        Dtype::F16 => put(out, sums, |x| f16::from_f32(x).to_le_bytes()),
        Dtype::Bf16 => put(out, sums, |x| bf16::from_f32(x).to_le_bytes()),
        other => panic!("{other} is not quantised"),
    }
}

/// Converts elements of `dtype` to float32, for the server.
pub fn widen(dtype: Dtype, elements: &[u8], out: &mut [u8]) {
    match dtype {
        Dtype::F32 => out.copy_from_slice(elements),
        Dtype::F16 => {
            put(out, elements.as_chunks().0.iter().map(|&b| f16_of(b)), f32::to_le_bytes);
        }
        Dtype::Bf16 => {
            put(out, elements.as_chunks().0.iter().map(|&b| bf16_of(b)), f32::to_le_bytes);
        }
        other => panic!("{other} is not quantised"),
    }
}

/// Converts the server's float32 sums to elements of `dtype`, the inverse of `widen`.
pub fn narrow(dtype: Dtype, sums: &[u8], out: &mut [u8]) {
    let floats = sums.as_chunks().0.iter().map(|&b| f32_of(b));
    match dtype {
        Dtype::F32 => out.copy_from_slice(sums),
        Dtype::F16 => put(out, floats, |x| f16::from_f32(x).to_le_bytes()),
        Dtype::Bf16 => put(out, floats, |x| bf16::from_f32(x).to_le_bytes()),
        other => panic!("{other} is not quantised"),
    }
}

#[inline(always)]
fn quantise_each<const N: usize>(
    elements: &[[u8; N]],
    scale: Scale,
    out: &mut [u8],
    load: impl Fn([u8; N]) -> f32,
) -> i32 {
    let mut largest = 0;
    for (bytes, out) in elements.iter().zip(out.as_chunks_mut().0) {
        let y = load(*bytes) * scale.0;
        largest = largest.max(magnitude(y));
        *out = round(y).to_le_bytes();
    }
    largest
}

/// Rounds to the nearest integer, ties to even, for |y| < 2³¹; undefined for other values.
///
/// Two roundings by addition, a high and a low half, because a conversion with its special cases is slower: `y - high`
/// is exact, and `high` is a multiple of 2¹⁶, so that the low half determines the tie.
#[inline(always)]
fn round(y: f32) -> i32 {
    /// 1.5 · 2²³: added to a value below 2²² it leaves the rounded value in the low bits.
    const MAGIC: f32 = 12_582_912.0;
    const HALF: f32 = 65_536.0;
    let shifted = y * (1.0 / HALF) + MAGIC;
    let high = shifted - MAGIC;
    let low = y - high * HALF;
    let bits = |x: f32| (x.to_bits() as i32).wrapping_sub(MAGIC.to_bits() as i32);
    (bits(shifted) << 16).wrapping_add(bits(low + MAGIC))
}

/// |x| as an integer with the same order; infinities and NaNs are above all numbers.
#[inline(always)]
fn magnitude(x: f32) -> i32 {
    (x.to_bits() & 0x7fff_ffff) as i32
}

#[inline(always)]
fn f32_of(bytes: [u8; 4]) -> f32 {
    f32::from_le_bytes(bytes)
}

#[inline(always)]
fn f16_of(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}

#[inline(always)]
fn bf16_of(bytes: [u8; 2]) -> f32 {
    bf16::from_le_bytes(bytes).to_f32()
}

#[inline(always)]
fn put<const N: usize>(
    out: &mut [u8],
    values: impl Iterator<Item = f32>,
    store: impl Fn(f32) -> [u8; N],
) {
    for (out, value) in out.as_chunks_mut().0.iter_mut().zip(values) {
        *out = store(value);
    }
}
