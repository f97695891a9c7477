//! Every collective on the host path against an oracle, bit for bit; in shared memory and over TCP.

use std::time::{Duration, Instant};

use crate::support::{
    SHARED_MEMORY, SOON, buffer, bytes, config, flat_sum, host_group, lent, network, values,
    with_group,
};
use netsum_collective::{Buffer, Combine, Dtype, Error, Group, Network, ReduceOp, Terms};

const SUM: Combine = Combine::Plain(ReduceOp::Sum);

fn all_values(dtype: Dtype, n: usize, size: u32, salt: u64) -> Vec<Vec<u8>> {
    (0..size).map(|rank| values(dtype, n, rank, salt)).collect()
}

#[test]
fn allreduce_gives_the_documented_bits_for_every_size_and_group() {
    for size in 1..=9 {
        let lengths = [0, 1, 2, 7, 1000, 20_011];
        let sums: Vec<Vec<Vec<u8>>> = host_group(size, |rank, group| {
            let run = |n: usize| {
                let mut buffer = buffer(&values(Dtype::F32, n, rank, n as u64));
                group.allreduce(&mut buffer, Dtype::F32, SUM, SOON).wait(None).unwrap();
                bytes(&buffer)
            };
            lengths.map(run).to_vec()
        });
        for (i, n) in lengths.into_iter().enumerate() {
            let all = all_values(Dtype::F32, n, size, n as u64);
            let expected = flat_sum(Dtype::F32, ReduceOp::Sum, &all);
            for (rank, sums) in sums.iter().enumerate() {
                assert!(sums[i] == expected, "rank {rank} of {size}, {n} elements");
            }
        }
    }
}

#[test]
fn every_dtype_and_operation_on_large_uneven_buffers() {
    let size = 3;
    let n = 300_007;
    host_group(size, |rank, group| {
        for dtype in Dtype::ALL {
            let integer = !matches!(dtype, Dtype::F32 | Dtype::F64 | Dtype::F16 | Dtype::Bf16);
            let defined = |op: ReduceOp| match dtype.is_narrow() {
                true => op.in_network(),
                false => integer || op as u8 <= 3,
            };
            for op in ReduceOp::ALL.into_iter().filter(|&op| defined(op)) {
                let salt = u64::from(op as u8);
                let mut buffer = buffer(&values(dtype, n, rank, salt));
                let how = Combine::Plain(op);
                group.allreduce(&mut buffer, dtype, how, SOON).wait(None).unwrap();
                let expected = flat_sum(dtype, op, &all_values(dtype, n, size, salt));
                assert!(bytes(&buffer) == expected, "{dtype} {}", op.name());
            }
        }
    });
}

#[test]
fn averages_and_scaled_sums() {
    host_group(4, |rank, group| {
        let ones = |x: f32| buffer(&x.to_le_bytes().repeat(50_000));
        let mut average = ones(rank as f32);
        group.allreduce(&mut average, Dtype::F32, Combine::Average, SOON).wait(None).unwrap();
        assert_eq!(bytes(&average), bytes(&ones(1.5)));
        let mut scaled = ones(1.0);
        let how = Combine::ScaledSum(f64::from(rank));
        group.allreduce(&mut scaled, Dtype::F32, how, SOON).wait(None).unwrap();
        assert_eq!(bytes(&scaled), bytes(&ones(6.0)));
    });
}

