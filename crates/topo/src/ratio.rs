//! Exact fractions.

use std::cmp::Ordering;
use std::fmt;
use std::ops::{Add, Div, Mul, Neg, Sub};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A fraction in lowest terms with a positive denominator.
///
/// The operators panic if a numerator or denominator exceeds 127 bits: rates of fabrics in lowest terms and the sizes
/// planned for keep both below 2⁶⁰. Code that computes with untrusted numbers uses [`Ratio::checked_add`] and
/// [`Ratio::checked_mul`]. Comparisons never panic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ratio {
    num: i128,
    den: i128,
}

impl Ratio {
    /// Zero.
    pub const ZERO: Ratio = Ratio { num: 0, den: 1 };
    /// One.
    pub const ONE: Ratio = Ratio { num: 1, den: 1 };

    /// `num` / `den`. Panics if `den` is 0.
    pub fn new(num: i128, den: i128) -> Ratio {
        assert!(den != 0, "a fraction with denominator 0");
        let sign = den.signum();
        let common = gcd(num.unsigned_abs(), den.unsigned_abs()) as i128;
        Ratio { num: sign * num / common, den: sign * den / common }
    }

    /// Numerator, in lowest terms.
    pub fn num(self) -> i128 {
        self.num
    }

    /// Denominator, positive.
    pub fn den(self) -> i128 {
        self.den
    }

    /// An approximation within rounding.
    pub fn to_f64(self) -> f64 {
        self.num as f64 / self.den as f64
    }

    /// The sum; `None` beyond 127 bits.
    pub fn checked_add(self, other: Ratio) -> Option<Ratio> {
        let common = gcd(self.den.unsigned_abs(), other.den.unsigned_abs()) as i128;
        let (left, right) = (other.den / common, self.den / common);
        let sum = self.num.checked_mul(left)?.checked_add(other.num.checked_mul(right)?)?;
        Some(Ratio::new(sum, self.den.checked_mul(left)?))
    }

    /// The product; `None` beyond 127 bits.
    pub fn checked_mul(self, other: Ratio) -> Option<Ratio> {
        let a = Ratio::new(self.num, other.den);
        let b = Ratio::new(other.num, self.den);
        Some(Ratio { num: a.num.checked_mul(b.num)?, den: a.den.checked_mul(b.den)? })
    }

    /// The quotient; `None` beyond 127 bits, or if `other` is 0.
    pub fn checked_div(self, other: Ratio) -> Option<Ratio> {
        (other.num != 0).then(|| Ratio::new(other.den, other.num))?.checked_mul(self)
    }

    /// Whether it is above 0.
    pub fn is_positive(self) -> bool {
        self.num > 0
    }
}

/// Greatest common divisor; of 0 and 0 it is 1.
pub fn gcd(mut a: u128, mut b: u128) -> u128 {
    // Most fractions here are small, and 64-bit division is several times faster.
    while b != 0 {
        if let (Ok(mut x), Ok(mut y)) = (u64::try_from(a), u64::try_from(b)) {
            while y != 0 {
                (x, y) = (y, x % y);
            }
            return u128::from(x.max(1));
        }
        (a, b) = (b, a % b);
    }
    a.max(1)
}

/// Least common multiple, or `None` beyond 127 bits.
pub fn lcm(a: i128, b: i128) -> Option<i128> {
    (a / gcd(a.unsigned_abs(), b.unsigned_abs()) as i128).checked_mul(b)
}

const TOO_LARGE: &str = "fractions stay below 127 bits";

impl From<i64> for Ratio {
    fn from(value: i64) -> Ratio {
        Ratio { num: i128::from(value), den: 1 }
    }
}

impl Add for Ratio {
    type Output = Ratio;
    fn add(self, other: Ratio) -> Ratio {
        self.checked_add(other).expect(TOO_LARGE)
    }
}

impl Neg for Ratio {
    type Output = Ratio;
    fn neg(self) -> Ratio {
        Ratio { num: -self.num, den: self.den }
    }
}

impl Sub for Ratio {
    type Output = Ratio;
    fn sub(self, other: Ratio) -> Ratio {
        self + -other
    }
}

