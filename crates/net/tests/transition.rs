//! A switch dies while sums are on their way: the workers complete each other and go on elsewhere.

mod common;

use common::*;
use netsum_net::Buffer;
use netsum_net::switch::SwitchDriver;
use netsum_net::worker::{Event, TreeOperation};
use netsum_proto::handover::{Progress, resolve};
use netsum_wire::{Dtype, ReduceOp};

/// What the collectives do over TCP, here with a function call between the ranks.
fn transition(members: &[Member]) -> Vec<Vec<TreeOperation>> {
    let reports: Vec<Progress> = members.iter().map(|m| m.driver.freeze()).collect();
    let resolution = resolve(&reports);
    for serve in &resolution.serve {
        let result = members[serve.from.0 as usize].driver.fetch(&[serve.g]);
        let result = result.into_iter().next().flatten().expect("it is retained");
        for to in &serve.to {
            let served = vec![(serve.g, result.clone())];
            members[to.0 as usize].driver.deliver(served);
        }
    }
    let finished = || resolution.finished.clone();
    members.iter().map(|m| m.driver.resolve(finished())).collect()
}

#[test]
fn sums_left_by_a_dead_switch_are_completed_with_the_same_bits() {
    let format = format(Dtype::F32, ReduceOp::Sum);
    let numel = 2_000_000;
    let expected = expected(format, 3, numel);
    for round in 0..3 {
        let (a, b, members) = (switch(), switch(), members(3));
        star(1, &[&a, &b], &members);
        let mut buffers = Vec::new();
        for id in 0..2 {
            for (rank, member) in members.iter().enumerate() {
                let operation = operation(id, format, &numbers(Dtype::F32, rank, numel));
                buffers.push(submit(member, operation));
            }
        }
        wait_for_results(&a, 200 << round);
        b.stop();
        let remaining = transition(&members);
        let left: Vec<Vec<_>> =
            remaining.iter().map(|all| all.iter().map(|o| &o.submission).collect()).collect();
        assert!(left.iter().all(|of_rank| *of_rank == left[0]), "all ranks go on alike");
        star(2, &[&a], &members);
        for (member, operations) in members.iter().zip(remaining) {
            operations.into_iter().for_each(|o| member.driver.submit(o));
        }
        for member in &members {
            let mut done: Vec<u64> = (0..2).map(|_| next_done(member)).collect();
            done.sort();
            assert_eq!(done, [0, 1]);
        }
        assert!(buffers.iter().all(|buffer| bytes_of(buffer) == expected));
    }
}

#[test]
fn operations_without_an_epoch_wait_and_come_back_whole() {
    let (switch, members) = (switch(), members(1));
    let driver = &members[0].driver;
    let format = format(Dtype::I64, ReduceOp::Sum);
    let submit = |id: u64| driver.submit(operation(id, format, &numbers(Dtype::I64, 0, 10)).into());
    assert_eq!(driver.freeze(), Progress::default());
    submit(1);
    assert_eq!(driver.resolve(Default::default()).len(), 1);
    submit(2);
    star(1, &[&switch], &members);
    wait_done(&members[0], 2);
    driver.freeze();
    submit(3);
    let back = driver.resolve(Default::default());
    assert_eq!(back.len(), 1);
    assert_eq!(back[0].submission.id, 3);
    submit(4);
    driver.cancel_all();
    star(2, &[&switch], &members);
    submit(5);
    wait_done(&members[0], 5);
    assert_eq!(driver.fetch(&[0, 9]), [Some(numbers(Dtype::I64, 0, 10)), None]);
}

#[test]
fn a_silent_tree_is_reported() {
    let members = members(1);
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    begin(1, &members, 0, &[nobody.local_addr().unwrap()]);
    let format = format(Dtype::F32, ReduceOp::Sum);
    members[0].driver.submit(operation(1, format, &numbers(Dtype::F32, 0, 1000)).into());
    let event = members[0].events.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(event, Event::Silent { for_ns: 1_500_000_000.., .. }), "{event:?}");
}

#[test]
fn disagreement_is_reported_to_all_ranks() {
    let (switch, members) = (switch(), members(2));
    star(1, &[&switch], &members);
    let format = format(Dtype::F32, ReduceOp::Sum);
    for (rank, member) in members.iter().enumerate() {
        let mut operation = operation(9, format, &numbers(Dtype::F32, rank, 1000));
        operation.submission.fingerprint += rank as u32;
        member.driver.submit(operation.into());
    }
    for member in &members {
        let event = member.events.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(event, Event::Mismatch { id: 9, .. }), "{event:?}");
    }
}

#[test]
#[should_panic(expected = "352 float32 in 1000 bytes")]
fn a_buffer_that_is_too_small_is_refused_at_once() {
    let mut operation = operation(1, format(Dtype::F32, ReduceOp::Sum), &[0; 1408]);
    operation.buffer = Buffer::from_vec(vec![0; 1000]);
    members(1)[0].driver.submit(operation.into());
}

fn wait_for_results(switch: &SwitchDriver, at_least: u64) {
    let end = std::time::Instant::now() + PATIENCE;
    while switch.snapshot().unwrap().trees[0].counters.released < at_least {
        assert!(std::time::Instant::now() < end, "no results");
    }
}

fn next_done(member: &Member) -> u64 {
    loop {
        match member.events.recv_timeout(PATIENCE).unwrap() {
            Event::Done { id, .. } => return id,
            Event::Silent { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}
