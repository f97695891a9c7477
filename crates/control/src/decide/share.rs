//! Limits a job's fragments in flight to the capacity of every switch.
//!
//! The memory of a lease is computed by the formula of the switches, [`Lease::reservation`]; only the receive buffer of
//! the data socket is estimated here.

use std::collections::BTreeMap;

use netsum_lease::{Terms, leases};
use netsum_proto::{Lease, Reservation};
use netsum_topo::NodeId;

/// Capacity of a switch or server, or the used part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Capacity {
    /// Memory and slots reserved by leases.
    pub reserved: Reservation,
    /// Receive buffer of the data socket, bytes.
    pub receive: u64,
}

impl Capacity {
    /// Whether `needs` fit into 1/`part` of the capacity.
    fn holds(self, part: u64, needs: Capacity) -> bool {
        needs.reserved.memory_bytes <= self.reserved.memory_bytes / part
            && needs.reserved.pool_slots <= self.reserved.pool_slots / part
            && needs.receive <= self.receive / part
    }

    /// The larger value of each resource.
    pub(super) fn max(self, other: Capacity) -> Capacity {
        let (a, b) = (self.reserved, other.reserved);
        Capacity {
            reserved: Reservation {
                memory_bytes: a.memory_bytes.max(b.memory_bytes),
                pool_slots: a.pool_slots.max(b.pool_slots),
            },
            receive: self.receive.max(other.receive),
        }
    }

    /// The remaining capacity without `taken`.
    pub(super) fn less(self, taken: Capacity) -> Capacity {
        let (all, taken_of) = (self.reserved, taken.reserved);
        Capacity {
            reserved: Reservation {
                memory_bytes: all.memory_bytes.saturating_sub(taken_of.memory_bytes),
                pool_slots: all.pool_slots.saturating_sub(taken_of.pool_slots),
            },
            receive: self.receive.saturating_sub(taken.receive),
        }
    }
}

impl std::ops::AddAssign for Capacity {
    fn add_assign(&mut self, other: Capacity) {
        self.reserved += other.reserved;
        self.receive += other.receive;
    }
}

/// The switch whose free capacity is too small for any window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full {
    pub switch: NodeId,
    /// Capacity that one fragment in flight of the job needs there.
    pub needs: Capacity,
    /// Free capacity.
    pub free: Capacity,
}

/// The fragments in flight that fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    /// Of each tree, at least 1.
    pub fragments: u16,
    /// The switch or server that has no room for more; `None`: every one has.
    pub limit: Option<NodeId>,
}

/// The maximum number of fragments in flight per tree that every switch and server of a plan can grant, at most
/// `slots_max`. `row_bytes`: largest payload of a server's rows. A job receives at most half of the free capacity, so
/// that the next job finds room; where half is less than one fragment, one fragment may use all of it.
pub(super) fn window(
    terms: &Terms,
    row_bytes: impl Fn(NodeId) -> u16,
    free: impl Fn(NodeId) -> Capacity,
    slots_max: u16,
) -> Result<Window, Full> {
    let (mut window, mut limit) = (slots_max, None);
    for (switch, leases) in by_node(terms) {
        let (free, row_bytes) = (free(switch), row_bytes(switch));
        let needs = |window| needs(&leases, window, row_bytes);
        // The capacity grows with the window: find the largest that fits, 0 if none does.
        let (mut fits, mut beyond) = (0, u32::from(window) + 1);
        while beyond - fits > 1 {
            let middle = fits.midpoint(beyond);
            match free.holds(2, needs(middle as u16)) {
                true => fits = middle,
                false => beyond = middle,
            }
        }
        if fits < u32::from(window) {
            limit = Some(switch);
        }
        window = fits as u16;
        if window == 0 && free.holds(1, needs(1)) {
            window = 1;
        }
        if window == 0 {
            return Err(Full { switch, needs: needs(1), free });
        }
    }
    Ok(Window { fragments: window, limit })
}

/// Capacity that a plan uses of each switch and server.
pub(super) fn taken(
    terms: &Terms,
    row_bytes: impl Fn(NodeId) -> u16,
) -> BTreeMap<NodeId, Capacity> {
    let needs = |(switch, leases): (NodeId, Vec<_>)| {
        (switch, needs(&leases, terms.window, row_bytes(switch)))
    };
    by_node(terms).into_iter().map(needs).collect()
}

/// The leases of a plan by switch and server; empty for an invalid plan.
fn by_node(terms: &Terms) -> BTreeMap<NodeId, Vec<Lease<()>>> {
    let mut nodes: BTreeMap<NodeId, Vec<Lease<()>>> = BTreeMap::new();
    for granted in leases(terms, |_, _, _| ()).unwrap_or_default() {
        nodes.entry(granted.node).or_default().push(granted.lease);
    }
    nodes
}

/// Capacity for leases with the given number of fragments in flight.
fn needs(leases: &[Lease<()>], window: u16, row_bytes: u16) -> Capacity {
    let mut needs = Capacity::default();
    for lease in leases {
        let datagram = 2 * u64::from(lease.fragment_bytes()) + SKB_OVERHEAD;
        needs += Capacity {
            reserved: lease.clone().with_window(window).reservation(row_bytes),
            receive: lease.senders() as u64 * u64::from(window) * datagram,
        };
    }
    needs
}

