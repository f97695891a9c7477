//! Between the controller's messages and the driver's types.

use std::net::SocketAddr;
use std::time::Duration;

use netsum_control::pb;
use netsum_net::switch::{
    Grant, LeaseKey, Neighbour, PoolSnapshot, ServerSnapshot, SlotSnapshot, SwitchChild,
    SwitchLease, SwitchSnapshot, TreeSnapshot,
};
use netsum_proto::{atp, switchml};
use netsum_wire::{Epoch, JobId, TreeId};

/// Checks a lease that came over the network; `Err` says in words what is wrong with it.
pub(crate) fn grant(lease: &pb::Lease) -> Result<Grant, String> {
    match (lease.protocol.as_str(), &lease.slot) {
        ("" | "panama", _) => tree_lease(lease).map(Grant::Tree),
        ("switchml", _) => pool(lease).map(Grant::Pool),
        ("atp", Some(slot)) => match slot.level() {
            pb::slot_grant::Level::Server => server(lease, slot).map(Grant::Server),
            level => slots(lease, slot, level).map(Grant::Slots),
        },
        ("atp", None) => Err("it is of protocol atp and says nothing of slots".to_owned()),
        (other, _) => {
            Err(format!("protocol \"{other}\" is not known here; is this an older netsum-switch?"))
        }
    }
}

fn pool(lease: &pb::Lease) -> Result<switchml::Lease<SocketAddr>, String> {
    Ok(switchml::Lease {
        job: JobId(lease.job),
        epoch: epoch(lease.epoch)?,
        workers: lease.children.iter().map(|c| address(&c.address)).collect::<Result<_, _>>()?,
        slots: number(lease.slots, "slots")?,
        fragment_bytes: number(lease.fragment_bytes, "fragment size")?,
    })
}

fn slots(
    lease: &pb::Lease,
    slot: &pb::SlotGrant,
    level: pb::slot_grant::Level,
) -> Result<atp::Lease<SocketAddr>, String> {
    let members = match level {
        pb::slot_grant::Level::Rack => atp::Members::Rack {
            workers: lease
                .children
                .iter()
                .map(|c| address(&c.address))
                .collect::<Result<_, _>>()?,
            rack: number(slot.rack, "rack")?,
            racks: number(slot.racks.len() as u32, "number of racks")?,
        },
        _ => {
            let rack = |child: &pb::LeaseChild| -> Result<_, String> {
                let workers = child.workers.count_ones() as u8;
                Ok(atp::Rack { port: address(&child.address)?, workers })
            };
            atp::Members::Server {
                racks: lease.children.iter().map(rack).collect::<Result<_, _>>()?,
            }
        }
    };
    Ok(atp::Lease {
        job: JobId(lease.job),
        epoch: epoch(lease.epoch)?,
        tree: TreeId(number(lease.tree, "tree")?),
        members,
        parent: address(&lease.parent_address)?,
        window: number(lease.slots, "window")?,
        fragment_bytes: number(lease.fragment_bytes, "fragment size")?,
        claim: atp::Claim {
            guaranteed: slot.guaranteed,
            limit: slot.limit,
            priority: number(slot.priority, "priority")?,
        },
    })
}

fn server(lease: &pb::Lease, slot: &pb::SlotGrant) -> Result<atp::ServerLease<SocketAddr>, String> {
    let neighbour = |child: &pb::LeaseChild| -> Result<_, String> {
        let (racks, workers) = (child.racks, child.workers);
        Ok(atp::Neighbour { port: address(&child.address)?, racks, workers })
    };
    Ok(atp::ServerLease {
        job: JobId(lease.job),
        epoch: epoch(lease.epoch)?,
        tree: TreeId(number(lease.tree, "tree")?),
        racks: slot.racks.iter().map(|rack| rack.ranks.clone()).collect(),
        neighbours: lease.children.iter().map(neighbour).collect::<Result<_, _>>()?,
        window: number(lease.slots, "window")?,
        fragment_bytes: number(lease.fragment_bytes, "fragment size")?,
        slots: slot.slot_space,
    })
}

