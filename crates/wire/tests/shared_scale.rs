//! Numbers with a shared scale: within half a step of the values, sums of all ranks that fit, nothing lost.

use half::bf16;
use netsum_wire::shared_scale::{Grid, MAGNITUDE_BYTES, largest};
use netsum_wire::{Dtype, Encoding, Format, Input, ReduceOp, contribute, reduce};
use proptest::prelude::*;

const DTYPES: [Dtype; 4] = [Dtype::I8, Dtype::I16FromI8, Dtype::Bf16FromE4m3, Dtype::Bf16FromE5m2];

/// One rank's numbers, as reals.
fn numbers(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        Dtype::I8 => bytes.iter().map(|&b| f64::from(b as i8)).collect(),
        Dtype::I16FromI8 => {
            bytes.as_chunks().0.iter().map(|&b| f64::from(i16::from_le_bytes(b))).collect()
        }
        _ => bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b).to_f64()).collect(),
    }
}

/// The sum as the group makes it: contributions of one byte.
fn summed(dtype: Dtype, ranks: &[Vec<u8>]) -> Vec<u8> {
    let narrow = |elements: &Vec<u8>| {
        let mut out = vec![0; elements.len() / 2];
        contribute(dtype, elements, &mut out);
        out
    };
    let sent: Vec<Vec<u8>> =
        if dtype.is_narrow() { ranks.iter().map(narrow).collect() } else { ranks.to_vec() };
    let encoding = Encoding::of_contribution(dtype);
    let inputs: Vec<_> = sent.iter().map(|bytes| Some(Input { bytes, encoding })).collect();
    let mut out = vec![0; ranks[0].len()];
    let n = sent[0].len();
    reduce(Format { dtype, op: ReduceOp::Sum }, &inputs, n, &mut out, Encoding::Element);
    out
}

/// Largest magnitudes over the ranks.
fn agreed(magnitudes: &[Vec<u8>]) -> Vec<u8> {
    let of = |block: usize| {
        let each = magnitudes.iter().map(|m| bf16::from_le_bytes([m[2 * block], m[2 * block + 1]]));
        each.fold(bf16::ZERO, |a, b| if b > a { b } else { a })
    };
    (0..magnitudes[0].len() / MAGNITUDE_BYTES).flat_map(|b| of(b).to_le_bytes()).collect()
}

/// Half the distance between the numbers next to x, as a part of the block's largest magnitude.
fn error_bound(grid: &Grid, x: f64) -> f64 {
    match grid.dtype() {
        Dtype::I8 | Dtype::I16FromI8 => 0.5,
        Dtype::Bf16FromE4m3 => (x.abs() / 16.0).max(0.5 / 512.0),
        _ => (x.abs() / 8.0).max(0.5 / 512.0),
    }
}

fn values() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => (-1.0f32..1.0).prop_map(|x| x * x * x),
        1 => Just(0.0),
        1 => any::<f32>().prop_filter("finite", |x| x.abs() < 1e38),
    ]
}

