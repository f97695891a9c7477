//! Workers and switches on loopback: bits, trees in turn, deep trees, memory, strangers.

mod common;

use std::net::UdpSocket;

use common::*;
use netsum_net::NetError;
use netsum_proto::panama::LeaseError;
use netsum_wire::{Dtype, Encoding, Epoch, ReduceOp};

#[test]
fn every_rank_gets_the_same_bits_in_every_format() {
    let sizes = [1, 351, 352, 353, 704, 50_000];
    let dtypes = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::I32, Dtype::I64];
    for ranks in [1, 2, 3, 5] {
        let (switch, members) = (switch(), members(ranks));
        star(1, &[&switch], &members);
        let mut id = 0;
        for (dtype, op) in dtypes
            .iter()
            .flat_map(|&d| [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max].map(|op| (d, op)))
        {
            for numel in sizes {
                let format = format(dtype, op);
                let begin = |(rank, member): (usize, &Member)| {
                    submit(member, operation(id, format, &numbers(dtype, rank, numel)))
                };
                let buffers: Vec<_> = members.iter().enumerate().map(begin).collect();
                let expected = expected(format, ranks, numel);
                for (member, buffer) in members.iter().zip(&buffers) {
                    wait_done(member, id);
                    assert!(bytes_of(buffer) == expected, "{dtype} {op:?} {numel} of {ranks}");
                }
                id += 1;
            }
        }
        for member in members {
            member.driver.stop();
        }
    }
}

#[test]
fn two_trees_share_the_work_and_many_operations_are_in_flight() {
    let (a, b, members) = (switch(), switch(), members(4));
    star(1, &[&a, &b], &members);
    let format = format(Dtype::F32, ReduceOp::Sum);
    let numel = 100_000;
    let expected = expected(format, 4, numel);
    let mut buffers = Vec::new();
    for id in 0..8 {
        for (rank, member) in members.iter().enumerate() {
            let operation = operation(id, format, &numbers(Dtype::F32, rank, numel));
            buffers.push(submit(member, operation));
        }
    }
    for member in &members {
        wait_done(member, 7);
    }
    assert!(buffers.iter().all(|buffer| bytes_of(buffer) == expected));
    let of_tree = |switch: &netsum_net::switch::SwitchDriver| {
        let snapshot = switch.snapshot().unwrap();
        assert_eq!(snapshot.trees.len(), 1);
        snapshot.trees[0].counters.released
    };
    let fragments = 8 * numel.div_ceil(352) as u64;
    assert_eq!(of_tree(&a) + of_tree(&b), fragments);
    assert!(of_tree(&a).abs_diff(of_tree(&b)) <= 1);
    let stats = members[0].driver.stats();
    assert_eq!(stats.trees.iter().map(|t| t.results).sum::<u64>(), fragments);
    assert!(stats.sent.packets >= fragments && stats.received.packets >= fragments);
}

/// A tree's numbers have 32 bits in packets.
#[test]
fn sums_are_exact_while_the_numbers_of_trees_wrap_around() {
    let (a, b, members) = (switch(), switch(), members(3));
    star_starting_at(0xffff_8000, 1, &[&a, &b], &members);
    let format = format(Dtype::F32, ReduceOp::Sum);
    // Twelve sums of some 2,850 fragments on each of the two trees pass the last 32,768 numbers.
    let numel = 2_000_000;
    let expected = expected(format, 3, numel);
    for id in 0..12 {
        let begin = |(rank, member): (usize, &Member)| {
            submit(member, operation(id, format, &numbers(Dtype::F32, rank, numel)))
        };
        let buffers: Vec<_> = members.iter().enumerate().map(begin).collect();
        for (member, buffer) in members.iter().zip(&buffers) {
            wait_done(member, id);
            assert!(bytes_of(buffer) == expected, "sum {id}");
        }
    }
    let submitted = members[0].driver.stats().submitted;
    assert!(submitted > 2 << 32, "{submitted}");
}

