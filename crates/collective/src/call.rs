//! What was called: the words for people, and the fingerprint by which ranks see that they agree.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use netsum_wire::{Dtype, ReduceOp};

/// How a caller wants elements combined.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Combine {
    /// As the wire knows it.
    Plain(ReduceOp),
    /// A sum, divided by the number of ranks in it.
    Average,
    /// Every rank's values times its own factor, then a sum.
    ScaledSum(f64),
}

impl Combine {
    /// What travels.
    pub fn reduce_op(self) -> ReduceOp {
        match self {
            Combine::Plain(op) => op,
            Combine::Average | Combine::ScaledSum(_) => ReduceOp::Sum,
        }
    }
}

impl Combine {
    /// What ranks must agree on; factors may differ.
    fn code(self) -> u64 {
        match self {
            Combine::Plain(op) => op as u64,
            Combine::Average => 100,
            Combine::ScaledSum(_) => 101,
        }
    }
}

impl fmt::Display for Combine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Combine::Plain(op) => f.write_str(op.name()),
            Combine::Average => f.write_str("avg"),
            Combine::ScaledSum(_) => f.write_str("premul_sum"),
        }
    }
}

/// One collective as a rank called it: made for every operation, put in words only for errors.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    Allreduce {
        dtype: Dtype,
        numel: u64,
        how: Combine,
    },
    Reduce {
        dtype: Dtype,
        numel: u64,
        how: Combine,
        root: u32,
    },
    ReduceScatter {
        dtype: Dtype,
        counts: Arc<[u64]>,
        how: Combine,
    },
    Broadcast {
        bytes: u64,
        root: u32,
    },
    Allgather {
        sizes: Arc<[u64]>,
    },
    /// Only the root knows all sizes.
    Rooted {
        name: &'static str,
        root: u32,
        bytes: u64,
    },
    /// Every rank has its own sizes, or none.
    Bare {
        name: &'static str,
        bytes: u64,
    },
}

impl Call {
    /// Bytes of this rank's buffers.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Call::Allreduce { dtype, numel, .. } | Call::Reduce { dtype, numel, .. } => {
                numel * dtype.size() as u64
            }
            Call::ReduceScatter { dtype, counts, .. } => {
                counts.iter().sum::<u64>() * dtype.size() as u64
            }
            Call::Allgather { sizes } => sizes.iter().sum(),
            Call::Broadcast { bytes, .. }
            | Call::Rooted { bytes, .. }
            | Call::Bare { bytes, .. } => *bytes,
        }
    }

    /// Of the elements that are combined.
    pub(crate) fn dtype(&self) -> Option<Dtype> {
        match self {
            Call::Allreduce { dtype, .. }
            | Call::Reduce { dtype, .. }
            | Call::ReduceScatter { dtype, .. } => Some(*dtype),
            Call::Broadcast { .. }
            | Call::Allgather { .. }
            | Call::Rooted { .. }
            | Call::Bare { .. } => None,
        }
    }

    /// Equal for calls that agree: of what ranks must agree on, and so of what `Display` writes.
    pub(crate) fn fingerprint(&self) -> u32 {
        let elements = |dtype: Dtype, how: Combine| dtype as u64 | how.code() << 8;
        let mut hash = Hash::default();
        match self {
            Call::Allreduce { dtype, numel, how } => {
                hash.add(1).add(elements(*dtype, *how)).add(*numel);
            }
            Call::Reduce { dtype, numel, how, root } => {
                hash.add(2).add(elements(*dtype, *how)).add(*numel).add(u64::from(*root));
            }
            Call::ReduceScatter { dtype, counts, how } => {
                hash.add(3).add(elements(*dtype, *how)).add_all(counts);
            }
            Call::Broadcast { bytes, root } => {
                hash.add(4).add(*bytes).add(u64::from(*root));
            }
            Call::Allgather { sizes } => {
                hash.add(5).add_all(sizes);
            }
            Call::Rooted { name, root, .. } => {
                hash.add(6).add_name(name).add(u64::from(*root));
            }
            Call::Bare { name, .. } => {
                hash.add(7).add_name(name);
            }
        }
        hash.finish()
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Allreduce { dtype, numel, how } => write!(f, "allreduce {dtype}[{numel}] {how}"),
            Call::Reduce { dtype, numel, how, root } => {
                write!(f, "reduce {dtype}[{numel}] {how} to rank {root}")
            }
            Call::ReduceScatter { dtype, counts, how } => {
                write!(f, "reduce_scatter {dtype}{} {how}", Sizes(counts))
            }
            Call::Broadcast { bytes, root } => {
                write!(f, "broadcast of {bytes} bytes from rank {root}")
            }
            Call::Allgather { sizes } => write!(f, "allgather of {} bytes", Sizes(sizes)),
            Call::Rooted { name, root, .. } => write!(f, "{name} with root {root}"),
            Call::Bare { name, .. } => f.write_str(name),
        }
    }
}