fn tree_lease(lease: &pb::Lease) -> Result<SwitchLease, String> {
    let children = lease.children.iter().map(child).collect::<Result<_, _>>()?;
    let parent = match lease.parent_address.as_str() {
        "" => None,
        parent => Some(address(parent)?),
    };
    let fraction = lease.release_fraction;
    if !(fraction > 0.0 && fraction <= 1.0) {
        return Err(format!("release fraction {fraction} is not above 0 and at most 1"));
    }
    Ok(SwitchLease {
        job: JobId(lease.job),
        epoch: epoch(lease.epoch)?,
        tree: TreeId(number(lease.tree, "tree")?),
        children,
        parent,
        slots: number(lease.slots, "slots")?,
        fragment_bytes: number(lease.fragment_bytes, "fragment size")?,
        release_permille: (fraction * 1000.0).round().max(1.0) as u16,
    })
}

/// How long the neighbours of a lease may be silent while the controller is away; `None`: for ever.
pub(crate) fn idle_expiry(lease: &pb::Lease) -> Option<Duration> {
    (lease.idle_expiry_s > 0).then(|| Duration::from_secs(lease.idle_expiry_s.into()))
}

/// A job and the last epoch that it loses.
pub(crate) fn revoke(revoke: &pb::Revoke) -> Result<(JobId, Epoch), String> {
    Ok((JobId(revoke.job), epoch(revoke.epoch)?))
}

/// Leases at work, for the controller to compare with its books.
pub(crate) fn installed(snapshot: &SwitchSnapshot) -> Vec<pb::InstalledLease> {
    let trees = snapshot.trees.iter().map(|tree| tree.lease);
    let slots = snapshot.slots.iter().map(|slots| slots.lease);
    let servers = snapshot.servers.iter().map(|server| server.lease);
    let pools = snapshot.pools.iter().map(|pool| pool.lease);
    let installed = |lease: LeaseKey| pb::InstalledLease {
        job: lease.job.0,
        tree: lease.tree.0.into(),
        epoch: lease.epoch.0.into(),
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
    }
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
    trees.chain(slots).chain(servers).chain(pools).collect()
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
        ..of_lease(tree.lease, "panama")
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
        ..of_lease(slots.lease, "atp")
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
        ..of_lease(server.lease, "atp")
    }
}

fn pool_counters(pool: &PoolSnapshot) -> pb::SwitchTree {
    pb::SwitchTree {
        contributions: pool.counters.added,
        results: pool.counters.completed,
        retransmits_answered: pool.counters.answered,
        slots_held: pool.slots.into(),
        duplicates: pool.counters.duplicates,
        ..of_lease(pool.lease, "switchml")
    }
}

fn child(child: &pb::LeaseChild) -> Result<SwitchChild, String> {
    let bit = |ranks: u64, rank: &u32| ranks | 1 << (rank % 64);
    Ok(SwitchChild {
        address: address(&child.address)?,
        ranks: child.ranks.iter().fold(0, bit),
        branch: number(child.branch, "branch")?,
    })
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("\"{text}\" is not an address of the form ip:port"))
}

fn epoch(value: u32) -> Result<Epoch, String> {
    number(value, "epoch").map(Epoch)
}

