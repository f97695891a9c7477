//! From the lateness of children to what is slow: a rank, a link, or everything below a switch.

use std::collections::HashMap;

use super::Lateness;

/// One node of a tree and how late its children were over some time.
#[derive(Clone, Debug)]
pub struct NodeReading<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its children: a name, and the growth of their figures. The name of another node is that node.
    pub children: Vec<(&'a str, Lateness)>,
}

/// What makes the others wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slow {
    /// The rank begins late; what it sends then comes as fast as from others.
    Rank,
    /// What comes from the child comes more slowly than from others.
    Link,
    /// All ranks below a switch begin late, and none of them later than the others there.
    Rack,
}

impl Slow {
    /// Name in statuses and reports.
    pub fn name(self) -> &'static str {
        match self {
            Slow::Rank => "rank",
            Slow::Link => "link",
            Slow::Rack => "rack",
        }
    }
}

/// A child that makes the others wait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Straggler<'a> {
    /// What is slow.
    pub slow: Slow,
    /// The child.
    pub child: &'a str,
    /// The node that waits for it.
    pub at: &'a str,
    /// Share of the time during which the others had to wait for it alone: of a rank or rack before it began to send, of
    /// a link all along, as far as the switches above its own had to wait, too.
    pub share: f64,
}

/// The stragglers of one tree, the worst first. `elapsed_ns`: the time over which the readings grew.
///
/// A child counts if the others waited for it for more than [`SHARE_MIN`] of the time longer than for its median sibling,
/// and several times as long. If one child of a switch explains why the switch is late, the switch is not named. Behind
/// a link that is slow elsewhere, windows let a child follow its siblings by a fragment all along; its switch is not late.
pub fn stragglers<'a>(nodes: &[NodeReading<'a>], elapsed_ns: u64) -> Vec<Straggler<'a>> {
    let by_name: HashMap<&str, &NodeReading<'a>> =
        nodes.iter().map(|node| (node.name, node)).collect();
    let mut found = Vec::new();
    for node in nodes {
        for &(child, lateness) in &node.children {
            let excess_ns = excess_ns(node, &lateness);
            // A rank that is late stays late by as much where its link is the bottleneck: what it costs is the beginning.
            let cost_ns = match lateness.begins_late() {
                true => lateness.opening_ns,
                false => awaited_above_ns(nodes, node.name),
            };
            let share = cost_ns.min(excess_ns) as f64 / elapsed_ns.max(1) as f64;
            if share < SHARE_MIN {
                continue;
            }
            let below = by_name.get(child);
            let explained_ns = below.map_or(0, |below| {
                let each = below.children.iter();
                each.map(|(_, lateness)| self::excess_ns(below, lateness)).max().unwrap_or(0)
            });
            if 2 * explained_ns >= excess_ns {
                continue;
            }
            let slow = match (lateness.begins_late(), below) {
                (false, _) => Slow::Link,
                (true, None) => Slow::Rank,
                (true, Some(_)) => Slow::Rack,
            };
            found.push(Straggler { slow, child, at: node.name, share });
        }
    }
    found.sort_by(|a, b| b.share.total_cmp(&a.share));
    found
}

