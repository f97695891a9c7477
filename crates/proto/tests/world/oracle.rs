//! Expected sums, computed one element at a time and independently of `netsum_wire::reduce`.

use super::world::Shape;
use half::{bf16, f16};
use netsum_wire::*;

/// Result of one element over the ranks in `present`, in the order of `shape`.
pub fn element(
    format: Format,
    shape: &Shape,
    present: u64,
    bytes: &dyn Fn(u32) -> Vec<u8>,
) -> Vec<u8> {
    match format.dtype {
        Dtype::F32 => float(format.op, shape, present, &|r| f32::from_le_bytes(array(bytes(r))))
            .to_le_bytes()
            .to_vec(),
        Dtype::F16 => {
            let x =
                float(format.op, shape, present, &|r| f16::from_le_bytes(array(bytes(r))).to_f32());
            if x.is_nan() {
                0x7e00u16.to_le_bytes().to_vec()
            } else {
                f16::from_f32(x).to_le_bytes().to_vec()
            }
        }
        Dtype::Bf16 => {
            let x = float(format.op, shape, present, &|r| {
                bf16::from_le_bytes(array(bytes(r))).to_f32()
            });
            if x.is_nan() {
                0x7fc0u16.to_le_bytes().to_vec()
            } else {
                bf16::from_f32(x).to_le_bytes().to_vec()
            }
        }
        Dtype::I32 => {
            let of = |r| i128::from(i32::from_le_bytes(array(bytes(r))));
            (integer(format.op, shape, present, &of) as i32).to_le_bytes().to_vec()
        }
        Dtype::I64 => {
            let of = |r| i128::from(i64::from_le_bytes(array(bytes(r))));
            (integer(format.op, shape, present, &of) as i64).to_le_bytes().to_vec()
        }
        Dtype::I8 => {
            let of = |r| i128::from(i8::from_le_bytes(array(bytes(r))));
            (integer(format.op, shape, present, &of) as i8).to_le_bytes().to_vec()
        }
        Dtype::I16FromI8 => {
            // Buffers hold numbers of 8 bits; others are sent as the nearest.
            let of = |r| i128::from(i16::from_le_bytes(array(bytes(r))).clamp(-128, 127));
            (integer(format.op, shape, present, &of) as i16).to_le_bytes().to_vec()
        }
        Dtype::Bf16FromE4m3 | Dtype::Bf16FromE5m2 => {
            let of = |r| {
                let x = bf16::from_le_bytes(array(bytes(r))).to_f64() * 512.0;
                assert_eq!(x, x.trunc(), "tests give numbers that can be sent");
                x as i128
            };
            let units = integer(format.op, shape, present, &of) as i32;
            nearest_bf16(f64::from(units) / 512.0).to_le_bytes().to_vec()
        }
        other => panic!("{other} does not travel"),
    }
}

/// The nearest bfloat16, by distances, ties to even.
fn nearest_bf16(x: f64) -> bf16 {
    let below = bf16::from_bits(((x.abs() as f32).to_bits() >> 16) as u16);
    // The conversion to float32 may have rounded up.
    let candidates = [below.to_bits().saturating_sub(1), below.to_bits(), below.to_bits() + 1];
    let distance = |bits: &u16| (bf16::from_bits(*bits).to_f64() - x.abs()).abs();
    let least = candidates.iter().map(distance).fold(f64::INFINITY, f64::min);
    let nearest = candidates.into_iter().filter(|bits| distance(bits) == least);
    let found = nearest.min_by_key(|bits| bits & 1).expect("one of three");
    bf16::from_bits(found | if x < 0.0 { 0x8000 } else { 0 })
}

fn array<const N: usize>(bytes: Vec<u8>) -> [u8; N] {
    bytes.try_into().unwrap()
}

fn float(op: ReduceOp, shape: &Shape, present: u64, of: &dyn Fn(u32) -> f32) -> f32 {
    let combine = |a: f32, b: f32| match op {
        ReduceOp::Sum => a + b,
        _ if a.is_nan() || b.is_nan() => f32::NAN,
        ReduceOp::Min => {
            if a.total_cmp(&b).is_le() {
                a
            } else {
                b
            }
        }
        _ => {
            if a.total_cmp(&b).is_ge() {
                a
            } else {
                b
            }
        }
    };
    let x = fold(shape, present, of, &combine).unwrap();
    if x.is_nan() { f32::from_bits(0x7fc0_0000) } else { x }
}

fn integer(op: ReduceOp, shape: &Shape, present: u64, of: &dyn Fn(u32) -> i128) -> i128 {
    let combine = |a: i128, b: i128| match op {
        ReduceOp::Sum => a + b,
        ReduceOp::Min => a.min(b),
        _ => a.max(b),
    };
    fold(shape, present, of, &combine).unwrap()
}

/// Level by level: neighbours at positions 2i and 2i+1 combine, until one is left.
fn fold<T: Copy>(
    shape: &Shape,
    present: u64,
    of: &dyn Fn(u32) -> T,
    combine: &dyn Fn(T, T) -> T,
) -> Option<T> {
    let children = match shape {
        Shape::Rank(rank) => return (present >> (rank % 64) & 1 == 1).then(|| of(*rank)),
        Shape::Node(children) => children,
    };
    let mut level: Vec<Option<T>> =
        children.iter().map(|c| fold(c, present, of, combine)).collect();
    while level.len() > 1 {
        level = level
            .chunks(2)
            .map(|pair| match pair {
                [Some(a), Some(b)] => Some(combine(*a, *b)),
                [a, b] => a.or(*b),
                [a] => *a,
                _ => None,
            })
            .collect();
    }
    level[0]
}
