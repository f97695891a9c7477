//! Sums on trees through real switches and a real controller, and their failures.

mod all_collectives;
mod leaving;
#[path = "../support/mod.rs"]
mod support;
mod world;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use netsum_collective::{
    Combine, Dtype, Error, Format, Group, GroupConfig, Options, ReduceOp, Terms,
};
use support::{SOON, buffer, bytes, values, with_group};
use world::{RANKS, SUM, World, check, expected, stats, wait_for};

#[test]
fn trees_and_hosts_give_the_same_bits() {
    let world = World::new();
    world.run(|rank, group| {
        for dtype in Dtype::ALL.into_iter().filter(|dtype| dtype.in_network()) {
            for op in [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max] {
                check(group, rank, dtype, op, 100_003, 1);
                check(group, rank, dtype, op, 5, 2);
            }
        }
        check(group, rank, Dtype::F64, ReduceOp::Sum, 1000, 3);
        let mut average = buffer(&(rank as f32).to_le_bytes().repeat(10_000));
        group.allreduce(&mut average, Dtype::F32, Combine::Average, SOON).wait(None).unwrap();
        assert_eq!(bytes(&average), 1.5f32.to_le_bytes().repeat(10_000));
        let stats = stats(group);
        assert_eq!((&stats["path"], &stats["epoch"]), (&"trees".into(), &1.into()), "{stats}");
        // Three of each type, and the average.
        let types = Dtype::ALL.into_iter().filter(|dtype| dtype.in_network()).count();
        assert_eq!(stats["network_operations"], 3 * types + 1, "{stats}");
        assert_eq!(stats["trees"].as_array().unwrap().len(), 2);
        assert!(stats["trees"][0]["results"].as_u64().unwrap() > 100, "{stats}");
    });
}

/// The order is that of the trees, [[0,1],[2,3]]: its blocks are those of halving and doubling.
#[test]
fn halving_and_doubling_adds_in_the_order_of_the_trees() {
    let world = World::new();
    let by_halving = |rank| {
        let config = world.config(rank);
        let algorithms = [("allreduce".to_owned(), "halving-doubling".to_owned())].into();
        let options = Options { algorithms, min_bytes: Some(u64::MAX), ..config.options.clone() };
        GroupConfig { options, ..config }
    };
    with_group(RANKS, by_halving, |rank, group| {
        for (salt, n) in (0..).zip([5, 1003, 100_003, 2_000_003]) {
            check(group, rank, Dtype::F32, ReduceOp::Sum, n, salt);
            check(group, rank, Dtype::Bf16, ReduceOp::Sum, n, salt);
            let format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };
            let choice = group.explain("allreduce", format, 4 * n).unwrap();
            assert_eq!(choice.chosen, "halving-doubling", "{choice:?}");
        }
        let stats = stats(group);
        assert_eq!((&stats["network_operations"], &stats["path"]), (&0.into(), &"trees".into()));
    });
}

/// A sum whose caller does the data thread's work.
fn check_here(group: &Group, rank: u32, n: usize, salt: u64) {
    let mut buffer = buffer(&values(Dtype::F32, n, rank, salt));
    group.allreduce(&mut buffer, Dtype::F32, SUM, Terms::here(SOON)).wait(None).unwrap();
    let expected = expected(Dtype::F32, ReduceOp::Sum, n, salt);
    assert!(bytes(&buffer) == expected, "rank {rank}, sum #{salt} here");
}

#[test]
fn callers_that_wait_do_the_work_of_the_data_thread_beside_operations_of_others() {
    let world = World::new();
    world.run(|rank, group| {
        for salt in 0..100 {
            check_here(group, rank, 300 + salt as usize, salt);
        }
        for salt in 0..20 {
            // The caller goes on while the first is in flight, waits for the second, and leaves the first to the thread.
            let n = 100_000;
            let mut large = buffer(&values(Dtype::F32, n, rank, salt));
            let work = group.allreduce(&mut large, Dtype::F32, SUM, SOON);
            check_here(group, rank, 301, salt + 1000);
            if salt % 3 == 0 {
                // Another rank is late: the others wait in the call.
                std::thread::sleep(Duration::from_millis(
                    u64::from(rank == salt as u32 % RANKS) * 15,
                ));
            }
            check_here(group, rank, 302, salt + 2000);
            work.wait(None).unwrap();
            assert!(bytes(&large) == expected(Dtype::F32, ReduceOp::Sum, n, salt), "#{salt}");
        }
        let stats = stats(group);
        assert_eq!(stats["network_operations"], 160, "{stats}");
    });
}