#[test]
fn reduce_and_reduce_scatter_add_in_the_same_order() {
    for size in [1, 2, 5] {
        let n = 90_001;
        let all = all_values(Dtype::Bf16, n, size, 0);
        let expected = flat_sum(Dtype::Bf16, ReduceOp::Sum, &all);
        let root = size - 1;
        host_group(size, |rank, group| {
            let mut own = buffer(&values(Dtype::Bf16, n, rank, 0));
            group.reduce(own.lend_all(), Dtype::Bf16, SUM, root, SOON).wait(None).unwrap();
            if rank == root {
                assert!(bytes(&own) == expected);
            } else {
                assert!(bytes(&own) == values(Dtype::Bf16, n, rank, 0), "left alone");
            }
            // Parts of different sizes, one empty.
            let own = values(Dtype::Bf16, n, rank, 0);
            let cut = |r: u32| n * (r as usize) * (r as usize) / (size * size) as usize * 2;
            let part = |r: u32, from: &[u8]| match r + 1 == size {
                true => from[cut(r)..].to_vec(),
                false => from[cut(r)..cut(r + 1)].to_vec(),
            };
            let inputs: Vec<Buffer> = (0..size).map(|r| buffer(&part(r, &own))).collect();
            let wanted = part(rank, &expected);
            let mut output = buffer(&vec![0; wanted.len()]);
            let work = group.reduce_scatter(output.lend_all(), inputs, Dtype::Bf16, SUM, SOON);
            work.wait(None).unwrap();
            assert!(bytes(&output) == wanted, "rank {rank} of {size}");
        });
    }
}

#[test]
fn moving_collectives_move_the_right_bytes() {
    for size in [1, 2, 3, 8] {
        host_group(size, |rank, group| {
            for n in [0, 1, 5000, 700_001] {
                let root = size / 2;
                let from =
                    |r: u32, to: u32| values(Dtype::U8, n + r as usize, r, u64::from(to) << 8);
                let empty = |r: u32| buffer(&vec![0; n + r as usize]);
                let ranks = || 0..size;

                let mut buffer_all = match rank == root {
                    true => buffer(&from(root, 0)),
                    false => empty(root),
                };
                group.broadcast(buffer_all.lend_all(), root, SOON).wait(None).unwrap();
                assert!(bytes(&buffer_all) == from(root, 0));

                let mut outputs: Vec<Buffer> = ranks().map(empty).collect();
                let mut own = buffer(&from(rank, 1));
                group.allgather(lent(&mut outputs), own.lend_all(), SOON).wait(None).unwrap();
                ranks().for_each(|r| assert!(bytes(&outputs[r as usize]) == from(r, 1)));

                let mut outputs: Vec<Buffer> = match rank == root {
                    true => ranks().map(empty).collect(),
                    false => Vec::new(),
                };
                group.gather(lent(&mut outputs), own, root, SOON).wait(None).unwrap();
                for (r, output) in outputs.iter().enumerate() {
                    assert!(bytes(output) == from(r as u32, 1));
                }

                let part = |r: u32| values(Dtype::U8, n + r as usize, 99, u64::from(r));
                let inputs: Vec<Buffer> = match rank == root {
                    true => ranks().map(|r| buffer(&part(r))).collect(),
                    false => Vec::new(),
                };
                let mut output = empty(rank);
                group.scatter(output.lend_all(), inputs, root, SOON).wait(None).unwrap();
                assert!(bytes(&output) == part(rank));

                let inputs: Vec<Buffer> = ranks().map(|to| buffer(&from(rank, to))).collect();
                let mut outputs: Vec<Buffer> = ranks().map(empty).collect();
                group.alltoall(lent(&mut outputs), inputs, SOON).wait(None).unwrap();
                ranks().for_each(|r| assert!(bytes(&outputs[r as usize]) == from(r, rank)));

                group.barrier(SOON).wait(None).unwrap();
            }
        });
    }
}

#[test]
fn a_barrier_waits_for_all_ranks() {
    let times = host_group(5, |rank, group| {
        if rank == 3 {
            std::thread::sleep(Duration::from_millis(300));
        }
        let called = Instant::now();
        group.barrier(SOON).wait(None).unwrap();
        (called, Instant::now())
    });
    let last_call = times.iter().map(|t| t.0).max().unwrap();
    assert!(times.iter().all(|t| t.1 >= last_call));
}

