//! Values of ranks, and what must come out: arithmetic of its own, without netsum's.

use std::ops::Range;

use half::{bf16, f16};

use crate::fabric::RANKS;
use crate::random::mixed;

/// NCCL's numbers of types.
pub const TYPES: [i32; 10] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
pub const SUM: i32 = 0;
pub const MAX: i32 = 2;

pub fn size(datatype: i32) -> usize {
    [1, 1, 4, 4, 8, 8, 2, 4, 8, 2][datatype as usize]
}

/// What all ranks' values of an operation are drawn from; each element by itself, so that a part costs a part.
#[derive(Clone, Copy)]
pub struct Values {
    pub datatype: i32,
    /// Floats whose sums depend on the order of additions.
    pub wild: bool,
    pub seed: u64,
}

impl Values {
    /// A rank's elements in `range`.
    pub fn of(self, rank: usize, range: Range<usize>) -> Vec<u8> {
        match self.datatype {
            0 | 1 => self.each(rank, range, |bits| [bits as u8]),
            2 | 3 => self.each(rank, range, |bits| (bits as u32).to_le_bytes()),
            4 | 5 => self.each(rank, range, u64::to_le_bytes),
            6 => self.each(rank, range, |bits| f16::from_f64(self.real(bits)).to_le_bytes()),
            7 => self.each(rank, range, |bits| (self.real(bits) as f32).to_le_bytes()),
            8 => self.each(rank, range, |bits| self.real(bits).to_le_bytes()),
            _ => self.each(rank, range, |bits| bf16::from_f64(self.real(bits)).to_le_bytes()),
        }
    }

    fn each<const N: usize>(
        self,
        rank: usize,
        range: Range<usize>,
        write: impl Fn(u64) -> [u8; N],
    ) -> Vec<u8> {
        let first = mixed(self.seed << 20 ^ rank as u64);
        let mut out = Vec::with_capacity(range.len() * N);
        for at in range {
            out.extend(write(mixed(first.wrapping_add(at as u64))));
        }
        out
    }

    fn real(self, bits: u64) -> f64 {
        if !self.wild {
            return f64::from((bits >> 32) as u8 % 17) - 8.0;
        }
        // A power of two from -40 to -17, by its bits.
        let scale = f64::from_bits((1023 - 40 + (bits >> 40) % 24) << 52);
        f64::from(bits as u32 as i32) * scale
    }
}

/// All ranks' values combined. Two or four ranks' floats are added in the order of the fabric's racks.
pub fn combined(datatype: i32, op: i32, all: &[Vec<u8>]) -> Vec<u8> {
    match datatype {
        0 => each(all, |v: [i8; RANKS], n| integers(op, &v[..n], i8::wrapping_add)),
        1 => each(all, |v: [u8; RANKS], n| integers(op, &v[..n], u8::wrapping_add)),
        2 => each(all, |v: [i32; RANKS], n| integers(op, &v[..n], i32::wrapping_add)),
        3 => each(all, |v: [u32; RANKS], n| integers(op, &v[..n], u32::wrapping_add)),
        4 => each(all, |v: [i64; RANKS], n| integers(op, &v[..n], i64::wrapping_add)),
        5 => each(all, |v: [u64; RANKS], n| integers(op, &v[..n], u64::wrapping_add)),
        6 => each(all, |v: [f16; RANKS], n| {
            f16::from_f32(floats(op, &v.map(f16::to_f32)[..n], f32::max, f32::min))
        }),
        7 => each(all, |v: [f32; RANKS], n| floats(op, &v[..n], f32::max, f32::min)),
        8 => each(all, |v: [f64; RANKS], n| floats(op, &v[..n], f64::max, f64::min)),
        _ => each(all, |v: [bf16; RANKS], n| {
            bf16::from_f32(floats(op, &v.map(bf16::to_f32)[..n], f32::max, f32::min))
        }),
    }
}

/// An element as its bytes.
trait Element<const N: usize>: Copy {
    fn read(bytes: [u8; N]) -> Self;
    fn bytes(self) -> [u8; N];
}

macro_rules! elements {
    ($($name:ty: $size:literal),*) => {
        $(impl Element<$size> for $name {
            fn read(bytes: [u8; $size]) -> Self {
                Self::from_le_bytes(bytes)
            }

            fn bytes(self) -> [u8; $size] {
                self.to_le_bytes()
            }
        })*
    };
}

elements!(i8: 1, u8: 1, i32: 4, u32: 4, i64: 8, u64: 8, f16: 2, f32: 4, f64: 8, bf16: 2);

/// `combine` of the ranks' values of each element; of the array, the first ranks are there.
fn each<const N: usize, T: Element<N>>(
    all: &[Vec<u8>],
    combine: impl Fn([T; RANKS], usize) -> T,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(all[0].len());
    let mut parts = [T::read([0; N]); RANKS];
    for at in (0..all[0].len()).step_by(N) {
        for (part, bytes) in parts.iter_mut().zip(all) {
            *part = T::read(bytes[at..at + N].try_into().unwrap());
        }
        out.extend(combine(parts, all.len()).bytes());
    }
    out
}

fn integers<T: Copy + Ord>(op: i32, values: &[T], add: impl Fn(T, T) -> T) -> T {
    let values = values.iter().copied();
    let result = match op {
        SUM => values.reduce(add),
        MAX => values.max(),
        _ => values.min(),
    };
    result.unwrap()
}

fn floats<T: Copy + std::ops::Add<Output = T>>(
    op: i32,
    values: &[T],
    max: impl Fn(T, T) -> T,
    min: impl Fn(T, T) -> T,
) -> T {
    match op {
        SUM => in_racks(values, |a, b| a + b),
        MAX => values.iter().copied().reduce(max).unwrap(),
        _ => values.iter().copied().reduce(min).unwrap(),
    }
}

/// Each rack's pair, then the pairs.
fn in_racks<T: Copy>(values: &[T], add: impl Fn(T, T) -> T) -> T {
    match values {
        [a] => *a,
        [a, b] => add(*a, *b),
        [a, b, c] => add(add(*a, *b), *c),
        [a, b, c, d] => add(add(*a, *b), add(*c, *d)),
        _ => unreachable!("there are four ranks"),
    }
}
