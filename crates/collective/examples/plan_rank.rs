//! One rank of a collective by a tree plan: `plan_rank CONFIG.json`, as `tests/fabric/test_plans.py` writes it.
//!
//! Adds known float32 values, checks every sum, and prints `{"seconds": [[…]], "peer links": […], "links": […], "shares": […]}`:
//! for each size the time of each repeat after one that does not count, the media of its peer links, what was measured of
//! them, and the flows' shares in the end.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use netsum_collective::planned::{Patience, PlannedGroup, PortAddress, Ports};
use netsum_collective::{Dtype, ReduceOp};
use netsum_topo::links::{Collective, TreePlan};
use serde::Deserialize;

#[derive(Deserialize)]
struct Config {
    plan: TreePlan,
    rank: usize,
    listen: SocketAddr,
    ways: BTreeMap<String, IpAddr>,
    peers: BTreeMap<usize, PortAddress>,
    /// Of one buffer after another.
    bytes: Vec<usize>,
    repeats: usize,
    measure: bool,
    sharing: String,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).ok_or("usage: plan_rank CONFIG.json")?;
    let config: Config = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    let Config { plan, rank, repeats, measure, .. } = config;
    if plan.collective != Collective::Allreduce {
        return Err("the plan is not for an allreduce".into());
    }
    let ports = Ports::open(config.listen, config.ways, [0; 16])?;
    let limit = Duration::from_secs(30);
    let sharing = config.sharing.parse()?;
    let patience = Patience { connect: limit, timeout: limit, silence: limit, measure, sharing };
    let mut group = PlannedGroup::connect(&plan, rank, &ports, &config.peers, 1, patience)?;
    let ranks = plan.gpus.len();
    // Whole numbers: their sums are exact in any order.
    let value = |i: usize, rank: usize| ((i % 97) * (rank + 1)) as f32;
    let mut seconds = vec![Vec::new(); config.bytes.len()];
    for round in 0..config.bytes.len() * (repeats + 1) {
        let (bytes, seconds) =
            (config.bytes[round / (repeats + 1)], &mut seconds[round / (repeats + 1)]);
        let mut buffer: Vec<u8> =
            (0..bytes / 4).flat_map(|i| value(i, rank).to_le_bytes()).collect();
        // All begin together: a small sum first.
        group.run(&mut [0; 4], Dtype::F32, ReduceOp::Sum, None)?;
        let start = Instant::now();
        group.run(&mut buffer, Dtype::F32, ReduceOp::Sum, None)?;
        seconds.push(start.elapsed().as_secs_f64());
        for (i, found) in buffer.chunks_exact(4).enumerate() {
            let found = f32::from_le_bytes([found[0], found[1], found[2], found[3]]);
            let expected: f32 = (0..ranks).map(|rank| value(i, rank)).sum();
            if found != expected {
                return Err(format!("element {i} is {found}, and should be {expected}").into());
            }
        }
    }
    let links = group.measured().into_iter();
    let links: Vec<_> = links.map(|(link, m)| (link, m.latency_s, m.rate_bps)).collect();
    let counted: Vec<_> = seconds.iter().map(|all| &all[1..]).collect();
    let found = serde_json::json!({
        "seconds": counted, "lanes": group.peer_links(), "links": links, "shares": group.shares(),
    });
    println!("{found}");
    Ok(())
}
