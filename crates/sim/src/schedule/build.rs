//! Builds schedules, and refuses those that cannot run.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::{
    AT_START, BYTES_MAX, COMPUTE_MAX_PS, Collective, EDGES_MAX, MEMBERS_MAX, NODES_MAX, Names,
    Node, Op, RANKS_MAX, RankSchedule, Schedule, ScheduleError, untimed,
};

/// Takes the nodes and dependencies of a schedule, in any order.
pub struct Builder {
    names: Names,
    ranks: Vec<Vec<Node>>,
    groups: Vec<Vec<u32>>,
    members: usize,
    nodes: usize,
    /// By rank: the node that is waited for, and the node that waits, with `AT_START` if for its start.
    edges: Vec<Vec<(u32, u32)>>,
    edge_count: usize,
}

impl Builder {
    /// A schedule of `ranks` ranks without nodes.
    pub fn new(names: Names, ranks: u32) -> Result<Builder, ScheduleError> {
        if ranks == 0 || ranks > RANKS_MAX {
            let reason = format!("it has {ranks} ranks; 1 to {RANKS_MAX} can be run");
            return Err(ScheduleError::new(names.source(), reason));
        }
        let (ranks, edges) = (vec![Vec::new(); ranks as usize], vec![Vec::new(); ranks as usize]);
        let (groups, members, nodes, edge_count) = (Vec::new(), 0, 0, 0);
        Ok(Builder { names, ranks, groups, members, nodes, edges, edge_count })
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// Adds a group of different ranks; returns its index.
    pub fn group(&mut self, ranks: Vec<u32>) -> Result<u32, ScheduleError> {
        let fail = |reason: String| Err(ScheduleError::new(self.names.source(), reason));
        self.members += ranks.len();
        if self.members > MEMBERS_MAX {
            return fail(format!("its groups have more than {MEMBERS_MAX} members"));
        }
        let mut sorted = ranks.clone();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return fail(format!("a group names rank {} twice", twice[0]));
        }
        match sorted.last() {
            None => fail("a group has no rank".to_owned()),
            Some(&last) if last >= self.ranks() => fail(format!(
                "a group names rank {last}; there are ranks 0 to {}",
                self.ranks() - 1
            )),
            Some(_) => {
                self.groups.push(ranks);
                Ok(self.groups.len() as u32 - 1)
            }
        }
    }

    /// Adds a node of a rank; returns its index there. The number of a collective is set later.
    pub fn add(&mut self, rank: u32, name: u64, op: Op) -> Result<u32, ScheduleError> {
        self.nodes += 1;
        let fail = |reason: String| Err(ScheduleError::new(self.names.place(rank, name), reason));
        if self.nodes > NODES_MAX {
            return fail(format!("there are more than {NODES_MAX} nodes"));
        }
        let ranks = self.ranks();
        match op {
            Op::Compute { ps, .. } if ps > COMPUTE_MAX_PS => {
                return fail("it computes for more than 100000 s".to_owned());
            }
            Op::Send { to: other, .. } | Op::Recv { from: other, .. } if other >= ranks => {
                return fail(format!("there is no rank {other}, only 0 to {}", ranks - 1));
            }
            Op::Send { to: other, .. } | Op::Recv { from: other, .. } if other == rank => {
                return fail("a rank has nothing to send to itself".to_owned());
            }
            Op::Send { bytes, .. } | Op::Recv { bytes, .. } | Op::Collective { bytes, .. }
                if bytes > BYTES_MAX =>
            {
                return fail(format!("{bytes} bytes are more than {BYTES_MAX}"));
            }
            Op::Collective { kind, group, .. } => {
                let Some(members) = self.groups.get(group as usize) else {
                    return fail("its group is not defined".to_owned());
                };
                if !members.contains(&rank) {
                    return fail(format!("rank {rank} is no member of the group {members:?}"));
                }
                if root(kind).is_some_and(|root| root as usize >= members.len()) {
                    return fail("its root is no member of the group".to_owned());
                }
            }
            _ => {}
        }
        let nodes = &mut self.ranks[rank as usize];
        nodes.push(Node { op, name, waits: 0 });
        Ok(nodes.len() as u32 - 1)
    }

    /// `node` begins when `before` has ended, or, with `at_start`, has begun.
    pub fn wait(
        &mut self,
        rank: u32,
        node: u32,
        before: u32,
        at_start: bool,
    ) -> Result<(), ScheduleError> {
        self.edge_count += 1;
        if self.edge_count > EDGES_MAX {
            let reason = format!("there are more than {EDGES_MAX} dependencies");
            return Err(ScheduleError::new(self.names.rank(rank), reason));
        }
        self.edges[rank as usize].push((before, node | if at_start { AT_START } else { 0 }));
        Ok(())
    }

