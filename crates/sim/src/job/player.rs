//! Runs a [`Schedule`]: what a rank computes takes its units, what it sends the hosts' flows, and what ranks sum
//! together either of flows and trees.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use netsum_proto::Pattern;
use netsum_wire::{MAX_SCOPED_RANKS, Rank as GroupRank};
use rustc_hash::FxHashMap;

use super::steps::{HostAlgorithm, share, step_of, steps_of};
use crate::aggregation::{Operation, begin_order};
use crate::network::Region;
use crate::schedule::{Collective, Op, Schedule};
use crate::transport::{Owner, Transport};
use crate::visit::{View, Visitor};

/// Timer class: a rank has computed, or a message within a host has arrived.
pub(crate) const RANK: u64 = 7 << 56;
/// Bit of such a timer's key: a message has arrived.
const ARRIVAL: u64 = 1 << 55;

/// What a job does in each of its steps, in place of computing and reducing buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// What each rank does.
    pub schedule: Arc<Schedule>,
    /// A message of up to this many bytes is sent as soon as its node begins; the node of a longer one ends when the
    /// receiver's host has acknowledged it.
    pub eager_bytes: u64,
    /// Links within hosts.
    pub local: Local,
}

/// Links between ranks of one host: each rank sends at `rate_bps`, one message after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// Rate at which a rank sends.
    pub rate_bps: u64,
    /// Time that a message takes in addition.
    pub latency_ps: u64,
}

impl Local {
    fn serialisation_ps(&self, bytes: u64) -> u64 {
        let ps = u128::from(bytes) * 8_000_000_000_000 / u128::from(self.rate_bps.max(1));
        u64::try_from(ps).unwrap_or(u64::MAX)
    }
}

/// A job's schedule in progress.
pub(crate) struct Player {
    work: Work,
    job: u32,
    algorithm: HostAlgorithm,
    ecn: bool,
    placement: Vec<u32>,
    /// Operations of each group in one run of the schedule.
    operations: Vec<u32>,
    /// By group: the number of the first worker, if the group's operations are in the network.
    workers: Vec<Option<u32>>,
    /// Whether these are all that switches help with, and not allreduces alone.
    all_collectives: bool,
    streams: Vec<Stream>,
    /// By sender, receiver and channel.
    stream_of: FxHashMap<(u32, u32, u32), u32>,
    ranks: Vec<Rank>,
    /// Nodes that can begin: rank and node.
    ready: VecDeque<(u32, u32)>,
    /// Ranks that have completed their schedule once more: rank and run.
    pub done: Vec<(u32, u64)>,
    /// Runs in which a rank has begun to communicate since this was last asked.
    pub begun: Vec<u64>,
    /// Operations for workers in the network, by number.
    pub submissions: Vec<(u32, Operation)>,
}

/// Messages from one rank to another, in order.
struct Stream {
    flow: u32,
    from: u32,
    to: u32,
    /// Of each message in transit.
    tags: VecDeque<Tag>,
    /// Nodes that end with the acknowledgement of a segment.
    unacknowledged: VecDeque<(u32, u32)>,
}

#[derive(Clone, Copy)]
enum Tag {
    /// A message with the tag of its nodes.
    Message(u32),
    /// A message of an operation: group, operation since the start of the job, step.
    Step(u32, u64, u32),
}

/// The channel of messages; that of a group's operations is the group's index plus one.
const MESSAGES: u32 = 0;

#[derive(Default)]
struct Rank {
    /// Number of the run, from 0.
    run: u64,
    slowness: f64,
    /// Nodes that have not ended, and for how many others each of them waits.
    left: usize,
    waits: Vec<u32>,
    communicates: bool,
    units: Vec<Unit>,
    /// By sender and tag: messages that no node has taken, and nodes that wait for one.
    arrived: FxHashMap<(u32, u32), u32>,
    receivers: FxHashMap<(u32, u32), VecDeque<u32>>,
    /// In the order of the schedule's list of the rank's groups.
    groups: Vec<Member>,
    /// Messages to ranks of the same host, by arrival: receiver, tag, and the node that ends with it.
    local: VecDeque<(u32, Tag, Option<u32>)>,
    local_free_ps: u64,
}