#[test]
fn a_tree_of_two_levels_adds_in_its_nested_order() {
    let (root, left, right, members) = (switch(), switch(), switch(), members(5));
    let worker = |rank: usize| (members[rank].driver.local_addr(), 1u64 << rank);
    let racks = [(left.local_addr(), 0b111), (right.local_addr(), 0b11000)];
    root.install(lease(1, 0, &racks, None)).unwrap();
    let up = Some(root.local_addr());
    let of_left = [worker(0), worker(1), worker(2)];
    left.install(lease(1, 0, &of_left, up)).unwrap();
    right.install(lease(1, 0, &[worker(3), worker(4)], up)).unwrap();
    for rank in 0..5 {
        let rack = if rank < 3 { &left } else { &right };
        begin(1, &members, rank, &[rack.local_addr()]);
    }
    for (id, dtype) in [Dtype::F32, Dtype::Bf16, Dtype::F16].into_iter().enumerate() {
        let format = format(dtype, ReduceOp::Sum);
        let (id, numel) = (id as u64, 30_001);
        let rack = |ranks: std::ops::Range<usize>| {
            let inputs: Vec<_> =
                ranks.map(|rank| (numbers(dtype, rank, numel), Encoding::Element)).collect();
            (combine(format, &inputs, Encoding::Accumulator), Encoding::Accumulator)
        };
        let expected = combine(format, &[rack(0..3), rack(3..5)], Encoding::Element);
        let mut buffers = Vec::new();
        for (rank, member) in members.iter().enumerate() {
            let operation = operation(id, format, &numbers(dtype, rank, numel));
            buffers.push(submit(member, operation));
        }
        for (member, buffer) in members.iter().zip(&buffers) {
            wait_done(member, id);
            assert!(bytes_of(buffer) == expected, "{dtype}");
        }
    }
    let neighbours = root.snapshot().unwrap().neighbours;
    assert_eq!(neighbours.len(), 2);
    let fragments = 3 * 30_001u64.div_ceil(352);
    for neighbour in neighbours {
        assert!(neighbour.received.packets >= fragments);
        assert!(neighbour.sent.packets >= fragments);
        assert!(neighbour.received.bytes >= fragments * 1000);
    }
}

#[test]
fn little_memory_makes_a_small_window_not_an_error() {
    // Half of it holds the ten sums of a first window and two times four buffers of 1536 + 38 bytes.
    let (switch, members) = (switch_with(60_000), members(3));
    star(1, &[&switch], &members);
    let format = format(Dtype::I32, ReduceOp::Sum);
    for (rank, member) in members.iter().enumerate() {
        member.driver.submit(operation(1, format, &numbers(Dtype::I32, rank, 20_000)).into());
    }
    for member in &members {
        wait_done(member, 1);
    }
    let snapshot = switch.snapshot().unwrap();
    let cap = snapshot.trees[0].window_cap;
    assert_eq!(cap, 2);
    assert!(snapshot.memory_used <= snapshot.memory_limit);
    assert_eq!(members[0].driver.stats().trees[0].window_cap, cap);
    let lease = snapshot.trees[0].lease;
    switch.revoke(lease.job, lease.epoch).unwrap();
    assert_eq!(
        switch.snapshot().unwrap().memory_used,
        0,
        "a lease that is taken back holds nothing"
    );
}

#[test]
fn strangers_and_nonsense_are_counted_and_change_nothing() {
    let (switch, members) = (switch(), members(2));
    star(1, &[&switch], &members);
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    for packet in [&[0u8; 0][..], &[0x11; 10], &[0xff; 1446], &[0; 9000]] {
        stranger.send_to(packet, switch.local_addr()).unwrap();
        stranger.send_to(packet, members[0].driver.local_addr()).unwrap();
    }
    let format = format(Dtype::F32, ReduceOp::Sum);
    for (rank, member) in members.iter().enumerate() {
        member.driver.submit(operation(1, format, &numbers(Dtype::F32, rank, 5000)).into());
    }
    members.iter().for_each(|member| wait_done(member, 1));
    let snapshot = switch.snapshot().unwrap();
    assert_eq!(snapshot.drops, [("unknown_sender", 4)]);
    assert_eq!(snapshot.neighbours.len(), 2);
    let drops: u64 = members[0].driver.stats().drops.iter().map(|(_, n)| n).sum();
    assert!(drops >= 4);
}

#[test]
fn leases_come_and_go_and_refusals_have_reasons() {
    let switch = switch_with(100_000);
    let at = |port: u16| (std::net::SocketAddr::new(LOCAL, port), 1);
    let refused = switch.install(lease(1, 0, &[at(4000), at(4000)], None)).unwrap_err();
    assert!(refused.to_string().contains("127.0.0.1:4000 occurs twice"), "{refused}");
    switch.install(lease(2, 0, &[at(4000), at(4001)], None)).unwrap();
    switch.install(lease(2, 0, &[at(4000), at(4001)], None)).unwrap();
    let stale = switch.install(lease(1, 0, &[at(4000), at(4002)], None));
    assert!(matches!(stale, Err(NetError::Lease(LeaseError::Epoch { .. }))));
    let neighbours = || {
        let all = switch.snapshot().unwrap().neighbours;
        all.iter().map(|n| n.address.port()).collect::<Vec<_>>()
    };
    assert_eq!(neighbours(), [4000, 4001], "a refused lease leaves no trace");
    switch.install(lease(3, 0, &[at(4001), at(4003)], Some(at(4004).0))).unwrap();
    assert_eq!(neighbours(), [4001, 4003, 4004]);
    assert_eq!(switch.expire(PATIENCE).unwrap(), []);
    switch.revoke(JOB, Epoch(3)).unwrap();
    assert!(neighbours().is_empty());
    assert!(switch.snapshot().unwrap().trees.is_empty());
    switch.install(lease(4, 0, &[at(4000)], None)).unwrap();
    assert_eq!(switch.expire(std::time::Duration::ZERO).unwrap().len(), 1);
}