/// Sums of several buffers at once, checked bit for bit; `sizes` in elements.
fn check_all(group: &Group, rank: u32, dtype: Dtype, sizes: &[usize], salt: u64) {
    let of = |number: usize| salt + 1000 * number as u64;
    let mut buffers: Vec<_> =
        sizes.iter().enumerate().map(|(i, n)| buffer(&values(dtype, *n, rank, of(i)))).collect();
    let work = group.allreduce_all(support::lent(&mut buffers), dtype, SUM, SOON);
    work.wait(None).unwrap();
    for (number, (buffer, n)) in buffers.iter().zip(sizes).enumerate() {
        let expected = expected(dtype, ReduceOp::Sum, *n, of(number));
        assert!(bytes(buffer) == expected, "buffer {number} of {n} {dtype}");
    }
}

#[test]
fn small_sums_share_packets_and_have_their_own_bits() {
    let world = World::new();
    // Gradients of 1 to 1,000 elements, and two that are too large to be copied.
    let mut sizes: Vec<usize> = (0..300).map(|number| 1 + number * 37 % 1000).collect();
    let elements: usize = sizes.iter().sum();
    sizes.insert(100, 30_000);
    sizes.push(20_000);
    world.run(|rank, group| {
        let results = || {
            let stats = stats(group);
            let trees = stats["trees"].as_array().unwrap();
            trees.iter().map(|tree| tree["results"].as_u64().unwrap()).sum::<u64>()
        };
        for (salt, dtype) in [Dtype::F32, Dtype::Bf16, Dtype::I64].into_iter().enumerate() {
            check_all(group, rank, dtype, &sizes, salt as u64);
        }
        let before = results();
        check_all(group, rank, Dtype::F32, &sizes[..100], 7);
        check_all(group, rank, Dtype::F32, &sizes[101..301], 8);
        // Packets hold some hundred elements.
        let packets = results() - before;
        assert!(packets <= elements as u64 / 300 + 4, "{packets} packets for {elements} elements");
        let mut averages: Vec<_> = (1..=3)
            .map(|n| buffer(&[rank as f32; 3].map(|x| x * n as f32).map(f32::to_le_bytes).concat()))
            .collect();
        let lent = support::lent(&mut averages);
        group.allreduce_all(lent, Dtype::F32, Combine::Average, SOON).wait(None).unwrap();
        for (n, average) in (1..=3).zip(&averages) {
            assert_eq!(bytes(average), [1.5f32 * n as f32; 3].map(f32::to_le_bytes).concat());
        }
        group.allreduce_all(Vec::new(), Dtype::F32, SUM, SOON).wait(None).unwrap();
    });
}

#[test]
fn groups_of_other_sizes_are_an_error_that_names_the_rank() {
    let world = World::new();
    let errors = world.run(|rank, group| {
        let sizes: &[usize] = if rank == 2 { &[400, 300] } else { &[300, 400] };
        let mut buffers: Vec<_> = sizes.iter().map(|n| buffer(&vec![0; 4 * n])).collect();
        let work = group.allreduce_all(support::lent(&mut buffers), Dtype::F32, SUM, SOON);
        work.wait(Some(SOON)).unwrap_err().to_string()
    });
    for text in errors {
        assert!(text.contains("rank 2 called allreduce float32[700] sum of 2 tensors"), "{text}");
    }
}