#[derive(Default)]
struct Unit {
    busy: Option<u32>,
    queue: VecDeque<u32>,
}

/// A rank's part in the operations of one group.
#[derive(Default)]
struct Member {
    group: u32,
    /// Index of the rank in the group.
    index: u32,
    /// The operation that runs between hosts or comes next, counted since the start of the job.
    next: u64,
    /// Its node, if it runs.
    running: Option<u32>,
    /// Operations before it that run in the network, which does not wait for one to end before it begins the next.
    in_network: BTreeMap<u64, u32>,
    step: u32,
    /// Whether this step's messages were sent.
    sent: bool,
    /// Nodes of operations that could begin, by number.
    could: BTreeMap<u64, u32>,
    /// Messages by operation and step.
    arrived: FxHashMap<(u64, u32), u32>,
}

impl Tag {
    /// Visits a tag, with operations counted from the first one of a run, of which each group has so many.
    fn visit(&self, v: &mut impl Visitor, first_run: u64, operations: &[u32]) {
        match *self {
            Tag::Message(tag) => v.both(0, tag),
            Tag::Step(group, operation, step) => {
                v.both(group + 1, step);
                let first = first_run * u64::from(operations[group as usize]);
                v.same(operation.wrapping_sub(first));
            }
        }
    }
}

impl Rank {
    /// Visits the state, as [`Player::visit`] does.
    fn visit(&mut self, v: &mut impl Visitor, (view, first_run): (View, u64), operations: &[u32]) {
        let Rank {
            run,
            slowness,
            left,
            waits,
            communicates,
            units,
            arrived,
            receivers,
            groups,
            local,
            local_free_ps,
        } = self;
        v.same(run.wrapping_sub(first_run));
        v.same(slowness.to_bits());
        v.both(*left as u32, waits.len() as u32);
        for pair in waits.chunks(2) {
            v.both(pair[0], pair.get(1).copied().unwrap_or(0));
        }
        v.same((*communicates).into());
        for Unit { busy, queue } in units {
            v.both(node_or_none(*busy), queue.len() as u32);
            queue.iter().for_each(|&node| v.same(node.into()));
        }
        v.both(arrived.len() as u32, receivers.len() as u32);
        for ((from, tag), count) in in_order(arrived) {
            v.both(from, tag);
            v.same((*count).into());
        }
        for ((from, tag), nodes) in in_order(receivers) {
            v.both(from, tag);
            v.same(nodes.len() as u64);
            nodes.iter().for_each(|&node| v.same(node.into()));
        }
        for member in groups {
            let first = first_run * u64::from(operations[member.group as usize]);
            member.visit(v, first);
        }
        v.same(local.len() as u64);
        for (to, tag, node) in &*local {
            v.both(*to, node_or_none(*node));
            tag.visit(v, first_run, operations);
        }
        // If no message is on its way this time is over, and without effect.
        if !local.is_empty() {
            view.time(v, local_free_ps);
        }
    }
}

impl Member {
    /// Visits the state, with operations counted from `first`.
    fn visit(&self, v: &mut impl Visitor, first: u64) {
        let Member {
            // Constant.
            group: _,
            index: _,
            next,
            running,
            in_network,
            step,
            sent,
            could,
            arrived,
        } = self;
        v.same(next.wrapping_sub(first));
        v.both(node_or_none(*running), *step);
        v.both(in_network.len() as u32, (*sent).into());
        v.both(could.len() as u32, arrived.len() as u32);
        for (operation, node) in in_network.iter().chain(could) {
            v.same(operation.wrapping_sub(first));
            v.same((*node).into());
        }
        for ((operation, step), count) in in_order(arrived) {
            v.same(operation.wrapping_sub(first));
            v.both(step, *count);
        }
    }