#[test]
fn many_operations_in_flight_do_not_interfere() {
    let size = 4;
    host_group(size, |rank, group| {
        let works: Vec<_> = (0..200usize)
            .map(|i| {
                let n = 1 + i * 37;
                let mut buffer = buffer(&values(Dtype::I64, n, rank, i as u64));
                let work = group.allreduce(&mut buffer, Dtype::I64, SUM, SOON);
                (i, n, buffer, work)
            })
            .collect();
        for (i, n, buffer, work) in works.into_iter().rev() {
            work.wait(None).unwrap();
            let all = all_values(Dtype::I64, n, size, i as u64);
            assert!(bytes(&buffer) == flat_sum(Dtype::I64, ReduceOp::Sum, &all));
        }
    });
}

#[test]
fn point_to_point_is_not_in_the_order_of_collectives() {
    host_group(3, |rank, group| {
        let big = 5 << 20;
        if rank == 0 {
            // Sent before any receive, out of order, including large messages.
            let works: Vec<_> = [(1, 7), (1, 8), (2, 7)]
                .map(|(to, tag)| group.send(buffer(&vec![tag as u8; big]), to, tag, SOON))
                .into();
            group.barrier(SOON).wait(None).unwrap();
            works.iter().for_each(|work| work.wait(None).unwrap());
            let mut any = buffer(&[0; 3]);
            let first = group.receive(&mut any, None, 1, SOON);
            first.wait(None).unwrap();
            let source = first.source_rank().unwrap();
            assert_eq!(bytes(&any), [source as u8; 3]);
            group.receive(any, Some(3 - source), 1, SOON).wait(None).unwrap();
        } else {
            group.barrier(SOON).wait(None).unwrap();
            let tags: &[u64] = if rank == 1 { &[8, 7] } else { &[7] };
            for &tag in tags {
                let mut got = buffer(&vec![0; big]);
                group.receive(&mut got, Some(0), tag, SOON).wait(None).unwrap();
                assert!(bytes(&got) == vec![tag as u8; big]);
            }
            group.send(buffer(&[rank as u8; 3]), 0, 1, SOON).wait(None).unwrap();
        }
    });
}

#[test]
fn different_calls_are_an_error_at_every_rank_that_names_both() {
    let errors = host_group(3, |rank, group| {
        let before = group.barrier(SOON).wait(None);
        let n = if rank == 2 { 1200 } else { 1000 };
        let work = group.allreduce(buffer(&vec![0; n * 4]), Dtype::F32, SUM, SOON);
        // A slow rank may learn of it while it still waits in the barrier.
        before.and(work.wait(Some(Duration::from_secs(10)))).unwrap_err()
    });
    for (rank, error) in errors.iter().enumerate() {
        let text = error.to_string();
        assert!(text.contains("rank 2 called allreduce float32[1200] sum"), "{rank}: {text}");
        assert!(text.contains("called allreduce float32[1000] sum"), "{text}");
        assert!(text.contains("(operation #1)"), "{text}");
    }
}

#[test]
fn different_kinds_are_an_error_even_if_no_rank_waits_for_the_odd_one() {
    let errors = host_group(3, |rank, group| {
        if rank == 0 {
            let first = group.broadcast(buffer(&[1; 8]), 0, SOON).wait(None);
            let second = group.barrier(SOON).wait(None);
            first.and(second).unwrap_err()
        } else {
            group.barrier(SOON).wait(None).unwrap_err()
        }
    });
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("called broadcast of 8 bytes from rank 0"), "{text}");
        assert!(text.contains("called barrier"), "{text}");
    }
}

#[test]
fn a_timeout_names_the_missing_ranks() {
    host_group(3, |rank, group| {
        if rank == 1 {
            std::thread::sleep(Duration::from_millis(1500));
            return;
        }
        let quick = Duration::from_millis(500);
        let work = group.allreduce(buffer(&[0; 40]), Dtype::F32, SUM, quick);
        let error = work.wait(None).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Timeout { .. }), "{text}");
        assert!(text.starts_with("allreduce float32[10] sum (operation #0, 40 bytes)"), "{text}");
        assert!(text.contains("rank 1 (host 127.0.0.1, pid "), "{text}");
        let late = group.receive(buffer(&[0; 4]), Some(1), 5, quick).wait(None).unwrap_err();
        assert!(late.to_string().contains("receive of 4 bytes from rank 1"), "{late}");
        if SHARED_MEMORY {
            // The rounds of an abandoned operation cannot be completed: the next one fails at once.
            let next = group.barrier(SOON).wait(None).unwrap_err().to_string();
            assert!(next.contains("since this one failed: allreduce float32[10] sum"), "{next}");
        }
    });
}

