//! Expected sums, computed one element at a time from the documented rules, independently of `netsum_wire`.

use half::{bf16, f16};
use netsum_wire::{Dtype, Format, ReduceOp};

/// Number format in which a fragment travels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Path {
    /// Combined as they are.
    Words,
    Scaled(f32),
    Floats,
}

pub fn f32_of(bytes: &[u8]) -> f32 {
    f32::from_le_bytes(bytes.try_into().unwrap())
}

pub fn i32_of(bytes: &[u8]) -> i32 {
    i32::from_le_bytes(bytes.try_into().unwrap())
}

fn i16_of(bytes: &[u8]) -> i16 {
    i16::from_le_bytes(bytes.try_into().unwrap())
}

/// Bytes of a buffer that a fragment has of words with so many bytes: two int8 go into a word, and one of all others.
pub fn fragment_bytes(format: Format, words: usize) -> usize {
    let elements = if format.dtype == Dtype::I16FromI8 { words / 2 } else { words / 4 };
    elements * format.dtype.size()
}

/// All formats that switches with slots combine as they are.
pub const WORDS: [Format; 10] = {
    const fn of(dtype: Dtype, op: ReduceOp) -> Format {
        Format { dtype, op }
    }
    [
        of(Dtype::I32, ReduceOp::Sum),
        of(Dtype::I32, ReduceOp::Min),
        of(Dtype::I32, ReduceOp::Max),
        of(Dtype::I16FromI8, ReduceOp::Sum),
        of(Dtype::F32, ReduceOp::Min),
        of(Dtype::F32, ReduceOp::Max),
        of(Dtype::F16, ReduceOp::Min),
        of(Dtype::F16, ReduceOp::Max),
        of(Dtype::Bf16, ReduceOp::Min),
        of(Dtype::Bf16, ReduceOp::Max),
    ]
};

/// Elements of these floats, or any if they are integers.
pub fn bits_of(format: Format, random: u64, float: f32) -> Vec<u8> {
    match format.dtype {
        Dtype::I32 => (random as u32).to_le_bytes().to_vec(),
        Dtype::I16FromI8 => (random as u16).to_le_bytes().to_vec(),
        Dtype::F16 => f16::from_f32(float).to_le_bytes().to_vec(),
        Dtype::Bf16 => bf16::from_f32(float).to_le_bytes().to_vec(),
        _ => float.to_le_bytes().to_vec(),
    }
}

/// The format of a fragment with these values of all workers: `scale` as set, or by the largest value.
pub fn path(format: Format, scale: Option<f32>, values: &[&[u8]]) -> Path {
    if WORDS.contains(&format) {
        return Path::Words;
    }
    let floats = || values.iter().flat_map(|v| v.chunks_exact(4)).map(f32_of);
    if floats().any(|x| !x.is_finite()) {
        return Path::Floats;
    }
    let largest = floats().fold(0f32, |m, x| m.max(x.abs()));
    let workers = values.len() as f64;
    match scale {
        Some(scale) => {
            // Near the limit either format is correct: the tests avoid it.
            let sum = f64::from(largest) * f64::from(scale) * workers;
            if sum < 2f64.powi(31) { Path::Scaled(scale) } else { Path::Floats }
        }
        None => {
            let mut exponent = -125;
            while f64::from(largest) >= 2f64.powi(exponent) {
                exponent += 1;
            }
            let power = 30 - workers.log2().ceil() as i32 - exponent;
            Path::Scaled(2f32.powi(power.min(126)))
        }
    }
}

/// One element's result.
pub fn element(format: Format, path: Path, of: &[&[u8]]) -> Vec<u8> {
    match path {
        Path::Words => match format.dtype {
            Dtype::I32 => {
                let values = of.iter().map(|b| i64::from(i32_of(b)));
                let result = match format.op {
                    ReduceOp::Min => values.min().unwrap(),
                    ReduceOp::Max => values.max().unwrap(),
                    _ => values.sum(),
                };
                (result as i32).to_le_bytes().to_vec()
            }
            Dtype::I16FromI8 => {
                // Buffers hold numbers of 8 bits; others are sent as the nearest.
                let values = of.iter().map(|b| i64::from(i16_of(b).clamp(-128, 127)));
                (values.sum::<i64>() as i16).to_le_bytes().to_vec()
            }
            Dtype::F16 => {
                let found = compared(format.op, of, |b| f16::from_bits(i16_of(b) as u16).to_f64());
                found.map_or(0x7e00u16.to_le_bytes().to_vec(), |which| of[which].to_vec())
            }
            Dtype::Bf16 => {
                let found = compared(format.op, of, |b| bf16::from_bits(i16_of(b) as u16).to_f64());
                found.map_or(0x7fc0u16.to_le_bytes().to_vec(), |which| of[which].to_vec())
            }
            _ => {
                let found = compared(format.op, of, |b| f32_of(b).into());
                found.map_or(0x7fc0_0000u32.to_le_bytes().to_vec(), |which| of[which].to_vec())
            }
        },
        Path::Scaled(scale) => {
            let q = |b: &&[u8]| i64::from((f32_of(b) * scale).round_ties_even() as i32);
            let sum: i64 = of.iter().map(q).sum();
            (i32::try_from(sum).expect("it fits") as f32 / scale).to_le_bytes().to_vec()
        }
        Path::Floats => {
            let mut level: Vec<f32> = of.iter().map(|b| f32_of(b)).collect();
            while level.len() > 1 {
                level = level
                    .chunks(2)
                    .map(|pair| pair.iter().copied().reduce(|a, b| a + b).unwrap())
                    .collect();
            }
            let x = if level[0].is_nan() { f32::from_bits(0x7fc0_0000) } else { level[0] };
            x.to_le_bytes().to_vec()
        }
    }
}

/// The least or greatest; `None` if one is a NaN. Of zeros, the negative one is the lesser.
fn compared(op: ReduceOp, of: &[&[u8]], value: impl Fn(&[u8]) -> f64) -> Option<usize> {
    let values: Vec<f64> = of.iter().map(|bytes| value(bytes)).collect();
    if values.iter().any(|x| x.is_nan()) {
        return None;
    }
    let order = |a: &usize, b: &usize| values[*a].total_cmp(&values[*b]);
    match op {
        ReduceOp::Min => (0..of.len()).min_by(order),
        _ => (0..of.len()).max_by(order),
    }
}
