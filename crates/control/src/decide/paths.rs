//! The links between switches that a tree's traffic uses.

use std::collections::HashSet;

use netsum_topo::{NodeId, Topology, TreeNode};

/// Paths from a switch of a tree to its parent: the plan's path if it names one, else their link, else all shortest
/// paths (ECMP). None to a server, which is on a host, and if the fabric has none.
pub(super) fn paths_to_parent(topology: &Topology, node: &TreeNode) -> Vec<Vec<NodeId>> {
    let Some(parent) = &node.parent else { return Vec::new() };
    let (from, to) = (node.switch, parent.switch);
    if !topology.is_switch(to) {
        return Vec::new();
    }
    match &parent.via[..] {
        [] => shortest_paths(topology, from, to),
        via => vec![[&[from], via, &[to]].concat()],
    }
}

/// The shortest paths through switches, at most `PATHS_MAX` of them.
fn shortest_paths(topology: &Topology, from: NodeId, to: NodeId) -> Vec<Vec<NodeId>> {
    let mut open = vec![vec![from]];
    let mut seen = HashSet::from([from]);
    while !open.is_empty() && open.iter().all(|path| path.last() != Some(&to)) {
        let longer = open.iter().flat_map(|path| {
            let last = path.last().expect("it begins somewhere");
            let next = topology.neighbours(*last).iter().map(|&(next, _)| next);
            let new = next.filter(|next| topology.is_switch(*next) && !seen.contains(next));
            new.map(|next| [path.as_slice(), &[next]].concat()).collect::<Vec<_>>()
        });
        open = longer.take(PATHS_MAX).collect();
        seen.extend(open.iter().filter_map(|path| path.last()));
    }
    open.retain(|path| path.last() == Some(&to));
    open
}

/// More than the number of spines of a rack.
const PATHS_MAX: usize = 1024;