#[test]
fn a_lost_rank_fails_waiting_and_later_operations() {
    let groups: Vec<Group> =
        (0..3).map(|rank| Group::new(config(rank, 3, "lost")).unwrap()).collect();
    let addresses: Vec<_> = groups.iter().map(Group::address).collect();
    std::thread::scope(|scope| {
        for (rank, group) in groups.into_iter().enumerate() {
            let addresses = &addresses;
            scope.spawn(move || {
                group.connect(addresses).unwrap();
                if rank == 2 {
                    std::thread::sleep(Duration::from_millis(200));
                    return group.abort("test");
                }
                let work = group.allreduce(buffer(&[0; 400]), Dtype::F32, SUM, SOON);
                let error = work.wait(Some(Duration::from_secs(10))).unwrap_err();
                let text = error.to_string();
                assert!(matches!(error, Error::PeerLost { rank: 2, .. }), "{text}");
                assert!(text.contains("rank 2 (host 127.0.0.1, pid "), "{text}");
                assert!(text.contains("allreduce float32[100] sum (operation #0"), "{text}");
                let after = group.barrier(SOON).wait(None).unwrap_err();
                assert!(matches!(after, Error::PeerLost { rank: 2, .. }), "{after}");
                let message =
                    group.receive(buffer(&[0]), Some(1 - rank as u32), 0, SOON).wait(None);
                assert!(matches!(message, Err(Error::PeerLost { rank: 2, .. })));
            });
        }
    });
}

#[test]
fn abort_ends_everything_at_once() {
    host_group(2, |rank, group| {
        if rank == 0 {
            let works = [
                group.barrier(SOON),
                group.receive(buffer(&[0; 9]), Some(1), 1, SOON),
                group.allreduce(buffer(&vec![0; 9 << 20]), Dtype::F32, SUM, SOON),
            ];
            std::thread::sleep(Duration::from_millis(100));
            let started = Instant::now();
            group.abort("enough");
            for work in works {
                let text = work.wait(Some(SOON)).unwrap_err().to_string();
                assert_eq!(text, "group aborted: enough");
            }
            assert!(started.elapsed() < Duration::from_secs(2));
        } else {
            let error = group.receive(buffer(&[0; 9]), Some(0), 9, SOON).wait(None).unwrap_err();
            assert!(matches!(error, Error::PeerLost { rank: 0, .. }), "{error}");
            assert!(error.to_string().contains("it was aborted: enough"), "{error}");
        }
    });
}

#[test]
fn invalid_arguments_are_refused_with_the_reason() {
    host_group(2, |_, group| {
        let text = |work: netsum_collective::Work| work.wait(None).unwrap_err().to_string();
        let and = Combine::Plain(ReduceOp::BitAnd);
        let work = group.allreduce(buffer(&[0; 4]), Dtype::F32, and, SOON);
        assert_eq!(text(work), "band is not defined for float32");
        let work = group.broadcast(buffer(&[0; 4]), 2, SOON);
        assert!(text(work).contains("there is no rank 2 in a group of 2"));
        let work = group.allgather(vec![buffer(&[0; 4])], buffer(&[0; 4]), SOON);
        assert!(text(work).ends_with("1 outputs for 2 ranks"));
        let outputs = vec![buffer(&[0; 5]), buffer(&[0; 5])];
        let work = group.allgather(outputs, buffer(&[0; 4]), SOON);
        assert!(text(work).contains("has 5 bytes, the input 4"));
        let own = group.send(buffer(&[0]), 7, 0, SOON);
        assert!(text(own).contains("rank 7 cannot be addressed in a group of 2 ranks"));
        group.barrier(SOON).wait(None).unwrap();
    });
}

