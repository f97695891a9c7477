//! Leases.

use std::net::SocketAddr;
use std::time::Duration;

use netsum_lease::{Granted, Racks};
use netsum_proto::{Lease, atp, panama, switchml};
use netsum_topo::{AggregationTree, Child, Topology, TreeNode};
use netsum_wire::{Epoch, JobId, TreeId};

use crate::pb;
use crate::pb::slot_grant::Level;

/// A lease as a message, without its job's key. `tree`: the lease's tree, which contains names for users.
pub(crate) fn lease_message(
    granted: &Granted<Option<SocketAddr>>,
    tree: &AggregationTree,
    topology: &Topology,
    slot_space: u32,
    idle_expiry_s: u32,
) -> pb::Lease {
    let node = tree.node(granted.node).expect("a lease is of a node of its tree");
    let key = granted.lease.key();
    let common = pb::Lease {
        job: key.job.0,
        tree: granted.tree as u32,
        epoch: key.epoch.0.into(),
        children: children(node, tree, topology),
        release_fraction: 1.0,
        idle_expiry_s,
        ..pb::Lease::default()
    };
    match &granted.lease {
        Lease::Tree(lease) => pb::Lease {
            children: zip(common.children, &lease.children, |message, child| {
                message.address = text(child.port);
                message.branch = child.branch.into();
            }),
            parent_address: lease.parent.map(text).unwrap_or_default(),
            slots: lease.slots.into(),
            fragment_bytes: lease.fragment_bytes.into(),
            release_fraction: f32::from(lease.release_permille) / 1000.0,
            protocol: "panama".to_owned(),
            ..common
        },
        Lease::Pool(lease) => pb::Lease {
            children: zip(common.children, &lease.workers, |message, &worker| {
                message.address = text(worker);
            }),
            slots: lease.slots.into(),
            fragment_bytes: lease.fragment_bytes.into(),
            protocol: "switchml".to_owned(),
            ..common
        },
        Lease::Slots(lease) => {
            let (level, rack, neighbours) = match &lease.members {
                atp::Members::Rack { workers, rack, .. } => {
                    let of = |(bit, &port): (u32, _)| atp::Neighbour {
                        port,
                        racks: 1 << rack,
                        workers: 1 << bit,
                    };
                    (Level::Rack, *rack, (0..).zip(workers).map(of).collect::<Vec<_>>())
                }
                atp::Members::Server { racks } => {
                    let of = |(number, rack): (u32, &atp::Rack<_>)| atp::Neighbour {
                        port: rack.port,
                        racks: 1 << number,
                        workers: netsum_wire::atp::Header::all(rack.workers),
                    };
                    (Level::ServerSwitch, 0, (0..).zip(racks).map(of).collect())
                }
            };
            pb::Lease {
                children: speaking(common.children, &neighbours),
                parent_address: text(lease.parent),
                slots: lease.window.into(),
                fragment_bytes: lease.fragment_bytes.into(),
                protocol: "atp".to_owned(),
                slot: Some(pb::SlotGrant {
                    level: level.into(),
                    rack: rack.into(),
                    racks: racks(tree),
                    slot_space,
                    guaranteed: lease.claim.guaranteed,
                    limit: lease.claim.limit,
                    priority: lease.claim.priority.into(),
                }),
                ..common
            }
        }
        Lease::Server(lease) => pb::Lease {
            children: speaking(common.children, &lease.neighbours),
            slots: lease.window.into(),
            fragment_bytes: lease.fragment_bytes.into(),
            protocol: "atp".to_owned(),
            slot: Some(pb::SlotGrant {
                level: Level::Server.into(),
                racks: racks(tree),
                slot_space,
                ..pb::SlotGrant::default()
            }),
            ..common
        },
    }
}

/// Validates a received lease; `Err` describes what is invalid.
pub fn lease_from_message(lease: &pb::Lease) -> Result<Lease<SocketAddr>, String> {
    match (lease.protocol.as_str(), &lease.slot) {
        ("" | "panama", _) => tree_lease(lease).map(Lease::Tree),
        ("switchml", _) => pool(lease).map(Lease::Pool),
        ("atp", Some(slot)) => match slot.level() {
            Level::Server => server(lease, slot).map(Lease::Server),
            level => slots(lease, slot, level).map(Lease::Slots),
        },
        ("atp", None) => Err("it is of protocol atp and says nothing of slots".to_owned()),
        (other, _) => {
            Err(format!("protocol \"{other}\" is not known here; is this an older netsum-switch?"))
        }
    }
}

/// Names of a node's children and the ranks beneath them.
fn children(node: &TreeNode, tree: &AggregationTree, topology: &Topology) -> Vec<pb::LeaseChild> {
    let child = |child: &Child| match *child {
        Child::Rank(rank) => {
            pb::LeaseChild { ranks: vec![rank], name: format!("rank {rank}"), ..Default::default() }
        }
        Child::Switch(switch) => pb::LeaseChild {
            ranks: tree.ranks_below(switch),
            name: topology.name(switch).to_owned(),
            ..Default::default()
        },
    };
    node.children.iter().map(child).collect()
}

fn zip<T>(
    mut messages: Vec<pb::LeaseChild>,
    children: &[T],
    fill: impl Fn(&mut pb::LeaseChild, &T),
) -> Vec<pb::LeaseChild> {
    messages.iter_mut().zip(children).for_each(|(message, child)| fill(message, child));
    messages
}

