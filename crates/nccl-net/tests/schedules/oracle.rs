//! Values of ranks, and what must come out: arithmetic of its own, without netsum's.

use half::{bf16, f16};

use crate::random::Random;

/// NCCL's numbers of types.
pub const TYPES: [i32; 10] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
pub const SUM: i32 = 0;
pub const MAX: i32 = 2;

pub fn size(datatype: i32) -> usize {
    [1, 1, 4, 4, 8, 8, 2, 4, 8, 2][datatype as usize]
}

fn is_float(datatype: i32) -> bool {
    datatype >= 6
}

/// A rank's values. `wild`: floats whose sums depend on the order of additions.
pub fn values(datatype: i32, count: usize, wild: bool, seed: u64, rank: usize) -> Vec<u8> {
    let mut random = Random::new(seed, rank as u64);
    let mut out = Vec::with_capacity(count * size(datatype));
    for _ in 0..count {
        let bits = random.bits();
        if !is_float(datatype) {
            out.extend(&bits.to_le_bytes()[..size(datatype)]);
            continue;
        }
        let small = f64::from((bits >> 32) as u8 % 17) - 8.0;
        let odd = f64::from(bits as u32 as i32) * 2f64.powi((bits >> 40) as i32 % 24 - 40);
        write(datatype, if wild { odd } else { small }, &mut out);
    }
    out
}

fn write(datatype: i32, value: f64, out: &mut Vec<u8>) {
    match datatype {
        6 => out.extend(f16::from_f64(value).to_le_bytes()),
        7 => out.extend((value as f32).to_le_bytes()),
        8 => out.extend(value.to_le_bytes()),
        _ => out.extend(bf16::from_f64(value).to_le_bytes()),
    }
}

/// All ranks' values combined. Two or four ranks' floats are added in the order of the fabric's racks.
pub fn combined(datatype: i32, op: i32, all: &[Vec<u8>]) -> Vec<u8> {
    let element = size(datatype);
    let mut out = Vec::with_capacity(all[0].len());
    for at in (0..all[0].len()).step_by(element) {
        let parts = all.iter().map(|bytes| &bytes[at..at + element]);
        match datatype {
            7 => {
                let values: Vec<f32> =
                    parts.map(|v| f32::from_le_bytes(v.try_into().unwrap())).collect();
                out.extend(floats(op, &values).to_le_bytes());
            }
            8 => {
                let values: Vec<f64> =
                    parts.map(|v| f64::from_le_bytes(v.try_into().unwrap())).collect();
                let sum = match op {
                    SUM => in_racks(&values, |a, b| a + b),
                    MAX => values.into_iter().fold(f64::NEG_INFINITY, f64::max),
                    _ => values.into_iter().fold(f64::INFINITY, f64::min),
                };
                out.extend(sum.to_le_bytes());
            }
            6 => {
                let values: Vec<f32> =
                    parts.map(|v| f16::from_le_bytes(v.try_into().unwrap()).to_f32()).collect();
                out.extend(f16::from_f32(floats(op, &values)).to_le_bytes());
            }
            9 => {
                let values: Vec<f32> =
                    parts.map(|v| bf16::from_le_bytes(v.try_into().unwrap()).to_f32()).collect();
                out.extend(bf16::from_f32(floats(op, &values)).to_le_bytes());
            }
            _ => {
                let values: Vec<i128> = parts.map(|v| integer(datatype, v)).collect();
                let result = match op {
                    SUM => values.iter().sum(),
                    MAX => *values.iter().max().unwrap(),
                    _ => *values.iter().min().unwrap(),
                };
                out.extend(&result.to_le_bytes()[..element]);
            }
        }
    }
    out
}

fn floats(op: i32, values: &[f32]) -> f32 {
    match op {
        SUM => in_racks(values, |a, b| a + b),
        MAX => values.iter().copied().fold(f32::NEG_INFINITY, f32::max),
        _ => values.iter().copied().fold(f32::INFINITY, f32::min),
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

fn integer(datatype: i32, bytes: &[u8]) -> i128 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let unsigned = u64::from_le_bytes(wide);
    match datatype {
        0 => i128::from(unsigned as i8),
        2 => i128::from(unsigned as i32),
        4 => i128::from(unsigned as i64),
        _ => i128::from(unsigned),
    }
}
