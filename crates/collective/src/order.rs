//! Sums in the order of a plan, on host memory: bit-identical with the trees.

use std::ops::Range;

use netsum_topo::SumOrder;
use netsum_wire::{Encoding, Format, Input, reduce};
use smallvec::SmallVec;

/// Adds the ranks' pieces in a given order. 16-bit floats are carried as float32 from node to node and rounded once, at
/// the root, as on the trees.
pub(crate) struct Adder {
    format: Format,
    /// Encoding of the pieces.
    from: Encoding,
    /// Encoding of the sum.
    to: Encoding,
    /// Nodes, children before their parents; the root last.
    nodes: Vec<Node>,
}

struct Node {
    sources: Vec<Source>,
    /// A block of this node's partial; unused at the root.
    partial: Vec<u8>,
}

#[derive(Clone, Copy)]
enum Source {
    Rank(usize),
    Node(usize),
}

impl Adder {
    /// An adder from elements to elements.
    pub(crate) fn new(order: &SumOrder, format: Format) -> Adder {
        Adder::between(order, format, Encoding::Element, Encoding::Element)
    }

    /// An adder for a part of a larger sum, with partials as `Encoding::Accumulator`.
    pub(crate) fn between(order: &SumOrder, format: Format, from: Encoding, to: Encoding) -> Adder {
        let mut adder = Adder { format, from, to, nodes: Vec::new() };
        if let Source::Rank(only) = adder.place(order, true) {
            adder.node(vec![Source::Rank(only)], true);
        }
        adder
    }

    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// Adds all `pieces` (by rank, each of at least as many elements as `out`) into `out`.
    pub(crate) fn add(&mut self, pieces: &[&[u8]], out: &mut [u8]) {
        let size = self.to.size(self.format.dtype);
        // A single node needs no partials, and therefore no blocks that fit the cache.
        let step = if self.nodes.len() == 1 { (out.len() / size).max(1) } else { BLOCK };
        for (index, block) in out.chunks_mut(step * size).enumerate() {
            let elements = index * step..index * step + block.len() / size;
            self.block(pieces, elements, block);
        }
    }

    fn block(&mut self, pieces: &[&[u8]], elements: Range<usize>, out: &mut [u8]) {
        let n = elements.len();
        let (from, to, size) = (self.from, self.to, self.from.size(self.format.dtype));
        let bytes = elements.start * size..elements.end * size;
        let root = self.nodes.len() - 1;
        for at in 0..=root {
            let (below, rest) = self.nodes.split_at_mut(at);
            let Node { sources, partial } = &mut rest[0];
            let input = |source: &Source| match *source {
                Source::Rank(rank) => {
                    let bytes = &pieces[rank][bytes.clone()];
                    Some(Input { bytes, encoding: from })
                }
                Source::Node(node) => {
                    let bytes = &below[node].partial[..];
                    Some(Input { bytes, encoding: Encoding::Accumulator })
                }
            };
            let inputs: SmallVec<[_; 8]> = sources.iter().map(input).collect();
            match at == root {
                true => reduce(self.format, &inputs, n, out, to),
                false => reduce(self.format, &inputs, n, partial, Encoding::Accumulator),
            }
        }
    }

    fn place(&mut self, order: &SumOrder, root: bool) -> Source {
        match order {
            SumOrder::Rank(rank) => Source::Rank(*rank as usize),
            SumOrder::Sum(children) => {
                let sources = children.iter().map(|child| self.place(child, false)).collect();
                self.node(sources, root)
            }
        }
    }

    fn node(&mut self, sources: Vec<Source>, root: bool) -> Source {
        let bytes = if root { 0 } else { BLOCK * self.format.dtype.accumulator_size() };
        self.nodes.push(Node { sources, partial: vec![0; bytes] });
        Source::Node(self.nodes.len() - 1)
    }
}