/// Children with the bits of the workers and racks whose contributions they send.
fn speaking(
    messages: Vec<pb::LeaseChild>,
    neighbours: &[atp::Neighbour<Option<SocketAddr>>],
) -> Vec<pb::LeaseChild> {
    zip(messages, neighbours, |message, neighbour| {
        message.address = text(neighbour.port);
        (message.racks, message.workers) = (neighbour.racks, neighbour.workers);
    })
}

fn racks(tree: &AggregationTree) -> Vec<pb::Rack> {
    let racks = Racks::of(tree).map(|racks| racks.racks).unwrap_or_default();
    racks.into_iter().map(|rack| pb::Rack { ranks: rack.ranks }).collect()
}

fn text(address: Option<SocketAddr>) -> String {
    address.map(|address| address.to_string()).unwrap_or_default()
}

fn pool(lease: &pb::Lease) -> Result<switchml::Lease<SocketAddr>, String> {
    Ok(switchml::Lease {
        job: JobId(lease.job),
        epoch: epoch(lease.epoch)?,
        tree: TreeId(number(lease.tree, "tree")?),
        workers: lease.children.iter().map(|c| address(&c.address)).collect::<Result<_, _>>()?,
        slots: number(lease.slots, "slots")?,
        fragment_bytes: number(lease.fragment_bytes, "fragment size")?,
    })
}

fn slots(
    lease: &pb::Lease,
    slot: &pb::SlotGrant,
    level: Level,
) -> Result<atp::Lease<SocketAddr>, String> {
    let members = match level {
        Level::Rack => atp::Members::Rack {
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

fn tree_lease(lease: &pb::Lease) -> Result<panama::Lease<SocketAddr>, String> {
    let children = lease.children.iter().map(child).collect::<Result<_, _>>()?;
    let parent = match lease.parent_address.as_str() {
        "" => None,
        parent => Some(address(parent)?),
    };
    let fraction = lease.release_fraction;
    if !(fraction > 0.0 && fraction <= 1.0) {
        return Err(format!("release fraction {fraction} is not above 0 and at most 1"));
    }
    Ok(panama::Lease {
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

fn child(child: &pb::LeaseChild) -> Result<panama::Child<SocketAddr>, String> {
    let bit = |ranks: u64, rank: &u32| ranks | 1 << (rank % 64);
    Ok(panama::Child {
        port: address(&child.address)?,
        ranks: child.ranks.iter().fold(0, bit),
        branch: number(child.branch, "branch")?,
    })
}

/// How long the neighbours of a lease may be silent while the controller is unavailable; `None`: without limit.
pub(crate) fn idle_expiry(lease: &pb::Lease) -> Option<Duration> {
    (lease.idle_expiry_s > 0).then(|| Duration::from_secs(lease.idle_expiry_s.into()))
}

/// A job and the last epoch that is revoked.
pub(crate) fn revocation(revoke: &pb::Revoke) -> Result<(JobId, Epoch), String> {
    Ok((JobId(revoke.job), epoch(revoke.epoch)?))
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
            ..pb::Lease::default()
        }
    }

    fn tree(lease: &pb::Lease) -> panama::Lease<SocketAddr> {
        match lease_from_message(lease) {
            Ok(Lease::Tree(lease)) => lease,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn grants_of_slots_pools_and_servers_convert() {
        let racks = vec![pb::Rack { ranks: vec![7] }, pb::Rack { ranks: vec![0, 1, 2] }];
        let (guaranteed, limit, priority) = (3, 9, 4);
        let of = |level: Level| pb::Lease {
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
        let Ok(Lease::Slots(rack)) = lease_from_message(&of(Level::Rack)) else { panic!() };
        let atp::Members::Rack { workers, rack: own, racks: all } = rack.members else { panic!() };
        assert_eq!((workers.len(), own, all, rack.window), (3, 1, 2, 512));
        assert_eq!(rack.claim, atp::Claim { guaranteed, limit, priority: 4 });
        assert_eq!(rack.parent, "127.0.0.1:6000".parse().unwrap());
        let level = Level::ServerSwitch;
        let Ok(Lease::Slots(middle)) = lease_from_message(&of(level)) else { panic!() };
        let atp::Members::Server { racks } = middle.members else { panic!() };
        assert!(racks.iter().all(|rack| rack.workers == 1));
        let Ok(Lease::Server(server)) = lease_from_message(&of(Level::Server)) else { panic!() };
        assert_eq!((server.slots, server.racks.len(), server.neighbours[2].workers), (64, 2, 4));
        let Ok(Lease::Pool(pool)) =
            lease_from_message(&pb::Lease { protocol: "switchml".into(), ..good() })
        else {
            panic!()
        };
        assert_eq!((pool.workers.len(), pool.slots), (3, 512));
        let fault = |lease: pb::Lease| lease_from_message(&lease).unwrap_err();
        assert!(fault(pb::Lease { protocol: "atp".into(), ..good() }).contains("nothing of slots"));
        assert!(
            fault(pb::Lease { protocol: "x".into(), ..good() }).contains("older netsum-switch")
        );
        let level = Level::Rack;
        let orphan = pb::Lease { parent_address: String::new(), ..of(level) };
        assert!(fault(orphan).contains("is not an address"));
    }

    #[test]
    fn a_lease_converts_without_loss() {
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
            lease_from_message(&wrong).unwrap_err()
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