    /// Counts operations on.
    fn skip(&mut self, operations: u64) {
        self.next += operations;
        for nodes in [&mut self.in_network, &mut self.could] {
            let all = std::mem::take(nodes).into_iter();
            *nodes = all.map(|(operation, node)| (operation + operations, node)).collect();
        }
        let arrived = std::mem::take(&mut self.arrived).into_iter();
        let later = arrived.map(|((operation, step), n)| ((operation + operations, step), n));
        self.arrived = later.collect();
    }
}

/// A node's number, which no node has if there is none.
fn node_or_none(node: Option<u32>) -> u32 {
    node.unwrap_or(u32::MAX)
}

/// Entries in the order of their keys.
fn in_order<K: Ord + Copy, T>(map: &FxHashMap<K, T>) -> Vec<(K, &T)> {
    let mut all: Vec<_> = map.iter().map(|(&key, value)| (key, value)).collect();
    all.sort_unstable_by_key(|&(key, _)| key);
    all
}

/// The hosts' network and flows.
pub(crate) struct Wire<'a> {
    pub net: &'a mut Region,
    pub transport: &'a mut Transport,
}

impl Player {
    pub(crate) fn new(
        work: Work,
        (algorithm, ecn): (HostAlgorithm, bool),
        job: u32,
        placement: &[u32],
        (workers, all_collectives): (Vec<Option<u32>>, bool),
    ) -> Player {
        let schedule = &work.schedule;
        let rank = |number: u32| {
            let own = &schedule.ranks[number as usize];
            let member = |&group: &u32| {
                let ranks = &schedule.groups[group as usize];
                let index = ranks.iter().position(|&rank| rank == number).expect("a member");
                Member { group, index: index as u32, ..Member::default() }
            };
            let units = std::iter::repeat_with(Unit::default).take(own.units()).collect();
            Rank { units, groups: own.groups.iter().map(member).collect(), ..Rank::default() }
        };
        Player {
            operations: schedule.operations(),
            ranks: (0..schedule.ranks.len() as u32).map(rank).collect(),
            work,
            job,
            algorithm,
            ecn,
            placement: placement.to_vec(),
            workers,
            all_collectives,
            streams: Vec::new(),
            stream_of: FxHashMap::default(),
            ready: VecDeque::new(),
            done: Vec::new(),
            begun: Vec::new(),
            submissions: Vec::new(),
        }
    }

    /// Visits the state. Runs are counted from `first_run`, and operations from the first one of that run; `base` as in
    /// [`Packet::visit`](crate::packet::Packet::visit).
    pub(crate) fn visit(
        &mut self,
        v: &mut impl Visitor,
        (view, first_run): (View, u32),
        base: &[u32],
    ) {
        let Player {
            // Constant.
            work: _,
            job: _,
            algorithm: _,
            ecn: _,
            placement: _,
            operations,
            workers: _,
            all_collectives: _,
            streams,
            // The numbers of the streams.
            stream_of: _,
            ranks,
            ready,
            done,
            begun,
            submissions,
        } = self;
        let first_run = u64::from(first_run);
        v.both(streams.len() as u32, ranks.len() as u32);
        v.both(ready.len() as u32, done.len() as u32);
        v.both(begun.len() as u32, submissions.len() as u32);
        for Stream { flow, from, to, tags, unacknowledged } in streams {
            v.both(*from, *to);
            v.both(*flow, tags.len() as u32);
            tags.iter().for_each(|tag| tag.visit(v, first_run, operations));
            v.same(unacknowledged.len() as u64);
            for &(end, node) in &*unacknowledged {
                v.both(end.wrapping_sub(base[*flow as usize]), node);
            }
        }
        for rank in ranks {
            rank.visit(v, (view, first_run), operations);
        }
    }

