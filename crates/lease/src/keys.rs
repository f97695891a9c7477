//! The keys of a job's packets, all derived from the job's own (HKDF with SHA-256, RFC 5869).
//!
//! The controller alone knows the job's key. A rank gets a key of its own; a lease brings the keys of the node's hops in
//! one epoch, and a switch keeps no others. When the job gets a new key, plans say by a number which one they need:
//! ranks hand plans on, and a plan may arrive before the key.

use hkdf::Hkdf;
use netsum_proto::Secrets;
use netsum_topo::{AggregationTree, Child, NodeId};
use netsum_wire::TreeId;
use netsum_wire::seal::HopKeys;
use netsum_wire::tag::JobKey;
use sha2::Sha256;

use crate::JobPlan;
use crate::leases::Terms;

/// A number for a job's key, which says nothing about it; never 0.
pub fn key_id(job_key: &JobKey) -> u64 {
    u64::from_be_bytes(expand(job_key, &[b"netsum 1 id "])) | 1
}

/// A rank's last keys, by number.
#[derive(Clone, Debug, Default)]
pub struct RankKeys([Option<(u64, JobKey)>; 2]);

impl RankKeys {
    /// Keeps a new key, and the one before it.
    pub fn insert(&mut self, id: u64, key: JobKey) {
        if self.get(id) != Some(&key) {
            self.0 = [Some((id, key)), self.0[0]];
        }
    }

    fn get(&self, id: u64) -> Option<&JobKey> {
        self.0.iter().flatten().find(|(other, _)| *other == id).map(|(_, key)| key)
    }
}

/// The key that a rank shares with the controller, from the job's key.
pub fn rank_key(job_key: &JobKey, rank: u32) -> JobKey {
    let secret = expand(job_key, &[b"netsum 1 rank ", &rank.to_be_bytes()]);
    JobKey::new(job_key.mac(), secret)
}

/// The keys of the leases of a plan at one node of a tree; `None`: the job is on a trusted fabric. `name`: the name of
/// a switch.
pub fn lease_secrets(
    terms: &Terms,
    tree: TreeId,
    of: &AggregationTree,
    node: NodeId,
    job_key: Option<&JobKey>,
    name: impl Fn(NodeId) -> String,
) -> Option<Secrets> {
    let job_key = job_key?;
    let hop = |child: Child| match child {
        Child::Rank(rank) => rank_hop(&rank_key(job_key, rank), terms.epoch.0, tree.0),
        Child::Switch(switch) => switch_hop(job_key, terms.epoch.0, tree.0, &name(switch)),
    };
    let node = of.node(node)?;
    let parent = node.parent.as_ref().map(|_| Child::Switch(node.switch));
    Some(node.children.iter().copied().chain(parent).map(hop).collect())
}

/// The keys of a rank's packets under a plan; `None`: they have no tags. Of no hop if the rank does not have the plan's
/// key yet: then it must accept nothing.
pub fn worker_secrets(plan: &JobPlan, rank_keys: &RankKeys) -> Option<Secrets> {
    if plan.key_id == 0 {
        return None;
    }
    let trees = 0..plan.plan.trees.len() as u8;
    let hop = |key| trees.map(|tree| rank_hop(key, plan.plan.epoch, tree)).collect();
    Some(rank_keys.get(plan.key_id).map(hop).unwrap_or_default())
}

/// The keys between a rank and its switch in a tree.
fn rank_hop(rank_key: &JobKey, epoch: u16, tree: u8) -> HopKeys {
    hop(rank_key, &[b"netsum 1 hop ", &epoch.to_be_bytes(), &[tree]])
}

/// The keys between a switch and its parent in a tree.
fn switch_hop(job_key: &JobKey, epoch: u16, tree: u8, switch: &str) -> HopKeys {
    hop(job_key, &[b"netsum 1 switch ", &epoch.to_be_bytes(), &[tree], switch.as_bytes()])
}

fn hop(key: &JobKey, info: &[&[u8]]) -> HopKeys {
    HopKeys::new(key.mac(), expand(key, info))
}

