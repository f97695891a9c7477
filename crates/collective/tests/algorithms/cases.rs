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
        for names in ALGORITHMS {
            with_group(
                size,
                |rank| named(rank, size, names),
                |rank, group| {
                    for (dtype, op) in formats() {
                        for n in [0, 1, 5, 1003] {
                            let salt = n as u64;
                            let mut own = buffer(&values(dtype, n, rank, salt));
                            let how = Combine::Plain(op);
                            group.allreduce(&mut own, dtype, how, SOON).wait(None).unwrap();
                            let all: Vec<_> =
                                (0..size).map(|r| values(dtype, n, r, salt)).collect();
                            let right = bytes(&own) == flat_sum(dtype, op, &all);
                            assert!(right, "{names:?} {size} ranks: {dtype} {} of {n}", op.name());
                        }
                    }
                    // In several chunks, of which one is longer than the others.
                    for (dtype, n) in [(Dtype::F32, 400_001), (Dtype::Bf16, 700_003)] {
                        let mut own = buffer(&values(dtype, n, rank, 1));
                        let sum = Combine::Plain(ReduceOp::Sum);
                        group.allreduce(&mut own, dtype, sum, SOON).wait(None).unwrap();
                        let all: Vec<_> = (0..size).map(|r| values(dtype, n, r, 1)).collect();
                        let right = bytes(&own) == flat_sum(dtype, ReduceOp::Sum, &all);
                        assert!(right, "{names:?} {size} ranks: {n} of {dtype}");
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

/// Formats: of the types one each that rounds, that is rounded once, that wraps.
fn formats() -> impl Iterator<Item = (Dtype, ReduceOp)> {
    let all = [Dtype::F32, Dtype::Bf16, Dtype::I16, Dtype::Bool]
        .into_iter()
        .flat_map(|dtype| ReduceOp::ALL.map(|op| (dtype, op)));
    let float = |dtype| matches!(dtype, Dtype::F32 | Dtype::Bf16);
    all.filter(move |&(dtype, op)| !float(dtype) || op as u8 <= 3)
}
