//! Partition of the network into one region per thread.
//!
//! All hosts are in one region: flows, jobs and workloads are then run in order by one thread. Switches are divided
//! among the others. The partition does not affect the results of a run.

use netsum_topo::{NodeId, Topology};

use crate::routes::levels;

/// How a run is divided among threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threads {
    /// Maximum number of threads.
    pub count: usize,
    /// Whether switches add: then a packet costs more at hosts and racks than elsewhere.
    pub sums: bool,
}

impl Threads {
    /// One thread for everything.
    pub const ONE: Threads = Threads { count: 1, sums: false };
}

/// The region of each node, numbered from 0 without gaps: one region per thread, with about equal work; hosts are in
/// region 0. Regions are contiguous: a pod stays together if possible.
pub(crate) fn regions(topology: &Topology, threads: Threads) -> Vec<u8> {
    let mut region_of = vec![0; topology.node_count()];
    let count = threads.count.clamp(1, usize::from(u8::MAX).min(topology.switches().count() + 1));
    if count == 1 {
        return region_of;
    }
    let work = work(topology, threads.sums);
    let hosts: f64 = topology.hosts().map(|host| work[host.0 as usize]).sum();
    let share = work.iter().sum::<f64>() / count as f64;
    // Switches next to hosts join the hosts' region as far as there is room; the rest is divided into equal parts.
    let (level, place) = (levels(topology), places(topology));
    let mut switches: Vec<NodeId> = topology.switches().collect();
    let by_place =
        |a: &NodeId, b: &NodeId| place[a.0 as usize].total_cmp(&place[b.0 as usize]).then(a.cmp(b));
    switches.sort_by(|a, b| level[a.0 as usize].cmp(&level[b.0 as usize]).then(by_place(a, b)));
    let mut room = share - hosts;
    let beside = switches.iter().take_while(|switch| {
        room -= work[switch.0 as usize];
        room >= 0.0
    });
    // At least one switch for each other region.
    let beside = beside.count().min(switches.len() + 1 - count);
    let rest = &mut switches[beside..];
    rest.sort_by(by_place);
    let total: f64 = rest.iter().map(|switch| work[switch.0 as usize]).sum();
    let (mut done, others) = (0.0, count - 1);
    for (position, switch) in rest.iter().enumerate() {
        let middle = done + work[switch.0 as usize] / 2.0;
        let part = ((middle / total * others as f64) as usize).min(others - 1);
        // With few large switches, no region may stay empty.
        let part = part.clamp((position + others).saturating_sub(rest.len()), position);
        region_of[switch.0 as usize] = 1 + part as u8;
        done += work[switch.0 as usize];
    }
    region_of
}

/// Work of a node if all links are equally busy, in packets forwarded by a switch.
fn work(topology: &Topology, sums: bool) -> Vec<f64> {
    let host = if sums { HOST_SUM } else { HOST_PACKET };
    let mut work = vec![0.0; topology.node_count()];
    for (_, edge) in topology.edges() {
        for end in edge.ends {
            let each = if topology.is_switch(end) { 1.0 } else { host };
            work[end.0 as usize] += each * edge.rate_bps as f64;
        }
    }
    work
}

/// Position of a node: a host's number; for a switch, the mean of the nodes below it.
fn places(topology: &Topology) -> Vec<f64> {
    let level = levels(topology);
    let mut place: Vec<f64> = (0..topology.node_count()).map(|node| node as f64).collect();
    let mut switches: Vec<NodeId> = topology.switches().collect();
    switches.sort_by_key(|switch| level[switch.0 as usize]);
    for switch in switches {
        let below = topology.neighbours(switch).iter().map(|(node, _)| node.0 as usize);
        let below: Vec<f64> = below
            .filter(|&node| level[node] < level[switch.0 as usize])
            .map(|node| place[node])
            .collect();
        if !below.is_empty() {
            place[switch.0 as usize] = below.iter().sum::<f64>() / below.len() as f64;
        }
    }
    place
}

/// Cost of a packet at a host relative to one at a switch, measured with flows: the transport costs about as much as
/// handing packets over costs other regions.
const HOST_PACKET: f64 = 1.0;
/// The same, measured with jobs whose sums are made in switches; it compensates for the work of rack switches.
const HOST_SUM: f64 = 3.0;

#[cfg(test)]
mod tests {
    use netsum_topo::{Addressing, Rate};

    use super::*;

    #[test]
    fn hosts_share_a_region_and_work_is_balanced() {
        let rate = Rate(10_000_000_000);
        for (count, sums) in (1..=5).flat_map(|count| [(count, false), (count, true)]) {
            let fabric = netsum_topo::fat_tree(8, rate, Addressing::default());
            let topology = fabric.unwrap().topology();
            let region_of = regions(&topology, Threads { count, sums });
            assert!(topology.hosts().all(|host| region_of[host.0 as usize] == 0));
            let mut load = vec![0.0; count];
            for (node, work) in work(&topology, sums).into_iter().enumerate() {
                load[usize::from(region_of[node])] += work;
            }
            let hosts = 128.0 * (if sums { HOST_SUM } else { HOST_PACKET }) * rate.0 as f64;
            let share = load.iter().sum::<f64>() / count as f64;
            for load in load {
                assert!(load > 0.0 && load <= 1.1 * share.max(hosts), "{load} of {share}");
            }
        }
    }

    #[test]
    fn fewer_switches_than_threads() {
        let fabric = netsum_topo::leaf_spine(2, 2, 1, Rate(1), Rate(1), Addressing::default());
        for (count, most) in [(1, 0), (2, 1), (3, 2), (4, 3), (9, 3)] {
            let threads = Threads { count, sums: false };
            let region_of = regions(&fabric.as_ref().unwrap().topology(), threads);
            let mut seen: Vec<u8> = region_of.clone();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen, (0..=most).collect::<Vec<u8>>(), "{count}");
        }
    }
}
