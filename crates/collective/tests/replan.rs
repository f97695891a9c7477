//! Groups whose allreduces use a tree plan, on loopback: peer links that break and plans that change during operations.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use netsum_collective::planned::{LostLink, PlanSource};
use netsum_collective::{Buffer, Combine, Dtype, Error, Group, GroupConfig, ReduceOp};
use netsum_plan::pack::{pack, pack_rings};
use netsum_topo::links::{Collective, LinkKind, TreePlan, built};
use proptest::prelude::*;
use support::{SOON, config};

const SUM: Combine = Combine::Plain(ReduceOp::Sum);

fn plan(gpus: &str) -> TreePlan {
    let graph = built("dgx1v").unwrap().only(&[LinkKind::Nvlink]).unwrap();
    let graph = graph.select(&gpus.split(',').collect::<Vec<_>>()).unwrap();
    pack(&graph, Collective::Allreduce).unwrap().plan(&graph)
}

/// A plan's file, deleted at the end of its test.
struct File(PathBuf);

impl File {
    fn new(plan: &TreePlan) -> File {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("netsum-plan-{}-{number}", std::process::id()));
        let file = File(path);
        file.write(&serde_json::to_string(plan).unwrap());
        file
    }

    /// Replaces the file atomically: readers see the old text or the new.
    fn write(&self, text: &str) {
        let new = self.0.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, &self.0).unwrap();
    }

    fn config(&self, rank: u32, size: u32) -> GroupConfig {
        let mut source = PlanSource::new(self.0.clone());
        source.min_bytes = Some(0);
        GroupConfig { plan: Some(source), ..config(rank, size, "planned") }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn elements(rank: u32, step: usize, n: usize) -> Vec<u8> {
    let value = |i: usize| (i * 7 + step * 13 + (rank as usize + 1) * 101) as i64;
    (0..n).flat_map(|i| value(i).to_le_bytes()).collect()
}

fn is_sum(buffer: &Buffer, size: u32, step: usize, n: usize) -> bool {
    let all: Vec<Vec<u8>> = (0..size).map(|rank| elements(rank, step, n)).collect();
    buffer.slice(0..buffer.len()) == support::flat_sum(Dtype::I64, ReduceOp::Sum, &all)
}

/// `steps` allreduces one after another, each checked.
fn train(group: &Group, rank: u32, size: u32, steps: usize, mut at: impl FnMut(usize)) {
    for step in 0..steps {
        at(step);
        let n = [1, 30_011, 5000][step % 3];
        let mut buffer = Buffer::from_vec(elements(rank, step, n));
        let work = group.allreduce(&mut buffer, Dtype::I64, SUM, SOON);
        work.wait(None).unwrap();
        assert!(is_sum(&buffer, size, step, n), "rank {rank}, step {step}");
    }
}

fn stats(group: &Group) -> serde_json::Value {
    serde_json::to_value(group.stats()).unwrap()
}

#[test]
fn allreduces_use_the_plan_with_the_same_bits_everywhere() {
    let file = File::new(&plan("0,1,2,3,4,6"));
    let found = support::with_group(
        6,
        |rank| file.config(rank, 6),
        |rank, group| {
            let mut all = Vec::new();
            for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F64, Dtype::Bool] {
                let mut buffer = support::buffer(&support::values(dtype, 5003, rank, 1));
                let how = if dtype == Dtype::Bool {
                    Combine::Plain(ReduceOp::Max)
                } else {
                    Combine::Average
                };
                group.allreduce(&mut buffer, dtype, how, SOON).wait(None).unwrap();
                all.push(support::bytes(&buffer));
            }
            // The host path and the plan do not interfere.
            group.barrier(SOON).wait(None).unwrap();
            assert_eq!(stats(group)["path"], "plan");
            assert!(stats(group)["plan"]["trees"].as_u64().unwrap() > 1);
            all
        },
    );
    assert!(found.iter().all(|other| *other == found[0]));
}

#[test]
fn a_changed_file_is_picked_up_at_the_next_operation() {
    let first = plan("0,1,2,3,4,6");
    let graph = built("dgx1v").unwrap().only(&[LinkKind::Nvlink]).unwrap();
    let graph = graph.select(&["0", "1", "2", "3", "4", "6"]).unwrap();
    let second = pack_rings(&graph).unwrap().unwrap().plan(&graph);
    assert_ne!(first, second);
    let file = File::new(&first);
    support::with_group(
        6,
        |rank| file.config(rank, 6),
        |rank, group| {
            let change = |step| match (rank, step) {
                (0, 4) => file.write(&serde_json::to_string(&second).unwrap()),
                // A file that is not a plan is refused, and the work continues.
                (0, 8) => file.write("{"),
                _ => {}
            };
            train(group, rank, 6, 12, change);
            let stats = stats(group);
            assert_eq!(stats["plan"]["epoch"], 2, "{stats}");
            assert_eq!(stats["plan"]["trees"], second.flows.len());
            if rank == 0 {
                assert!(stats["reason"].as_str().unwrap().contains("not a tree plan"), "{stats}");
            }
        },
    );
}

