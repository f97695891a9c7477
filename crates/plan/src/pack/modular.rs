//! Linear systems over the rationals, solved in prime fields: integers, no rounding.

use netsum_topo::Ratio;

/// The solution of a `k` × `k` system (rows of `matrix`) if it has one with numerators and denominators below 2⁶⁰. The
/// caller must check that it solves the system.
pub(super) fn solve(matrix: &[i64], right: &[i64], k: usize) -> Option<Vec<Ratio>> {
    let first = eliminate(matrix, right, k, P)?;
    let small: Option<Vec<Ratio>> =
        first.iter().map(|&value| fraction(value.into(), P.into(), 1 << 30)).collect();
    small.or_else(|| {
        let second = eliminate(matrix, right, k, Q)?;
        // Combines both residues into one modulo P·Q.
        let inverse = power(P % Q, Q - 2, Q);
        let joined = first.iter().zip(second).map(|(&a, b)| {
            let difference = (b + Q - a % Q) % Q;
            i128::from(a) + i128::from(P) * i128::from(multiply(difference, inverse, Q))
        });
        joined.map(|value| fraction(value, i128::from(P) * i128::from(Q), 1 << 60)).collect()
    })
}

/// Gauss and Jordan modulo `p`; `None` if the matrix is singular there.
fn eliminate(matrix: &[i64], right: &[i64], k: usize, p: u64) -> Option<Vec<u64>> {
    let width = k + 1;
    let mut rows: Vec<u64> = Vec::with_capacity(k * width);
    for i in 0..k {
        rows.extend(matrix[i * k..(i + 1) * k].iter().map(|&value| field(value, p)));
        rows.push(field(right[i], p));
    }
    for column in 0..k {
        let pivot = (column..k).find(|&i| rows[i * width + column] != 0)?;
        for j in column..width {
            rows.swap(pivot * width + j, column * width + j);
        }
        let inverse = power(rows[column * width + column], p - 2, p);
        // Most entries stay 0: only the others are updated.
        let lead: Vec<(usize, u64)> = (column..width)
            .filter(|&j| rows[column * width + j] != 0)
            .map(|j| (j, multiply(rows[column * width + j], inverse, p)))
            .collect();
        lead.iter().for_each(|&(j, value)| rows[column * width + j] = value);
        for i in (0..k).filter(|&i| i != column) {
            let factor = rows[i * width + column];
            if factor != 0 {
                for &(j, value) in &lead {
                    let less = multiply(factor, value, p);
                    let entry = &mut rows[i * width + j];
                    *entry = if *entry >= less { *entry - less } else { *entry + p - less };
                }
            }
        }
    }
    Some((0..k).map(|i| rows[i * width + k]).collect())
}

fn field(value: i64, p: u64) -> u64 {
    value.rem_euclid(p as i64) as u64
}

fn multiply(a: u64, b: u64, p: u64) -> u64 {
    (u128::from(a) * u128::from(b) % u128::from(p)) as u64
}

fn power(mut base: u64, mut exponent: u64, p: u64) -> u64 {
    let mut result = 1;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = multiply(result, base, p);
        }
        base = multiply(base, base, p);
        exponent >>= 1;
    }
    result
}

/// The fraction with parts below `most` that equals `value` modulo `p` (Wang's reconstruction).
fn fraction(value: i128, p: i128, most: i128) -> Option<Ratio> {
    let (mut r0, mut r1) = (p, value);
    let (mut t0, mut t1) = (0i128, 1i128);
    while r1 >= most {
        let quotient = r0 / r1;
        (r0, r1) = (r1, r0 - quotient * r1);
        (t0, t1) = (t1, t0 - quotient * t1);
    }
    (t1 != 0 && t1.abs() < most).then(|| Ratio::new(r1, t1))
}

/// Two primes below 2⁶².
const P: u64 = (1 << 61) - 1;
const Q: u64 = (1 << 62) - 57;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn solutions_solve(entries in prop::collection::vec(-9i64..9, 25), right in prop::collection::vec(-999i64..999, 5)) {
            if let Some(found) = solve(&entries, &right, 5) {
                for i in 0..5 {
                    let sum: Ratio = (0..5).map(|j| Ratio::from(entries[5 * i + j]) * found[j]).sum();
                    prop_assert_eq!(sum, Ratio::from(right[i]));
                }
            }
        }
    }

    #[test]
    fn large_parts_need_both_primes() {
        let big = 100_000_007i64;
        let found = solve(&[big, 1, 1, big], &[1, 2], 2).unwrap();
        assert_eq!(found[0] * Ratio::from(big) + found[1], Ratio::ONE);
        assert!(found[0].den() > 1 << 30);
    }
}
