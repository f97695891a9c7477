//! Sums of inputs, as the contributions that they consist of.

use std::collections::BTreeMap;
use std::fmt;

/// How often the values of each rank's pieces are in a sum.
///
/// A sum has one form, so that equal sums are equal values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Sum {
    /// The same piece of some ranks (as bits), each once.
    Once(u64, Vec<u64>),
    /// Any other: by rank and piece.
    Any(BTreeMap<(usize, u64), u64>),
}

impl Sum {
    /// No contribution.
    pub(super) fn nothing() -> Sum {
        Sum::Any(BTreeMap::new())
    }

    /// One piece of each of some ranks, of `ranks` in all.
    pub(super) fn once(ranks: usize, of: impl IntoIterator<Item = usize>, piece: u64) -> Sum {
        let mut bits = vec![0; ranks.div_ceil(64)];
        of.into_iter().for_each(|rank| bits[rank / 64] |= 1 << (rank % 64));
        Sum::Once(piece, bits)
    }

    /// Adds the contributions of another sum.
    pub(super) fn add(&mut self, more: &Sum) {
        if let (Sum::Once(piece, bits), Sum::Once(other, others)) = (&mut *self, more)
            && piece == other
            && bits.iter().zip(others).all(|(a, b)| a & b == 0)
        {
            bits.iter_mut().zip(others).for_each(|(a, b)| *a |= b);
            return;
        }
        let mut terms = self.terms();
        for (term, times) in more.terms() {
            *terms.entry(term).or_insert(0) += times;
        }
        *self = Sum::Any(terms);
    }

    fn terms(&self) -> BTreeMap<(usize, u64), u64> {
        match self {
            Sum::Any(terms) => terms.clone(),
            Sum::Once(piece, bits) => {
                let set = |&rank: &usize| bits[rank / 64] >> (rank % 64) & 1 == 1;
                (0..64 * bits.len()).filter(set).map(|rank| ((rank, *piece), 1)).collect()
            }
        }
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terms = self.terms();
        if terms.is_empty() {
            return f.write_str("nothing");
        }
        for (index, ((rank, piece), times)) in terms.into_iter().enumerate() {
            let and = if index > 0 { " + " } else { "" };
            write!(f, "{and}{times}×rank {rank}[{piece}]")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn once(ranks: &[usize], piece: u64) -> Sum {
        Sum::once(100, ranks.iter().copied(), piece)
    }

    #[test]
    fn equal_sums_are_equal_however_they_came_about() {
        let mut left = once(&[0, 70], 3);
        left.add(&once(&[5], 3));
        let mut right = once(&[5, 70], 3);
        right.add(&once(&[0], 3));
        assert_eq!(left, right);
        left.add(&once(&[5], 3));
        right.add(&once(&[5], 4));
        assert_ne!(left, right);
        right.add(&once(&[5], 3));
        left.add(&once(&[5], 4));
        assert_eq!(left, right);
        assert_eq!(left.to_string(), "1×rank 0[3] + 2×rank 5[3] + 1×rank 5[4] + 1×rank 70[3]");
        assert_eq!(Sum::nothing().to_string(), "nothing");
    }
}
