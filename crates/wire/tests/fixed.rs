//! Quantised sums compared with sums in binary64: within the documented bound, identical in any order, never silently
//! wrong.

use half::{bf16, f16};
use netsum_wire::fixed::{Exponent, Fit, Scale, dequantise, narrow, quantise, widen};
use netsum_wire::{Arithmetic, Dtype};
use proptest::prelude::*;

const EPSILON: f64 = 1.0 / (1 << 24) as f64;

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

fn i32s(bytes: &[u8]) -> Vec<i32> {
    bytes.as_chunks().0.iter().map(|&b| i32::from_le_bytes(b)).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Each worker's integers; `None` if one of them must not be summed.
fn quantised(workers: &[Vec<f32>], scale: Scale) -> Option<Vec<Vec<u8>>> {
    let ranks = workers.len() as u32;
    let each = workers.iter().map(|values| {
        let mut out = vec![0; values.len() * 4];
        let fit = quantise(Dtype::F32, &bytes(values), scale, ranks, &mut out);
        (fit == Fit::Fits).then_some(out)
    });
    each.collect()
}

/// Sums in the order given; panics if an addition saturates, which `Fit::Fits` excludes.
fn sum(parts: &[Vec<u8>], order: impl Iterator<Item = usize>) -> Vec<u8> {
    let mut sum = vec![0; parts[0].len()];
    for i in order {
        assert!(!Arithmetic::Saturating.combine(&mut sum, &parts[i]), "it said that it fits");
    }
    sum
}

/// The documented bound on one element.
fn bound(column: &[f64], scale: Scale, shared: bool) -> f64 {
    let factor = f64::from(scale.factor());
    let largest = column.iter().fold(0.0f64, |m, x| m.max(x.abs())) * factor + 1.0;
    let real: f64 = column.iter().sum();
    let n = column.len() as f64;
    match shared {
        true => n / (2.0 * factor) + EPSILON * (real.abs() + n / (2.0 * factor)),
        false => n * (0.5 + EPSILON * largest) / factor + 2.0 * EPSILON * (real.abs() + n / factor),
    }
}

fn check(workers: &[Vec<f32>], scale: Scale, shared: bool) -> Result<(), TestCaseError> {
    let Some(parts) = quantised(workers, scale) else {
        return Ok(());
    };
    let n = workers.len();
    let total = sum(&parts, 0..n);
    prop_assert_eq!(&total, &sum(&parts, (0..n).rev()));
    let mut out = vec![0; total.len()];
    dequantise(Dtype::F32, &total, scale, &mut out);
    for (i, got) in f32s(&out).into_iter().enumerate() {
        let column: Vec<f64> = workers.iter().map(|w| f64::from(w[i])).collect();
        let (error, bound) =
            ((f64::from(got) - column.iter().sum::<f64>()).abs(), bound(&column, scale, shared));
        prop_assert!(error <= bound, "element {i}: {error} > {bound} for {column:?}");
    }
    Ok(())
}

/// Workers' values of similar size, `spread` binary orders apart.
fn gradients() -> impl Strategy<Value = Vec<Vec<f32>>> {
    (1..=40usize, 1..=33usize, -40..40i32, 0..12i32).prop_flat_map(|(ranks, len, order, spread)| {
        let value = (-1.0..1.0f32, 0..=spread).prop_map(move |(x, s)| x * 2f32.powi(order - s));
        prop::collection::vec(prop::collection::vec(value, len), ranks)
    })
}

proptest! {
    #[test]
    fn the_papers_scale_keeps_its_bound(workers in gradients()) {
        check(&workers, Scale::PAPER, false)?;
    }

    #[test]
    fn a_shared_exponent_always_fits_and_keeps_its_bound(workers in gradients()) {
        let exponent = workers.iter().map(|w| Exponent::of(Dtype::F32, &bytes(w))).max().unwrap();
        let scale = Scale::shared(exponent, workers.len() as u32).unwrap();
        prop_assert!(quantised(&workers, scale).is_some(), "{exponent:?} {scale:?}");
        check(&workers, scale, true)?;
        let largest = workers.iter().flatten().fold(0f32, |m, x| m.max(x.abs()));
        prop_assert!(f64::from(largest) < 2f64.powi(exponent.to_wire()));
        // No larger power of two would be safe for every fragment with this exponent.
        let sum_of_bounds = 2f64.powi(exponent.to_wire()) * workers.len() as f64;
        let used = sum_of_bounds * f64::from(scale.factor());
        prop_assert!((2f64.powi(29)..=2f64.powi(30)).contains(&used) || scale.factor() > 1e37);
    }

    /// Arbitrary bits: values that are not refused are rounded exactly as the standard's conversion does.
    #[test]
    fn integers_are_the_nearest_ones(
        patterns in prop::collection::vec(any::<u32>(), 1..50), power in -30..30i32, ranks in 1..1025u32,
    ) {
        let scale = Scale::new(2f32.powi(power)).unwrap();
        for pattern in patterns {
            let x = f32::from_bits(pattern);
            let mut out = [0; 4];
            let fit = quantise(Dtype::F32, &x.to_le_bytes(), scale, ranks, &mut out);
            let y = f64::from(x) * f64::from(scale.factor());
            let most = f64::from(i32::MAX / ranks as i32);
            match fit {
                Fit::Fits => {
                    prop_assert_eq!(f64::from(i32::from_le_bytes(out)), y.round_ties_even());
                    prop_assert!(y.abs() <= most);
                }
                Fit::Overflows => {
                    prop_assert!(y.is_nan() || y.abs() > most * 0.999 - 2.0, "{x} fits");
                }
            }
        }
    }
}

#[test]
fn ties_go_to_even_on_both_halves() {
    for y in [0.5, 1.5, 2.5, -0.5, -1.5, 32767.5, 32768.5, 65535.5, 65536.5, -98304.5, 8388606.5] {
        let mut out = [0; 4];
        let scale = Scale::new(1.0).unwrap();
        assert_eq!(quantise(Dtype::F32, &f32::to_le_bytes(y), scale, 1, &mut out), Fit::Fits);
        assert_eq!(i32::from_le_bytes(out), y.round_ties_even() as i32, "{y}");
    }
}

#[test]
fn values_that_are_not_finite_or_too_large_are_refused() {
    for x in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 21.5, -21.5, f32::MAX] {
        let fit = quantise(Dtype::F32, &bytes(&[0.0, x, 1.0]), Scale::PAPER, 1, &mut [0; 12]);
        assert_eq!(fit, Fit::Overflows, "{x}");
    }
    let fit = |x: f32, ranks| quantise(Dtype::F32, &bytes(&[x]), Scale::PAPER, ranks, &mut [0; 4]);
    assert_eq!(fit(21.47, 1), Fit::Fits, "the paper's bound");
    assert_eq!(
        fit(21.47, 2),
        Fit::Overflows,
        "two such values do not fit, whatever the others are"
    );
    assert_eq!(Exponent::of(Dtype::F32, &bytes(&[1.0, f32::NAN])), Exponent::NOT_FINITE);
    assert_eq!(Scale::shared(Exponent::NOT_FINITE, 4), None);
}

