//! Groups on several hosts, emulated by names on this machine: the same bits as on one host, for any layout.

mod support;

use std::time::Duration;

use netsum_collective::{Buffer, Combine, Dtype, Error, Group, GroupConfig, Options, ReduceOp};
use support::{SOON, buffer, bytes, config, flat_sum, lent, values, with_group};

/// Host of each rank.
const LAYOUTS: [&[u8]; 8] = [
    &[0, 0, 1, 1],
    &[0, 1, 0, 1],
    &[0, 0, 1],
    &[0, 1, 1],
    &[0, 0, 0, 1, 1, 1],
    &[0, 0, 1, 1, 1, 2],
    &[0, 0, 0, 0, 1, 1, 1, 1],
    &[0, 1, 1, 1, 2, 2, 0],
];

fn on_hosts(layout: &[u8], rank: u32, options: &[(&str, &str)]) -> GroupConfig {
    let host = Some(format!("127.0.0.{}", 2 + layout[rank as usize]));
    let options = options.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
    let options = Options::parse(&options.collect()).unwrap();
    GroupConfig { host, options, ..config(rank, layout.len() as u32, "hosts") }
}

const NAMED: (&str, &str) = (
    "algorithms",
    "allreduce=hierarchical,allgather=hierarchical,broadcast=hierarchical,reduce=hierarchical,\
     reduce_scatter=hierarchical,gather=hierarchical,scatter=hierarchical,alltoall=hierarchical,\
     barrier=hierarchical",
);
/// The first makes algorithms use one step; the second makes them use shares in two steps.
const LINKS: [(&str, &str); 2] = [("link_latency_s", "10"), ("link_latency_s", "1e-9")];

#[test]
fn bits_do_not_depend_on_the_layout() {
    for layout in LAYOUTS {
        let size = layout.len() as u32;
        for link in LINKS {
            let options = [NAMED, link, ("link_bytes_per_s", "1e9")];
            with_group(
                size,
                |rank| on_hosts(layout, rank, &options),
                |rank, group| {
                    assert!(
                        group
                            .stats()
                            .unwrap()
                            .hosts
                            .hosts_by
                            .contains("shared memory within hosts")
                    );
                    let of = |n, dtypes| sums(group, rank, size, n, dtypes);
                    of(1003, &[Dtype::F32, Dtype::Bf16, Dtype::I16]);
                    [0, 1, 200_000].into_iter().for_each(|n| of(n, &[Dtype::Bf16]));
                    for (n, dtype) in [(1003, Dtype::F32), (200_000, Dtype::Bf16), (3, Dtype::I16)]
                    {
                        reductions(group, rank, size, n, dtype);
                    }
                    reductions(group, rank, size, 0, Dtype::F32);
                    moves(group, rank, size);
                },
            );
        }
    }
}

/// With the order of hosts, a host with non-adjacent ranks has one partial, and the bits are those of the hosts' sums.
#[test]
fn an_order_of_hosts_adds_each_host_first() {
    for layout in [&[0, 1, 0, 1][..], &[0, 1, 2, 0, 1], &[0, 0, 1]] {
        let size = layout.len() as u32;
        for algorithm in ["hierarchical", "shares", "one-hop"] {
            let named = format!("allreduce={algorithm}");
            let options = [("algorithms", &*named), ("order", "hosts")];
            with_group(
                size,
                |rank| on_hosts(layout, rank, &options),
                |rank, group| {
                    let all: Vec<_> = (0..size).map(|r| values(Dtype::F32, 1003, r, 8)).collect();
                    let mut own = buffer(&all[rank as usize]);
                    let sum = Combine::Plain(ReduceOp::Sum);
                    group.allreduce(&mut own, Dtype::F32, sum, SOON).wait(None).unwrap();
                    let of = |host: u8| -> Vec<Vec<u8>> {
                        let here = (0..layout.len()).filter(|&r| layout[r] == host);
                        here.map(|r| all[r].clone()).collect()
                    };
                    let hosts = 0..=*layout.iter().max().unwrap();
                    let sums = hosts.map(|host| flat_sum(Dtype::F32, ReduceOp::Sum, &of(host)));
                    let sums: Vec<_> = sums.collect();
                    let right = flat_sum(Dtype::F32, ReduceOp::Sum, &sums);
                    assert!(bytes(&own) == right, "{layout:?} by {algorithm}");
                },
            );
        }
    }
}