    /// The schedule, if it can run.
    pub fn build(self) -> Result<Schedule, ScheduleError> {
        let Builder { names, ranks, groups, edges, .. } = self;
        let mut members: Vec<Vec<u32>> = vec![Vec::new(); ranks.len()];
        for (group, ranks) in (0..).zip(&groups) {
            ranks.iter().for_each(|&rank| members[rank as usize].push(group));
        }
        let linked = ranks.into_iter().zip(edges).zip(members);
        let linked = linked.map(|((nodes, edges), groups)| link(nodes, edges, groups));
        let mut schedule = Schedule { ranks: linked.collect(), groups, names };
        for rank in 0..schedule.ranks.len() as u32 {
            number(&mut schedule, rank)?;
        }
        check_collectives(&schedule)?;
        check_messages(&schedule)?;
        untimed::run(&schedule)?;
        Ok(schedule)
    }
}

fn root(kind: Collective) -> Option<u32> {
    match kind {
        Collective::Broadcast { root }
        | Collective::Reduce { root }
        | Collective::Gather { root }
        | Collective::Scatter { root } => Some(root),
        _ => None,
    }
}

fn link(mut nodes: Vec<Node>, mut edges: Vec<(u32, u32)>, groups: Vec<u32>) -> RankSchedule {
    edges.sort_unstable();
    edges.dedup();
    let mut first = vec![0; nodes.len() + 1];
    for &(before, after) in &edges {
        first[before as usize + 1] += 1;
        nodes[(after & !AT_START) as usize].waits += 1;
    }
    for at in 1..first.len() {
        first[at] += first[at - 1];
    }
    let followers = edges.into_iter().map(|(_, after)| after).collect();
    RankSchedule { nodes, groups, first, followers }
}

/// Refuses cycles, and numbers the collectives of each group in an order that dependencies allow: that of the source,
/// wherever it is one.
fn number(schedule: &mut Schedule, rank: u32) -> Result<(), ScheduleError> {
    let own = &mut schedule.ranks[rank as usize];
    let mut waits: Vec<u32> = own.nodes.iter().map(|node| node.waits).collect();
    let nodes = 0..own.nodes.len() as u32;
    let mut ready: BinaryHeap<Reverse<u32>> =
        nodes.filter(|&node| waits[node as usize] == 0).map(Reverse).collect();
    let mut next = vec![0; own.groups.len()];
    let mut done = 0;
    while let Some(Reverse(node)) = ready.pop() {
        done += 1;
        if let Op::Collective { group, ref mut number, .. } = own.nodes[node as usize].op {
            let at = own.groups.binary_search(&group).expect("members were checked");
            *number = next[at];
            next[at] += 1;
        }
        for follower in own.followers(node, false).chain(own.followers(node, true)) {
            let left = &mut waits[follower as usize];
            *left -= 1;
            if *left == 0 {
                ready.push(Reverse(follower));
            }
        }
    }
    match done == own.nodes.len() {
        true => Ok(()),
        false => Err(cycle(schedule, rank, &waits)),
    }
}

/// Names a cycle among the nodes that still wait.
fn cycle(schedule: &Schedule, rank: u32, waits: &[u32]) -> ScheduleError {
    let own = &schedule.ranks[rank as usize];
    let waiting = |node: &u32| waits[*node as usize] > 0;
    let mut before = HashMap::new();
    for node in (0..waits.len() as u32).filter(waiting) {
        let followers = own.followers(node, false).chain(own.followers(node, true));
        followers.for_each(|follower| _ = before.entry(follower).or_insert(node));
    }
    // Backwards from any of them, the way ends in a cycle.
    let mut seen = HashMap::new();
    let mut at = (0..waits.len() as u32).find(waiting).expect("some node waits");
    let mut way = Vec::new();
    while !seen.contains_key(&at) {
        seen.insert(at, way.len());
        way.push(at);
        at = before[&at];
    }
    let mut cycle = way.split_off(seen[&at]);
    // From a node to the one for which it waits.
    let least = (0..cycle.len()).min_by_key(|&i| cycle[i]).expect("a cycle has nodes");
    cycle.rotate_left(least);
    let name = |node: u32| own.nodes[node as usize].name;
    let shown: Vec<String> = cycle.iter().skip(1).take(4).map(|&n| name(n).to_string()).collect();
    let reason = match &shown[..] {
        [] => "it waits for itself".to_owned(),
        _ if cycle.len() > 5 => {
            format!(
                "a cycle: it waits for {}, and so on, {} nodes",
                shown.join(", for "),
                cycle.len()
            )
        }
        _ => format!("a cycle: it waits for {}, for {}", shown.join(", for "), name(cycle[0])),
    };
    ScheduleError::new(schedule.place(rank, cycle[0]), reason)
}