/// Rank 0's size applies: the others have no topology.
#[test]
fn small_buffers_use_the_host_path() {
    let file = File::new(&plan("0,1,4"));
    let settings = |rank: u32, min_bytes, turn: Option<u64>| {
        let mut config = file.config(rank, 3);
        // Bytes over TCP show which path a buffer took.
        config.options.shared_memory = false;
        let source = config.plan.as_mut().unwrap();
        source.min_bytes = min_bytes;
        if rank == 0 {
            source.turn = Some(Arc::new(move |plan: &TreePlan| {
                assert_eq!(plan.gpus.len(), 3);
                turn
            }));
        }
        config
    };
    for (min_bytes, turn, on_plan) in [
        (None, Some(30_000), [false, false, true]),
        // A topology's latencies do not reduce the size below the hosts' measured minimum.
        (None, Some(10), [false, true, true]),
        (None, None, [false, false, false]),
        (Some(8000), Some(30_000), [true, true, true]),
    ] {
        support::with_group(
            3,
            |rank| settings(rank, min_bytes, turn),
            |rank, group| {
                for (count, on_plan) in [1000, 2500, 5000].into_iter().zip(on_plan) {
                    let before = stats(group)["host_bytes_tx"].as_u64().unwrap();
                    let mut buffer = Buffer::from_vec(elements(rank, 0, count));
                    group.allreduce(&mut buffer, Dtype::I64, SUM, SOON).wait(None).unwrap();
                    assert!(is_sum(&buffer, 3, 0, count));
                    let sent = stats(group)["host_bytes_tx"].as_u64().unwrap() - before;
                    assert_eq!(sent < 4000, on_plan, "{count}: {sent}, {}", stats(group)["plan"]);
                }
            },
        );
    }
}

/// A proxy in front of a rank's port that ends connections after some bytes.
struct Breaker {
    address: String,
}

