//! Which links a tree's traffic takes between switches.

use std::collections::HashSet;

use netsum_topo::{NodeId, Topology, TreeNode};

/// From a switch of a tree to its parent: along the plan's way if it names one, else over their link, else over one of the
/// shortest ways (ECMP), which are all returned. None to a server, which is on a host, and where the fabric has none.
pub(super) fn ways_up(topology: &Topology, node: &TreeNode) -> Vec<Vec<NodeId>> {
    let Some(parent) = &node.parent else { return Vec::new() };
    let (from, to) = (node.switch, parent.switch);
    if !topology.is_switch(to) {
        return Vec::new();
    }
    match &parent.via[..] {
        [] => shortest_ways(topology, from, to),
        via => vec![[&[from], via, &[to]].concat()],
    }
}

/// The shortest ways through switches, at most `WAYS_MAX` of them.
fn shortest_ways(topology: &Topology, from: NodeId, to: NodeId) -> Vec<Vec<NodeId>> {
    let mut open = vec![vec![from]];
    let mut seen = HashSet::from([from]);
    while !open.is_empty() && open.iter().all(|way| way.last() != Some(&to)) {
        let longer = open.iter().flat_map(|way| {
            let last = way.last().expect("it begins somewhere");
            let next = topology.neighbours(*last).iter().map(|&(next, _)| next);
            let new = next.filter(|next| topology.is_switch(*next) && !seen.contains(next));
            new.map(|next| [way.as_slice(), &[next]].concat()).collect::<Vec<_>>()
        });
        open = longer.take(WAYS_MAX).collect();
        seen.extend(open.iter().filter_map(|way| way.last()));
    }
    open.retain(|way| way.last() == Some(&to));
    open
}

/// More spines than a rack has.
const WAYS_MAX: usize = 1024;
