//! Every algorithm gives the same bits, for all numbers of ranks, lengths, element types and operations.

use crate::support::{SOON, buffer, bytes, config, flat_sum, lent, network, values, with_group};
use netsum_collective::{Buffer, Combine, Dtype, GroupConfig, Network, Options, ReduceOp};

/// Algorithms of allreduce, all-gather and broadcast that are tested together.
const ALGORITHMS: [[&str; 3]; 4] = [
    ["one-hop", "one-hop", "one-hop"],
    ["shares", "bruck", "binomial"],
    ["halving-doubling", "ring", "chain"],
    ["ring", "bruck", "binomial"],
];

fn named(rank: u32, size: u32, [sum, gather, cast]: [&str; 3]) -> GroupConfig {
    let words = format!("allreduce={sum},allgather={gather},broadcast={cast}");
    let network = if network() == Network::Ucx { "ucx" } else { "tcp" };
    let options = [("shared_memory", "off"), ("network", network), ("algorithms", &words)];
    let options = options.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    GroupConfig { options: Options::parse(&options).unwrap(), ..config(rank, size, "named") }
}

#[test]
fn bits_do_not_depend_on_the_algorithm() {
    for size in 1..=9 {
        // Once, and not by each rank of each algorithm: most of the time would go into it.
        let sums: Vec<Vec<u8>> = cases()
            .map(|(dtype, op, n)| {
                let all: Vec<_> = (0..size).map(|r| values(dtype, n, r, n as u64)).collect();
                flat_sum(dtype, op, &all)
            })
            .collect();
        for names in ALGORITHMS {
            with_group(
                size,
                |rank| named(rank, size, names),
                |rank, group| {
                    for ((dtype, op, n), sum) in cases().zip(&sums) {
                        let mut own = buffer(&values(dtype, n, rank, n as u64));
                        group
                            .allreduce(&mut own, dtype, Combine::Plain(op), SOON)
                            .wait(None)
                            .unwrap();
                        let right = bytes(&own) == *sum;
                        assert!(right, "{names:?} {size} ranks: {dtype} {} of {n}", op.name());
                    }
                    let piece = |r: u32| values(Dtype::U8, 37 * r as usize, r, 3);
                    let mut outputs: Vec<Buffer> =
                        (0..size).map(|r| buffer(&vec![0; 37 * r as usize])).collect();
                    let input = buffer(&piece(rank));
                    group.allgather(lent(&mut outputs), input, SOON).wait(None).unwrap();
                    (0..size).for_each(|r| assert!(bytes(&outputs[r as usize]) == piece(r)));
                    for root in 0..size {
                        let mut own =
                            buffer(&if rank == root { vec![7; 700_001] } else { vec![0; 700_001] });
                        group.broadcast(own.lend_all(), root, SOON).wait(None).unwrap();
                        assert!(bytes(&own) == vec![7; 700_001], "{names:?} from {root}");
                    }
                },
            );
        }
    }
}

/// Types, operations and lengths: of the types one each that rounds, that is rounded once, that wraps.
fn cases() -> impl Iterator<Item = (Dtype, ReduceOp, usize)> {
    let formats = [Dtype::F32, Dtype::Bf16, Dtype::I16, Dtype::Bool]
        .into_iter()
        .flat_map(|dtype| ReduceOp::ALL.map(|op| (dtype, op)));
    let float = |dtype| matches!(dtype, Dtype::F32 | Dtype::Bf16);
    // The last two in several chunks, of which one is longer than the others.
    formats
        .filter(move |&(dtype, op)| !float(dtype) || op as u8 <= 3)
        .flat_map(|(dtype, op)| [0, 1, 5, 1003].map(|n| (dtype, op, n)))
        .chain([(Dtype::F32, ReduceOp::Sum, 400_001), (Dtype::Bf16, ReduceOp::Sum, 700_003)])
}