#[test]
fn hosts_run_operations_that_slots_do_not_support() {
    let world = World::new();
    for protocol in ["atp", "switchml"] {
        let of_protocol = |rank| {
            let config = world.config(rank);
            let options = Options { protocol: protocol.to_owned(), ..config.options.clone() };
            GroupConfig { options, ..config }
        };
        let sums = with_group(RANKS, of_protocol, |rank, group| {
            for op in [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max] {
                check(group, rank, Dtype::I32, op, 100_003, 1);
                check(group, rank, Dtype::I64, op, 10_001, 2);
            }
            check(group, rank, Dtype::F32, ReduceOp::Max, 10_001, 3);
            check(group, rank, Dtype::Bf16, ReduceOp::Min, 10_001, 3);
            check(group, rank, Dtype::I16FromI8, ReduceOp::Sum, 100_003, 3);
            check(group, rank, Dtype::Bf16FromE4m3, ReduceOp::Sum, 10_001, 3);
            let mut reals = buffer(&values(Dtype::F32, 100_003, rank, 4));
            group.allreduce(&mut reals, Dtype::F32, SUM, SOON).wait(None).unwrap();
            let mut average = buffer(&(rank as f32).to_le_bytes().repeat(10_000));
            group.allreduce(&mut average, Dtype::F32, Combine::Average, SOON).wait(None).unwrap();
            assert_eq!(bytes(&average), 1.5f32.to_le_bytes().repeat(10_000));
            let stats = stats(group);
            assert_eq!((&stats["path"], &stats["protocol"]), (&"trees".into(), &protocol.into()));
            // All but those of int64 and of 8-bit floats, which slots do not support.
            assert_eq!(stats["network_operations"], 8, "{stats}");
            bytes(&reals)
        });
        assert!(sums.iter().all(|sum| *sum == sums[0]), "the same bits at every rank");
    }
}