impl Mul for Ratio {
    type Output = Ratio;
    fn mul(self, other: Ratio) -> Ratio {
        self.checked_mul(other).expect(TOO_LARGE)
    }
}

impl Div for Ratio {
    type Output = Ratio;
    fn div(self, other: Ratio) -> Ratio {
        let inverse = Ratio::new(other.den, other.num);
        self.mul(inverse)
    }
}

impl std::iter::Sum for Ratio {
    fn sum<I: Iterator<Item = Ratio>>(iter: I) -> Ratio {
        iter.fold(Ratio::ZERO, Add::add)
    }
}

impl PartialOrd for Ratio {
    fn partial_cmp(&self, other: &Ratio) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ratio {
    fn cmp(&self, other: &Ratio) -> Ordering {
        if self.den == other.den {
            return self.num.cmp(&other.num);
        }
        // Compares as continued fractions: no product can exceed 127 bits.
        let (mut a, mut b) = (*self, *other);
        let mut turned = false;
        loop {
            let whole = |x: Ratio| x.num.div_euclid(x.den);
            let rest = |x: Ratio| x.num.rem_euclid(x.den);
            let digits = whole(a).cmp(&whole(b));
            let order = match (rest(a), rest(b)) {
                _ if digits.is_ne() => digits,
                (0, 0) => Ordering::Equal,
                (0, _) => Ordering::Less,
                (_, 0) => Ordering::Greater,
                (left, right) => {
                    // x < y exactly if 1/x > 1/y.
                    (a, b) = (Ratio { num: a.den, den: left }, Ratio { num: b.den, den: right });
                    turned = !turned;
                    continue;
                }
            };
            return if turned { order.reverse() } else { order };
        }
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.den == 1 {
            write!(f, "{}", self.num)
        } else {
            write!(f, "{}/{}", self.num, self.den)
        }
    }
}

impl std::str::FromStr for Ratio {
    type Err = String;

    /// Reads the output of `Display`: `24/7` or `3`.
    fn from_str(text: &str) -> Result<Ratio, String> {
        let wrong = || format!("{text:?} is no fraction; write it like \"24/7\"");
        let (num, den) = text.split_once('/').unwrap_or((text, "1"));
        let parse = |part: &str| part.parse::<i64>().map_err(|_| wrong());
        let (num, den) = (parse(num)?, parse(den)?);
        if den <= 0 { Err(wrong()) } else { Ok(Ratio::new(num.into(), den.into())) }
    }
}

impl Serialize for Ratio {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Ratio {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Ratio, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sums_and_products_beyond_127_bits_are_none() {
        let tiny = |den: i64| Ratio::new(1, den.into());
        // Three primes just below 2⁶³: their product has 189 bits.
        let [a, b, c] = [i64::MAX - 24, i64::MAX - 164, i64::MAX - 258].map(tiny);
        let two = a.checked_add(b).unwrap();
        assert_eq!((two.checked_add(c), two.checked_mul(c)), (None, None));
        assert!(two > c && a.checked_mul(b).unwrap() < c, "and they compare");
    }

    proptest! {
        #[test]
        fn any_two_compare_like_their_cross_products(
            a in any::<i64>(), b in 1..=i64::MAX, c in any::<i64>(), d in 1..=i64::MAX,
        ) {
            let [a, b, c, d] = [a, b, c, d].map(i128::from);
            prop_assert_eq!(Ratio::new(a, b).cmp(&Ratio::new(c, d)), (a * d).cmp(&(c * b)));
        }

        #[test]
        fn arithmetic_matches_fractions(a in -999i128..999, b in 1i128..99, c in -999i128..999, d in 1i128..99) {
            let (x, y) = (Ratio::new(a, b), Ratio::new(c, d));
            prop_assert_eq!(x + y, Ratio::new(a * d + c * b, b * d));
            prop_assert_eq!(x - y + y, x);
            prop_assert_eq!(x * y, Ratio::new(a * c, b * d));
            prop_assert_eq!(x < y, a * d < c * b);
            prop_assert_eq!(x.to_string().parse(), Ok(x));
            if c != 0 {
                prop_assert_eq!(x / y * y, x);
            }
        }
    }
}
