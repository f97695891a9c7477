//! Narrow contributions against the OCP tables of 8-bit floats and sums in wide integers, computed here by themselves.

use half::bf16;
use netsum_wire::{Dtype, Encoding, Format, Input, ReduceOp, contribute, reduce};
use proptest::prelude::*;

const UNITS: f64 = 512.0;
const FLOATS: [(Dtype, i32, i32, f64); 2] =
    [(Dtype::Bf16FromE4m3, 3, 7, 448.0), (Dtype::Bf16FromE5m2, 2, 15, 57_344.0)];

/// The value of a byte by the specification; `None` for infinities and NaNs.
fn value(byte: u8, mantissa: i32, bias: i32, largest: f64) -> Option<f64> {
    let (exponent, bits) =
        (i32::from(byte & 0x7f) >> mantissa, i32::from(byte) & ((1 << mantissa) - 1));
    let fraction = f64::from(bits) / f64::from(1 << mantissa);
    let magnitude = match exponent {
        0 => fraction * f64::from(1 - bias).exp2(),
        _ => (1.0 + fraction) * f64::from(exponent - bias).exp2(),
    };
    (magnitude <= largest).then_some(if byte & 0x80 == 0 { magnitude } else { -magnitude })
}

fn sum(dtype: Dtype) -> Format {
    Format { dtype, op: ReduceOp::Sum }
}

fn sent(dtype: Dtype, elements: &[u8]) -> Vec<u8> {
    let mut out = vec![0; elements.len() / 2];
    contribute(dtype, elements, &mut out);
    out
}

fn of_floats(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|x| bf16::from_f64(*x).to_le_bytes()).collect()
}

/// Sum of contributions, by a node with so many children whose own sum is in `encoding`.
fn added(dtype: Dtype, inputs: &[Vec<u8>], from: Encoding, to: Encoding, n: usize) -> Vec<u8> {
    let inputs: Vec<_> = inputs.iter().map(|bytes| Some(Input { bytes, encoding: from })).collect();
    let mut out = vec![0; n * to.size(dtype)];
    reduce(sum(dtype), &inputs, n, &mut out, to);
    out
}

#[test]
fn every_value_of_the_tables_is_sent_as_its_byte_and_comes_back() {
    for (dtype, mantissa, bias, largest) in FLOATS {
        for byte in 0..=255u8 {
            let Some(x) = value(byte, mantissa, bias, largest) else { continue };
            let back = added(dtype, &[vec![byte]], Encoding::Narrow, Encoding::Element, 1);
            let back = f64::from(bf16::from_le_bytes([back[0], back[1]]).to_f32());
            if (x * UNITS).fract() == 0.0 {
                assert_eq!(sent(dtype, &of_floats(&[x])), [byte], "{dtype} {x}");
                assert_eq!(back, x, "{dtype} {byte:#x}");
            } else {
                assert_eq!(back, (x * UNITS).trunc() / UNITS, "{dtype} {byte:#x}");
            }
        }
    }
    for x in -128..=127i16 {
        assert_eq!(sent(Dtype::I16FromI8, &x.to_le_bytes()), [x as i8 as u8]);
    }
}

#[test]
fn other_elements_are_sent_as_the_nearest_number() {
    for (dtype, mantissa, bias, largest) in FLOATS {
        let mut table: Vec<(f64, u8)> = (0..0x80u8)
            .filter_map(|byte| Some((value(byte, mantissa, bias, largest)?, byte)))
            .filter(|(x, _)| (x * UNITS).fract() == 0.0)
            .collect();
        table.sort_by(|(x, _), (y, _)| x.total_cmp(y));
        for bits in 0..=u16::MAX {
            let x = f64::from(bf16::from_bits(bits).to_f32());
            if x.is_nan() {
                continue;
            }
            let magnitude = x.abs().min(largest);
            let above = table.partition_point(|(y, _)| *y < magnitude);
            // Of two numbers at the same distance the one whose last bit is 0: every other one.
            let near = [above.saturating_sub(1), above];
            let distance = |&place: &usize| (table[place].0 - magnitude).abs();
            let nearest = near
                .into_iter()
                .min_by(|a, b| distance(a).total_cmp(&distance(b)).then((a % 2).cmp(&(b % 2))));
            let sign = (x.is_sign_negative() as u8) << 7;
            let expected = table[nearest.unwrap()].1 | sign;
            assert_eq!(sent(dtype, &bits.to_le_bytes()), [expected], "{dtype} {bits:#x} {x}");
        }
        assert_eq!(sent(dtype, &bf16::NAN.to_le_bytes())[0] & 0x7f, 0);
    }
    for (x, expected) in [(i16::MIN, -128i8), (-129, -128), (128, 127), (i16::MAX, 127)] {
        assert_eq!(sent(Dtype::I16FromI8, &x.to_le_bytes()), [expected as u8]);
    }
}