/// The kernel charges a datagram to the receive buffer with its bookkeeping, and in memory blocks of up to twice its
/// size.
const SKB_OVERHEAD: u64 = 1000;

#[cfg(test)]
mod tests {
    use super::*;
    use netsum_proto::atp::Claim;
    use netsum_proto::registry::POOLS;
    use netsum_topo::{AggregationTree, Child, Parent, Protocol, TreeNode};
    use netsum_wire::{Epoch, JobId};

    fn tree(switch: u32, ranks: u32) -> AggregationTree {
        let root = NodeId(switch);
        let children = (0..ranks).map(Child::Rank).collect();
        AggregationTree { root, nodes: vec![TreeNode { switch: root, children, parent: None }] }
    }

    fn terms(protocol: Protocol, trees: &[AggregationTree]) -> Terms<'_> {
        Terms {
            job: JobId(1),
            epoch: Epoch(1),
            protocol,
            trees,
            copies: false,
            window: 1,
            fragment_bytes: 1408,
            release_permille: 1000,
            slot_space: 0,
            claim: Claim::default(),
        }
    }

    fn granted(
        protocol: Protocol,
        trees: &[AggregationTree],
        free: impl Fn(NodeId) -> Capacity,
    ) -> Result<u16, Full> {
        let window = window(&terms(protocol, trees), |_| 1408, free, 512)?;
        assert_eq!(window.limit.is_some(), window.fragments < 512);
        Ok(window.fragments)
    }

    const PLENTY: Capacity = Capacity {
        reserved: Reservation { memory_bytes: 1 << 40, pool_slots: 1 << 40 },
        receive: 1 << 40,
    };

    fn memory(memory_bytes: u64) -> Capacity {
        Capacity { reserved: Reservation { memory_bytes, ..PLENTY.reserved }, ..PLENTY }
    }

    /// A slot of four children: (4 + 2) buffers, each a header of 38 bytes and 1408 in steps of 512.
    const SLOT: u64 = 6 * (38 + 1536);

    #[test]
    fn a_job_gets_half_of_the_free_capacity() {
        let one = [tree(0, 4)];
        let free = |bytes| move |_| memory(bytes);
        assert_eq!(granted(Protocol::Panama, &one, free(2 * SLOT * 100)), Ok(100));
        assert_eq!(granted(Protocol::Panama, &one, free(2 * SLOT * 100 - 1)), Ok(99));
        let two = [tree(0, 4), tree(0, 4)];
        assert_eq!(granted(Protocol::Panama, &two, free(2 * SLOT * 100)), Ok(50));
        assert_eq!(granted(Protocol::Panama, &one, |_| PLENTY), Ok(512));
    }

    #[test]
    fn the_receive_buffer_limits_the_window() {
        // 4 * (2 * 1408 + 1000) = 15264 bytes per slot.
        let free = |_| Capacity { receive: 425_984, ..PLENTY };
        assert_eq!(granted(Protocol::Panama, &[tree(0, 4)], free), Ok(13));
    }

    #[test]
    fn one_fragment_may_use_all_free_capacity() {
        let free = |bytes| move |_| memory(bytes);
        assert_eq!(granted(Protocol::Panama, &[tree(0, 4)], free(SLOT)), Ok(1));
        let full = granted(Protocol::Panama, &[tree(7, 4)], free(SLOT - 1)).unwrap_err();
        assert_eq!(full.switch, NodeId(7));
        assert_eq!((full.needs.reserved.memory_bytes, full.free), (SLOT, memory(SLOT - 1)));
    }

    #[test]
    fn the_switch_with_least_capacity_limits_the_window() {
        let free = |switch: NodeId| memory(2 * SLOT * u64::from(switch.0));
        assert_eq!(granted(Protocol::Panama, &[tree(9, 4), tree(5, 4)], free), Ok(5));
    }

    #[test]
    fn capacity_of_pools_and_servers() {
        let slots = Reservation { pool_slots: 100, ..PLENTY.reserved };
        let free = |_| Capacity { reserved: slots, ..PLENTY };
        assert_eq!(granted(POOLS, &[tree(0, 4)], free), Ok(50));
        let parent = Some(Parent { switch: NodeId(1), via: Vec::new() });
        let two_levels = [AggregationTree {
            root: NodeId(1),
            nodes: vec![
                TreeNode {
                    switch: NodeId(1),
                    children: vec![Child::Switch(NodeId(0))],
                    parent: None,
                },
                TreeNode { switch: NodeId(0), parent, ..tree(0, 3).nodes.remove(0) },
            ],
        }];
        let taken = taken(&terms(Protocol::Atp, &two_levels), |_| 8832);
        let [middle, server] = [NodeId(0), NodeId(1)].map(|node| taken[&node]);
        // Two places, and the floats of three ranks, in rows of the server.
        assert_eq!((server.reserved.memory_bytes, server.receive), (5 * (8832 + 64), 3 * 3816));
        assert_eq!((middle.reserved, middle.receive), (Reservation::default(), 3 * 3816));
    }
}
