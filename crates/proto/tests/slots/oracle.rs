//! Expected sums, computed one element at a time from the documented rules, independently of `netsum_wire`.

use netsum_wire::{Dtype, Format, ReduceOp};

/// Number format in which a fragment travels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Path {
    Integers,
    Scaled(f32),
    Floats,
}

pub fn f32_of(bytes: &[u8]) -> f32 {
    f32::from_le_bytes(bytes.try_into().unwrap())
}

pub fn i32_of(bytes: &[u8]) -> i32 {
    i32::from_le_bytes(bytes.try_into().unwrap())
}

/// The format of a fragment with these values of all workers: `scale` as set, or by the largest value.
pub fn path(format: Format, scale: Option<f32>, values: &[&[u8]]) -> Path {
    if format.dtype == Dtype::I32 {
        return Path::Integers;
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
        Path::Integers => {
            let values = of.iter().map(|b| i64::from(i32_of(b)));
            let result = match format.op {
                ReduceOp::Min => values.min().unwrap(),
                ReduceOp::Max => values.max().unwrap(),
                _ => values.sum(),
            };
            (result as i32).to_le_bytes().to_vec()
        }
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
