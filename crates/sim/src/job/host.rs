//! Allreduce between hosts: runs the steps of a [`HostAlgorithm`] over the hosts' flows.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::steps::{HostAlgorithm, share};
use crate::aggregation::begin_order;
use crate::network::Region;
use crate::transport::{Owner, Transport};
use crate::visit::Visitor;

/// Allreduces of one job between hosts.
pub(crate) struct HostReducer {
    algorithm: HostAlgorithm,
    ecn: bool,
    job: u32,
    placement: Vec<u32>,
    rings: u32,
    streams: Vec<Stream>,
    stream_of: FxHashMap<(u32, u32), u32>,
    /// Ring by ring, each with all ranks.
    ranks: Vec<Rank>,
    /// Completed operations: rank and id.
    pub done: Vec<(u32, u64)>,
    /// Whether the first worker has begun another step of an operation since this was last asked.
    pub stepped: bool,
}

/// Messages from one worker to another, in order.
struct Stream {
    flow: u32,
    to: u32,
    /// Operation and step of each message in transit.
    tags: VecDeque<(u64, u32)>,
}

#[derive(Clone, Default)]
struct Rank {
    /// Operations in order: id and bytes; the first is running.
    queue: VecDeque<(u64, u64)>,
    step: u32,
    /// Whether this step's sends were submitted.
    sent: bool,
    arrived: FxHashMap<(u64, u32), u32>,
}

impl HostReducer {
    pub(crate) fn new(
        algorithm: HostAlgorithm,
        ecn: bool,
        rings: u8,
        job: u32,
        placement: &[u32],
    ) -> Self {
        HostReducer {
            algorithm,
            ecn,
            job,
            placement: placement.to_vec(),
            rings: rings.into(),
            streams: Vec::new(),
            stream_of: FxHashMap::default(),
            ranks: vec![Rank::default(); placement.len() * usize::from(rings)],
            done: Vec::new(),
            stepped: false,
        }
    }

    /// The step of the running operation, of the first worker, if all steps of all workers are alike: one ring of equal
    /// shares. States at different steps are then compared by the distance of the steps.
    pub(crate) fn round(&self) -> Option<u32> {
        let ranks = self.ranks.len() as u64;
        let &first = self.ranks[0].queue.front()?;
        let together = self.ranks.iter().all(|rank| rank.queue.front() == Some(&first));
        let is_even = first.1.div_ceil(4).is_multiple_of(ranks) && ranks > 1;
        let is_ring = self.algorithm == HostAlgorithm::Ring && self.rings == 1;
        (is_ring && is_even && together).then_some(self.ranks[0].step)
    }

    /// Steps until the first worker completes its operation.
    pub(crate) fn rounds_left(&self) -> u32 {
        let most = self.ranks.iter().map(|rank| rank.step).max().unwrap_or(0);
        let bytes = self.ranks[0].queue.front().map_or(0, |&(_, bytes)| bytes);
        self.algorithm.steps(self.ranks.len() as u32, bytes) - most
    }

    /// Visits the state. Operations are counted from `first_id`, and the steps of the running one from `round`.
    pub(crate) fn visit(&mut self, v: &mut impl Visitor, first_id: u64, round: u32) {
        let HostReducer {
            algorithm: _,
            ecn: _,
            job: _,
            placement: _,
            rings: _,
            streams,
            stream_of: _,
            ranks,
            done,
            stepped: _,
        } = self;
        v.both(streams.len() as u32, done.len() as u32);
        let relative =
            |(id, step): (u64, u32)| (id.wrapping_sub(first_id), step.wrapping_sub(round));
        for Stream { flow, to, tags } in streams {
            v.both(*flow, *to);
            v.same(tags.len() as u64);
            for (id, step) in tags.iter().map(|&tag| relative(tag)) {
                v.same(id);
                v.same(step.into());
            }
        }
        for Rank { queue, step, sent, arrived } in ranks {
            v.both(step.wrapping_sub(round), (*sent).into());
            v.both(queue.len() as u32, arrived.len() as u32);
            for &(id, bytes) in &*queue {
                v.same(id.wrapping_sub(first_id));
                v.same(bytes);
            }
            let mut arrived: Vec<_> = arrived.iter().map(|(&tag, &n)| (relative(tag), n)).collect();
            arrived.sort_unstable();
            for ((id, step), count) in arrived {
                v.same(id);
                v.both(step, count);
            }
        }
    }

