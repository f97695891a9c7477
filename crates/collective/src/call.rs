//! What was called: the words for people, and the fingerprint by which ranks see that they agree.

use std::fmt::{self, Write as _};

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

impl fmt::Display for Combine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Combine::Plain(op) => f.write_str(op.name()),
            Combine::Average => f.write_str("avg"),
            Combine::ScaledSum(_) => f.write_str("premul_sum"),
        }
    }
}

/// One collective as a rank called it. What ranks must agree on is in `agreed`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    /// As "allreduce float32[1000] sum".
    agreed: String,
    /// Bytes of this rank's buffers.
    pub(crate) bytes: u64,
}

impl Call {
    pub(crate) fn allreduce(dtype: Dtype, numel: u64, how: Combine) -> Call {
        let bytes = numel * dtype.size() as u64;
        Call { agreed: format!("allreduce {dtype}[{numel}] {how}"), bytes }
    }

    pub(crate) fn reduce(dtype: Dtype, numel: u64, how: Combine, root: u32) -> Call {
        let bytes = numel * dtype.size() as u64;
        Call { agreed: format!("reduce {dtype}[{numel}] {how} to rank {root}"), bytes }
    }

    pub(crate) fn reduce_scatter(dtype: Dtype, counts: &[u64], how: Combine) -> Call {
        let bytes = counts.iter().sum::<u64>() * dtype.size() as u64;
        Call { agreed: format!("reduce_scatter {dtype}{} {how}", Sizes(counts)), bytes }
    }

    pub(crate) fn broadcast(bytes: u64, root: u32) -> Call {
        Call { agreed: format!("broadcast of {bytes} bytes from rank {root}"), bytes }
    }

    pub(crate) fn allgather(sizes: &[u64]) -> Call {
        let agreed = format!("allgather of {} bytes", Sizes(sizes));
        Call { agreed, bytes: sizes.iter().sum() }
    }

    /// Only the root knows all sizes.
    pub(crate) fn rooted(name: &str, root: u32, bytes: u64) -> Call {
        Call { agreed: format!("{name} with root {root}"), bytes }
    }

    /// Every rank has its own sizes, or none.
    pub(crate) fn bare(name: &str, bytes: u64) -> Call {
        Call { agreed: name.to_owned(), bytes }
    }

    /// Equal for calls that agree.
    pub(crate) fn fingerprint(&self) -> u32 {
        // FNV-1a.
        let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        self.agreed.bytes().fold(0x811c_9dc5, step)
    }

    /// For errors: with number and bytes.
    pub(crate) fn describe(&self, sequence: u64) -> String {
        format!("{self} (operation #{sequence}, {} bytes)", self.bytes)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.agreed)
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
        let call = |n, how| Call::allreduce(Dtype::F32, n, how);
        let sum = Combine::Plain(ReduceOp::Sum);
        assert_eq!(call(9, sum).describe(17), "allreduce float32[9] sum (operation #17, 36 bytes)");
        assert_eq!(call(9, sum).fingerprint(), call(9, sum).fingerprint());
        assert_ne!(call(9, sum).fingerprint(), call(8, sum).fingerprint());
        assert_ne!(call(9, sum).fingerprint(), call(9, Combine::Average).fingerprint());
        let (mine, theirs) = (Combine::ScaledSum(0.5), Combine::ScaledSum(2.0));
        assert_eq!(call(9, mine).fingerprint(), call(9, theirs).fingerprint());
    }

    #[test]
    fn sizes_are_short_where_they_can_be() {
        assert_eq!(Call::allgather(&[4, 4]).to_string(), "allgather of [2×4] bytes");
        assert_eq!(Call::allgather(&[4, 5]).to_string(), "allgather of [4,5] bytes");
    }
}
