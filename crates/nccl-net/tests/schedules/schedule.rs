//! What the ranks of a schedule do, drawn from its number.

use crate::fabric::RANKS;
use crate::oracle::{self, TYPES};
use crate::random::Random;

pub struct Plan {
    pub communicators: Vec<Communicator>,
}

pub struct Communicator {
    pub id: u64,
    /// Ranks of the fabric.
    pub members: Vec<usize>,
    pub operations: Vec<Operation>,
    /// Operations at once, at most.
    pub window: usize,
    /// Whether it is closed while the last operation runs.
    pub cancels: bool,
    /// Messages that each member sends to the next, in bytes.
    pub messages: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Allreduce,
    Allgather,
    ReduceScatter,
}

#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub kind: Kind,
    /// Sent and received values share their memory.
    pub in_place: bool,
    pub datatype: i32,
    pub op: i32,
    /// Elements of an allreduce, or of each rank.
    pub count: usize,
    /// Elements of the window: first, and how many.
    pub window: (usize, usize),
    /// Floats whose sums depend on the order of additions.
    pub wild: bool,
    pub seed: u64,
}

impl Plan {
    /// `supported`: whether the plug-in combines elements of a type by an operation.
    pub fn draw(number: u64, supported: impl Fn(i32, i32) -> bool) -> Plan {
        let mut random = Random::new(number, 77);
        let count = 1 + random.below(3);
        let draw = |index| Communicator::draw(number * 16 + index, &mut random, &supported);
        Plan { communicators: (0..count as u64).map(draw).collect() }
    }
}

impl Communicator {
    fn draw(id: u64, random: &mut Random, supported: &impl Fn(i32, i32) -> bool) -> Communicator {
        let mut members: Vec<usize> = (0..RANKS).collect();
        while members.len() > 2 && random.one_in(3) {
            members.remove(random.below(members.len()));
        }
        let pairs: Vec<(i32, i32)> = TYPES
            .iter()
            .flat_map(|&datatype| (0..4).map(move |op| (datatype, op)))
            .filter(|&(datatype, op)| supported(datatype, op))
            .collect();
        let count = 1 + random.below(10);
        let operations = (0..count)
            .map(|at| Operation::draw(id << 8 | at as u64, random, &pairs, members.len()));
        let operations = operations.collect();
        let messages = (0..random.below(6)).map(|_| elements(random)).collect();
        let (window, cancels) = (1 + random.below(8), random.one_in(8));
        Communicator { id, members, operations, window, cancels, messages }
    }
}

impl Operation {
    fn draw(seed: u64, random: &mut Random, pairs: &[(i32, i32)], ranks: usize) -> Operation {
        let kind = match random.below(5) {
            0 => Kind::Allgather,
            1 => Kind::ReduceScatter,
            _ => Kind::Allreduce,
        };
        let in_place = random.one_in(3);
        let (datatype, op) = random.of(pairs);
        let (count, mut window) = (elements(random), (0, 0));
        if !matches!(kind, Kind::Allreduce) {
            let all = count * ranks;
            let first = if random.one_in(2) { 0 } else { random.below(all) };
            let most = all - first;
            window = (first, if random.one_in(2) { most } else { 1 + random.below(most) });
        }
        // Three ranks' sums have an order that the oracle does not know.
        let wild = ranks != 3 && random.one_in(2);
        Operation { kind, in_place, datatype, op, count, window, wild, seed }
    }

    pub fn bytes(&self) -> usize {
        self.count * oracle::size(self.datatype)
    }
}

/// Small, or enough for switches.
fn elements(random: &mut Random) -> usize {
    match random.below(4) {
        0 => 1 + random.below(16),
        1 => 1 + random.below(500),
        _ => 1 + random.below(40_000),
    }
}
