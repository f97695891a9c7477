//! One rank of an allreduce by a tree plan: `plan_rank PLAN.json RANK LISTEN BYTES REPEATS [PEER=ADDRESS]…`.
//!
//! Adds known float32 values, checks every sum, and prints `{"seconds": […]}`: the time of each repeat
//! after one that does not count. `tests/fabric/test_plans.py` runs it on shaped links.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use netsum_collective::planned::PlannedGroup;
use netsum_collective::{Dtype, ReduceOp};
use netsum_topo::links::TreePlan;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [file, rank, listen, bytes, repeats, peers @ ..] = words.as_slice() else {
        return Err("usage: plan_rank PLAN.json RANK LISTEN BYTES REPEATS [PEER=ADDRESS]…".into());
    };
    let plan: TreePlan = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    let (rank, elements, repeats) =
        (rank.parse::<usize>()?, bytes.parse::<usize>()? / 4, repeats.parse::<usize>()?);
    let mut addresses: BTreeMap<usize, SocketAddr> = BTreeMap::new();
    for peer in peers {
        let (peer, address) = peer.split_once('=').ok_or("a peer is RANK=ADDRESS")?;
        addresses.insert(peer.parse()?, address.parse()?);
    }
    let listener = TcpListener::bind(listen)?;
    let mut group =
        PlannedGroup::connect(&plan, rank, &listener, &addresses, Duration::from_secs(30))?;
    let ranks = plan.gpus.len();
    // Whole numbers: their sums are exact in any order.
    let value = |i: usize, rank: usize| ((i % 97) * (rank + 1)) as f32;
    let mut seconds = Vec::new();
    for _ in 0..=repeats {
        let mut buffer: Vec<u8> =
            (0..elements).flat_map(|i| value(i, rank).to_le_bytes()).collect();
        // All begin together: a small sum first.
        group.run(&mut [0; 4], Dtype::F32, ReduceOp::Sum, 1)?;
        let start = Instant::now();
        group.run(&mut buffer, Dtype::F32, ReduceOp::Sum, CHUNKS)?;
        seconds.push(start.elapsed().as_secs_f64());
        for (i, found) in buffer.chunks_exact(4).enumerate() {
            let found = f32::from_le_bytes([found[0], found[1], found[2], found[3]]);
            let expected: f32 = (0..ranks).map(|rank| value(i, rank)).sum();
            if found != expected {
                return Err(format!("element {i} is {found}, and should be {expected}").into());
            }
        }
    }
    println!("{}", serde_json::json!({ "seconds": &seconds[1..] }));
    Ok(())
}

/// Enough that filling the pipeline is a small part of the time.
const CHUNKS: usize = 64;