/// More than one block of 8 MiB, so that blocks overlap.
#[test]
fn large_buffers_go_block_by_block() {
    let layout = &[0, 0, 1, 1];
    for options in [&[NAMED][..], &[]] {
        with_group(
            4,
            |rank| on_hosts(layout, rank, options),
            |rank, group| {
                let sum = Combine::Plain(ReduceOp::Sum);
                let n = 6_000_011;
                let mut own = buffer(&values(Dtype::F32, n, rank, 5));
                for _ in 0..2 {
                    group.allreduce(&mut own, Dtype::F32, sum, SOON).wait(None).unwrap();
                }
                let all: Vec<_> = (0..4).map(|r| values(Dtype::F32, n, r, 5)).collect();
                let once = flat_sum(Dtype::F32, ReduceOp::Sum, &all);
                assert!(bytes(&own) == flat_sum(Dtype::F32, ReduceOp::Sum, &vec![once; 4]));
            },
        );
    }
}

fn sums(group: &Group, rank: u32, size: u32, n: usize, dtypes: &[Dtype]) {
    let salt = n as u64;
    let ops = [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Max];
    for &dtype in dtypes {
        for op in ops {
            let mut own = buffer(&values(dtype, n, rank, salt));
            group.allreduce(&mut own, dtype, Combine::Plain(op), SOON).wait(None).unwrap();
            let all: Vec<_> = (0..size).map(|r| values(dtype, n, r, salt)).collect();
            assert!(bytes(&own) == flat_sum(dtype, op, &all), "{size}: {dtype} {op:?} of {n}");
        }
    }
}

fn moves(group: &Group, rank: u32, size: u32) {
    let piece = |r: u32| values(Dtype::U8, 40_037 * (r as usize % 3), r, 3);
    let empty = |r: u32| buffer(&vec![0; piece(r).len()]);
    let mut outputs: Vec<Buffer> = (0..size).map(empty).collect();
    group.allgather(lent(&mut outputs), buffer(&piece(rank)), SOON).wait(None).unwrap();
    (0..size).for_each(|r| assert!(bytes(&outputs[r as usize]) == piece(r)));
    for root in 0..size {
        for n in [0, 7, 700_001] {
            let mut own = buffer(&vec![if rank == root { 7 } else { 0 }; n]);
            group.broadcast(own.lend_all(), root, SOON).wait(None).unwrap();
            assert!(bytes(&own) == vec![7; n], "from {root}");
        }
    }
    rooted(group, rank, size);
    let pair =
        |from: u32, to: u32| values(Dtype::U8, 1009 * ((from * 5 + to) % 4) as usize, from, 9);
    let inputs = (0..size).map(|to| buffer(&pair(rank, to))).collect();
    let mut outputs: Vec<Buffer> =
        (0..size).map(|from| buffer(&vec![0; pair(from, rank).len()])).collect();
    group.alltoall(lent(&mut outputs), inputs, SOON).wait(None).unwrap();
    (0..size).for_each(|from| assert!(bytes(&outputs[from as usize]) == pair(from, rank)));
    group.barrier(SOON).wait(None).unwrap();
}

/// Gathers and scatters of every root.
fn rooted(group: &Group, rank: u32, size: u32) {
    let piece = |r: u32| values(Dtype::U8, 30_011 * (r as usize % 3), r, 4);
    let empty = |r: u32| buffer(&vec![0; piece(r).len()]);
    for root in 0..size {
        let at_root = |make: &dyn Fn(u32) -> Buffer| -> Vec<Buffer> {
            (0..if rank == root { size } else { 0 }).map(make).collect()
        };
        let mut outputs = at_root(&empty);
        group.gather(lent(&mut outputs), buffer(&piece(rank)), root, SOON).wait(None).unwrap();
        (0..outputs.len()).for_each(|r| assert!(bytes(&outputs[r]) == piece(r as u32)));
        let mut own = empty(rank);
        let inputs = at_root(&|r| buffer(&piece(r)));
        group.scatter(own.lend_all(), inputs, root, SOON).wait(None).unwrap();
        assert!(bytes(&own) == piece(rank), "from {root}");
    }
}

