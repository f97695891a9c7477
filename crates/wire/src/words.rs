//! Integers, and floats that are compared, in the 32-bit words of slots.
//!
//! A slot adds or compares words ([`Arithmetic`]) and does not know what they stand for. The workers choose words whose
//! combination is that of their elements, so that switches of every kind combine types that they were not made for:
//!
//! | layout | dtype | a word | combinations |
//! |---|---|---|---|
//! | same | int32 | an element | sum, minimum, maximum |
//! | pairs | `int16_from_int8` | two contributions, each as a number of 16 bits | sum of at most 257 ranks |
//! | ordered | float32, float16, bfloat16 | an element, as an integer of the same order | minimum, maximum |
//!
//! In a pair an int8 x is x + 128, so that it is not negative. A sum of n such numbers is at most 255 n, which for 257
//! ranks is 2¹⁶ − 1: nothing is carried from one number to the other, and the sum of the elements is what remains
//! without 128 n.

use half::{bf16, f16};

use crate::arithmetic::Arithmetic;
use crate::element::{Accumulator, Element};
use crate::format::{Dtype, Format, ReduceOp};
use crate::reduce::wide;

/// Most ranks whose elements are added two to a word.
pub const MOST_PAIRED_RANKS: u32 = 257;

/// Added to a number of a pair.
const OFFSET: i32 = 128;

/// How a format's elements are laid out in words, and read from combined words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words {
    format: Format,
    layout: Layout,
    ranks: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Same,
    Pairs,
    Ordered,
}

impl Words {
    /// The words for combinations over so many ranks; `None` if no words combine as the elements do. Sums of floats are
    /// [`crate::fixed`]'s.
    pub fn of(format: Format, ranks: u32) -> Option<Words> {
        let compares = matches!(format.op, ReduceOp::Min | ReduceOp::Max);
        let sums = format.op == ReduceOp::Sum;
        let layout = match format.dtype {
            Dtype::I32 if sums || compares => Layout::Same,
            Dtype::I16FromI8 if sums && ranks <= MOST_PAIRED_RANKS => Layout::Pairs,
            Dtype::F32 | Dtype::F16 | Dtype::Bf16 if compares => Layout::Ordered,
            _ => return None,
        };
        Some(Words { format, layout, ranks })
    }

    /// Elements of four bytes that are copied and not combined.
    pub fn copied(format: Format) -> Words {
        Words { format, layout: Layout::Same, ranks: 1 }
    }

    /// Words that so many elements take.
    pub fn count(self, elements: u64) -> u64 {
        if self.layout == Layout::Pairs { elements.div_ceil(2) } else { elements }
    }

    /// How a slot combines the words.
    pub fn arithmetic(self) -> Arithmetic {
        match self.format.op {
            ReduceOp::Min => Arithmetic::Min,
            ReduceOp::Max => Arithmetic::Max,
            _ => Arithmetic::Wrapping,
        }
    }

    /// Writes the words of elements, both little-endian. Panics if `out` has not as many as they take.
    pub fn write(self, elements: &[u8], out: &mut [u8]) {
        match (self.layout, self.format.dtype) {
            (Layout::Same, _) => out.copy_from_slice(elements),
            (Layout::Pairs, _) => pair(elements.as_chunks().0, out.as_chunks_mut().0),
            (Layout::Ordered, Dtype::F16) => self.order(elements, out, f16::load),
            (Layout::Ordered, Dtype::Bf16) => self.order(elements, out, bf16::load),
            (Layout::Ordered, _) => self.order(elements, out, f32::load),
        }
    }

    /// Writes the elements of combined words, both little-endian. Panics if `words` has not as many as they take.
    pub fn read(self, words: &[u8], out: &mut [u8]) {
        match (self.layout, self.format.dtype) {
            (Layout::Same, _) => out.copy_from_slice(words),
            (Layout::Pairs, _) => {
                unpair(words.as_chunks().0, out.as_chunks_mut().0, self.ranks as i32);
            }
            (Layout::Ordered, Dtype::F16) => unorder(words, out, f16::store),
            (Layout::Ordered, Dtype::Bf16) => unorder(words, out, bf16::store),
            (Layout::Ordered, _) => unorder(words, out, |x| f32::store(x.canonical())),
        }
    }

    /// Floats as integers of the same order; a NaN is beyond all others, on the side that wins.
    #[inline(always)]
    fn order<const N: usize>(
        self,
        elements: &[u8],
        out: &mut [u8],
        load: impl Fn([u8; N]) -> f32 + Copy,
    ) {
        let nan = if self.format.op == ReduceOp::Min { u32::MAX } else { i32::MAX as u32 };
        each(elements, out, |element| {
            let x = load(element);
            flip(if x.is_nan() { nan } else { x.to_bits() }).to_le_bytes()
        });
    }
}

/// Bits of a float as an integer of the same order, and back: magnitudes of negative floats count upwards, those of
/// negative integers downwards.
#[inline(always)]
fn flip(bits: u32) -> u32 {
    bits ^ (((bits as i32) >> 31) as u32 >> 1)
}

#[inline(always)]
fn unorder<const N: usize>(words: &[u8], out: &mut [u8], store: impl Fn(f32) -> [u8; N] + Copy) {
    each(words, out, |word| store(f32::from_bits(flip(u32::from_le_bytes(word)))));
}

#[inline(always)]
fn each<const N: usize, const M: usize>(
    from: &[u8],
    to: &mut [u8],
    convert: impl Fn([u8; N]) -> [u8; M],
) {
    let (from, to) = (from.as_chunks().0, to.as_chunks_mut().0);
    assert_eq!(from.len(), to.len(), "a word per element");
    wide::<true>(to.len(), || {
        for (to, from) in to.iter_mut().zip(from) {
            *to = convert(*from);
        }
    });
}

fn pair(elements: &[[u8; 2]], out: &mut [[u8; 4]]) {
    assert_eq!(elements.len().div_ceil(2), out.len(), "a word per two elements");
    // As contributions of this dtype are: the nearest int8.
    let number = |x: [u8; 2]| (i32::from(i16::from_le_bytes(x).clamp(-128, 127)) + OFFSET) as u32;
    let (pairs, last) = elements.as_chunks();
    wide::<true>(pairs.len(), || {
        for (out, [low, high]) in out.iter_mut().zip(pairs) {
            *out = (number(*low) | number(*high) << 16).to_le_bytes();
        }
    });
    if let ([x], Some(out)) = (last, out.last_mut()) {
        *out = number(*x).to_le_bytes();
    }
}

fn unpair(words: &[[u8; 4]], out: &mut [[u8; 2]], ranks: i32) {
    assert_eq!(out.len().div_ceil(2), words.len(), "a word per two elements");
    let element = |number: u32| ((number as i32 - OFFSET * ranks) as i16).to_le_bytes();
    let (pairs, last) = out.as_chunks_mut();
    wide::<true>(pairs.len(), || {
        for ([low, high], word) in pairs.iter_mut().zip(words) {
            let word = u32::from_le_bytes(*word);
            (*low, *high) = (element(word & 0xffff), element(word >> 16));
        }
    });
    if let ([x], Some(word)) = (last, words.last()) {
        *x = element(u32::from_le_bytes(*word) & 0xffff);
    }
}
