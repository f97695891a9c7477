//! Reals as 8-bit numbers with a scale per block that all ranks share, so that switches add the numbers themselves.
//!
//! The ranks first agree on the largest magnitude of each block, by a maximum over ranks, which is exact. A value x is
//! then sent as the number nearest to x / scale, where scale · top is that magnitude, and a sum Q comes back as
//! Q · scale. `top` is the largest number with which the sum of all ranks is exact ([`Grid::top`]). So the sum has no
//! error but the last rounding of the 8-bit floats, and every rank knows its own rounding error, which it keeps for the
//! next sum (error feedback).
//!
//! Largest magnitudes are bfloat16, rounded up. +∞ stands for a block with a value that is not finite, or beyond
//! bfloat16's range: its sum is NaN at all ranks.

use half::bf16;

use crate::format::Dtype;
use crate::narrow::{E4M3, E5M2, Minifloat, UNITS};
use crate::reduce::wide;

/// The numbers of a dtype that some ranks can add exactly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grid {
    dtype: Dtype,
    top: f32,
    ranks: u32,
}

/// Bytes of a block's largest magnitude.
pub const MAGNITUDE_BYTES: usize = 2;

/// Added to a number below 2²² it leaves the nearest integer, ties to even.
const MAGIC: f32 = 12_582_912.0;

impl Grid {
    /// The grid for sums of `ranks` in `dtype`: int8, whose sums are int8 too, or a narrow type. `None` for other
    /// types, and for more ranks than can be added.
    pub fn new(dtype: Dtype, ranks: u32) -> Option<Grid> {
        let ranks = ranks.max(1);
        // Sums of 8-bit floats are below 2³¹ units.
        let float = |of: Minifloat| of.at_most(((i32::MAX as u32 / ranks) as f32 / UNITS).floor());
        let top = match dtype {
            Dtype::I8 => (127 / ranks) as f32,
            Dtype::I16FromI8 => (32_767 / ranks).min(127) as f32,
            Dtype::Bf16FromE4m3 => float(E4M3),
            Dtype::Bf16FromE5m2 => float(E5M2),
            _ => return None,
        };
        (top > 0.0).then_some(Grid { dtype, top, ranks })
    }

    /// The largest number that a rank may send.
    pub fn top(&self) -> f32 {
        self.top
    }

    /// Element type of the numbers and of their sum.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The scale of a block with this largest magnitude: 0 if its values are too small for a scale that is a normal
    /// number (they remain as rounding errors), `None` if they are not finite.
    fn scale(&self, largest: [u8; MAGNITUDE_BYTES]) -> Option<f32> {
        let largest = bf16::from_le_bytes(largest).to_f32();
        let scale = if largest < self.top * f32::MIN_POSITIVE { 0.0 } else { largest / self.top };
        largest.is_finite().then_some(scale)
    }

    /// Rounds the values of `kept` to the grid: `out` gets the numbers, little-endian in the grid's dtype, and `kept`
    /// the rounding errors.
    ///
    /// `magnitudes`: of each block of `block` values, over all ranks, as [`largest`] writes them. Panics if slices do
    /// not fit together.
    pub fn round(&self, kept: &mut [f32], block: usize, magnitudes: &[u8], out: &mut [u8]) {
        let whole = |x: f32| (x + MAGIC) - MAGIC;
        let byte = |q: f32| (q + MAGIC).to_bits() as i8;
        let upper = |q: f32| ((q.to_bits() >> 16) as u16).to_le_bytes();
        let blocks = (block, magnitudes);
        match self.dtype {
            Dtype::I8 => self.round_each(kept, blocks, out, whole, |q| [byte(q) as u8]),
            Dtype::I16FromI8 => {
                self.round_each(kept, blocks, out, whole, |q| i16::from(byte(q)).to_le_bytes());
            }
            Dtype::Bf16FromE5m2 => self.round_each(kept, blocks, out, |x| E5M2.round(x), upper),
            _ => self.round_each(kept, blocks, out, |x| E4M3.round(x), upper),
        }
    }

