//! Sums in the order of a plan, on host memory: the same bits as the trees give.

use netsum_topo::SumOrder;
use netsum_wire::{Encoding, Format, Input, reduce};

/// Adds the ranks' pieces in one order. 16-bit floats are carried as float32 from node to node and rounded
/// once, at the root, as on the trees.
pub(crate) struct Adder {
    format: Format,
    /// Children before their parents; the root last.
    nodes: Vec<Node>,
}

struct Node {
    sources: Vec<Source>,
    /// A block of this node's partial.
    partial: Vec<u8>,
}

#[derive(Clone, Copy)]
enum Source {
    Rank(usize),
    Node(usize),
}

impl Adder {
    pub(crate) fn new(order: &SumOrder, format: Format) -> Adder {
        let mut adder = Adder { format, nodes: Vec::new() };
        if let Source::Rank(only) = adder.place(order) {
            adder.node(vec![Source::Rank(only)]);
        }
        adder
    }

    /// Adds `n` elements of all `pieces` (by rank, elements as in the buffers). `take` gets the sum block by
    /// block, with the offset of its first byte; blocks come in order, and the elements of `pieces` under
    /// one are not read any more when it is handed over.
    pub(crate) fn add(&mut self, pieces: &[&[u8]], n: usize, mut take: impl FnMut(usize, &[u8])) {
        let element = self.format.dtype.size();
        for start in (0..n).step_by(BLOCK) {
            let len = BLOCK.min(n - start);
            let bytes = start * element..(start + len) * element;
            for at in 0..self.nodes.len() {
                let encoding = match at + 1 == self.nodes.len() {
                    true => Encoding::Element,
                    false => Encoding::Accumulator,
                };
                let mut partial = std::mem::take(&mut self.nodes[at].partial);
                let input = |source: &Source| match *source {
                    Source::Rank(rank) => {
                        let bytes = &pieces[rank][bytes.clone()];
                        Some(Input { bytes, encoding: Encoding::Element })
                    }
                    Source::Node(node) => {
                        let bytes = &self.nodes[node].partial[..];
                        Some(Input { bytes, encoding: Encoding::Accumulator })
                    }
                };
                let inputs: Vec<_> = self.nodes[at].sources.iter().map(input).collect();
                reduce(self.format, &inputs, len, &mut partial, encoding);
                self.nodes[at].partial = partial;
            }
            let sum = &self.nodes.last().expect("there is a root").partial;
            take(bytes.start, &sum[..len * element]);
        }
    }

    fn place(&mut self, order: &SumOrder) -> Source {
        match order {
            SumOrder::Rank(rank) => Source::Rank(*rank as usize),
            SumOrder::Sum(children) => {
                let sources = children.iter().map(|child| self.place(child)).collect();
                self.node(sources)
            }
        }
    }

    fn node(&mut self, sources: Vec<Source>) -> Source {
        let partial = vec![0; BLOCK * self.format.dtype.accumulator_size()];
        self.nodes.push(Node { sources, partial });
        Source::Node(self.nodes.len() - 1)
    }
}

/// Elements added at a time: the partials of a few nodes stay in the cache.
const BLOCK: usize = 4096;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use netsum_wire::{Dtype, ReduceOp};

    /// The sum of whole buffers, by rank: the oracle of every test.
    pub(crate) fn sum(order: &SumOrder, format: Format, pieces: &[Vec<u8>]) -> Vec<u8> {
        let n = pieces[0].len() / format.dtype.size();
        let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        let mut out = Vec::new();
        Adder::new(order, format).add(&pieces, n, |_, bytes| out.extend_from_slice(bytes));
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
