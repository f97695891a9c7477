//! Between the controller's messages and the driver's types.

use std::net::SocketAddr;
use std::time::Duration;

use netsum_control::pb;
use netsum_net::switch::{Neighbour, SwitchChild, SwitchLease, SwitchSnapshot, TreeSnapshot};
use netsum_wire::{Epoch, JobId, TreeId};

/// Checks a lease that came over the network; `Err` says in words what is wrong with it.
pub(crate) fn lease(lease: &pb::Lease) -> Result<SwitchLease, String> {
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
pub(crate) fn installed(trees: &[TreeSnapshot]) -> Vec<pb::InstalledLease> {
    let installed = |tree: &TreeSnapshot| pb::InstalledLease {
        job: tree.lease.job.0,
        tree: tree.lease.tree.0.into(),
        epoch: tree.lease.epoch.0.into(),
    };
    trees.iter().map(installed).collect()
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
        trees: snapshot.trees.iter().map(tree).collect(),
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

fn tree(tree: &TreeSnapshot) -> pb::SwitchTree {
    pb::SwitchTree {
        job: tree.lease.job.0,
        tree: tree.lease.tree.0.into(),
        epoch: tree.lease.epoch.0.into(),
        contributions: tree.counters.contributions,
        results: tree.counters.released,
        retransmits_answered: tree.counters.answered + tree.counters.waiting,
        marks: tree.counters.marked,
        memory_used_bytes: tree.memory_reserved,
        drops: Default::default(),
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
        }
    }

    #[test]
    fn a_lease_is_taken_over_in_full() {
        let got = lease(&good()).unwrap();
        assert_eq!((got.job, got.epoch, got.tree), (JobId(7), Epoch(3), TreeId(1)));
        assert_eq!(got.children[2].ranks, 0b100);
        assert_eq!(got.children[2].branch, 2);
        assert_eq!(got.parent, Some("127.0.0.1:6000".parse().unwrap()));
        assert_eq!((got.slots, got.fragment_bytes, got.release_permille), (512, 1408, 880));
        assert_eq!(idle_expiry(&good()), Some(Duration::from_secs(600)));
        let root = pb::Lease { parent_address: String::new(), idle_expiry_s: 0, ..good() };
        assert_eq!(lease(&root).unwrap().parent, None);
        assert_eq!(idle_expiry(&root), None);
    }

    #[test]
    fn each_fault_is_named() {
        let fault = |change: fn(&mut pb::Lease)| {
            let mut wrong = good();
            change(&mut wrong);
            lease(&wrong).unwrap_err()
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