#[test]
fn exponents_of_the_extremes() {
    let of = |x: f32| Exponent::of(Dtype::F32, &bytes(&[x]));
    assert_eq!(of(0.0), of(f32::MIN_POSITIVE / 2.0));
    assert_eq!(of(1.0).to_wire(), 1);
    assert_eq!(of(f32::MAX).to_wire(), 128);
    for value in [of(0.0), of(1.0), of(f32::MAX), Exponent::NOT_FINITE] {
        assert_eq!(Exponent::from_wire(value.to_wire()), value);
    }
    assert_eq!(Exponent::from_wire(-5000), Exponent::NOT_FINITE, "no fragment has this one");
}

#[test]
fn scales_that_would_round_badly_are_refused() {
    for factor in [0.0, -1.0, f32::NAN, f32::INFINITY, f32::MIN_POSITIVE / 2.0, f32::MAX] {
        assert_eq!(Scale::new(factor), None, "{factor}");
    }
}

#[test]
fn half_precision_travels_both_ways() {
    let values = [1.5f32, -0.25, 0.0, 3.0];
    let f16s: Vec<u8> = values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect();
    let bf16s: Vec<u8> = values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
    for (dtype, elements) in [(Dtype::F16, f16s), (Dtype::Bf16, bf16s)] {
        let mut integers = vec![0; 16];
        let scale = Scale::shared(Exponent::of(dtype, &elements), 2).unwrap();
        assert_eq!(quantise(dtype, &elements, scale, 2, &mut integers), Fit::Fits);
        assert_eq!(i32s(&integers)[1] * -6, i32s(&integers)[0]);
        let mut back = vec![0; elements.len()];
        dequantise(dtype, &integers, scale, &mut back);
        assert_eq!(back, elements);
        let mut wide = vec![0; 16];
        widen(dtype, &elements, &mut wide);
        assert_eq!(f32s(&wide), values);
        narrow(dtype, &wide, &mut back);
        assert_eq!(back, elements);
    }
}
