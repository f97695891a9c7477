//! Random fabrics for tests, each of which uses some of this.
#![allow(dead_code)]

use netsum_topo::Rate;
use netsum_topo::links::{LinkGraph, LinkKind, Role, Vertex, WeightedLink};

/// Numbers that look random, the same for the same seed.
pub struct Numbers(u64);

impl Numbers {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below a limit.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit
    }
}

/// A connected fabric of 3 to 16 GPUs and up to eight switches, with links of unequal rates: 8 to 320 Gbit/s, often
/// multiples of 8, in some fabrics different by direction.
pub fn irregular(seed: u64) -> LinkGraph {
    let mut numbers = Numbers::new(seed);
    let gpus = 3 + numbers.below(14);
    let switches = [0, 0, 0, 1, 2, 4, 8][numbers.below(7)];
    let (one_way, whole) = (numbers.below(4) == 0, numbers.below(2) == 0);
    let functions = numbers.below(2) == 0;
    let n = gpus + switches;
    let role = |v: usize| match v < gpus {
        true => Role::Gpu,
        false => Role::Switch { aggregates: functions, multicasts: functions },
    };
    let vertices: Vec<Vertex> =
        (0..n).map(|v| Vertex { name: format!("v{v}"), role: role(v) }).collect();
    let mut pairs: Vec<[usize; 2]> = (1..n).map(|v| [numbers.below(v), v]).collect();
    let all = n * (n - 1) / 2;
    let wanted = n - 1 + numbers.below(all.min(3 * n) + 1);
    for _ in 0..10 * wanted {
        let (a, b) = (numbers.below(n), numbers.below(n));
        if pairs.len() < wanted && a < b && !pairs.contains(&[a, b]) {
            pairs.push([a, b]);
        }
    }
    let mut links = Vec::new();
    for ends in pairs {
        let directions = if one_way { vec![ends, [ends[1], ends[0]]] } else { vec![ends] };
        for ends in directions {
            let gbits = if whole { 8 * (1 + numbers.below(40)) } else { 8 + numbers.below(313) };
            let rate = Rate(gbits as u64 * 1_000_000_000);
            links.push(WeightedLink { ends, rate, latency_ns: 0, kind: LinkKind::Nvlink, one_way });
        }
    }
    LinkGraph::new("irregular", vertices, links).unwrap()
}

/// The collective of a seed.
pub fn collective(seed: u64) -> netsum_topo::links::Collective {
    use netsum_topo::links::Collective::*;
    [Broadcast { root: 0 }, Reduce { root: 1 }, Allgather, ReduceScatter, Allreduce]
        [seed as usize % 5]
}

/// A connected fabric of GPUs with so many links, of 8 to 320 Gbit/s.
pub fn random(seed: u64, gpus: usize, links: usize) -> LinkGraph {
    let mut numbers = Numbers::new(seed);
    let mut pairs: Vec<[usize; 2]> = (1..gpus).map(|v| [numbers.below(v), v]).collect();
    while pairs.len() < links {
        let (a, b) = (numbers.below(gpus), numbers.below(gpus));
        if a < b && !pairs.contains(&[a, b]) {
            pairs.push([a, b]);
        }
    }
    let link = |ends: [usize; 2]| WeightedLink {
        ends,
        rate: Rate(8_000_000_000 * (1 + numbers.below(40) as u64)),
        latency_ns: 0,
        kind: LinkKind::Nvlink,
        one_way: false,
    };
    let links = pairs.into_iter().map(link).collect();
    let vertices = (0..gpus).map(|v| Vertex { name: format!("v{v}"), role: Role::Gpu }).collect();
    LinkGraph::new("random", vertices, links).unwrap()
}
