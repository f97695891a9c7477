//! How many fragments of a job may be in flight, so that no switch holds more than it can.

use std::collections::BTreeMap;

use netsum_topo::{AggregationTree, NodeId, Plan, Protocol};

/// What a switch or server has, or what is taken of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Capacity {
    /// Aggregation memory, bytes.
    pub memory: u64,
    /// Receive buffer of the data socket, bytes.
    pub receive: u64,
    /// Slots for pools of protocol `switchml`.
    pub slots: u64,
}

impl Capacity {
    /// How many times `needs` fit into the `part`th part of it.
    fn holds(self, part: u64, needs: Capacity) -> u64 {
        let times = |have: u64, need: u64| (have / part).checked_div(need).unwrap_or(u64::MAX);
        times(self.memory, needs.memory)
            .min(times(self.receive, needs.receive))
            .min(times(self.slots, needs.slots))
    }
}

/// No window fits: the switch that is too full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full {
    pub switch: NodeId,
    /// What one fragment in flight of the job takes there.
    pub needs: Capacity,
    /// What is free there.
    pub free: Capacity,
}

/// The most fragments in flight per tree that everybody in `needs` can grant, at most `slots_max`.
///
/// A job takes at most half of what is free, so that the next one finds room; where half is less
/// than one fragment, all of it may go to that one.
pub(super) fn window(
    needs: &BTreeMap<NodeId, Capacity>,
    free: impl Fn(NodeId) -> Capacity,
    slots_max: u32,
) -> Result<u32, Full> {
    let mut window = u64::from(slots_max);
    for (&switch, &needs) in needs {
        let free = free(switch);
        window = window.min(free.holds(2, needs).max(free.holds(1, needs).min(1)));
        if window == 0 {
            return Err(Full { switch, needs, free });
        }
    }
    Ok(window as u32)
}

/// What a plan takes of each switch and server.
pub(super) fn taken(plan: &Plan) -> BTreeMap<NodeId, Capacity> {
    let window = u64::from(plan.window_max);
    let mut taken = needs(plan.protocol, &plan.trees, plan.fragment_bytes);
    for capacity in taken.values_mut() {
        capacity.memory *= window;
        capacity.receive *= window;
        capacity.slots *= window;
    }
    taken
}

/// What one fragment in flight on every tree takes of each switch and server.
pub(super) fn needs(
    protocol: Protocol,
    trees: &[AggregationTree],
    fragment_bytes: u32,
) -> BTreeMap<NodeId, Capacity> {
    let mut needs: BTreeMap<NodeId, Capacity> = BTreeMap::new();
    for tree in trees {
        for node in &tree.nodes {
            let children = node.children.len() as u64;
            let fragment = u64::from(fragment_bytes);
            let entry = needs.entry(node.switch).or_default();
            let row = fragment + BUFFER_OVERHEAD;
            let senders = match protocol {
                Protocol::Panama => {
                    // A port buffer per child, a sum that is made and one that is kept.
                    entry.memory += (children + 2) * row;
                    children
                }
                Protocol::Atp if node.switch == tree.root => {
                    // Two windows, and at worst the floats of all; and nothing was added on the way.
                    let ranks = tree.ranks_below(node.switch).len() as u64;
                    entry.memory += (2 + ranks) * row;
                    ranks
                }
                // Slots are for whoever comes first.
                Protocol::Atp => children,
                Protocol::Switchml => {
                    entry.slots += 1;
                    children
                }
            };
            entry.receive += senders * (2 * fragment + SKB_OVERHEAD);
        }
    }
    needs
}

/// Header and bookkeeping beside a payload in aggregation memory.
const BUFFER_OVERHEAD: u64 = 64;
/// The kernel charges a datagram to the receive buffer with its bookkeeping, and in memory blocks up
/// to twice its size.
const SKB_OVERHEAD: u64 = 1000;

#[cfg(test)]
mod tests {
    use super::*;
    use netsum_topo::{Child, TreeNode};

    fn tree(switch: u32, ranks: u32) -> AggregationTree {
        let root = NodeId(switch);
        let children = (0..ranks).map(Child::Rank).collect();
        AggregationTree { root, nodes: vec![TreeNode { switch: root, children, parent: None }] }
    }

    const PLENTY: Capacity = Capacity { memory: 1 << 40, receive: 1 << 40, slots: 1 << 40 };

    #[test]
    fn half_of_what_is_free() {
        // (4 + 2) * (1408 + 64) = 8832 bytes per slot.
        let free = |memory| move |_| Capacity { memory, ..PLENTY };
        assert_eq!(
            window(&needs(Protocol::Panama, &[tree(0, 4)], 1408), free(2 * 8832 * 100), 512),
            Ok(100)
        );
        assert_eq!(
            window(&needs(Protocol::Panama, &[tree(0, 4)], 1408), free(2 * 8832 * 100 - 1), 512),
            Ok(99)
        );
        assert_eq!(
            window(
                &needs(Protocol::Panama, &[tree(0, 4), tree(0, 4)], 1408),
                free(2 * 8832 * 100),
                512
            ),
            Ok(50)
        );
        assert_eq!(window(&needs(Protocol::Panama, &[tree(0, 4)], 1408), |_| PLENTY, 512), Ok(512));
    }

    #[test]
    fn the_receive_buffer_bounds_too() {
        // 4 * (2 * 1408 + 1000) = 15264 bytes per slot.
        let free = |_| Capacity { receive: 425_984, ..PLENTY };
        assert_eq!(window(&needs(Protocol::Panama, &[tree(0, 4)], 1408), free, 512), Ok(13));
    }

    #[test]
    fn one_slot_may_take_all_and_less_is_full() {
        let free = |memory| move |_| Capacity { memory, ..PLENTY };
        assert_eq!(window(&needs(Protocol::Panama, &[tree(0, 4)], 1408), free(8832), 512), Ok(1));
        let full =
            window(&needs(Protocol::Panama, &[tree(7, 4)], 1408), free(8831), 512).unwrap_err();
        assert_eq!((full.switch, full.needs.memory, full.free.memory), (NodeId(7), 8832, 8831));
    }

    #[test]
    fn the_tightest_switch_decides() {
        let free = |switch: NodeId| Capacity { memory: 2 * 8832 * u64::from(switch.0), ..PLENTY };
        assert_eq!(
            window(&needs(Protocol::Panama, &[tree(9, 4), tree(5, 4)], 1408), free, 512),
            Ok(5)
        );
    }

    #[test]
    fn pools_take_slots_and_servers_what_all_send() {
        let free = |_| Capacity { slots: 100, ..PLENTY };
        assert_eq!(window(&needs(Protocol::Switchml, &[tree(0, 4)], 1408), free, 512), Ok(50));
        let two_levels = AggregationTree {
            root: NodeId(1),
            nodes: vec![
                TreeNode {
                    switch: NodeId(1),
                    children: vec![Child::Switch(NodeId(0))],
                    parent: None,
                },
                TreeNode { switch: NodeId(0), ..tree(0, 3).nodes.remove(0) },
            ],
        };
        let needs = needs(Protocol::Atp, &[two_levels], 1408);
        assert_eq!((needs[&NodeId(1)].memory, needs[&NodeId(1)].receive), (5 * 1472, 3 * 3816));
        assert_eq!((needs[&NodeId(0)].memory, needs[&NodeId(0)].receive), (0, 3 * 3816));
    }
}