/// An operation of a group, its bytes, and the rank and node where it was found.
type Found = (Collective, u64, u32, u32);

/// Refuses collectives on which the ranks of a group do not agree.
fn check_collectives(schedule: &Schedule) -> Result<(), ScheduleError> {
    // The operations of each group, as its first rank has them, with their places.
    let mut agreed: Vec<Vec<Option<Found>>> =
        schedule.operations().into_iter().map(|count| vec![None; count as usize]).collect();
    let mut counts: HashMap<(u32, u32), u32> = HashMap::new();
    for (rank, own) in (0..).zip(&schedule.ranks) {
        for (index, node) in (0..).zip(&own.nodes) {
            let Op::Collective { kind, group, bytes, number } = node.op else { continue };
            *counts.entry((group, rank)).or_default() += 1;
            match &mut agreed[group as usize][number as usize] {
                empty @ None => *empty = Some((kind, bytes, rank, index)),
                Some((k, b, other, at)) if (*k, *b) != (kind, bytes) => {
                    let reason = format!(
                        "operation {number} of group {:?} is {kind:?} of {bytes} bytes here, and {k:?} of {b} bytes at {}",
                        Shown(&schedule.groups[group as usize]),
                        schedule.place(*other, *at),
                    );
                    return Err(ScheduleError::new(schedule.place(rank, index), reason));
                }
                Some(_) => {}
            }
        }
    }
    for (group, (ranks, agreed)) in (0..).zip(schedule.groups.iter().zip(&agreed)) {
        for &rank in ranks {
            let count = counts.get(&(group, rank)).copied().unwrap_or(0);
            if let Some(Some((kind, _, other, at))) = agreed.get(count as usize) {
                let reason = format!(
                    "it has {count} operations of group {:?}, and {kind:?} at {} is one more",
                    Shown(ranks),
                    schedule.place(*other, *at),
                );
                return Err(ScheduleError::new(schedule.names.rank(rank), reason));
            }
        }
    }
    Ok(())
}

/// Some of the ranks of a group.
pub(super) struct Shown<'a>(pub &'a [u32]);

impl std::fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            [first, .., last] if self.0.len() > 8 => {
                write!(f, "[{first}, …, {last}] of {} ranks", self.0.len())
            }
            few => write!(f, "{few:?}"),
        }
    }
}

/// The messages between two ranks with one tag, and who waits for them: nodes and sizes.
type Both = (Vec<(u32, u64)>, Vec<(u32, u64)>);

/// Refuses messages that nobody receives, and receives without a message, or with a larger one.
fn check_messages(schedule: &Schedule) -> Result<(), ScheduleError> {
    let mut all: HashMap<(u32, u32, u32), Both> = HashMap::new();
    for (rank, own) in (0..).zip(&schedule.ranks) {
        for (index, node) in (0..).zip(&own.nodes) {
            match node.op {
                Op::Send { to, bytes, tag } => {
                    all.entry((rank, to, tag)).or_default().0.push((index, bytes));
                }
                Op::Recv { from, bytes, tag } => {
                    all.entry((from, rank, tag)).or_default().1.push((index, bytes));
                }
                _ => {}
            }
        }
    }
    let mut wrong: Vec<_> = all
        .into_iter()
        .filter_map(|((from, to, tag), (sends, receives))| {
            let both = sends.iter().zip(&receives);
            let small = both.clone().find(|(send, receive)| receive.1 < send.1);
            let (rank, node, reason) = if let Some(&(node, _)) = sends.get(receives.len()) {
                (from, node, format!("rank {to} does not receive this message (tag {tag})"))
            } else if let Some(&(node, _)) = receives.get(sends.len()) {
                (to, node, format!("rank {from} does not send this message (tag {tag})"))
            } else {
                let (send, receive) = small?;
                let reason = format!(
                    "it has room for {} bytes, and the message of {} has {}",
                    receive.1,
                    schedule.place(from, send.0),
                    send.1
                );
                (to, receive.0, reason)
            };
            Some((rank, node, reason))
        })
        .collect();
    // The first, whatever the order of the map.
    wrong.sort_unstable();
    match wrong.into_iter().next() {
        None => Ok(()),
        Some((rank, node, reason)) => Err(ScheduleError::new(schedule.place(rank, node), reason)),
    }
}
