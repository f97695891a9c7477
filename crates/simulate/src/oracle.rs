//! Expected results of all operations, computed from the contributions independently of the production code.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use netsum_proto::Pattern;
use netsum_topo::SumOrder;
use netsum_wire::{Dtype, Format, Rank, ReduceOp};

use crate::random::Random;
use crate::scenario::JobShape;

/// One operation of a job: the contribution of each rank and the expected result.
#[derive(Debug)]
pub struct OracleOperation {
    /// Element type and reduce operation.
    pub format: Format,
    /// Number of elements.
    pub numel: usize,
    /// Who contributes and who takes.
    pub pattern: Pattern,
    /// Contributions by rank, little-endian.
    pub contributions: Vec<Vec<u8>>,
}

/// The operations of one job.
#[derive(Debug)]
pub struct Oracle {
    seed: u64,
    job: u64,
    shape: JobShape,
    operations: BTreeMap<u64, Rc<OracleOperation>>,
    sums: BTreeMap<u64, Rc<Vec<u8>>>,
    order: Option<SumOrder>,
}

impl Oracle {
    /// The operations of job number `job` of a scenario.
    pub fn new(seed: u64, job: u64, shape: &JobShape) -> Oracle {
        let (operations, sums) = (BTreeMap::new(), BTreeMap::new());
        Oracle { seed, job, shape: shape.clone(), operations, sums, order: None }
    }

    /// Operation `number`.
    pub fn operation(&mut self, number: u64) -> Rc<OracleOperation> {
        let (seed, job, shape) = (self.seed, self.job, &self.shape);
        let known = || Rc::new(OracleOperation::draw(seed, job, shape, number));
        self.operations.entry(number).or_insert_with(known).clone()
    }

    /// Sets the order of additions, that of the job's first plan. Returns false if a different order was set before.
    pub fn set_order(&mut self, order: &SumOrder) -> bool {
        *self.order.get_or_insert_with(|| order.clone()) == *order
    }

    /// The result of operation `number`.
    pub fn sum(&mut self, number: u64) -> Rc<Vec<u8>> {
        if let Some(sum) = self.sums.get(&number) {
            return sum.clone();
        }
        let known = self.operation(number);
        let size = known.contributions.len() as u32;
        let order = self.order.clone().unwrap_or_else(|| SumOrder::flat(size));
        let inputs: Vec<&[u8]> = known.contributions.iter().map(Vec::as_slice).collect();
        let sum = Rc::new(sum(known.format, &order, &inputs));
        self.sums.insert(number, sum.clone());
        sum
    }

    /// The buffer of a rank after operation `number`, which began with the rank's contribution.
    pub fn expected(&mut self, number: u64, rank: u32) -> Rc<Vec<u8>> {
        let known = self.operation(number);
        let own = || known.contributions[rank as usize].clone();
        let shards = |sizes: &[u64]| {
            let mut end = 0;
            let shards = sizes.iter().map(|size| {
                end += size;
                known.bytes(&(end - size..end))
            });
            shards.collect::<Vec<_>>()
        };
        Rc::new(match &known.pattern {
            Pattern::Allreduce => return self.sum(number),
            Pattern::Reduce(root) if root.0 == rank => return self.sum(number),
            Pattern::Broadcast(root) => known.contributions[root.0 as usize].clone(),
            Pattern::ReduceScatter(sizes) => {
                let (mut buffer, shard) = (own(), shards(sizes)[rank as usize].clone());
                buffer[shard.clone()].copy_from_slice(&self.sum(number)[shard]);
                buffer
            }
            Pattern::Allgather(sizes) => {
                let parts = shards(sizes).into_iter().zip(&known.contributions);
                parts.flat_map(|(shard, contribution)| contribution[shard].to_vec()).collect()
            }
            Pattern::Reduce(_) | Pattern::Barrier => own(),
        })
    }

    /// Drops operations below `number`, which all ranks have completed.
    pub fn forget_below(&mut self, number: u64) {
        self.operations = self.operations.split_off(&number);
        self.sums = self.sums.split_off(&number);
    }
}

impl OracleOperation {
    fn draw(seed: u64, job: u64, shape: &JobShape, number: u64) -> OracleOperation {
        let mut random = Random::of(seed, &[20, job, number]);
        let compare = random.pick(&[ReduceOp::Min, ReduceOp::Max]);
        let (dtype, op) = match random.below(10) {
            0 => (Dtype::I32, ReduceOp::Sum),
            1 => (Dtype::I32, compare),
            2 => (Dtype::I64, ReduceOp::Sum),
            3 => (Dtype::I16FromI8, ReduceOp::Sum),
            4 => (Dtype::F32, compare),
            _ => (Dtype::F32, ReduceOp::Sum),
        };
        let ranks = shape.hosts.len();
        let numel = random.within(1..=shape.elements.into()) as usize;
        let pattern = match shape.all_collectives {
            true => draw_pattern(&mut random, ranks as u64, numel as u64),
            false => Pattern::Allreduce,
        };
        // What is copied is no number of 8 bits.
        let narrow = dtype.is_narrow() && pattern.copies();
        let format = Format { dtype: if narrow { Dtype::I32 } else { dtype }, op };
        // Protocols that add integers are exact only on small whole numbers.
        let whole = shape.protocol != "panama";
        let mut element = || match format.dtype {
            Dtype::I32 => (random.next() as i32).to_le_bytes().to_vec(),
            Dtype::I64 => (random.next() as i64).to_le_bytes().to_vec(),
            Dtype::I16FromI8 => i16::from(random.next() as i8).to_le_bytes().to_vec(),
            _ if whole => ((random.below(2001) as i32 - 1000) as f32).to_le_bytes().to_vec(),
            _ => {
                let mantissa = (random.next() >> 40) as f32 / (1 << 23) as f32 - 1.0;
                (mantissa * 2f32.powi(random.below(9) as i32 - 4)).to_le_bytes().to_vec()
            }
        };
        let contributions =
            (0..ranks).map(|_| (0..numel).flat_map(|_| element()).collect()).collect();
        OracleOperation { format, numel, pattern, contributions }
    }

