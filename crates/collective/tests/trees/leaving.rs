//! Ranks that have all their sums and close their group, while another rank lacks one.

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use netsum_collective::{Dtype, ReduceOp};

use crate::support::{SOON, buffer, bytes, values, with_group};
use crate::world::{RANKS, SUM, World, check, expected, wait_for};

/// The rank to which the switches' packets are lost.
const DEAF: u32 = 3;

/// Runs [`the_last_sum_of_a_deaf_rank`] in a network namespace of its own.
#[test]
fn no_rank_leaves_while_another_lacks_a_sum_that_it_has() {
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", "ip link set lo up && iptables -L -n"]);
    if !command.output().is_ok_and(|output| output.status.success()) {
        return println!("skipped: needs root, iptables, and namespaces");
    }
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", "ip link set lo up && exec \"$0\" \"$@\""]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["leaving::the_last_sum_of_a_deaf_rank", "--exact", "--ignored", "--nocapture"]);
    let output = command.output().unwrap();
    let (out, error) = (&output.stdout, &output.stderr);
    let text = [String::from_utf8_lossy(out), String::from_utf8_lossy(error)].concat();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn lose_packets_to(address: Ipv4Addr) {
    let address = address.to_string();
    let mut command = Command::new("iptables");
    command.args(["--insert", "INPUT", "--proto", "udp", "--dst", &address, "--jump", "DROP"]);
    assert!(command.status().unwrap().success());
}

/// All ranks but one have the sum of a small allreduce, and close their groups. Then the switches that have it die.
#[test]
#[ignore = "run by no_rank_leaves_while_another_lacks_a_sum_that_it_has"]
fn the_last_sum_of_a_deaf_rank() {
    let mut world = World::new();
    let configs: Vec<_> = (0..RANKS).map(|rank| world.config(rank)).collect();
    let deaf = world.host(DEAF);
    let (ready, have_it) = (Barrier::new(RANKS as usize), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let job = scope.spawn(|| {
            with_group(
                RANKS,
                |rank| configs[rank as usize].clone(),
                |rank, group| {
                    check(group, rank, Dtype::F32, ReduceOp::Sum, 5000, 1);
                    ready.wait();
                    if rank == DEAF {
                        lose_packets_to(deaf);
                    }
                    ready.wait();
                    let mut last = buffer(&values(Dtype::F32, 1000, rank, 2));
                    let work = group.allreduce(&mut last, Dtype::F32, SUM, SOON);
                    if rank != DEAF {
                        work.wait(None).unwrap();
                        have_it.fetch_add(1, Ordering::Relaxed);
                        let closing = Instant::now();
                        group.close();
                        println!("rank {rank} has closed after {:?}", closing.elapsed());
                        return bytes(&last);
                    }
                    wait_for("the others' sums", || have_it.load(Ordering::Relaxed) == RANKS - 1);
                    assert!(!work.is_done(), "a deaf rank has its sum");
                    work.wait(None).unwrap();
                    bytes(&last)
                },
            )
        });
        wait_for("the others' sums", || have_it.load(Ordering::Relaxed) == RANKS - 1);
        // Long enough for who does not wait to be gone.
        std::thread::sleep(Duration::from_millis(300));
        world.kill("spine0");
        world.kill("spine1");
        for sum in job.join().unwrap() {
            assert!(sum == expected(Dtype::F32, ReduceOp::Sum, 1000, 2));
        }
    });
}
