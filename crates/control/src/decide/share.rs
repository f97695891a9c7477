//! How many fragments of a job may be in flight, so that no switch holds more than it can.

use std::collections::BTreeMap;

use netsum_topo::{AggregationTree, NodeId, Plan};

/// What a switch has, or what is taken of it, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Capacity {
    /// Aggregation memory.
    pub memory: u64,
    /// Receive buffer of the data socket.
    pub receive: u64,
}

/// No window fits: the switch that is too full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full {
    pub switch: NodeId,
    /// Bytes that one slot of the job takes there.
    pub needs: Capacity,
    /// Bytes that are free there.
    pub free: Capacity,
}

/// The most slots per tree that every switch can grant to `trees`, at most `slots_max`.
///
/// A job takes at most half of what is free, so that the next one finds room; where half is less
/// than one slot, all of it may go to that one slot.
pub(super) fn window(
    trees: &[AggregationTree],
    fragment_bytes: u32,
    free: impl Fn(NodeId) -> Capacity,
    slots_max: u32,
) -> Result<u32, Full> {
    let mut window = u64::from(slots_max);
    for (switch, needs) in per_slot(trees, fragment_bytes) {
        let free = free(switch);
        let fits = |part: u64| {
            (free.memory / part / needs.memory).min(free.receive / part / needs.receive)
        };
        window = window.min(fits(2).max(fits(1).min(1)));
        if window == 0 {
            return Err(Full { switch, needs, free });
        }
    }
    Ok(window as u32)
}

/// What a plan takes of each switch.
pub(super) fn taken(plan: &Plan) -> BTreeMap<NodeId, Capacity> {
    let slots = u64::from(plan.window_max);
    let mut taken = per_slot(&plan.trees, plan.fragment_bytes);
    for capacity in taken.values_mut() {
        capacity.memory *= slots;
        capacity.receive *= slots;
    }
    taken
}

/// What one slot on every tree takes of each switch.
fn per_slot(trees: &[AggregationTree], fragment_bytes: u32) -> BTreeMap<NodeId, Capacity> {
    let mut needs: BTreeMap<NodeId, Capacity> = BTreeMap::new();
    for node in trees.iter().flat_map(|tree| &tree.nodes) {
        let children = node.children.len() as u64;
        let fragment = u64::from(fragment_bytes);
        let entry = needs.entry(node.switch).or_default();
        entry.memory += (children + 1) * (fragment + BUFFER_OVERHEAD);
        entry.receive += children * (2 * fragment + SKB_OVERHEAD);
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

    const PLENTY: Capacity = Capacity { memory: 1 << 40, receive: 1 << 40 };

    #[test]
    fn half_of_what_is_free() {
        // (4 + 1) * (1408 + 64) = 7360 bytes per slot.
        let free = |memory| move |_| Capacity { memory, ..PLENTY };
        assert_eq!(window(&[tree(0, 4)], 1408, free(2 * 7360 * 100), 512), Ok(100));
        assert_eq!(window(&[tree(0, 4)], 1408, free(2 * 7360 * 100 - 1), 512), Ok(99));
        assert_eq!(window(&[tree(0, 4), tree(0, 4)], 1408, free(2 * 7360 * 100), 512), Ok(50));
        assert_eq!(window(&[tree(0, 4)], 1408, |_| PLENTY, 512), Ok(512));
    }

    #[test]
    fn the_receive_buffer_bounds_too() {
        // 4 * (2 * 1408 + 1000) = 15264 bytes per slot.
        let free = |_| Capacity { receive: 425_984, ..PLENTY };
        assert_eq!(window(&[tree(0, 4)], 1408, free, 512), Ok(13));
    }

    #[test]
    fn one_slot_may_take_all_and_less_is_full() {
        let free = |memory| move |_| Capacity { memory, ..PLENTY };
        assert_eq!(window(&[tree(0, 4)], 1408, free(7360), 512), Ok(1));
        let full = window(&[tree(7, 4)], 1408, free(7359), 512).unwrap_err();
        assert_eq!((full.switch, full.needs.memory, full.free.memory), (NodeId(7), 7360, 7359));
    }

    #[test]
    fn the_tightest_switch_decides() {
        let free = |switch: NodeId| Capacity { memory: 2 * 7360 * u64::from(switch.0), ..PLENTY };
        assert_eq!(window(&[tree(9, 4), tree(5, 4)], 1408, free, 512), Ok(5));
    }
}