proptest! {
    #[test]
    fn values_plus_kept_errors_are_never_lost(
        ranks in 1..20usize, block in 1..40usize, kind in 0..4usize, steps in 1..4usize,
        seed in prop::collection::vec(values(), 1..120),
    ) {
        let dtype = DTYPES[kind];
        let grid = Grid::new(dtype, ranks as u32).unwrap();
        let n = seed.len();
        let mut kept = vec![vec![0f32; n]; ranks];
        for step in 0..steps {
            let blocks = n.div_ceil(block) * MAGNITUDE_BYTES;
            let mut magnitudes = vec![vec![0; blocks]; ranks];
            for rank in 0..ranks {
                let gradients: Vec<f32> = (0..n).map(|i| seed[(i * (rank + 1) + step) % n]).collect();
                largest(&mut kept[rank], &gradients, block, &mut magnitudes[rank]);
            }
            let all = agreed(&magnitudes);
            let before = kept.clone();
            let mut sent = vec![vec![0; n * dtype.size()]; ranks];
            for rank in 0..ranks {
                grid.round(&mut kept[rank], block, &all, &mut sent[rank]);
            }
            let sums = summed(dtype, &sent);
            let mut mean = vec![0f32; n];
            grid.mean(&sums, block, &all, &mut mean);
            for i in 0..n {
                let most = &all[i / block * 2..][..2];
                let most = bf16::from_le_bytes([most[0], most[1]]).to_f32();
                let scale = most / grid.top();
                let exact: f64 = (0..ranks).map(|rank| numbers(dtype, &sent[rank])[i]).sum();
                for rank in 0..ranks {
                    let q = numbers(dtype, &sent[rank])[i];
                    prop_assert!(q.abs() <= f64::from(grid.top()));
                    if scale < f32::MIN_POSITIVE {
                        prop_assert_eq!((q, kept[rank][i]), (0.0, before[rank][i]));
                        continue;
                    }
                    let x = f64::from(before[rank][i]) / f64::from(scale);
                    let bound = error_bound(&grid, x) * 1.001 + 1e-5 * x.abs();
                    prop_assert!((q - x).abs() <= bound, "{} for {} of {:?}", q, x, grid);
                    let left = f64::from(before[rank][i]) - q * f64::from(scale);
                    let slack = f64::from(most) * 1e-6 * f64::from(grid.top());
                    prop_assert!((f64::from(kept[rank][i]) - left).abs() <= slack);
                }
                // Integers do not round, bfloat16 rounds once.
                let expected = exact * f64::from(scale) / ranks as f64;
                let rounding = if kind < 2 { 1e-6 } else { 1.0 / 256.0 };
                if scale >= f32::MIN_POSITIVE && most < 1e37 {
                    let wrong = (f64::from(mean[i]) - expected).abs();
                    prop_assert!(wrong <= expected.abs() * rounding + 1e-44, "{} {}", mean[i], expected);
                }
            }
        }
    }
}

#[test]
fn a_block_with_a_value_that_is_not_finite_is_nan_everywhere_and_leaves_nothing() {
    for dtype in DTYPES {
        let grid = Grid::new(dtype, 3).unwrap();
        for odd in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN, f32::MAX] {
            let mut kept = [0.5, 0.25, 0.0, 1.0];
            let mut magnitudes = [0; 4];
            largest(&mut kept, &[0.0, odd, 0.0, 0.0], 2, &mut magnitudes);
            let mut out = vec![0; 4 * dtype.size()];
            grid.round(&mut kept, 2, &magnitudes, &mut out);
            let mut mean = [0.0; 4];
            grid.mean(&out, 2, &magnitudes, &mut mean);
            assert!(mean[0].is_nan() && mean[1].is_nan() && mean[3] > 0.3, "{dtype} {mean:?}");
            assert_eq!(kept[..3], [0.0; 3], "{dtype}");
        }
    }
}

#[test]
fn as_many_ranks_can_add_as_the_sums_have_room_for() {
    let top = |dtype, ranks| Grid::new(dtype, ranks).map(|grid| grid.top());
    assert_eq!(
        [1, 4, 8, 127, 128].map(|n| top(Dtype::I8, n)).map(|t| t.unwrap_or(0.0)),
        [127.0, 31.0, 15.0, 1.0, 0.0]
    );
    assert_eq!(
        [1, 258, 259].map(|n| top(Dtype::I16FromI8, n)),
        [Some(127.0), Some(127.0), Some(126.0)]
    );
    assert_eq!([1, 8, 9362].map(|n| top(Dtype::Bf16FromE4m3, n)), [Some(448.0); 3]);
    assert_eq!(
        [8, 73, 74, 128].map(|n| top(Dtype::Bf16FromE5m2, n).unwrap()),
        [57_344.0, 57_344.0, 49_152.0, 28_672.0]
    );
    assert_eq!(top(Dtype::F32, 2), None);
    for ranks in 1..3000u32 {
        for (dtype, unit, most) in [
            (Dtype::I8, 1.0, 127.0),
            (Dtype::I16FromI8, 1.0, 32_767.0),
            (Dtype::Bf16FromE5m2, 512.0, 2147483647.0),
        ] {
            let top = top(dtype, ranks).unwrap_or(0.0);
            assert!(f64::from(top) * unit * f64::from(ranks) <= most, "{dtype} {ranks}");
        }
    }
}
