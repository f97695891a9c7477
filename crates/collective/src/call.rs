//! The call of a collective: its description, and the fingerprint by which ranks detect disagreement.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use netsum_wire::Dtype;

use crate::combine::Combine;

/// Type of moved elements, if the caller gives it: ranks must agree on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Elements(u8);

impl Elements {
    /// The type with the framework's name, such as `int32` or `complex64`; unknown names are not compared.
    pub fn named(name: &str) -> Elements {
        Elements(ELEMENTS.iter().position(|known| *known == name).unwrap_or(0) as u8)
    }
}

impl fmt::Display for Elements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, " of {}", ELEMENTS[usize::from(self.0)]) }
    }
}

/// The first means unspecified.
const ELEMENTS: [&str; 25] = [
    "",
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex32",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
    "qint8",
    "quint8",
];

/// One collective as a rank called it; created for every operation, formatted for errors only.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    Allreduce {
        dtype: Dtype,
        numel: u64,
        how: Combine,
    },
    /// Of several tensors as one; elements of each.
    AllreduceTogether {
        dtype: Dtype,
        counts: Arc<[u64]>,
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
        elements: Elements,
    },
    Allgather {
        sizes: Arc<[u64]>,
        elements: Elements,
    },
    /// Only the root knows all sizes.
    Rooted {
        name: &'static str,
        root: u32,
        bytes: u64,
        elements: Elements,
    },
    /// Every rank has its own sizes, or none.
    Bare {
        name: &'static str,
        bytes: u64,
        elements: Elements,
    },
}

impl Call {
    pub(crate) fn barrier() -> Call {
        Call::Bare { name: "barrier", bytes: 0, elements: Elements::default() }
    }

    /// Name of the operation.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Call::Allreduce { .. } | Call::AllreduceTogether { .. } => "allreduce",
            Call::Reduce { .. } => "reduce",
            Call::ReduceScatter { .. } => "reduce_scatter",
            Call::Broadcast { .. } => "broadcast",
            Call::Allgather { .. } => "allgather",
            Call::Rooted { name, .. } | Call::Bare { name, .. } => name,
        }
    }

    /// Bytes of this rank's buffers.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Call::Allreduce { dtype, numel, .. } | Call::Reduce { dtype, numel, .. } => {
                numel * dtype.size() as u64
            }
            Call::ReduceScatter { dtype, counts, .. }
            | Call::AllreduceTogether { dtype, counts, .. } => {
                counts.iter().sum::<u64>() * dtype.size() as u64
            }
            Call::Allgather { sizes, .. } => sizes.iter().sum(),
            Call::Broadcast { bytes, .. }
            | Call::Rooted { bytes, .. }
            | Call::Bare { bytes, .. } => *bytes,
        }
    }

    /// Type of the combined elements.
    pub(crate) fn dtype(&self) -> Option<Dtype> {
        match self {
            Call::Allreduce { dtype, .. }
            | Call::AllreduceTogether { dtype, .. }
            | Call::Reduce { dtype, .. }
            | Call::ReduceScatter { dtype, .. } => Some(*dtype),
            Call::Broadcast { .. }
            | Call::Allgather { .. }
            | Call::Rooted { .. }
            | Call::Bare { .. } => None,
        }
    }

    /// Equal for calls that agree: covers everything that `Display` writes, on which ranks must agree.
    pub(crate) fn fingerprint(&self) -> u32 {
        let elements = |dtype: Dtype, how: Combine| dtype as u64 | how.code() << 8;
        let mut hash = Hash::default();
        match self {
            Call::Allreduce { dtype, numel, how } => {
                hash.add(1).add(elements(*dtype, *how)).add(*numel);
            }
            Call::AllreduceTogether { dtype, counts, how } => {
                hash.add(8).add(elements(*dtype, *how)).add_all(counts);
            }
            Call::Reduce { dtype, numel, how, root } => {
                hash.add(2).add(elements(*dtype, *how)).add(*numel).add(u64::from(*root));
            }
            Call::ReduceScatter { dtype, counts, how } => {
                hash.add(3).add(elements(*dtype, *how)).add_all(counts);
            }
            Call::Broadcast { bytes, root, elements } => {
                hash.add(4).add(*bytes).add(u64::from(*root)).add(u64::from(elements.0));
            }
            Call::Allgather { sizes, elements } => {
                hash.add(5).add_all(sizes).add(u64::from(elements.0));
            }
            Call::Rooted { name, root, elements, .. } => {
                hash.add(6).add_name(name).add(u64::from(*root)).add(u64::from(elements.0));
            }
            Call::Bare { name, elements, .. } => {
                hash.add(7).add_name(name).add(u64::from(elements.0));
            }
        }
        hash.finish()
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Allreduce { dtype, numel, how } => write!(f, "allreduce {dtype}[{numel}] {how}"),
            Call::AllreduceTogether { dtype, counts, how } => {
                // Hundreds of sizes would be a long line; ranks compare these.
                let (tensors, sizes) = (counts.len(), Hash::default().add_all(counts).finish());
                let elements = counts.iter().sum::<u64>();
                write!(
                    f,
                    "allreduce {dtype}[{elements}] {how} of {tensors} tensors (sizes #{sizes:08x})"
                )
            }
            Call::Reduce { dtype, numel, how, root } => {
                write!(f, "reduce {dtype}[{numel}] {how} to rank {root}")
            }
            Call::ReduceScatter { dtype, counts, how } => {
                write!(f, "reduce_scatter {dtype}{} {how}", Sizes(counts))
            }
            Call::Broadcast { bytes, root, elements } => {
                write!(f, "broadcast of {bytes} bytes{elements} from rank {root}")
            }
            Call::Allgather { sizes, elements } => {
                write!(f, "allgather of {} bytes{elements}", Sizes(sizes))
            }
            Call::Rooted { name, root, elements, .. } => {
                write!(f, "{name}{elements} with root {root}")
            }
            Call::Bare { name, elements, .. } => write!(f, "{name}{elements}"),
        }
    }
}

/// FNV-1a over words instead of bytes, folded to 32 bits.
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
        // Carries of multiplication go upwards: the high half depends on all words, the low half on low bits only.
        (self.0 >> 32) as u32 ^ self.0 as u32
    }
}

/// Formats sizes, short if they are equal: `[4×100]`, `[1,2,3]`.
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
    use netsum_wire::ReduceOp;

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
        let mut calls = vec![Call::barrier()];
        let broadcast = |bytes, root, elements| Call::Broadcast { bytes, root, elements };
        calls.extend((0..2000).map(|bytes| broadcast(bytes, 0, Elements::default())));
        calls.extend((0..2000).map(|root| broadcast(8, root + 1, Elements::default())));
        calls.extend(ELEMENTS[1..].iter().map(|name| broadcast(8, 0, Elements::named(name))));
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
        let allgather = |sizes: &[u64], name| {
            Call::Allgather { sizes: sizes.into(), elements: Elements::named(name) }.to_string()
        };
        assert_eq!(allgather(&[4, 4], ""), "allgather of [2×4] bytes");
        assert_eq!(allgather(&[4, 5], "no such type"), "allgather of [4,5] bytes");
        assert_eq!(allgather(&[4, 8], "int32"), "allgather of [4,8] bytes of int32");
    }
}
