//! The graph used by planner and simulator: nodes, links, neighbours.

use std::collections::HashMap;

/// Index of a node in its [`Topology`]: hosts first, in file order, then switches, then servers.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct NodeId(pub u32);

/// Index of a link in its [`Topology`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EdgeId(pub u32);

/// Kind of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NodeKind {
    /// Runs workers; does not forward.
    Host,
    /// Forwards, and may aggregate.
    Switch,
    /// Completes sums that switches did not; a process on a host, reached by the host's links.
    Server,
}

/// A host, a switch or a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Unique in the fabric.
    pub name: String,
    /// Kind of the node.
    pub kind: NodeKind,
}

/// A full-duplex link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edge {
    /// Both ends, as given.
    pub ends: [NodeId; 2],
    /// Bits per second in each direction.
    pub rate_bps: u64,
    /// Propagation time in nanoseconds, where known.
    pub latency_ns: Option<u64>,
}

/// Hosts, switches and links, with neighbours in ascending node order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    nodes: Vec<Node>,
    edges: Vec<Edge>,
    neighbours: Vec<Vec<(NodeId, EdgeId)>>,
    by_name: HashMap<String, NodeId>,
}

impl Topology {
    /// An empty graph.
    pub fn new() -> Topology {
        Topology::default()
    }

    /// Adds a node. Panics on a repeated name: builders and the fabric's checks exclude it.
    pub fn add_node(&mut self, name: &str, kind: NodeKind) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        let previous = self.by_name.insert(name.to_owned(), id);
        assert!(previous.is_none(), "node {name:?} is already there");
        self.nodes.push(Node { name: name.to_owned(), kind });
        self.neighbours.push(Vec::new());
        id
    }

    /// Adds a link. Panics on a loop or a second link between the same ends.
    pub fn add_edge(
        &mut self,
        a: NodeId,
        b: NodeId,
        rate_bps: u64,
        latency_ns: Option<u64>,
    ) -> EdgeId {
        assert!(a != b, "a link from node {} to itself", a.0);
        assert!(
            self.edge_between(a, b).is_none(),
            "a second link between nodes {} and {}",
            a.0,
            b.0
        );
        let id = EdgeId(self.edges.len() as u32);
        self.edges.push(Edge { ends: [a, b], rate_bps, latency_ns });
        for (from, to) in [(a, b), (b, a)] {
            let list = &mut self.neighbours[from.0 as usize];
            let place = list.partition_point(|&(other, _)| other < to);
            list.insert(place, (to, id));
        }
        id
    }

    /// The node. Panics on an id of another topology.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// The node's name. Panics on an id of another topology.
    pub fn name(&self, id: NodeId) -> &str {
        &self.node(id).name
    }

    /// The link. Panics on an id of another topology.
    pub fn edge(&self, id: EdgeId) -> &Edge {
        &self.edges[id.0 as usize]
    }

    /// The node of that name.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    /// Whether the node is a switch.
    pub fn is_switch(&self, id: NodeId) -> bool {
        self.node(id).kind == NodeKind::Switch
    }

    /// Neighbours with the link to each, in ascending node order.
    pub fn neighbours(&self, id: NodeId) -> &[(NodeId, EdgeId)] {
        &self.neighbours[id.0 as usize]
    }

    /// The link between two nodes.
    pub fn edge_between(&self, a: NodeId, b: NodeId) -> Option<EdgeId> {
        let list = self.neighbours(a);
        list.binary_search_by_key(&b, |&(other, _)| other).ok().map(|i| list[i].1)
    }

    /// All nodes with their ids.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().enumerate().map(|(i, node)| (NodeId(i as u32), node))
    }

    /// All links with their ids.
    pub fn edges(&self) -> impl Iterator<Item = (EdgeId, &Edge)> {
        self.edges.iter().enumerate().map(|(i, edge)| (EdgeId(i as u32), edge))
    }

    /// All hosts, ascending.
    pub fn hosts(&self) -> impl Iterator<Item = NodeId> {
        self.nodes().filter(|(_, node)| node.kind == NodeKind::Host).map(|(id, _)| id)
    }

    /// All switches, ascending.
    pub fn switches(&self) -> impl Iterator<Item = NodeId> {
        self.nodes().filter(|(_, node)| node.kind == NodeKind::Switch).map(|(id, _)| id)
    }

    /// All servers, ascending.
    pub fn servers(&self) -> impl Iterator<Item = NodeId> {
        self.nodes().filter(|(_, node)| node.kind == NodeKind::Server).map(|(id, _)| id)
    }

    /// Number of nodes.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Nodes reachable from `start`, in breadth-first order; hosts do not forward.
    pub fn reachable(&self, start: NodeId) -> Vec<NodeId> {
        let mut seen = vec![false; self.nodes.len()];
        seen[start.0 as usize] = true;
        let mut queue = vec![start];
        let mut next = 0;
        while next < queue.len() {
            let here = queue[next];
            next += 1;
            if here != start && !self.is_switch(here) {
                continue;
            }
            for &(other, _) in self.neighbours(here) {
                if !std::mem::replace(&mut seen[other.0 as usize], true) {
                    queue.push(other);
                }
            }
        }
        queue
    }
}