/// For how long the others waited for a node, or for the node above it if that is less, and so on; without bound for the
/// root.
fn awaited_above_ns(nodes: &[NodeReading<'_>], name: &str) -> u64 {
    let (mut name, mut least_ns) = (name, u64::MAX);
    // No path is longer, whatever the names are.
    for _ in nodes {
        let above = nodes.iter().find_map(|node| {
            let child = node.children.iter().find(|(child, _)| *child == name)?;
            Some((node.name, child.1.awaited_ns))
        });
        let Some((parent, awaited_ns)) = above else { break };
        (name, least_ns) = (parent, least_ns.min(awaited_ns));
    }
    least_ns
}

/// How much longer the others waited for a child than for its median sibling; 0 if that is no more than chance.
fn excess_ns(node: &NodeReading<'_>, lateness: &Lateness) -> u64 {
    let mut awaited: Vec<u64> = node.children.iter().map(|(_, l)| l.awaited_ns).collect();
    awaited.sort_unstable();
    let Some(&median) = awaited.get(awaited.len().saturating_sub(1) / 2) else { return 0 };
    match lateness.awaited_ns >= TIMES_MIN * median {
        true => lateness.awaited_ns - median,
        false => 0,
    }
}

/// Waits below this share of the time cost less than the measurement varies.
const SHARE_MIN: f64 = 0.01;
/// Children that take turns at being the last are awaited about equally.
const TIMES_MIN: u64 = 3;

#[cfg(test)]
mod tests {
    use super::super::BUCKETS;
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn late(awaited_ms: u64, opening_ms: u64) -> Lateness {
        let [awaited_ns, opening_ns] = [awaited_ms, opening_ms].map(|ms| ms * 1_000_000);
        // Ten bursts of ten fragments, each fragment late by the same.
        let (bursts, late_ns) = (10, 10 * awaited_ns);
        let mut histogram = [0; BUCKETS];
        histogram[0] = 100;
        Lateness { awaited_ns, opening_ns, bursts, late_ns, histogram, ..Lateness::default() }
    }

    /// Two racks of three ranks below a spine; what is not given was awaited for 2 ms.
    fn found(given: &[(&'static str, Lateness)]) -> Vec<(Slow, &'static str, &'static str)> {
        let of = |name: &'static str| {
            let given = given.iter().find(|(child, _)| *child == name);
            (name, given.map_or(late(2, 1), |(_, lateness)| *lateness))
        };
        let node = |name, children: [&'static str; 3]| NodeReading {
            name,
            children: children
                .iter()
                .filter(|name| !name.is_empty())
                .map(|name| of(name))
                .collect(),
        };
        let nodes = [
            node("spine", ["leaf a", "leaf b", ""]),
            node("leaf a", ["rank 0", "rank 1", "rank 2"]),
            node("leaf b", ["rank 3", "rank 4", "rank 5"]),
        ];
        let found = stragglers(&nodes, SECOND);
        found.into_iter().map(|s| (s.slow, s.child, s.at)).collect()
    }

    #[test]
    fn verdicts() {
        assert_eq!(found(&[]), []);
        // A slow rank delays its rack, too.
        let rank = [("rank 4", late(30, 28)), ("leaf b", late(29, 28))];
        assert_eq!(found(&rank), [(Slow::Rank, "rank 4", "leaf b")]);
        let link = [("rank 4", late(300, 2)), ("leaf b", late(290, 2))];
        assert_eq!(found(&link), [(Slow::Link, "rank 4", "leaf b")]);
        assert_eq!(found(&[("leaf b", late(40, 39))]), [(Slow::Rack, "leaf b", "spine")]);
        assert_eq!(found(&[("leaf a", late(400, 9))]), [(Slow::Link, "leaf a", "spine")]);
        // A burst over a slow link that began before the readings, and one that the child has not begun yet.
        let begun = |awaited_ms| Lateness { bursts: 0, ..late(awaited_ms, 0) };
        let link = [("rank 4", begun(300)), ("leaf b", begun(290))];
        assert_eq!(found(&link), [(Slow::Link, "rank 4", "leaf b")]);
        let awaited = Lateness { late_ns: 0, histogram: [0; BUCKETS], bursts: 0, ..late(300, 300) };
        assert_eq!(found(&[("rank 4", awaited)]), [(Slow::Rank, "rank 4", "leaf b")]);
        let cut = Lateness { opening_ns: 0, ..awaited };
        let link = [("rank 4", cut), ("leaf b", cut)];
        assert_eq!(found(&link), [(Slow::Link, "rank 4", "leaf b")]);
        // It follows its siblings by a fragment all along; what is slow is elsewhere.
        let hidden = [("rank 0", begun(990)), ("rank 4", begun(960)), ("leaf b", begun(960))];
        assert_eq!(found(&hidden), [(Slow::Link, "rank 4", "leaf b")]);
        // Whoever is last changes: nobody is slow.
        let turns = ["rank 0", "rank 1", "rank 2"].map(|rank| (rank, late(200, 150)));
        assert_eq!(found(&turns), []);
        let turns = [("rank 0", late(90, 80)), ("rank 1", late(40, 30)), ("rank 2", late(60, 9))];
        assert_eq!(found(&turns), []);
        assert_eq!(found(&[("rank 3", late(9, 9))]), [], "too little to matter");
        let two = [("rank 0", late(50, 49)), ("rank 5", late(90, 80))];
        assert_eq!(
            found(&two),
            [(Slow::Rank, "rank 5", "leaf b"), (Slow::Rank, "rank 0", "leaf a")]
        );
    }
}