    /// The byte range of elements.
    pub fn bytes(&self, elements: &Range<u64>) -> Range<usize> {
        let size = self.format.dtype.size();
        elements.start as usize * size..elements.end as usize * size
    }
}

fn draw_pattern(random: &mut Random, ranks: u64, numel: u64) -> Pattern {
    let root = Rank(random.below(ranks) as u32);
    let mut ends: Vec<u64> = (1..ranks).map(|_| random.below(numel + 1)).collect();
    if random.chance(500_000) {
        ends = (1..ranks).map(|rank| rank * numel / ranks).collect();
    }
    ends.sort_unstable();
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let shards = starts.zip(ends.iter().copied().chain([numel])).map(|(start, end)| end - start);
    match random.below(6) {
        0 => Pattern::Allreduce,
        1 => Pattern::Reduce(root),
        2 => Pattern::Broadcast(root),
        3 => Pattern::Allgather(shards.collect()),
        _ => Pattern::ReduceScatter(shards.collect()),
    }
}

/// Sums whole inputs, by rank, in the given order.
pub fn sum(format: Format, order: &SumOrder, inputs: &[&[u8]]) -> Vec<u8> {
    let len = inputs.first().map_or(0, |input| input.len());
    let starts = (0..len).step_by(format.dtype.size());
    match format.dtype {
        Dtype::I32 => {
            let read = |rank: usize, at: usize| i32::from_le_bytes(four(&inputs[rank][at..]));
            let combine = |a: i32, b: i32| match format.op {
                ReduceOp::Min => a.min(b),
                ReduceOp::Max => a.max(b),
                _ => a.wrapping_add(b),
            };
            starts.flat_map(|at| fold(order, &|r| read(r, at), &combine).to_le_bytes()).collect()
        }
        Dtype::I64 => {
            let read = |rank: usize, at: usize| {
                i64::from_le_bytes(inputs[rank][at..at + 8].try_into().expect("8 bytes"))
            };
            let combine = |a: i64, b: i64| a.wrapping_add(b);
            starts.flat_map(|at| fold(order, &|r| read(r, at), &combine).to_le_bytes()).collect()
        }
        Dtype::I16FromI8 => {
            let read = |rank: usize, at: usize| {
                i16::from_le_bytes(inputs[rank][at..at + 2].try_into().expect("2 bytes"))
            };
            let combine = |a: i16, b: i16| a.wrapping_add(b);
            starts.flat_map(|at| fold(order, &|r| read(r, at), &combine).to_le_bytes()).collect()
        }
        _ => {
            let read = |rank: usize, at: usize| f32::from_le_bytes(four(&inputs[rank][at..]));
            let combine = |a: f32, b: f32| match format.op {
                ReduceOp::Min => a.min(b),
                ReduceOp::Max => a.max(b),
                _ => a + b,
            };
            starts.flat_map(|at| fold(order, &|r| read(r, at), &combine).to_le_bytes()).collect()
        }
    }
}

fn four(bytes: &[u8]) -> [u8; 4] {
    [bytes[0], bytes[1], bytes[2], bytes[3]]
}

/// Combines neighbours at positions 2i and 2i + 1, level by level, until one value is left.
fn fold<T: Copy>(order: &SumOrder, of: &dyn Fn(usize) -> T, combine: &dyn Fn(T, T) -> T) -> T {
    match order {
        SumOrder::Rank(rank) => of(*rank as usize),
        SumOrder::Sum(children) => {
            let mut level: Vec<T> = children.iter().map(|c| fold(c, of, combine)).collect();
            while level.len() > 1 {
                let pair = |pair: &[T]| match pair {
                    [a, b] => combine(*a, *b),
                    rest => rest[0],
                };
                level = level.chunks(2).map(pair).collect();
            }
            level[0]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additions_follow_the_order() {
        let inputs: Vec<[u8; 4]> =
            [1e8f32, -1e8, 1.0, 1.0].iter().map(|x| x.to_le_bytes()).collect();
        let inputs: Vec<&[u8]> = inputs.iter().map(|bytes| bytes.as_slice()).collect();
        let format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };
        let of =
            |order: &str| f32::from_le_bytes(four(&sum(format, &order.parse().unwrap(), &inputs)));
        assert_eq!(of("[0,1,2,3]"), 2.0);
        assert_eq!(of("[[0,2],[1,3]]"), 0.0);
    }

    #[test]
    fn operations_do_not_depend_on_the_order_of_queries() {
        let scenario = crate::Scenario::of_seed(7);
        let draw = |numbers: &[u64]| {
            let mut oracle = Oracle::new(7, 0, &scenario.jobs[0]);
            numbers.iter().map(|&n| oracle.operation(n).contributions.clone()).collect::<Vec<_>>()
        };
        assert_eq!(draw(&[3]), draw(&[1, 2, 3])[2..]);
    }
}