fn number<T: TryFrom<u32>>(value: u32, what: &str) -> Result<T, String> {
    T::try_from(value).map_err(|_| format!("{what} {value} is out of range"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> pb::Lease {
        let child = |i: u32| pb::LeaseChild {
            address: format!("127.0.0.1:{}", 5000 + i),
            ranks: vec![i, i + 64],
            branch: i,
            name: format!("rank {i}"),
            racks: 2,
            workers: 1 << i,
        };
        pb::Lease {
            job: 7,
            tree: 1,
            epoch: 3,
            children: (0..3).map(child).collect(),
            parent_address: "127.0.0.1:6000".into(),
            slots: 512,
            fragment_bytes: 1408,
            release_fraction: 0.88,
            idle_expiry_s: 600,
            protocol: String::new(),
            slot: None,
            key: None,
        }
    }

    fn tree(lease: &pb::Lease) -> SwitchLease {
        match grant(lease) {
            Ok(Grant::Tree(lease)) => lease,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_grant_of_slots_pools_and_servers() {
        let racks = vec![pb::Rack { ranks: vec![7] }, pb::Rack { ranks: vec![0, 1, 2] }];
        let (guaranteed, limit, priority) = (3, 9, 4);
        let of = |level: pb::slot_grant::Level| pb::Lease {
            protocol: "atp".into(),
            slot: Some(pb::SlotGrant {
                level: level.into(),
                rack: 1,
                racks: racks.clone(),
                slot_space: 64,
                guaranteed,
                limit,
                priority,
            }),
            ..good()
        };
        let Ok(Grant::Slots(rack)) = grant(&of(pb::slot_grant::Level::Rack)) else { panic!() };
        let atp::Members::Rack { workers, rack: own, racks: all } = rack.members else { panic!() };
        assert_eq!((workers.len(), own, all, rack.window), (3, 1, 2, 512));
        assert_eq!(rack.claim, atp::Claim { guaranteed, limit, priority: 4 });
        assert_eq!(rack.parent, "127.0.0.1:6000".parse().unwrap());
        let level = pb::slot_grant::Level::ServerSwitch;
        let Ok(Grant::Slots(middle)) = grant(&of(level)) else { panic!() };
        let atp::Members::Server { racks } = middle.members else { panic!() };
        assert!(racks.iter().all(|rack| rack.workers == 1));
        let Ok(Grant::Server(server)) = grant(&of(pb::slot_grant::Level::Server)) else { panic!() };
        assert_eq!((server.slots, server.racks.len(), server.neighbours[2].workers), (64, 2, 4));
        let Ok(Grant::Pool(pool)) = grant(&pb::Lease { protocol: "switchml".into(), ..good() })
        else {
            panic!()
        };
        assert_eq!((pool.workers.len(), pool.slots), (3, 512));
        let fault = |lease: pb::Lease| grant(&lease).unwrap_err();
        assert!(fault(pb::Lease { protocol: "atp".into(), ..good() }).contains("nothing of slots"));
        assert!(
            fault(pb::Lease { protocol: "x".into(), ..good() }).contains("older netsum-switch")
        );
        let level = pb::slot_grant::Level::Rack;
        let orphan = pb::Lease { parent_address: String::new(), ..of(level) };
        assert!(fault(orphan).contains("is not an address"));
    }

    #[test]
    fn a_lease_is_taken_over_in_full() {
        let got = tree(&good());
        assert_eq!((got.job, got.epoch, got.tree), (JobId(7), Epoch(3), TreeId(1)));
        assert_eq!(got.children[2].ranks, 0b100);
        assert_eq!(got.children[2].branch, 2);
        assert_eq!(got.parent, Some("127.0.0.1:6000".parse().unwrap()));
        assert_eq!((got.slots, got.fragment_bytes, got.release_permille), (512, 1408, 880));
        assert_eq!(idle_expiry(&good()), Some(Duration::from_secs(600)));
        let root = pb::Lease { parent_address: String::new(), idle_expiry_s: 0, ..good() };
        assert_eq!(tree(&root).parent, None);
        assert_eq!(idle_expiry(&root), None);
    }

    #[test]
    fn each_fault_is_named() {
        let fault = |change: fn(&mut pb::Lease)| {
            let mut wrong = good();
            change(&mut wrong);
            grant(&wrong).unwrap_err()
        };
        assert!(fault(|l| l.parent_address = "x".into()).contains("\"x\" is not an address"));
        assert!(fault(|l| l.children[0].address.clear()).contains("is not an address"));
        assert!(fault(|l| l.children[0].branch = 256).contains("branch 256"));
        assert!(fault(|l| l.epoch = 65536).contains("epoch 65536"));
        assert!(fault(|l| l.tree = 256).contains("tree 256"));
        assert!(fault(|l| l.slots = 65536).contains("slots 65536"));
        assert!(fault(|l| l.fragment_bytes = 65536).contains("fragment size"));
        assert!(fault(|l| l.release_fraction = f32::NAN).contains("release fraction"));
        assert!(fault(|l| l.release_fraction = 0.0).contains("release fraction"));
    }
}
