//! Converts the driver's statistics to the controller's messages.

use netsum_control::{LATENESS_MAX, pb};
use netsum_net::switch::{
    ChildSnapshot, Neighbour, PoolSnapshot, ServerSnapshot, SlotSnapshot, SwitchSnapshot,
    TreeSnapshot,
};
use netsum_proto::policer::TenantCounters;
use netsum_proto::registry::POOLS;
use netsum_proto::{Lateness, LeaseKey};
use netsum_topo::Protocol;

/// Leases in use that the controller of that incarnation granted.
pub(crate) fn installed(snapshot: &SwitchSnapshot, incarnation: u64) -> Vec<pb::InstalledLease> {
    let trees = snapshot.trees.iter().map(|tree| tree.lease);
    let slots = snapshot.slots.iter().map(|slots| slots.lease);
    let servers = snapshot.servers.iter().map(|server| server.lease);
    let pools = snapshot.pools.iter().map(|pool| pool.lease);
    let installed = |lease: LeaseKey| pb::InstalledLease {
        job: lease.job.0,
        tree: lease.tree.0.into(),
        epoch: lease.epoch.0.into(),
        incarnation,
    };
    trees.chain(slots).chain(servers).chain(pools).map(installed).collect()
}

/// Counters, for status and reports.
pub(crate) fn heartbeat(snapshot: &SwitchSnapshot) -> pb::SwitchHeartbeat {
    let drops = snapshot.drops.iter().map(|&(reason, count)| (reason.to_owned(), count));
    let failures = snapshot.failures;
    let unsent = [
        ("send_no_room", failures.no_room),
        ("send_too_big", failures.too_big),
        ("send_refused", failures.refused),
    ];
    let unsent = unsent.into_iter().filter(|&(_, count)| count > 0);
    pb::SwitchHeartbeat {
        neighbours: snapshot.neighbours.iter().map(neighbour).collect(),
        trees: trees(snapshot),
        slots_held: snapshot.slots_held,
        rows_used: snapshot.rows_used,
        drops: drops.chain(unsent.map(|(reason, count)| (reason.to_owned(), count))).collect(),
        memory_used_bytes: snapshot.memory_used,
        memory_reserved_bytes: snapshot.memory_reserved,
        tenants: snapshot.tenants.iter().map(|(name, counters)| tenant(name, counters)).collect(),
        ..pb::SwitchHeartbeat::default()
    }
}

fn tenant(name: &str, counters: &TenantCounters) -> pb::SwitchTenant {
    let TenantCounters { packets, bytes, marked, dropped } = *counters;
    pb::SwitchTenant { tenant: name.to_owned(), packets, bytes, marked, dropped }
}

fn neighbour(neighbour: &Neighbour) -> pb::Neighbour {
    pb::Neighbour {
        address: neighbour.address.to_string(),
        rx_packets: neighbour.received.packets,
        rx_bytes: neighbour.received.bytes,
        tx_packets: neighbour.sent.packets,
        tx_bytes: neighbour.sent.bytes,
    }
}

/// Leases of all protocols.
fn trees(snapshot: &SwitchSnapshot) -> Vec<pb::SwitchTree> {
    let trees = snapshot.trees.iter().map(tree);
    let slots = snapshot.slots.iter().map(slot_counters);
    let servers = snapshot.servers.iter().map(server_counters);
    let pools = snapshot.pools.iter().map(pool_counters);
    let mut trees: Vec<_> = trees.chain(slots).chain(servers).chain(pools).collect();
    for tree in &mut trees {
        let key = (tree.job, tree.tree, tree.epoch);
        let of_tree = |child: &&ChildSnapshot| {
            (child.lease.job.0, child.lease.tree.0.into(), child.lease.epoch.0.into()) == key
        };
        let shown = &snapshot.children[..snapshot.children.len().min(LATENESS_MAX)];
        tree.children = shown.iter().filter(of_tree).map(child).collect();
    }
    trees
}

fn child(child: &ChildSnapshot) -> pb::TreeChildLateness {
    let Lateness { histogram, late_ns, last, awaited_ns, bursts, opening_ns } = child.lateness;
    pb::TreeChildLateness {
        address: child.address.to_string(),
        name: String::new(),
        histogram: histogram.to_vec(),
        late_ns,
        last,
        awaited_ns,
        bursts,
        opening_ns,
    }
}

fn of_lease(lease: LeaseKey, protocol: &str) -> pb::SwitchTree {
    pb::SwitchTree {
        job: lease.job.0,
        tree: lease.tree.0.into(),
        epoch: lease.epoch.0.into(),
        protocol: protocol.to_owned(),
        ..pb::SwitchTree::default()
    }
}

fn tree(tree: &TreeSnapshot) -> pb::SwitchTree {
    pb::SwitchTree {
        contributions: tree.counters.contributions,
        results: tree.counters.released,
        retransmits_answered: tree.counters.answered + tree.counters.waiting,
        marks: tree.counters.marked,
        memory_used_bytes: tree.memory_reserved,
        duplicates: tree.counters.duplicates,
        ..of_lease(tree.lease, Protocol::Panama.name())
    }
}

fn slot_counters(slots: &SlotSnapshot) -> pb::SwitchTree {
    pb::SwitchTree {
        contributions: slots.counters.added,
        results: slots.counters.results,
        slots_held: slots.held,
        passed: slots.counters.passed,
        collisions: slots.counters.collisions,
        expired: slots.counters.expired,
        preempted: slots.counters.preempted,
        duplicates: slots.counters.duplicates,
        ..of_lease(slots.lease, Protocol::Atp.name())
    }
}

fn server_counters(server: &ServerSnapshot) -> pb::SwitchTree {
    pb::SwitchTree {
        contributions: server.counters.contributions,
        results: server.counters.results,
        retransmits_answered: server.counters.answered + server.counters.waiting,
        marks: server.counters.marked,
        float_requests: server.counters.float_requests,
        packets: server.counters.packets,
        duplicates: server.counters.duplicates,
        rehashes: server.counters.rehashes,
        memory_used_bytes: server.memory_reserved,
        ..of_lease(server.lease, Protocol::Atp.name())
    }
}

fn pool_counters(pool: &PoolSnapshot) -> pb::SwitchTree {
    pb::SwitchTree {
        contributions: pool.counters.added,
        results: pool.counters.completed,
        retransmits_answered: pool.counters.answered,
        slots_held: pool.slots.into(),
        duplicates: pool.counters.duplicates,
        ..of_lease(pool.lease, POOLS.name())
    }
}
