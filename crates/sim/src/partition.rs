//! Which thread moves packets through which switch.
//!
//! Hosts stay together: flows, jobs and workloads need no cutting then, and one thread does what they do in order. The
//! switches are what can be shared out. Nothing that a run puts out depends on this.

use netsum_topo::{NodeId, Topology};

use crate::routes::levels;

/// How a run is spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threads {
    /// At most.
    pub count: usize,
    /// Whether switches add: then hosts and racks have more to do with a packet than others.
    pub sums: bool,
}

impl Threads {
    /// Everything on one.
    pub const ONE: Threads = Threads { count: 1, sums: false };
}

/// Region of each node, from 0 on without a gap, a region per thread with about the same work; hosts are in region 0.
/// Switches are cut where they lie: a pod stays together if it can.
pub(crate) fn regions(topology: &Topology, threads: Threads) -> Vec<u8> {
    let mut region_of = vec![0; topology.node_count()];
    let count = threads.count.clamp(1, usize::from(u8::MAX).min(topology.switches().count() + 1));
    if count == 1 {
        return region_of;
    }
    let work = work(topology, threads.sums);
    let hosts: f64 = topology.hosts().map(|host| work[host.0 as usize]).sum();
    let share = work.iter().sum::<f64>() / count as f64;
    // With the hosts goes what lies next to them, as far as there is room; the rest is cut into equal parts.
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
        // Small numbers of large switches: no region stays without one.
        let part = part.clamp((position + others).saturating_sub(rest.len()), position);
        region_of[switch.0 as usize] = 1 + part as u8;
        done += work[switch.0 as usize];
    }
    region_of
}

/// What a node has to do if all links are equally busy, in packets forwarded by a switch.
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

/// Where a node lies: a host by its number, a switch amid what is below it.
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

/// A packet at a host beside one at a switch, measured in runs of flows: what the transport costs is about what handing packets
/// over costs the others.
const HOST_PACKET: f64 = 1.0;
/// The same in runs of jobs whose sums are made in switches; it makes up for what racks do.
const HOST_SUM: f64 = 3.0;

#[cfg(test)]
mod tests {
    use netsum_topo::{Addressing, Rate};

    use super::*;

    #[test]
    fn hosts_stay_together_and_nobody_has_much_more_than_a_share() {
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