    /// Operations of a group in one run of the schedule.
    pub(crate) fn operations_of(&self, group: u32) -> u32 {
        self.operations[group as usize]
    }

    /// Counts runs on, and with them operations.
    pub(crate) fn skip(&mut self, runs: u32) {
        let (runs, operations) = (u64::from(runs), &self.operations);
        let on = |tag: &mut Tag| {
            if let Tag::Step(group, operation, _) = tag {
                *operation += runs * u64::from(operations[*group as usize]);
            }
        };
        self.streams.iter_mut().flat_map(|stream| &mut stream.tags).for_each(on);
        for rank in &mut self.ranks {
            rank.run += runs;
            rank.local.iter_mut().for_each(|(_, tag, _)| on(tag));
            for member in &mut rank.groups {
                member.skip(runs * u64::from(operations[member.group as usize]));
            }
        }
    }

    /// Begins a run of a rank's schedule; it computes `slowness` times as long as the schedule says.
    pub(crate) fn begin(&mut self, wire: &mut Wire, rank: u32, run: u64, slowness: f64) {
        let nodes = &self.work.schedule.ranks[rank as usize].nodes;
        let state = &mut self.ranks[rank as usize];
        (state.run, state.slowness, state.left) = (run, slowness, nodes.len());
        state.communicates = false;
        state.waits.clear();
        state.waits.extend(nodes.iter().map(|node| node.waits));
        let free = (0..).zip(nodes).filter(|(_, node)| node.waits == 0);
        self.ready.extend(free.map(|(node, _)| (rank, node)));
        if nodes.is_empty() {
            self.done.push((rank, run));
        }
        self.advance(wire);
    }

    /// Handles a timer of its class.
    pub(crate) fn on_timer(&mut self, wire: &mut Wire, key: u64) {
        let (rank, unit) = ((key >> 8) as u32 & 0xffff, key as usize & 0xff);
        let state = &mut self.ranks[rank as usize];
        if key & ARRIVAL != 0 {
            let (to, tag, node) = state.local.pop_front().expect("a message for each timer");
            node.into_iter().for_each(|node| self.end(rank, node));
            self.arrive(wire, rank, to, tag);
        } else {
            let node = state.units[unit].busy.take().expect("a node for each timer");
            if let Some(next) = state.units[unit].queue.pop_front() {
                self.compute(wire, rank, next);
            }
            self.end(rank, node);
        }
        self.advance(wire);
    }

    /// Handles `count` further messages of a stream.
    pub(crate) fn on_messages(&mut self, wire: &mut Wire, stream: u32, count: u32) {
        let Stream { from, to, .. } = self.streams[stream as usize];
        for _ in 0..count {
            let tag = self.streams[stream as usize].tags.pop_front();
            self.arrive(wire, from, to, tag.expect("a received message was sent"));
        }
        self.advance(wire);
    }

    /// Handles the acknowledgement for which a stream has asked.
    pub(crate) fn on_acknowledged(&mut self, wire: &mut Wire, stream: u32) {
        let Stream { flow, from, .. } = self.streams[stream as usize];
        let acknowledged = wire.transport.acknowledged(flow);
        let waiting = &mut self.streams[stream as usize].unacknowledged;
        let mut ended = Vec::new();
        while let Some(&(end, node)) = waiting.front()
            && end <= acknowledged
        {
            waiting.pop_front();
            ended.push(node);
        }
        if let Some(&(end, _)) = waiting.front() {
            wire.transport.report_acknowledgement(flow, end);
        }
        ended.into_iter().for_each(|node| self.end(from, node));
        self.advance(wire);
    }

    /// Handles an operation that is complete at a worker in the network.
    pub(crate) fn on_reduced(&mut self, wire: &mut Wire, group: u32, index: u32, operation: u64) {
        let rank = self.work.schedule.groups[group as usize][index as usize];
        let at = self.member_at(rank, group);
        let node = self.ranks[rank as usize].groups[at].in_network.remove(&operation);
        self.end(rank, node.expect("an operation that ends has run"));
        self.advance(wire);
    }