#[test]
fn no_sum_is_lost_when_a_server_and_a_switch_die_under_load() {
    let mut world = World::new();
    let done = AtomicU32::new(0);
    let enough = AtomicBool::new(false);
    let configs: Vec<GroupConfig> = (0..RANKS)
        .map(|rank| {
            let config = world.config(rank);
            let options = Options { protocol: "atp".to_owned(), ..config.options.clone() };
            GroupConfig { options, ..config }
        })
        .collect();
    std::thread::scope(|scope| {
        let (done, enough) = (&done, &enough);
        let job = scope.spawn(move || {
            with_group(
                RANKS,
                |rank| configs[rank as usize].clone(),
                |rank, group| {
                    let mut salt = 0;
                    loop {
                        let mut stop =
                            buffer(&u32::from(enough.load(Ordering::Relaxed)).to_le_bytes());
                        let max = Combine::Plain(ReduceOp::Max);
                        group.allreduce(&mut stop, Dtype::I32, max, SOON).wait(None).unwrap();
                        if bytes(&stop)[0] == 1 {
                            return stats(group);
                        }
                        salt += 1;
                        check(group, rank, Dtype::I32, ReduceOp::Sum, 200_001, salt);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                },
            )
        });
        for victim in ["server0", "rack1", "server1"] {
            let before = done.load(Ordering::Relaxed);
            wait_for("sums", || done.load(Ordering::Relaxed) > before + 4 * RANKS);
            world.kill(victim);
        }
        let before = done.load(Ordering::Relaxed);
        wait_for("sums", || done.load(Ordering::Relaxed) > before + 4 * RANKS);
        enough.store(true, Ordering::Relaxed);
        let all = job.join().unwrap();
        assert!(all.iter().all(|stats| stats["path"] == "host"), "{}", all[0]);
        assert!(all[0]["reason"].as_str().unwrap().contains("server1 is down"), "{}", all[0]);
    });
}

/// All ranks sum continuously, with several operations in flight, until stopped; each sum is checked.
fn keep_summing(group: &Group, rank: u32, enough: &AtomicBool, done: &AtomicU32) {
    let mut salt = 0;
    loop {
        // All ranks stop at the same operation.
        let mut stop = buffer(&u32::from(enough.load(Ordering::Relaxed)).to_le_bytes());
        let max = Combine::Plain(ReduceOp::Max);
        group.allreduce(&mut stop, Dtype::I32, max, SOON).wait(None).unwrap();
        if bytes(&stop)[0] == 1 {
            return;
        }
        let works: Vec<_> = (0..4)
            .map(|_| {
                salt += 1;
                let n = 30_000 + salt as usize % 7;
                let mut buffer = buffer(&values(Dtype::F32, n, rank, salt));
                let work = group.allreduce(&mut buffer, Dtype::F32, SUM, SOON);
                (salt, n, buffer, work)
            })
            .collect();
        check_all(group, rank, Dtype::F32, &[1, 800, 77, 5000, 300], salt);
        check_here(group, rank, 1000, salt);
        for (salt, n, buffer, work) in works {
            work.wait(None).unwrap();
            let expected = expected(Dtype::F32, ReduceOp::Sum, n, salt);
            assert!(bytes(&buffer) == expected, "rank {rank}, sum #{salt}");
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_dead_switch_costs_a_pause_and_no_bit() {
    let mut world = World::new();
    let configs = (0..RANKS).map(|rank| world.config(rank)).collect();
    let stats = world.under_load(configs, keep_summing, |world, after| {
        after(5);
        world.kill("spine0");
        after(20);
        world.kill("rack1");
        after(5);
        world.start(world.index("rack1"));
        world.start(world.index("spine0"));
        world.wait_until_up(6);
        after(20);
    });
    for stats in &stats {
        let pauses = stats["pauses"].as_array().unwrap();
        assert!(pauses.len() >= 3, "{stats}");
        assert_eq!(stats["path"], "trees", "{stats}");
        let longest = pauses.iter().map(|p| p["seconds"].as_f64().unwrap()).fold(0.0, f64::max);
        assert!(longest < 3.0, "{stats}");
    }
    println!("{}", stats[0]);
}

#[test]
fn without_a_controller_ranks_abandon_dead_trees() {
    let mut world = World::new();
    let configs = (0..RANKS).map(|rank| world.config(rank)).collect();
    let stats = world.under_load(configs, keep_summing, |world, after| {
        after(5);
        world.controller.take().unwrap().kill();
        after(5);
        world.kill("spine1");
        after(5);
    });
    for stats in stats {
        assert_eq!(stats["path"], "host", "{stats}");
        assert_eq!(stats["reason"], "the trees of plan 1 do not answer");
        let seconds = stats["pauses"][0]["seconds"].as_f64().unwrap();
        assert!(seconds > 1.0 && seconds < 8.0, "{stats}");
    }
}

#[test]
fn a_timeout_on_trees_names_the_missing_ranks() {
    let world = World::new();
    world.run(|rank, group| {
        check(group, rank, Dtype::F32, ReduceOp::Sum, 10_000, 1);
        if rank == 2 {
            std::thread::sleep(Duration::from_millis(3000));
            return;
        }
        let timeout = Duration::from_millis(1500);
        let work = group.allreduce(buffer(&vec![0; 40_000]), Dtype::F32, SUM, timeout);
        let error = work.wait(None).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Timeout { .. }), "{text}");
        assert!(
            text.contains("allreduce float32[10000] sum (operation #1, 40000 bytes)"),
            "{text}"
        );
        assert!(text.contains("rank 2 (host h2, pid "), "{text}");
    });
}

#[test]
fn ranks_do_not_wait_for_one_that_has_left() {
    let world = World::new();
    world.run(|rank, group| {
        check(group, rank, Dtype::F32, ReduceOp::Sum, 10_000, 1);
        if rank == 2 {
            group.close();
            return;
        }
        let timeout = Duration::from_secs(600);
        let work = group.allreduce(buffer(&vec![0; 40_000]), Dtype::F32, SUM, timeout);
        let error = work.wait(None).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Left { rank: 2, .. }), "{text}");
        assert!(text.contains("allreduce float32[10000] sum"), "{text}");
        assert!(text.contains("rank 2 (host h2, pid "), "{text}");
    });
}

#[test]
fn different_calls_on_trees_are_an_error_at_every_rank() {
    let world = World::new();
    let errors = world.run(|rank, group| {
        check(group, rank, Dtype::F32, ReduceOp::Sum, 10_000, 1);
        let n = if rank == 1 { 12_000 } else { 10_000 };
        let work = group.allreduce(buffer(&vec![0; n * 4]), Dtype::F32, SUM, SOON);
        work.wait(Some(Duration::from_secs(10))).unwrap_err().to_string()
    });
    for text in errors {
        assert!(text.contains("rank 1 called allreduce float32[12000] sum"), "{text}");
        assert!(text.contains("called allreduce float32[10000] sum"), "{text}");
        assert!(text.contains("; rank 1 differs from most ranks"), "{text}");
    }
}
