//! An allreduce from Rust: four ranks, as threads of one process.
//!
//!     cargo run --release -p netsum-collective --example allreduce
//!
//! You see each rank print the sum 0 + 1 + 2 + 3.

use std::sync::mpsc;
use std::time::Duration;

use netsum_collective::{Buffer, Combine, Dtype, Error, Group, GroupConfig, Options, ReduceOp};

const RANKS: u32 = 4;
const SOON: Duration = Duration::from_secs(30);

fn main() -> Result<(), Error> {
    let groups = (0..RANKS).map(|rank| Group::new(config(rank))).collect::<Result<Vec<_>, _>>()?;
    // Between processes, any way to exchange the addresses will do: a file, a store, `rendezvous`.
    let addresses: Vec<Vec<u8>> = groups.iter().map(Group::address).collect();
    let (sums, results) = mpsc::channel();
    std::thread::scope(|scope| {
        for group in &groups {
            let (addresses, sums) = (&addresses, sums.clone());
            scope.spawn(move || sums.send((group.rank(), sum(group, addresses))).unwrap());
        }
    });
    drop(sums);
    for (rank, sum) in results {
        println!("rank {rank}: {}", sum?);
    }
    Ok(())
}

/// Connects, and adds the ranks' numbers in a buffer of a thousand of them.
fn sum(group: &Group, addresses: &[Vec<u8>]) -> Result<f32, Error> {
    group.connect(addresses)?;
    let mine = (group.rank() as f32).to_le_bytes();
    let mut buffer = Buffer::from_vec(mine.repeat(1000));
    group.allreduce(&mut buffer, Dtype::F32, Combine::Plain(ReduceOp::Sum), SOON).wait(None)?;
    let mut last = [0; 4];
    buffer.read(buffer.len() - 4, &mut last);
    Ok(f32::from_le_bytes(last))
}

fn config(rank: u32) -> GroupConfig {
    GroupConfig {
        rank,
        size: RANKS,
        name: "example".to_owned(),
        controller: None,
        host: Some("127.0.0.1".to_owned()),
        timeout: SOON,
        options: Options::default(),
        plan: None,
    }
}
