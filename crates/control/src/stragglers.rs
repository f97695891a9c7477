//! Stragglers of jobs, from two statuses of one controller.

use std::collections::HashMap;

use netsum_proto::Lateness;
use netsum_proto::lateness::{NodeReading, stragglers};
use serde::Serialize;

use crate::pb;

/// A child of a job's tree for which the others wait.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobStraggler {
    /// The job.
    pub job: u32,
    /// The tree.
    pub tree: u32,
    /// "rank": it begins late. "link": what comes from it comes slowly. "rack": all ranks below a switch begin late.
    pub slow: &'static str,
    /// The child: "rank 3", or a switch.
    pub child: String,
    /// The switch that waits for it.
    pub at: String,
    /// Share of the time during which the others had to wait for it alone.
    pub share: f64,
}

/// The stragglers of all jobs between two statuses that were read `elapsed_s` seconds apart, worst first.
pub fn stragglers_between(
    before: &pb::StatusReply,
    now: &pb::StatusReply,
    elapsed_s: f64,
) -> Vec<JobStraggler> {
    let earlier: HashMap<_, _> = leases(before)
        .flat_map(|(switch, tree)| {
            let key = move |child| (switch, tree.job, tree.tree, tree.epoch, child);
            tree.children.iter().map(move |child| (key(child.address.as_str()), child))
        })
        .collect();
    let mut trees: HashMap<(u32, u32), Vec<NodeReading<'_>>> = HashMap::new();
    for (switch, tree) in leases(now) {
        let growth = |child: &pb::TreeChildLateness| {
            let key = (switch, tree.job, tree.tree, tree.epoch, child.address.as_str());
            let last = earlier.get(&key).map(|&last| lateness(last)).unwrap_or_default();
            lateness(child).since(&last)
        };
        let children: Vec<(&str, Lateness)> =
            tree.children.iter().map(|child| (name(child), growth(child))).collect();
        if !children.is_empty() {
            let nodes = trees.entry((tree.job, tree.tree)).or_default();
            nodes.push(NodeReading { name: switch, children });
        }
    }
    let elapsed_ns = (elapsed_s.max(0.0) * 1e9) as u64;
    let mut found: Vec<JobStraggler> = Vec::new();
    for (&(job, tree), nodes) in &trees {
        found.extend(stragglers(nodes, elapsed_ns).into_iter().map(|found| JobStraggler {
            job,
            tree,
            slow: found.slow.name(),
            child: found.child.to_owned(),
            at: found.at.to_owned(),
            share: found.share,
        }));
    }
    found.sort_by(|a, b| {
        (a.job, b.share, a.tree)
            .partial_cmp(&(b.job, a.share, b.tree))
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    found
}

fn leases(status: &pb::StatusReply) -> impl Iterator<Item = (&str, &pb::SwitchTree)> {
    let switches = status.switches.iter();
    switches.flat_map(|switch| switch.trees.iter().map(|tree| (switch.name.as_str(), tree)))
}

fn name(child: &pb::TreeChildLateness) -> &str {
    if child.name.is_empty() { &child.address } else { &child.name }
}

/// A reading from its message; buckets beyond those of this version are left out.
fn lateness(message: &pb::TreeChildLateness) -> Lateness {
    let mut lateness = Lateness {
        late_ns: message.late_ns,
        last: message.last,
        awaited_ns: message.awaited_ns,
        bursts: message.bursts,
        opening_ns: message.opening_ns,
        ..Lateness::default()
    };
    let counts = lateness.histogram.iter_mut().zip(&message.histogram);
    counts.for_each(|(bucket, &count)| *bucket = count);
    lateness
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(awaited_ms: u64, epoch: u32) -> pb::StatusReply {
        let child = |rank: u32, ms: u64| pb::TreeChildLateness {
            address: format!("10.0.0.{rank}:1"),
            name: format!("rank {rank}"),
            awaited_ns: ms * 1_000_000,
            opening_ns: ms * 1_000_000,
            bursts: 1 + ms,
            ..Default::default()
        };
        let children = vec![child(0, 1), child(1, awaited_ms), child(2, 1)];
        let tree = pb::SwitchTree { job: 7, tree: 1, epoch, children, ..Default::default() };
        let switch =
            pb::SwitchStatus { name: "s0".to_owned(), trees: vec![tree], ..Default::default() };
        pb::StatusReply { switches: vec![switch], ..Default::default() }
    }

    #[test]
    fn only_the_growth_between_two_statuses_counts() {
        assert_eq!(stragglers_between(&status(500, 1), &status(505, 1), 1.0), []);
        let found = stragglers_between(&status(500, 1), &status(600, 1), 1.0);
        assert_eq!(found.len(), 1);
        let JobStraggler { job, tree, slow, child, at, share } = &found[0];
        assert_eq!(
            (*job, *tree, *slow, child.as_str(), at.as_str()),
            (7, 1, "rank", "rank 1", "s0")
        );
        assert!((share - 0.1).abs() < 1e-9, "{share}");
        // The lease of a new plan begins anew.
        let found = stragglers_between(&status(500, 1), &status(100, 2), 1.0);
        assert!((found[0].share - 0.099).abs() < 1e-9, "{found:?}");
    }
}