    /// Ends the flows of a completed job.
    pub(crate) fn close(&mut self, net: &mut Region, transport: &mut Transport) {
        self.streams.iter().for_each(|stream| transport.close(net, stream.flow));
    }

    /// A rank that waits for others, with its node in words, if nobody computes and nothing is on its way.
    pub(crate) fn stuck(&self) -> Option<String> {
        let busy = |rank: &Rank| {
            !rank.local.is_empty() || rank.units.iter().any(|unit| unit.busy.is_some())
        };
        let sending = |stream: &Stream| !stream.tags.is_empty();
        if self.ranks.iter().any(busy) || self.streams.iter().any(sending) {
            return None;
        }
        let waiting = |(rank, state): (usize, &Rank)| {
            let receiving = state.receivers.values().flatten().copied();
            let running = state.groups.iter().flat_map(|member| {
                member.running.into_iter().chain(member.in_network.values().copied())
            });
            let node = receiving.chain(running).min()?;
            Some(self.work.schedule.place(rank as u32, node))
        };
        self.ranks.iter().enumerate().find_map(waiting)
    }

    fn advance(&mut self, wire: &mut Wire) {
        while let Some((rank, node)) = self.ready.pop_front() {
            self.start(wire, rank, node);
        }
    }

    fn start(&mut self, wire: &mut Wire, rank: u32, node: u32) {
        match self.work.schedule.ranks[rank as usize].nodes[node as usize].op {
            Op::Compute { ps: 0, .. } => {
                self.release(rank, node, true);
                self.end(rank, node);
            }
            Op::Compute { unit, .. } => {
                let unit = &mut self.ranks[rank as usize].units[usize::from(unit)];
                match unit.busy {
                    Some(_) => unit.queue.push_back(node),
                    None => self.compute(wire, rank, node),
                }
            }
            Op::Send { to, bytes, tag } => {
                self.communicate(rank);
                self.release(rank, node, true);
                let eager = bytes <= self.work.eager_bytes;
                let node_of = (!eager).then_some(node);
                self.send(wire, (rank, to, MESSAGES), bytes, Tag::Message(tag), node_of);
                if eager {
                    self.end(rank, node);
                }
            }
            Op::Recv { from, tag, .. } => {
                self.release(rank, node, true);
                let state = &mut self.ranks[rank as usize];
                match state.arrived.get_mut(&(from, tag)) {
                    Some(1) => {
                        state.arrived.remove(&(from, tag));
                        self.end(rank, node);
                    }
                    Some(count) => {
                        *count -= 1;
                        self.end(rank, node);
                    }
                    None => state.receivers.entry((from, tag)).or_default().push_back(node),
                }
            }
            Op::Collective { group, number, .. } => {
                let at = self.member_at(rank, group);
                let state = &mut self.ranks[rank as usize];
                let first = state.run * u64::from(self.operations[group as usize]);
                state.groups[at].could.insert(first + u64::from(number), node);
                self.advance_group(wire, rank, at);
            }
        }
    }

    fn compute(&mut self, wire: &mut Wire, rank: u32, node: u32) {
        let op = self.work.schedule.ranks[rank as usize].nodes[node as usize].op;
        let Op::Compute { ps, unit } = op else { unreachable!("units compute") };
        let state = &mut self.ranks[rank as usize];
        state.units[usize::from(unit)].busy = Some(node);
        let at_ps = wire.net.now_ps().saturating_add((ps as f64 * state.slowness) as u64);
        let key = RANK | u64::from(self.job) << 24 | u64::from(rank) << 8 | u64::from(unit);
        wire.net.set_timer(at_ps, key);
        self.release(rank, node, true);
    }

    fn end(&mut self, rank: u32, node: u32) {
        let state = &mut self.ranks[rank as usize];
        state.left -= 1;
        if state.left == 0 {
            self.done.push((rank, state.run));
        }
        self.release(rank, node, false);
    }