impl Breaker {
    /// `cuts`: how many connections end, each after the next of `after` bytes.
    fn new(target: String, cuts: Arc<AtomicUsize>, after: Vec<usize>) -> Breaker {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            for (number, near) in listener.incoming().flatten().enumerate() {
                let Ok(far) = TcpStream::connect(&target) else { continue };
                let after = after[number % after.len()];
                for (mut from, mut to) in [
                    (near.try_clone().unwrap(), far.try_clone().unwrap()),
                    (far.try_clone().unwrap(), near.try_clone().unwrap()),
                ] {
                    let cuts = cuts.clone();
                    thread::spawn(move || {
                        let (mut bytes, mut passed) = ([0; 4096], 0);
                        while let Ok(count) = from.read(&mut bytes) {
                            passed += count;
                            let ends = |cuts: usize| cuts.checked_sub(1);
                            let over = passed > after
                                && cuts
                                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, ends)
                                    .is_ok();
                            if count == 0 || over || to.write_all(&bytes[..count]).is_err() {
                                break;
                            }
                        }
                        let _ = from.shutdown(Shutdown::Both);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Breaker { address }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn broken_links_lose_no_contribution_and_count_none_twice(
        gpus in proptest::sample::select(vec!["0,1,4", "0,2,3", "0,1,2,3,4,6"]),
        cuts in 1usize..6,
        after in proptest::collection::vec(100usize..200_000, 8),
    ) {
        let plan = plan(gpus);
        let size = plan.gpus.len() as u32;
        let file = File::new(&plan);
        let left = Arc::new(AtomicUsize::new(cuts));
        let groups: Vec<Group> =
            (0..size).map(|rank| Group::new(file.config(rank, size)).unwrap()).collect();
        let addresses: Vec<Vec<u8>> = groups
            .iter()
            .map(|group| {
                let mut address: serde_json::Value = serde_json::from_slice(&group.address()).unwrap();
                let target = address["port"]["tcp"].as_str().unwrap().to_owned();
                let breaker = Breaker::new(target, left.clone(), after.clone());
                address["port"]["tcp"] = breaker.address.into();
                address["port"]["machine"] = "elsewhere".into();
                serde_json::to_vec(&address).unwrap()
            })
            .collect();
        thread::scope(|scope| {
            for (rank, group) in groups.iter().enumerate() {
                let addresses = &addresses;
                scope.spawn(move || {
                    // A group's own address must be unchanged.
                    let mut addresses = addresses.clone();
                    addresses[rank] = group.address();
                    group.connect(&addresses).unwrap();
                    train(group, rank as u32, size, 12, |_| {});
                    // No rank leaves before all have their results.
                    group.barrier(SOON).wait(None).unwrap();
                    group.close();
                });
            }
        });
    }
}

#[test]
fn without_a_remaining_plan_sums_use_the_host_path() {
    let file = File::new(&plan("0,1,4"));
    let asked = Arc::new(AtomicUsize::new(0));
    let configure = |rank| {
        let mut config = file.config(rank, 3);
        let asked = asked.clone();
        let none = move |lost: &[LostLink]| {
            asked.fetch_add(1, Ordering::SeqCst);
            assert!(lost.is_empty() || lost[0].link.len() == 2);
            Err("nothing is left".to_owned())
        };
        config.plan.as_mut().unwrap().replan = Some(Arc::new(none));
        config
    };
    support::with_group(3, configure, |rank, group| {
        train(group, rank, 3, 6, |_| {});
        assert_eq!(stats(group)["path"], "plan");
    });
    assert_eq!(asked.load(Ordering::SeqCst), 0, "nothing was lost");
}

#[test]
fn bad_plans_are_refused_at_all_ranks_alike() {
    let refused = |file: &File, size: u32| {
        let groups: Vec<Group> =
            (0..size).map(|rank| Group::new(file.config(rank, size)).unwrap()).collect();
        let addresses: Vec<Vec<u8>> = groups.iter().map(Group::address).collect();
        let connect = |group: &Group| group.connect(&addresses).unwrap_err().to_string();
        thread::scope(|scope| {
            let connect = &connect;
            let all: Vec<_> =
                groups.iter().map(|group| scope.spawn(move || connect(group))).collect();
            let all: Vec<String> = all.into_iter().map(|one| one.join().unwrap()).collect();
            assert!(all.iter().all(|error| *error == all[0]), "{all:?}");
            all[0].clone()
        })
    };
    let file = File::new(&plan("0,1,4"));
    assert!(refused(&file, 2).contains("the plan has 3 ranks, and the group has 2"));
    file.write("[]");
    assert!(refused(&file, 3).contains("not a tree plan"));
    let mut wrong = plan("0,1,4");
    wrong.flows[0].up.pop();
    file.write(&serde_json::to_string(&wrong).unwrap());
    assert!(refused(&file, 3).contains("a tree has 2 of 3 ranks"));
    wrong.collective = Collective::Allgather;
    file.write(&serde_json::to_string(&wrong).unwrap());
    assert!(refused(&file, 3).contains("the plan is for an all-gather"));
    std::fs::remove_file(&file.0).unwrap();
    assert!(refused(&file, 3).contains("No such file"));
    let both = GroupConfig { controller: Some("127.0.0.1:1".to_owned()), ..file.config(0, 3) };
    assert!(Group::new(both).err().unwrap().to_string().contains("not both"));
}

#[test]
fn disagreeing_ranks_are_named() {
    let file = File::new(&plan("0,1,4"));
    support::with_group(
        3,
        |rank| file.config(rank, 3),
        |rank, group| {
            let buffer = Buffer::from_vec(vec![0; if rank == 1 { 80 } else { 800 }]);
            let error = group.allreduce(buffer, Dtype::I64, SUM, SOON).wait(None).unwrap_err();
            let said = matches!(error, Error::Mismatch { .. } | Error::Told { mismatch: true, .. });
            assert!(said, "rank {rank}: {error}");
            assert!(error.to_string().contains("int64[10]"), "{error}");
        },
    );
}

#[test]
fn a_rank_that_does_not_call_is_named_within_the_timeout() {
    let file = File::new(&plan("0,1,4"));
    let begun = Instant::now();
    support::with_group(
        3,
        |rank| file.config(rank, 3),
        |rank, group| {
            if rank == 2 {
                thread::sleep(Duration::from_secs(3));
                return;
            }
            let buffer = Buffer::from_vec(vec![0; 800]);
            let short = Duration::from_millis(500);
            let error = group.allreduce(buffer, Dtype::I64, SUM, short).wait(None).unwrap_err();
            // Rank 1 is not a neighbour of the missing rank, and is notified.
            assert!(error.to_string().contains("rank 2 (host"), "rank {rank}: {error}");
        },
    );
    assert!(begun.elapsed() < SOON);
}