#[test]
fn groups_that_differ_do_not_connect() {
    let mut other = config(1, 2, "a");
    other.options.max_trees = 3;
    let groups = [Group::new(config(0, 2, "a")).unwrap(), Group::new(other).unwrap()];
    let addresses: Vec<_> = groups.iter().map(Group::address).collect();
    let text = groups[0].connect(&addresses).unwrap_err().to_string();
    let named =
        "rank 1 has options panama tenant= scale=0 encrypt=false all_collectives=false max_trees=3";
    assert!(text.contains(named), "{text}");
    let after = groups[0].barrier(SOON).wait(None).unwrap_err();
    assert_eq!(after.to_string(), "group \"a\" is closed");
}

#[test]
fn statistics_report_the_host_path() {
    with_group(
        2,
        |rank| config(rank, 2, "stats"),
        |_, group| {
            group.allreduce(buffer(&[0; 4000]), Dtype::F32, SUM, SOON).wait(None).unwrap();
            let stats: serde_json::Value = serde_json::to_value(group.stats()).unwrap();
            assert_eq!(stats["path"], "host");
            assert_eq!(stats["reason"], "there is no controller");
            assert_eq!(
                (&stats["operations"], &stats["network_operations"]),
                (&1.into(), &0.into())
            );
            if SHARED_MEMORY {
                assert_eq!(stats["hosts_by"], "shared memory");
            } else {
                let expected = if network() == Network::Ucx { "UCX" } else { "TCP" };
                assert_eq!(stats["hosts_by"], expected);
                assert!(stats["host_bytes_tx"].as_u64().unwrap() >= 4000);
            }
        },
    );
}

#[test]
fn a_rank_that_left_is_named_and_its_contribution_counts() {
    let groups: Vec<Group> =
        (0..3).map(|rank| Group::new(config(rank, 3, "left")).unwrap()).collect();
    let addresses: Vec<_> = groups.iter().map(Group::address).collect();
    std::thread::scope(|scope| {
        for (rank, group) in groups.into_iter().enumerate() {
            let addresses = &addresses;
            scope.spawn(move || {
                group.connect(addresses).unwrap();
                let mut own = buffer(&[1, 0, 0, 0]);
                if rank == 1 {
                    // Its contribution is present although it has left when the others read it.
                    group.allreduce(own, Dtype::I32, SUM, SOON).wait(None).unwrap();
                    return group.close();
                }
                std::thread::sleep(Duration::from_millis(100 * rank as u64));
                group.allreduce(&mut own, Dtype::I32, SUM, SOON).wait(None).unwrap();
                assert_eq!(bytes(&own), [3, 0, 0, 0]);
                let error = group.barrier(SOON).wait(Some(SOON)).unwrap_err();
                assert!(matches!(error, Error::Left { rank: 1, .. }), "{error}");
            });
        }
    });
}

/// The caller's own thread and the queue's thread alternate, and keep the order of calls.
#[test]
fn operations_here_and_elsewhere_keep_their_order() {
    let size = 3;
    host_group(size, |rank, group| {
        for round in 0..200u32 {
            let mut behind = buffer(&(rank + round).to_le_bytes());
            let work =
                (round % 3 == 0).then(|| group.allreduce(&mut behind, Dtype::I32, SUM, SOON));
            let mut own = buffer(&(rank * round).to_le_bytes());
            let here = group.allreduce(&mut own, Dtype::I32, SUM, Terms::here(SOON));
            here.wait(None).unwrap();
            assert_eq!(bytes(&own), (3 * round).to_le_bytes());
            if let Some(work) = work {
                assert!(work.is_done(), "it was called before");
                assert_eq!(bytes(&behind), (3 + 3 * round).to_le_bytes());
            }
        }
    });
}