    #[inline(always)]
    fn round_each<const N: usize>(
        &self,
        kept: &mut [f32],
        (block, magnitudes): (usize, &[u8]),
        out: &mut [u8],
        nearest: impl Fn(f32) -> f32 + Copy,
        store: impl Fn(f32) -> [u8; N] + Copy,
    ) {
        assert_eq!(out.len(), kept.len() * N, "a number per value");
        let magnitudes = magnitudes_of(kept.len(), block, magnitudes);
        let top = self.top;
        wide::<true>(kept.len(), || {
            let blocks = kept.chunks_mut(block).zip(out.as_chunks_mut().0.chunks_mut(block));
            for ((kept, out), largest) in blocks.zip(magnitudes) {
                let Some(scale) = self.scale(*largest) else {
                    kept.fill(0.0);
                    out.fill(store(0.0));
                    continue;
                };
                let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
                for (kept, out) in kept.iter_mut().zip(out) {
                    let q = nearest((*kept * inverse).clamp(-top, top));
                    *kept -= q * scale;
                    *out = store(q);
                }
            }
        });
    }

    /// The mean over the ranks: `sums` as the group returns them, `out` the values.
    ///
    /// All ranks compute the same bits. Panics if slices do not fit together.
    pub fn mean(&self, sums: &[u8], block: usize, magnitudes: &[u8], out: &mut [f32]) {
        match self.dtype {
            Dtype::I8 => {
                self.mean_each(sums, block, magnitudes, out, |[q]: [u8; 1]| f32::from(q as i8));
            }
            Dtype::I16FromI8 => self.mean_each(sums, block, magnitudes, out, |q: [u8; 2]| {
                f32::from(i16::from_le_bytes(q))
            }),
            _ => self.mean_each(sums, block, magnitudes, out, |q: [u8; 2]| {
                f32::from_bits(u32::from(u16::from_le_bytes(q)) << 16)
            }),
        }
    }

    #[inline(always)]
    fn mean_each<const N: usize>(
        &self,
        sums: &[u8],
        block: usize,
        magnitudes: &[u8],
        out: &mut [f32],
        load: impl Fn([u8; N]) -> f32 + Copy,
    ) {
        assert_eq!(sums.len(), out.len() * N, "a sum per value");
        let magnitudes = magnitudes_of(out.len(), block, magnitudes);
        let ranks = self.ranks as f32;
        wide::<true>(out.len(), || {
            let blocks = out.chunks_mut(block).zip(sums.as_chunks().0.chunks(block));
            for ((out, sums), largest) in blocks.zip(magnitudes) {
                let scale = self.scale(*largest).unwrap_or(f32::NAN);
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out = load(*sum) * scale / ranks;
                }
            }
        });
    }
}

/// Adds `values` to `kept`, and writes the largest magnitude of each block of `block` sums, as bfloat16 rounded up.
///
/// Panics if slices do not fit together.
pub fn largest(kept: &mut [f32], values: &[f32], block: usize, magnitudes: &mut [u8]) {
    assert_eq!(kept.len(), values.len(), "a kept error per value");
    magnitudes_of(kept.len(), block, magnitudes);
    wide::<true>(kept.len(), || {
        let blocks = kept.chunks_mut(block).zip(values.chunks(block));
        for ((kept, values), out) in blocks.zip(magnitudes.as_chunks_mut().0) {
            let mut largest = 0;
            for (kept, value) in kept.iter_mut().zip(values) {
                *kept += value;
                // As integers, infinities and NaNs are above all numbers.
                largest = largest.max(kept.to_bits() & 0x7fff_ffff);
            }
            let up = (largest.min(0x7f80_0000) + 0xffff) >> 16;
            *out = (up as u16).to_le_bytes();
        }
    });
}

fn magnitudes_of(values: usize, block: usize, magnitudes: &[u8]) -> &[[u8; MAGNITUDE_BYTES]] {
    let blocks = values.div_ceil(block);
    assert_eq!(magnitudes.len(), blocks * MAGNITUDE_BYTES, "a magnitude per block");
    magnitudes.as_chunks().0
}