/// Reduces to every root, and reduce-scatters of even and uneven pieces, also into the input.
fn reductions(group: &Group, rank: u32, size: u32, n: usize, dtype: Dtype) {
    let sum = Combine::Plain(ReduceOp::Sum);
    let all: Vec<_> = (0..size).map(|r| values(dtype, n, r, 6)).collect();
    let right = flat_sum(dtype, ReduceOp::Sum, &all);
    for root in 0..size {
        let mut own = buffer(&all[rank as usize]);
        group.reduce(own.lend_all(), dtype, sum, root, SOON).wait(None).unwrap();
        let expected = if rank == root { &right } else { &all[rank as usize] };
        assert!(bytes(&own) == *expected, "{size} ranks, {dtype} of {n} to {root}");
    }
    let width = dtype.size();
    let cut = |r: u32| n * r as usize * r as usize / (size * size) as usize * width;
    let own = cut(rank)..cut(rank + 1);
    for (in_place, how) in [(false, sum), (true, sum), (true, Combine::ScaledSum(1.0))] {
        let mut input = buffer(&all[rank as usize]);
        let inputs = (0..size).map(|r| input.lend_mut(cut(r)..cut(r + 1))).collect();
        let mut output = buffer(&vec![0; own.len()]);
        let out = (!in_place).then(|| output.lend_all());
        group.reduce_scatter(out, inputs, dtype, how, SOON).wait(None).unwrap();
        let mut expected = all[rank as usize].clone();
        if in_place {
            expected[own.clone()].copy_from_slice(&right[own.clone()]);
        } else {
            assert!(bytes(&output) == right[own.clone()], "{size} ranks, {dtype} of {n}");
        }
        assert!(bytes(&input) == expected, "{size} ranks, {dtype} of {n}, {in_place}, {how}");
    }
}

#[test]
fn hosts_are_reported_and_large_sums_use_them() {
    let layout = &[0, 0, 0, 0, 1, 1, 1, 1];
    let given = [("link_latency_s", "3e-5"), ("link_bytes_per_s", "1e8")];
    with_group(
        8,
        |rank| on_hosts(layout, rank, &given),
        |_, group| {
            let link = group.link().unwrap();
            let hosts = link.across.unwrap().hosts;
            assert_eq!(hosts.all(), [vec![0, 1, 2, 3], vec![4, 5, 6, 7]]);
            let format = netsum_collective::Format { dtype: Dtype::F32, op: ReduceOp::Sum };
            // Each lane sends a quarter instead of 7/4 of everything.
            let choice = group.explain("allreduce", format, 1 << 20).unwrap();
            assert_eq!(choice.chosen, "hierarchical", "{choice:?}");
            for operation in
                ["reduce", "reduce_scatter", "gather", "scatter", "alltoall", "barrier"]
            {
                let choice = group.explain(operation, format, 1 << 20).unwrap();
                assert_eq!(choice.chosen, "hierarchical", "{operation}: {choice:?}");
            }
        },
    );
}

#[test]
fn a_missing_rank_is_named_on_every_host() {
    let layout = &[0, 0, 1, 1];
    with_group(
        4,
        |rank| on_hosts(layout, rank, &[NAMED]),
        |rank, group| {
            let sum = Combine::Plain(ReduceOp::Sum);
            let own = || buffer(&[0; 4096]);
            group.allreduce(own(), Dtype::F32, sum, SOON).wait(None).unwrap();
            // No rank leaves before all have seen the time-out.
            let leave = std::time::Instant::now() + Duration::from_secs(1);
            let stay = || std::thread::sleep(leave - std::time::Instant::now());
            if rank == 3 {
                return stay();
            }
            let soon = Duration::from_millis(300);
            let error = group.allreduce(own(), Dtype::F32, sum, soon).wait(None).unwrap_err();
            let words = error.to_string();
            assert!(matches!(error, Error::Timeout { .. }), "{words}");
            let named = if rank == 2 { "rank 3 " } else { "was not heard from" };
            assert!(words.contains(named), "rank {rank}: {words}");
            stay();
        },
    );
}