    /// Lets go on what waits for the start or the end of a node.
    fn release(&mut self, rank: u32, node: u32, at_start: bool) {
        let waits = &mut self.ranks[rank as usize].waits;
        for follower in self.work.schedule.ranks[rank as usize].followers(node, at_start) {
            waits[follower as usize] -= 1;
            if waits[follower as usize] == 0 {
                self.ready.push_back((rank, follower));
            }
        }
    }

    fn communicate(&mut self, rank: u32) {
        let state = &mut self.ranks[rank as usize];
        if !std::mem::replace(&mut state.communicates, true) {
            self.begun.push(state.run);
        }
    }

    /// Sends a message; `node` ends with it.
    fn send(
        &mut self,
        wire: &mut Wire,
        (from, to, channel): (u32, u32, u32),
        bytes: u64,
        tag: Tag,
        node: Option<u32>,
    ) {
        let [src, dst] = [from, to].map(|rank| self.placement[rank as usize]);
        if src == dst {
            let Local { latency_ps, .. } = self.work.local;
            let time_ps = self.work.local.serialisation_ps(bytes);
            let state = &mut self.ranks[from as usize];
            let start_ps = state.local_free_ps.max(wire.net.now_ps());
            state.local_free_ps = start_ps.saturating_add(time_ps);
            state.local.push_back((to, tag, node));
            let key = RANK | ARRIVAL | u64::from(self.job) << 24 | u64::from(from) << 8;
            wire.net.set_timer(state.local_free_ps.saturating_add(latency_ps), key);
            return;
        }
        let stream = *self.stream_of.entry((from, to, channel)).or_insert_with(|| {
            let number = self.streams.len() as u32;
            let flow = wire.transport.open(src, dst, Owner::Job(self.job, number), self.ecn);
            let (tags, unacknowledged) = Default::default();
            self.streams.push(Stream { flow, from, to, tags, unacknowledged });
            number
        });
        let stream = &mut self.streams[stream as usize];
        stream.tags.push_back(tag);
        // An empty message is sent as one byte, so that the receiver can count it.
        let end = wire.transport.submit(wire.net, stream.flow, bytes.max(1));
        if let Some(node) = node {
            stream.unacknowledged.push_back((end, node));
            if stream.unacknowledged.len() == 1 {
                wire.transport.report_acknowledgement(stream.flow, end);
            }
        }
    }

    fn arrive(&mut self, wire: &mut Wire, from: u32, to: u32, tag: Tag) {
        match tag {
            Tag::Message(tag) => {
                let state = &mut self.ranks[to as usize];
                let receivers = state.receivers.get_mut(&(from, tag));
                match receivers.and_then(VecDeque::pop_front) {
                    Some(node) => {
                        if state.receivers[&(from, tag)].is_empty() {
                            state.receivers.remove(&(from, tag));
                        }
                        self.end(to, node);
                    }
                    None => *state.arrived.entry((from, tag)).or_default() += 1,
                }
            }
            Tag::Step(group, operation, step) => {
                let at = self.member_at(to, group);
                let member = &mut self.ranks[to as usize].groups[at];
                *member.arrived.entry((operation, step)).or_default() += 1;
                self.advance_group(wire, to, at);
            }
        }
    }

    /// The place of a group in a rank's list.
    fn member_at(&self, rank: u32, group: u32) -> usize {
        let groups = &self.work.schedule.ranks[rank as usize].groups;
        groups.binary_search(&group).expect("members were checked")
    }

    fn end_operation(&mut self, rank: u32, at: usize) {
        let member = &mut self.ranks[rank as usize].groups[at];
        member.next += 1;
        (member.step, member.sent) = (0, false);
        let node = member.running.take().expect("an operation that ends has run");
        self.end(rank, node);
    }

