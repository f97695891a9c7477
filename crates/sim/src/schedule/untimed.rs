//! Runs a schedule without time, to see whether it ends.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::build::Shown;
use super::{Op, Schedule, ScheduleError};

/// Refuses a schedule whose ranks wait for each other. A message is there once it is sent; a collective is complete
/// once all ranks of its group have begun it, and a rank begins the next one of a group after that.
pub(super) fn run(schedule: &Schedule) -> Result<(), ScheduleError> {
    let mut run = Run::new(schedule);
    loop {
        if let Some((rank, node)) = run.ready.pop_front() {
            run.start(rank, node);
        } else if let Some((rank, group)) = run.ended.pop_front() {
            run.begin_collective(rank, group);
        } else {
            break;
        }
    }
    match run.left.iter().position(|&left| left > 0) {
        None => Ok(()),
        Some(rank) => Err(run.stuck(rank as u32)),
    }
}

struct Run<'a> {
    schedule: &'a Schedule,
    ready: VecDeque<(u32, u32)>,
    waits: Vec<Vec<u32>>,
    left: Vec<usize>,
    /// By sender, receiver and tag: messages that nobody has taken, and nodes that wait for one.
    messages: HashMap<(u32, u32, u32), (u32, VecDeque<u32>)>,
    /// By rank and group: the number of the next operation, and the nodes of those that could begin.
    groups: HashMap<(u32, u32), (u32, BTreeMap<u32, u32>)>,
    /// By group and number: who has begun it.
    begun: HashMap<(u32, u32), Vec<(u32, u32)>>,
    /// Ranks that have ended an operation of a group, and may begin the next one.
    ended: VecDeque<(u32, u32)>,
}

impl Run<'_> {
    fn new(schedule: &Schedule) -> Run<'_> {
        let waits = schedule.ranks.iter().map(|rank| rank.nodes.iter().map(|n| n.waits).collect());
        let waits: Vec<Vec<u32>> = waits.collect();
        let numbered = (0..).zip(&waits);
        let ready = numbered.flat_map(|(rank, waits)| {
            let free = (0..).zip(waits).filter(|&(_, &waits)| waits == 0);
            free.map(move |(node, _)| (rank, node))
        });
        let ready = ready.collect();
        let left = waits.iter().map(Vec::len).collect();
        let (messages, groups, begun, ended) = Default::default();
        Run { schedule, ready, waits, left, messages, groups, begun, ended }
    }

    fn start(&mut self, rank: u32, node: u32) {
        match self.schedule.ranks[rank as usize].nodes[node as usize].op {
            Op::Compute { .. } => self.begin_and_end(rank, node),
            Op::Send { to, tag, .. } => {
                let (waiting, receivers) = self.messages.entry((rank, to, tag)).or_default();
                match receivers.pop_front() {
                    Some(receiver) => self.end(to, receiver),
                    None => *waiting += 1,
                }
                self.begin_and_end(rank, node);
            }
            Op::Recv { from, tag, .. } => {
                self.begin(rank, node);
                let (waiting, receivers) = self.messages.entry((from, rank, tag)).or_default();
                match waiting.checked_sub(1) {
                    Some(rest) => {
                        *waiting = rest;
                        self.end(rank, node);
                    }
                    None => receivers.push_back(node),
                }
            }
            Op::Collective { group, number, .. } => {
                self.groups.entry((rank, group)).or_default().1.insert(number, node);
                self.begin_collective(rank, group);
            }
        }
    }

    /// Begins the next operation of a group, if it can begin.
    fn begin_collective(&mut self, rank: u32, group: u32) {
        let (next, could) = self.groups.entry((rank, group)).or_default();
        let Some(node) = could.remove(next) else { return };
        let number = *next;
        self.begin(rank, node);
        let begun = self.begun.entry((group, number)).or_default();
        begun.push((rank, node));
        if begun.len() < self.schedule.groups[group as usize].len() {
            return;
        }
        for (rank, node) in self.begun.remove(&(group, number)).unwrap_or_default() {
            self.end(rank, node);
            self.groups.entry((rank, group)).or_default().0 += 1;
            self.ended.push_back((rank, group));
        }
    }

    fn begin_and_end(&mut self, rank: u32, node: u32) {
        self.begin(rank, node);
        self.end(rank, node);
    }

    fn begin(&mut self, rank: u32, node: u32) {
        self.release(rank, node, true);
    }

    fn end(&mut self, rank: u32, node: u32) {
        self.left[rank as usize] -= 1;
        self.release(rank, node, false);
    }

    fn release(&mut self, rank: u32, node: u32, at_start: bool) {
        let waits = &mut self.waits[rank as usize];
        for follower in self.schedule.ranks[rank as usize].followers(node, at_start) {
            waits[follower as usize] -= 1;
            if waits[follower as usize] == 0 {
                self.ready.push_back((rank, follower));
            }
        }
    }

    /// Describes the first node for which a rank waits in vain.
    fn stuck(self, rank: u32) -> ScheduleError {
        let receivers = self.messages.iter().flat_map(|(&(from, to, tag), (_, nodes))| {
            nodes.iter().map(move |&node| (to, node, from, tag))
        });
        let first = receivers.filter(|each| each.0 == rank).min_by_key(|each| each.1);
        if let Some((rank, node, from, tag)) = first {
            let reason = format!(
                "ranks wait for each other: this message of rank {from} (tag {tag}) is never sent"
            );
            return ScheduleError::new(self.schedule.place(rank, node), reason);
        }
        let begun = self.begun.iter().flat_map(|(&(group, number), ranks)| {
            ranks.iter().map(move |&(rank, node)| (rank, node, group, number, ranks))
        });
        let first = begun.filter(|each| each.0 == rank).min_by_key(|each| each.1);
        let Some((rank, node, group, number, ranks)) = first else {
            let reason =
                "it cannot begin its next operation of a group, which waits for another one";
            return ScheduleError::new(self.schedule.names.rank(rank), reason);
        };
        let members = &self.schedule.groups[group as usize];
        let missing = members.iter().find(|&&m| ranks.iter().all(|&(rank, _)| rank != m));
        let reason = format!(
            "ranks wait for each other: rank {} never begins operation {number} of group {:?}",
            missing.copied().unwrap_or(rank),
            Shown(members),
        );
        ScheduleError::new(self.schedule.place(rank, node), reason)
    }
}
