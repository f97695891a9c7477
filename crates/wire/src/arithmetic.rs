//! Combinations of 32-bit integers in the slots of a switch.
//!
//! All four combinations are commutative and, except for saturation, associative: the bits of a sum do not depend on
//! the order of arrival. A sum that saturates is marked, and is then not used.

/// Type of a fragment's elements, and how they combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Arithmetic {
    /// int32 that represent reals (`fixed`): addition that saturates and reports it.
    Saturating = 0,
    /// int32: addition modulo 2³².
    Wrapping = 1,
    /// int32: minimum.
    Min = 2,
    /// int32: maximum.
    Max = 3,
    /// float32, which no slot can add: the server adds them by rank.
    Float = 4,
}

impl Arithmetic {
    /// All values, in code order.
    pub const ALL: [Arithmetic; 5] = [
        Arithmetic::Saturating,
        Arithmetic::Wrapping,
        Arithmetic::Min,
        Arithmetic::Max,
        Arithmetic::Float,
    ];

    /// Bytes per element.
    pub const ELEMENT_BYTES: usize = 4;

    /// Whether a slot can combine the elements.
    pub const fn in_slots(self) -> bool {
        !matches!(self, Arithmetic::Float)
    }

    pub(crate) fn from_code(code: u8) -> Option<Arithmetic> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Combines `values` into `sum`, element by element; true if an element saturated.
    ///
    /// Both are little-endian, of any alignment; the shorter one's elements are combined. Panics for
    /// `Float`, whose order of additions a slot could not keep.
    #[inline]
    pub fn combine(self, sum: &mut [u8], values: &[u8]) -> bool {
        match self {
            Arithmetic::Saturating => saturating(sum, values),
            Arithmetic::Wrapping => each(sum, values, i32::wrapping_add),
            Arithmetic::Min => each(sum, values, i32::min),
            Arithmetic::Max => each(sum, values, i32::max),
            Arithmetic::Float => panic!("floats are added by rank, by the server"),
        }
    }
}

fn saturating(sum: &mut [u8], values: &[u8]) -> bool {
    let mut signs = 0;
    for (a, b) in sum.as_chunks_mut().0.iter_mut().zip(values.as_chunks().0) {
        let (x, y) = (i32::from_le_bytes(*a), i32::from_le_bytes(*b));
        let wrapped = x.wrapping_add(y);
        // The sign bit is set exactly if both inputs have the sign that the sum has not.
        let overflow = (x ^ wrapped) & (y ^ wrapped);
        let limit = (x >> 31) ^ i32::MAX;
        signs |= overflow;
        *a = (if overflow < 0 { limit } else { wrapped }).to_le_bytes();
    }
    signs < 0
}

#[inline(always)]
fn each(sum: &mut [u8], values: &[u8], combine: impl Fn(i32, i32) -> i32) -> bool {
    for (a, b) in sum.as_chunks_mut().0.iter_mut().zip(values.as_chunks().0) {
        *a = combine(i32::from_le_bytes(*a), i32::from_le_bytes(*b)).to_le_bytes();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(values: &[i32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    proptest! {
        /// The oracle adds in 64 bits, without overflow.
        #[test]
        fn combinations_are_exact(
            pairs in prop::collection::vec((any::<i32>(), any::<i32>()), 1..40),
            near in any::<bool>(),
        ) {
            let edge = |v: i32| if near { i32::MAX - (v & 7) } else { v };
            let (a, b): (Vec<i32>, Vec<i32>) = pairs.iter().map(|&(x, y)| (edge(x), y)).unzip();
            let wide = |f: fn(i64, i64) -> i64| -> Vec<i64> {
                a.iter().zip(&b).map(|(&x, &y)| f(x.into(), y.into())).collect()
            };
            let sums = wide(|x, y| x + y);
            let clamp = |v: &i64| (*v).clamp(i32::MIN.into(), i32::MAX.into()) as i32;
            let cases: [(Arithmetic, Vec<i32>); 4] = [
                (Arithmetic::Saturating, sums.iter().map(clamp).collect()),
                (Arithmetic::Wrapping, sums.iter().map(|&v| v as i32).collect()),
                (Arithmetic::Min, wide(i64::min).iter().map(clamp).collect()),
                (Arithmetic::Max, wide(i64::max).iter().map(clamp).collect()),
            ];
            for (arithmetic, expected) in cases {
                let mut sum = bytes(&a);
                let saturated = arithmetic.combine(&mut sum, &bytes(&b));
                prop_assert_eq!(&sum, &bytes(&expected), "{:?}", arithmetic);
                let saturates = sums.iter().any(|v| i32::try_from(*v).is_err());
                prop_assert_eq!(saturated, saturates && arithmetic == Arithmetic::Saturating);
            }
        }
    }
}
