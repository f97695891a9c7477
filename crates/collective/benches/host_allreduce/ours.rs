//! One rank of netsum, in Rust: addresses are exchanged through pipes of the parent.

use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use netsum_collective::{Buffer, Combine, Dtype, Group, GroupConfig, Options, ReduceOp, Terms};

const SUM: Combine = Combine::Plain(ReduceOp::Sum);
const PATIENCE: Duration = Duration::from_secs(120);

/// Connects, runs the measurements of the arguments, and prints them if this is rank 0.
pub fn rank(rank: u32, arguments: &[String]) {
    let after = |name: &str| arguments.iter().skip_while(|a| *a != name).nth(1).expect(name);
    let size: u32 = after("--of").parse().expect("a number");
    let (blocks, seconds): (usize, f64) = (
        after("--blocks").parse().expect("a number"),
        after("--seconds").parse().expect("seconds"),
    );
    let sizes = after("--sizes").split(',').map(|n| n.parse().expect("bytes"));
    let shared_memory = !arguments.iter().any(|a| a == "--tcp");
    let group = Group::new(GroupConfig {
        rank,
        size,
        name: "bench".into(),
        controller: None,
        host: None,
        timeout: PATIENCE,
        options: Options { shared_memory, ..Options::default() },
        plan: None,
    });
    let group = group.expect("a group");
    println!("{}", hex(&group.address()));
    let mut lines = std::io::stdin().lock().lines().map(|line| line.expect("the parent lives"));
    let addresses: Vec<Vec<u8>> =
        lines.by_ref().take(size as usize).map(|line| unhex(&line)).collect();
    group.connect(&addresses).expect("all ranks are here");
    for bytes in sizes {
        measure(&group, rank, size, bytes, blocks, seconds);
    }
    group.barrier(PATIENCE).wait(None).expect("all ranks are here");
    group.close();
}

fn measure(group: &Group, rank: u32, size: u32, bytes: usize, blocks: usize, seconds: f64) {
    let values = (0..bytes / 4).map(|i| (i % 1000) as f32 + rank as f32);
    let mut data = Buffer::from_vec(values.flat_map(f32::to_le_bytes).collect());
    sum(group, &mut data);
    let total = |i: usize| (i % 1000) as f32 * size as f32 + (size * (size - 1) / 2) as f32;
    let sums = data.slice(0..bytes).as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
    assert!(sums.enumerate().all(|(i, sum)| sum == total(i)), "the sum of {bytes} bytes is wrong");
    data.slice_mut(0..bytes).fill(0);
    let once = block(group, &mut data, 2);
    let calls = ((seconds / once) as usize).clamp(3, 100_000);
    let times: Vec<String> =
        (0..blocks).map(|_| format!("{:.9}", block(group, &mut data, calls))).collect();
    if rank == 0 {
        println!("{bytes} {}", times.join(" "));
        std::io::stdout().flush().expect("the parent lives");
    }
}

/// Seconds per call of the slowest rank.
fn block(group: &Group, data: &mut Buffer, calls: usize) -> f64 {
    group.barrier(Terms::here(PATIENCE)).wait(None).expect("a barrier");
    let start = Instant::now();
    (0..calls).for_each(|_| sum(group, data));
    let own = start.elapsed().as_secs_f64() / calls as f64;
    let mut slowest = Buffer::from_vec(own.to_le_bytes().to_vec());
    let most = Combine::Plain(ReduceOp::Max);
    group
        .allreduce(&mut slowest, Dtype::F64, most, Terms::here(PATIENCE))
        .wait(None)
        .expect("a maximum");
    f64::from_le_bytes(slowest.slice(0..8).try_into().expect("eight bytes"))
}

fn sum(group: &Group, data: &mut Buffer) {
    let work = group.allreduce(data, Dtype::F32, SUM, Terms::here(PATIENCE));
    work.wait(None).expect("a sum");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("what `hex` wrote");
    (0..text.len()).step_by(2).map(digits).collect()
}