fn expand<const N: usize>(key: &JobKey, info: &[&[u8]]) -> [u8; N] {
    let mac = [key.mac() as u8];
    let mut out = [0; N];
    let info: Vec<&[u8]> = info.iter().copied().chain([&mac[..]]).collect();
    let expanded = Hkdf::<Sha256>::new(None, key.secret()).expand_multi_info(&info, &mut out);
    expanded.expect("at most 255 blocks of SHA-256");
    out
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use netsum_proto::atp::Claim;
    use netsum_topo::{Parent, Protocol, TreeNode};
    use netsum_wire::tag::Mac;
    use netsum_wire::{Epoch, JobId};

    use super::*;

    const KEY: JobKey = JobKey::new(Mac::Aegis, [7; 16]);

    /// Ranks 0 and 1 below switch 1, ranks 2 and 3 below switch 2, both below switch 0.
    fn tree() -> AggregationTree {
        let rack = |switch, ranks: [u32; 2]| TreeNode {
            switch: NodeId(switch),
            children: ranks.map(Child::Rank).to_vec(),
            parent: Some(Parent { switch: NodeId(0), via: Vec::new() }),
        };
        let children = vec![Child::Switch(NodeId(1)), Child::Switch(NodeId(2))];
        let root = TreeNode { switch: NodeId(0), children, parent: None };
        AggregationTree { root: NodeId(0), nodes: vec![root, rack(1, [0, 1]), rack(2, [2, 3])] }
    }

    fn terms(protocol: Protocol, epoch: u16, trees: &[AggregationTree]) -> Terms<'_> {
        Terms {
            job: JobId(7),
            epoch: Epoch(epoch),
            protocol,
            trees,
            copies: false,
            window: 5,
            fragment_bytes: 1408,
            release_permille: 1000,
            slot_space: 0,
            claim: Claim::default(),
        }
    }

    fn keys_of(key: &JobKey, epoch: u16, tree_number: u8, node: u32) -> Vec<HopKeys> {
        let trees = [tree(), tree()];
        let terms = terms(Protocol::Panama, epoch, &trees);
        let (id, node) = (TreeId(tree_number), NodeId(node));
        let name = |node: NodeId| format!("switch {}", node.0);
        let tree = &trees[usize::from(tree_number)];
        lease_secrets(&terms, id, tree, node, Some(key), name).unwrap()
    }

    #[test]
    fn both_ends_of_a_hop_have_the_same_keys() {
        let (root, rack) = (keys_of(&KEY, 3, 1, 0), keys_of(&KEY, 3, 1, 2));
        assert_eq!((root.len(), rack.len()), (2, 3));
        assert_eq!(root[1], rack[2], "the parent's keys are the last");
        for (rank, keys) in [(2, rack[0]), (3, rack[1])] {
            assert_eq!(rank_hop(&rank_key(&KEY, rank), 3, 1), keys);
        }
    }

    #[test]
    fn no_two_hops_epochs_trees_or_jobs_share_a_key() {
        let mut seen = HashSet::new();
        for (key, epoch, tree) in [
            (KEY, 3, 0),
            (KEY, 3, 1),
            (KEY, 4, 0),
            (JobKey::new(Mac::Aegis, [8; 16]), 3, 0),
            (KEY.with_mac(Mac::SipHash), 3, 0),
        ] {
            // The keys of the racks' parents are the root's.
            let racks = [1, 2].map(|node| keys_of(&key, epoch, tree, node)[..2].to_vec()).concat();
            for keys in [racks, keys_of(&key, epoch, tree, 0)].concat() {
                assert!(seen.insert(*keys.up.secret()) && seen.insert(*keys.down.secret()));
            }
        }
        assert_eq!(seen.len(), 5 * 6 * 2);
    }

    #[test]
    fn a_rank_has_its_key_and_the_one_before() {
        let [a, b, c] = [1, 2, 3].map(|secret| JobKey::new(Mac::Aegis, [secret; 16]));
        let mut keys = RankKeys::default();
        for (id, key) in [(5, a), (5, a), (6, b), (6, b)] {
            keys.insert(id, key);
        }
        assert_eq!((keys.get(5), keys.get(6), keys.get(0)), (Some(&a), Some(&b), None));
        keys.insert(7, c);
        assert_eq!((keys.get(5), keys.get(6), keys.get(7)), (None, Some(&b), Some(&c)));
        assert_ne!(key_id(&a), key_id(&b));
    }

    #[test]
    fn leases_of_a_trusted_fabric_have_no_keys() {
        let trees = [tree()];
        let terms = terms(Protocol::Atp, 3, &trees);
        let name = |_| String::new();
        assert_eq!(lease_secrets(&terms, TreeId(0), &trees[0], NodeId(1), None, name), None);
    }
}