#[test]
fn sums_of_more_bits_than_float32_has_are_rounded_once() {
    let (dtype, mantissa, bias, largest) = FLOATS[1];
    let byte = |x: f64| (0..0x80).find(|&b| value(b, mantissa, bias, largest) == Some(x)).unwrap();
    // 2^24 units, half the distance to the next bfloat16, and one unit: more than half.
    for (parts, expected) in [
        (&[32_768.0, 128.0, 1.0 / UNITS][..], 32_768.0 + 256.0),
        (&[32_768.0, 128.0], 32_768.0),
        (&[32_768.0, 256.0, 128.0], 32_768.0 + 512.0),
    ] {
        let inputs: Vec<Vec<u8>> = parts.iter().map(|&x| vec![byte(x)]).collect();
        let sum = added(dtype, &inputs, Encoding::Narrow, Encoding::Element, 1);
        assert_eq!(bf16::from_le_bytes([sum[0], sum[1]]).to_f64(), expected, "{parts:?}");
    }
}

/// The nearest bfloat16 to an integer number of units, by distances.
fn rounded(units: i64) -> f64 {
    let x = units as f64 / UNITS;
    let near = bf16::from_f32(x as f32).to_bits();
    let candidates = [near.saturating_sub(1), near, near + 1].map(bf16::from_bits);
    let distance = |y: &bf16| (y.to_f64() - x).abs();
    let least = candidates.iter().map(distance).fold(f64::INFINITY, f64::min);
    let nearest = candidates.into_iter().filter(|y| distance(y) == least);
    nearest.min_by_key(|y| y.to_bits() & 1).unwrap().to_f64()
}

proptest! {
    #[test]
    fn sums_are_exact_in_any_order_and_over_any_tree(
        seed in prop::collection::vec(prop::collection::vec(any::<u8>(), 5..80), 1..40), split in 0..40usize,
        kind in 0..3usize,
    ) {
        let n = seed.iter().map(Vec::len).min().unwrap();
        let (dtype, decode): (Dtype, Box<dyn Fn(u8) -> i64>) = match kind {
            2 => (Dtype::I16FromI8, Box::new(|byte| i64::from(byte as i8))),
            _ => {
                let (dtype, mantissa, bias, largest) = FLOATS[kind];
                (dtype, Box::new(move |byte| {
                    value(byte, mantissa, bias, largest).map_or(0, |x| (x * UNITS) as i64)
                }))
            }
        };
        // Codes of infinities and NaNs are not sent.
        let sent = |byte: &u8| if kind < 2 && decode(*byte) == 0 { 0 } else { *byte };
        let ranks: Vec<Vec<u8>> = seed.iter().map(|s| s[..n].iter().map(sent).collect()).collect();
        let whole = added(dtype, &ranks, Encoding::Narrow, Encoding::Element, n);
        for (i, sum) in whole.as_chunks::<2>().0.iter().enumerate() {
            let exact: i64 = ranks.iter().map(|r| decode(r[i])).sum();
            match kind {
                2 => prop_assert_eq!(i64::from(i16::from_le_bytes(*sum)), exact),
                _ => prop_assert_eq!(bf16::from_le_bytes(*sum).to_f64(), rounded(exact)),
            }
        }
        let mut backwards = ranks.clone();
        backwards.reverse();
        prop_assert_eq!(&whole, &added(dtype, &backwards, Encoding::Narrow, Encoding::Element, n));
        let racks = ranks.split_at(split.min(ranks.len()));
        let partials: Vec<Vec<u8>> = [racks.0, racks.1]
            .into_iter()
            .filter(|rack| !rack.is_empty())
            .map(|rack| added(dtype, rack, Encoding::Narrow, Encoding::Accumulator, n))
            .collect();
        let root = added(dtype, &partials, Encoding::Accumulator, Encoding::Element, n);
        prop_assert_eq!(&whole, &root);
        // Hosts add the elements of buffers, and get the same bits.
        let one = |rank: &Vec<u8>| added(dtype, std::slice::from_ref(rank), Encoding::Narrow, Encoding::Element, n);
        let buffers: Vec<Vec<u8>> = ranks.iter().map(one).collect();
        prop_assert_eq!(&whole, &added(dtype, &buffers, Encoding::Element, Encoding::Element, n));
    }
}
