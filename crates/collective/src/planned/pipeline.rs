//! The number of chunks per flow.
//!
//! K chunks over h hops take (h − 1 + K)·(α + t/K), where t is the time of the bytes at the plan's rate: the minimum is
//! at K = √((h − 1)·t/α). All ranks compute the same number from the plan.

use std::collections::HashMap;

use netsum_topo::links::TreePlan;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pipeline {
    /// Hops of the longest path up to a root and down from it.
    hops: usize,
    bytes_per_s: f64,
}

impl Pipeline {
    pub(super) fn of(plan: &TreePlan) -> Pipeline {
        let hops = plan.flows.iter().map(|flow| {
            let up = flow.up.iter().rev().map(|way| (way[way.len() - 1], way[0]));
            let down = flow.down.iter().map(|way| (way[0], way[way.len() - 1]));
            height(up) + height(down)
        });
        let bytes_per_s = (plan.rate_bps.to_f64() / 8.0).clamp(1.0, HOST_BYTES_PER_S);
        Pipeline { hops: hops.max().unwrap_or(0), bytes_per_s }
    }

    /// Number of chunks per flow for a buffer of `bytes`, of which the longest flow is `longest`.
    pub(super) fn chunks(&self, bytes: usize, longest: usize) -> usize {
        let more = self.hops.saturating_sub(1) as f64;
        let seconds = bytes as f64 / self.bytes_per_s;
        let best = (more * seconds / HOP_S).sqrt() as usize;
        best.min(longest / CHUNK_LEAST).clamp(1, CHUNKS_MAX)
    }

    /// Bytes that may wait in the kernel for a connection: the traffic until a peer link's thread runs again, and no
    /// more, since they delay each hop.
    pub(super) fn unsent_bytes(&self) -> u32 {
        (self.bytes_per_s * WAKE_S).clamp(UNSENT_LEAST, UNSENT_MOST) as u32
    }
}

/// Hops to the farthest vertex; parents precede children.
fn height(edges: impl Iterator<Item = (usize, usize)>) -> usize {
    let mut depth: HashMap<usize, usize> = HashMap::new();
    for (parent, child) in edges {
        let below = depth.get(&parent).copied().unwrap_or(0) + 1;
        depth.insert(child, below);
    }
    depth.into_values().max().unwrap_or(0)
}

/// Cost of a chunk at a hop besides its bytes: three thread wake-ups, two system calls.
const HOP_S: f64 = 100e-6;
/// Maximum delay until a woken thread runs on a busy machine.
const WAKE_S: f64 = 1e-3;
const UNSENT_LEAST: f64 = 16e3;
const UNSENT_MOST: f64 = 1e6;
/// Approximate maximum rate at which a host adds and forwards, on any links.
const HOST_BYTES_PER_S: f64 = 4e9;
/// Below, headers and system calls dominate.
const CHUNK_LEAST: usize = 4 << 10;
const CHUNKS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_links_and_high_trees_get_more_chunks() {
        let chunks =
            |hops, rate| Pipeline { hops, bytes_per_s: rate }.chunks(10_000_000, 5_000_000);
        // √(5 · 2 s / 100 µs)
        assert_eq!(chunks(6, 5e6), 316);
        assert!(chunks(2, 5e6) < chunks(6, 5e6) && chunks(6, 5e9) < chunks(6, 5e6));
        assert_eq!(chunks(1, 5e6), 1);
        assert_eq!(Pipeline { hops: 6, bytes_per_s: 1.0 }.chunks(4096, 4096), 1);
    }

    #[test]
    fn hops_are_counted_up_and_down() {
        let edges = [(0, 3), (3, 1), (0, 2), (1, 4)];
        assert_eq!(height(edges.into_iter()), 3);
    }
}