    /// Takes a rank as far as it gets in the operations of a group.
    fn advance_group(&mut self, wire: &mut Wire, rank: u32, at: usize) {
        loop {
            let member = &mut self.ranks[rank as usize].groups[at];
            let Some(node) = member.running else {
                let Some(node) = member.could.remove(&member.next) else { return };
                self.communicate(rank);
                self.release(rank, node, true);
                if self.submit(rank, at, node) {
                    continue;
                }
                self.ranks[rank as usize].groups[at].running = Some(node);
                if rank == 0 {
                    begin_order(wire.net, self.placement[0]);
                }
                continue;
            };
            let op = self.work.schedule.ranks[rank as usize].nodes[node as usize].op;
            let Op::Collective { kind, group, bytes, .. } = op else {
                unreachable!("a member runs collectives")
            };
            let members = self.work.schedule.groups[group as usize].len() as u32;
            let (index, step, operation) = (member.index, member.step, member.next);
            if step == steps_of(kind, self.algorithm, members, bytes) {
                self.end_operation(rank, at);
                continue;
            }
            let part = step_of(kind, self.algorithm, (index, members), step, bytes);
            if !std::mem::replace(&mut member.sent, true) {
                for (to, bytes, awaited) in part.messages(step) {
                    let to = self.work.schedule.groups[group as usize][to as usize];
                    let tag = Tag::Step(group, operation, awaited);
                    self.send(wire, (rank, to, group + 1), bytes, tag, None);
                }
            }
            let member = &mut self.ranks[rank as usize].groups[at];
            let arrived = member.arrived.get(&(operation, step)).copied().unwrap_or(0);
            if arrived < part.receives {
                return;
            }
            member.arrived.remove(&(operation, step));
            member.step += 1;
            member.sent = false;
            if rank == 0 {
                begin_order(wire.net, self.placement[0]);
            }
        }
    }

    /// Hands an operation over to a worker in the network; false if the hosts have to do it.
    fn submit(&mut self, rank: u32, at: usize, node: u32) -> bool {
        let op = self.work.schedule.ranks[rank as usize].nodes[node as usize].op;
        let Op::Collective { kind, group, bytes, .. } = op else { return false };
        let Some(first_worker) = self.first_worker(kind, group) else { return false };
        let ranks = self.work.schedule.groups[group as usize].len() as u32;
        let pattern = pattern_of(kind, ranks, bytes).expect("switches help with it");
        let member = &mut self.ranks[rank as usize].groups[at];
        let (index, id) = (member.index, member.next);
        member.in_network.insert(id, node);
        member.next += 1;
        self.submissions.push((first_worker + index, Operation { id, bytes, pattern }));
        true
    }

    /// The first of a group's workers in the network, if they do operations of a kind.
    fn first_worker(&self, kind: Collective, group: u32) -> Option<u32> {
        let ranks = self.work.schedule.groups[group as usize].len() as u32;
        let scoped = self.all_collectives && ranks <= MAX_SCOPED_RANKS && kind.can_be_in_network();
        self.workers[group as usize].filter(|_| kind == Collective::Allreduce || scoped)
    }
}

/// An operation of `ranks` ranks as switches do it.
fn pattern_of(kind: Collective, ranks: u32, bytes: u64) -> Option<Pattern> {
    let shards = || (0..ranks).map(|rank| share(rank, ranks, bytes) / 4).collect();
    Some(match kind {
        Collective::Allreduce => Pattern::Allreduce,
        Collective::ReduceScatter => Pattern::ReduceScatter(shards()),
        Collective::AllGather => Pattern::Allgather(shards()),
        Collective::Reduce { root } => Pattern::Reduce(GroupRank(root)),
        Collective::Broadcast { root } => Pattern::Broadcast(GroupRank(root)),
        Collective::Barrier => Pattern::Barrier,
        Collective::AllToAll | Collective::Gather { .. } | Collective::Scatter { .. } => {
            return None;
        }
    })
}