/// FNV-1a over words in place of bytes, folded to 32 bits.
struct Hash(u64);

impl Default for Hash {
    fn default() -> Hash {
        Hash(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    fn add(&mut self, word: u64) -> &mut Hash {
        self.0 = (self.0 ^ word).wrapping_mul(0x0100_0000_01b3);
        self
    }

    fn add_all(&mut self, words: &[u64]) -> &mut Hash {
        words.iter().fold(self.add(words.len() as u64), |hash, &word| hash.add(word))
    }

    fn add_name(&mut self, name: &str) -> &mut Hash {
        name.bytes().fold(self, |hash, byte| hash.add(u64::from(byte)))
    }

    fn finish(&self) -> u32 {
        // Multiplication carries upwards: the high half depends on all words, the low half on low bits alone.
        (self.0 >> 32) as u32 ^ self.0 as u32
    }
}

/// Sizes, short where they are equal: `[4×100]`, `[1,2,3]`.
struct Sizes<'a>(&'a [u64]);

impl fmt::Display for Sizes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [first, rest @ ..] if rest.iter().all(|size| size == first) => {
                write!(f, "[{}×{first}]", self.0.len())
            }
            sizes => {
                f.write_char('[')?;
                for (i, size) in sizes.iter().enumerate() {
                    let comma = if i == 0 { "" } else { "," };
                    write!(f, "{comma}{size}")?;
                }
                f.write_char(']')
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_agree_have_one_fingerprint() {
        let call = |n, how| Call::Allreduce { dtype: Dtype::F32, numel: n, how };
        let sum = Combine::Plain(ReduceOp::Sum);
        assert_eq!(call(9, sum).to_string(), "allreduce float32[9] sum");
        assert_eq!(call(9, sum).bytes(), 36);
        assert_eq!(call(9, sum).fingerprint(), call(9, sum).fingerprint());
        assert_ne!(call(9, sum).fingerprint(), call(8, sum).fingerprint());
        assert_ne!(call(9, sum).fingerprint(), call(9, Combine::Average).fingerprint());
        let (mine, theirs) = (Combine::ScaledSum(0.5), Combine::ScaledSum(2.0));
        assert_eq!(call(9, mine).fingerprint(), call(9, theirs).fingerprint());
    }

    #[test]
    fn neighbouring_calls_have_different_fingerprints() {
        let mut calls = vec![Call::Bare { name: "barrier", bytes: 0 }];
        calls.extend((0..2000).map(|bytes| Call::Broadcast { bytes, root: 0 }));
        calls.extend((0..2000).map(|root| Call::Broadcast { bytes: 8, root: root + 1 }));
        for dtype in Dtype::ALL {
            for op in ReduceOp::ALL {
                let how = Combine::Plain(op);
                calls.extend([1, 2, 1 << 40].map(|numel| Call::Allreduce { dtype, numel, how }));
            }
        }
        let all: std::collections::HashSet<u32> = calls.iter().map(Call::fingerprint).collect();
        assert_eq!(all.len(), calls.len());
    }

    #[test]
    fn sizes_are_short_where_they_can_be() {
        let allgather = |sizes: &[u64]| Call::Allgather { sizes: sizes.into() }.to_string();
        assert_eq!(allgather(&[4, 4]), "allgather of [2×4] bytes");
        assert_eq!(allgather(&[4, 5]), "allgather of [4,5] bytes");
    }
}