    /// Counts operations and the steps of the running one on.
    pub(crate) fn skip(&mut self, ids: u64, rounds: u32) {
        let on = |(id, step): (u64, u32)| (id + ids, step + rounds);
        for stream in &mut self.streams {
            stream.tags.iter_mut().for_each(|tag| *tag = on(*tag));
        }
        for rank in &mut self.ranks {
            rank.queue.iter_mut().for_each(|(id, _)| *id += ids);
            rank.step += rounds;
            let arrived = std::mem::take(&mut rank.arrived);
            rank.arrived = arrived.into_iter().map(|(tag, count)| (on(tag), count)).collect();
        }
    }

    pub(crate) fn submit(
        &mut self,
        net: &mut Region,
        transport: &mut Transport,
        rank: u32,
        id: u64,
        bytes: u64,
    ) {
        let places = (0..self.rings).map(|ring| (ring, self.place(ring, rank)));
        let places: Vec<(u32, u32)> = places.collect();
        for &(ring, place) in &places {
            let part = if self.rings == 1 { bytes } else { share(ring, self.rings, bytes) };
            self.ranks[place as usize].queue.push_back((id, part));
        }
        places.into_iter().for_each(|(_, place)| self.advance(net, transport, place));
    }

    /// Handles `count` further messages of a stream.
    pub(crate) fn on_messages(
        &mut self,
        net: &mut Region,
        transport: &mut Transport,
        stream: u32,
        count: u32,
    ) {
        let stream = &mut self.streams[stream as usize];
        let to = stream.to;
        for _ in 0..count {
            let tag = stream.tags.pop_front().expect("a received message was sent");
            *self.ranks[to as usize].arrived.entry(tag).or_default() += 1;
        }
        self.advance(net, transport, to);
    }

    /// Where a ring's rank is in `ranks`.
    fn place(&self, ring: u32, rank: u32) -> u32 {
        ring * self.placement.len() as u32 + rank
    }

    fn advance(&mut self, net: &mut Region, transport: &mut Transport, place: u32) {
        let ranks = self.placement.len() as u32;
        let (ring, rank) = (place / ranks, place % ranks);
        let index = place as usize;
        while let Some(&(id, bytes)) = self.ranks[index].queue.front() {
            let step = self.ranks[index].step;
            if step == self.algorithm.steps(ranks, bytes) {
                self.ranks[index].queue.pop_front();
                self.ranks[index].step = 0;
                let mut rings = (0..self.rings).map(|ring| self.place(ring, rank) as usize);
                // Every ring has its operations in the same order.
                if rings.all(|at| self.ranks[at].queue.front().is_none_or(|first| first.0 > id)) {
                    self.done.push((rank, id));
                }
                continue;
            }
            let part = self.algorithm.step(rank, ranks, step, bytes);
            if !std::mem::replace(&mut self.ranks[index].sent, true) {
                for (to, bytes, awaited) in part.messages(step) {
                    self.send(net, transport, place, self.place(ring, to), bytes, (id, awaited));
                }
            }
            let arrived = self.ranks[index].arrived.get(&(id, step)).copied().unwrap_or(0);
            if arrived < part.receives {
                return;
            }
            let state = &mut self.ranks[index];
            state.arrived.remove(&(id, step));
            state.step += 1;
            state.sent = false;
            if place == 0 {
                self.stepped = true;
                begin_order(net, self.placement[0]);
            }
        }
    }

    fn send(
        &mut self,
        net: &mut Region,
        transport: &mut Transport,
        from: u32,
        to: u32,
        bytes: u64,
        tag: (u64, u32),
    ) {
        let stream = *self.stream_of.entry((from, to)).or_insert_with(|| {
            let number = self.streams.len() as u32;
            let [src, dst] =
                [from, to].map(|place| self.placement[place as usize % self.placement.len()]);
            let flow = transport.open(src, dst, Owner::Job(self.job, number), self.ecn);
            self.streams.push(Stream { flow, to, tags: VecDeque::new() });
            number
        });
        let stream = &mut self.streams[stream as usize];
        stream.tags.push_back(tag);
        // An empty share is sent as one byte, so that the receiver can count it.
        transport.submit(net, stream.flow, bytes.max(1));
    }

    /// Ends the flows of a completed job.
    pub(crate) fn close(&mut self, net: &mut Region, transport: &mut Transport) {
        self.streams.iter().for_each(|s| transport.close(net, s.flow));
    }
}