/// Number of elements added at a time: the partials of a few nodes stay in the cache.
const BLOCK: usize = 4096;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use netsum_wire::{Dtype, ReduceOp};

    /// The sum of whole buffers, by rank: the oracle of the tests.
    pub(crate) fn sum(order: &SumOrder, format: Format, pieces: &[Vec<u8>]) -> Vec<u8> {
        let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        let mut out = vec![0; pieces[0].len()];
        Adder::new(order, format).add(&pieces, &mut out);
        out
    }

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    const F32_SUM: Format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };

    #[test]
    fn nested_orders_give_other_bits_than_flat_ones() {
        let t = 2f32.powi(-24);
        let pieces = [floats(&[t]), floats(&[t]), floats(&[1.0]), floats(&[t])];
        let nested = sum(&"[[[0,1],2],3]".parse().unwrap(), F32_SUM, &pieces);
        let flat = sum(&SumOrder::flat(4), F32_SUM, &pieces);
        assert_eq!(nested, floats(&[((t + t) + 1.0) + t]));
        assert_eq!(flat, floats(&[(t + t) + (1.0 + t)]));
        assert_ne!(nested, flat);
    }

    #[test]
    fn sums_of_aligned_blocks_have_the_bits_of_a_flat_one() {
        let blocks = |ranks: std::ops::Range<u32>, of: u32| {
            let starts = ranks.clone().step_by(of as usize);
            let block = |start: u32| (start..ranks.end.min(start + of)).map(SumOrder::Rank);
            starts.map(move |start| SumOrder::sum(block(start).collect())).collect::<Vec<_>>()
        };
        for size in 2..40 {
            // Thirds and sevenths: other orders give other bits.
            let pieces: Vec<_> =
                (0..size).map(|i| floats(&[1.0 / (3.0 + 7.0 * i as f32)])).collect();
            let flat = sum(&SumOrder::flat(size), F32_SUM, &pieces);
            for of in [1, 2, 4, 8, 16] {
                let one = SumOrder::sum(blocks(0..size, of));
                let halves = SumOrder::sum(
                    (0..size)
                        .step_by(2 * of as usize)
                        .map(|at| SumOrder::sum(blocks(at..size.min(at + 2 * of), of)))
                        .collect(),
                );
                for order in [one, halves] {
                    assert!(order.is_balanced(size), "{order:?}");
                    assert_eq!(sum(&order, F32_SUM, &pieces), flat, "{order:?}");
                }
            }
        }
        for other in
            ["[[0,1,2],[3,4,5]]", "[1,0]", "[[0,1],2,[3,4]]", "[[0],[1,2],3]", "[[0,1],[3,2]]"]
        {
            let order: SumOrder = other.parse().unwrap();
            assert!(!order.is_balanced(order.ranks().len() as u32), "{other}");
        }
        assert!(!SumOrder::flat(4).is_balanced(5));
    }

    #[test]
    fn sixteen_bit_floats_are_rounded_once() {
        // 256 + 1 is 256 in bfloat16; carried in float32, four ones make 260.
        let bf16 = |x: f32| half::bf16::from_f32(x).to_bits().to_le_bytes().to_vec();
        let pieces = [bf16(256.0), bf16(1.0), bf16(1.0), bf16(1.0), bf16(1.0)];
        let format = Format { dtype: Dtype::Bf16, op: ReduceOp::Sum };
        let got = sum(&"[[[0,1],2],[3,4]]".parse().unwrap(), format, &pieces);
        assert_eq!(got, bf16(260.0));
    }

    #[test]
    fn blocks_and_single_ranks() {
        let n = 2 * BLOCK + 3;
        let piece: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let doubled: Vec<f32> = piece.iter().map(|x| x * 2.0).collect();
        let pieces = [floats(&piece), floats(&piece)];
        assert_eq!(sum(&SumOrder::flat(2), F32_SUM, &pieces), floats(&doubled));
        assert_eq!(sum(&SumOrder::Rank(0), F32_SUM, &pieces[..1]), pieces[0]);
    }
}
