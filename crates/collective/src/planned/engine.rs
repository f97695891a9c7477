//! State of one operation at one rank: data present, data awaited, chunks that can proceed.
//!
//! Neighbours announce to each other that they take part, and send nothing before: a rank whose caller is late buffers
//! nothing. An operation is complete when all ranks have reported, over a tree, that they have all results: when a rank
//! completes, no rank needs anything of that operation any more.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netsum_wire::{Encoding, Format, Input, reduce};

use super::peer_link::{Body, CHUNK_MAX, Message, PeerLink};
use super::routes::Routes;
use super::shares::{Shares, from_bytes, to_bytes};

/// The operation in progress.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlannedOperation {
    /// Number, higher than those before; the same at all ranks.
    pub(super) number: u64,
    /// Fingerprint of the call, by which ranks detect different calls.
    pub(super) fingerprint: u32,
    pub(super) format: Format,
}

/// A violation by a neighbour.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The neighbour called something else under this number.
    Differs,
    /// The neighbour breaks the plan; with a description.
    Odd(&'static str),
}

pub(super) struct Engine<'a> {
    routes: &'a Routes,
    peer_links: &'a [PeerLink],
    buffer: &'a mut [u8],
    operation: PlannedOperation,
    /// Chunks by flow.
    chunks: Vec<Vec<Chunk>>,
    /// By flow, number of chunks begun: sent by a leaf, or by a root without sums.
    begun: Vec<usize>,
    /// Number of incomplete chunks.
    left: usize,
    /// By peer link: whether the neighbour takes part, and messages that wait until it does.
    ready: Vec<bool>,
    held: Vec<Vec<Message>>,
    /// Peer links to children in the tree of completion that have not reported.
    incomplete: BTreeSet<usize>,
    reported: bool,
    over: bool,
    shares: &'a Shares,
    /// When the first chunk arrived.
    first: Option<Instant>,
    /// By flow its duration in microseconds, here and at the ranks that have reported.
    micros: Vec<u32>,
    /// On completion: the shares of the next operation, if they have changed.
    next: Vec<u32>,
}

struct Chunk {
    /// Bytes of the buffer.
    bytes: Range<usize>,
    /// Partial sums by child.
    sums: Vec<Option<Arc<Vec<u8>>>>,
    awaits_sums: bool,
    awaits_data: bool,
    /// Whether it has all contributions.
    is_final: bool,
}

impl<'a> Engine<'a> {
    pub(super) fn new(
        routes: &'a Routes,
        spans: Vec<Range<usize>>,
        peer_links: &'a [PeerLink],
        buffer: &'a mut [u8],
        chunks: usize,
        operation: PlannedOperation,
        shares: &'a Shares,
    ) -> Engine<'a> {
        let element = operation.format.dtype.size();
        let longest = spans.iter().map(Range::len).max().unwrap_or(0) * element;
        let count = chunks.max(longest.div_ceil(CHUNK_MAX));
        let chunks: Vec<Vec<Chunk>> = routes
            .flows
            .iter()
            .zip(spans)
            .map(|(route, span)| {
                let at = |k: usize| {
                    let part = span.len() as u128 * k as u128 / count as u128;
                    (span.start + part as usize) * element
                };
                let chunk = |k: usize| Chunk {
                    bytes: at(k)..at(k + 1),
                    sums: vec![None; route.up_from.len()],
                    awaits_sums: !route.up_from.is_empty(),
                    awaits_data: route.down_from.is_some(),
                    is_final: false,
                };
                (0..count).map(chunk).filter(|chunk| !chunk.bytes.is_empty()).collect()
            })
            .collect();
        let left = chunks.iter().flatten().filter(|chunk| chunk.waits()).count();
        Engine {
            routes,
            peer_links,
            buffer,
            operation,
            begun: vec![0; chunks.len()],
            micros: vec![0; chunks.len()],
            chunks,
            left,
            ready: vec![false; peer_links.len()],
            held: vec![Vec::new(); peer_links.len()],
            incomplete: routes.children.iter().copied().collect(),
            reported: false,
            over: false,
            shares,
            first: None,
            next: Vec::new(),
        }
    }

    /// Announces the operation to the neighbours, and begins possible chunks.
    pub(super) fn start(&mut self) {
        for peer_link in self.peer_links {
            peer_link.send(self.message(Body::Ready { fingerprint: self.operation.fingerprint }));
        }
        self.go_on();
    }

    /// Whether all ranks have all results.
    pub(super) fn over(&self) -> bool {
        self.over
    }

    /// The shares of the next operation at all ranks; empty: unchanged.
    pub(super) fn next_shares(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.next)
    }

    /// Whether every chunk that depends on no other rank has been sent.
    pub(super) fn all_begun(&self) -> bool {
        self.begun.iter().zip(&self.chunks).all(|(&begun, all)| begun == all.len())
    }

    /// Begins the chunks that depend on no other rank, as far as neighbours take part and peer links have room; reports
    /// completion.
    pub(super) fn go_on(&mut self) {
        self.begin();
        if self.left > 0 || !self.all_begun() || !self.incomplete.is_empty() || self.reported {
            return;
        }
        self.reported = true;
        match self.routes.parent {
            Some(parent) => {
                let micros = Arc::new(to_bytes(&self.micros));
                self.send(&[parent], Body::Complete { micros });
            }
            None => {
                self.next = self.shares.after(&self.micros);
                self.finish();
            }
        }
    }

    fn begin(&mut self) {
        // Chunk by chunk through all flows, so that flows on shared links advance together.
        let most = self.chunks.iter().map(Vec::len).max().unwrap_or(0);
        let least = self.begun.iter().copied().min().unwrap_or(0);
        let routes = self.routes;
        for chunk in least..most {
            let mut blocked = 0;
            for (flow, route) in routes.flows.iter().enumerate() {
                if self.begun[flow] != chunk || chunk >= self.chunks[flow].len() {
                    blocked += usize::from(self.begun[flow] < chunk);
                    continue;
                }
                let waits = !route.up_from.is_empty();
                let to: &[usize] = match route.up_to {
                    Some(ref parent) => std::slice::from_ref(parent),
                    None if route.is_root => &route.down_to,
                    None => &[],
                };
                let room = |&peer_link: &usize| {
                    self.ready[peer_link] && self.peer_links[peer_link].queued() <= QUEUED_MAX
                };
                if !waits && !to.iter().all(room) {
                    blocked += 1;
                    continue;
                }
                self.begun[flow] += 1;
                if !waits && !to.is_empty() {
                    let bytes =
                        Arc::new(self.buffer[self.chunks[flow][chunk].bytes.clone()].to_vec());
                    self.send_chunk(to, flow, chunk, route.up_to.is_some(), bytes);
                }
            }
            if blocked == routes.flows.len() {
                return;
            }
        }
    }

    /// Handles a neighbour's message of this operation.
    pub(super) fn take(&mut self, peer_link: usize, body: Body) -> Result<(), Fault> {
        match body {
            Body::Ready { fingerprint } if fingerprint != self.operation.fingerprint => {
                return Err(Fault::Differs);
            }
            Body::Ready { .. } => {
                self.ready[peer_link] = true;
                for message in std::mem::take(&mut self.held[peer_link]) {
                    self.peer_links[peer_link].send(message);
                }
            }
            Body::Chunk { flow, chunk, up, bytes } => {
                self.take_chunk(peer_link, flow as usize, chunk as usize, up, bytes)?;
            }
            Body::Complete { micros } => {
                if !self.incomplete.remove(&peer_link) {
                    return Err(Fault::Odd("word that it is complete, which is not awaited"));
                }
                let theirs = from_bytes(&micros);
                if theirs.len() != self.micros.len() {
                    return Err(Fault::Odd("times of other flows"));
                }
                self.micros
                    .iter_mut()
                    .zip(theirs)
                    .for_each(|(ours, theirs)| *ours = theirs.max(*ours));
            }
            Body::AllComplete { shares } => {
                if self.routes.parent != Some(peer_link) || !self.reported {
                    return Err(Fault::Odd("word that all are complete, which is not awaited"));
                }
                self.next = from_bytes(&shares);
                self.shares.clone().adopt(self.next.clone()).map_err(Fault::Odd)?;
                self.finish();
            }
        }
        self.go_on();
        Ok(())
    }

    fn take_chunk(
        &mut self,
        peer_link: usize,
        flow: usize,
        chunk: usize,
        up: bool,
        bytes: Arc<Vec<u8>>,
    ) -> Result<(), Fault> {
        let Some(place) = self.chunks.get_mut(flow).and_then(|all| all.get_mut(chunk)) else {
            return Err(Fault::Odd("a chunk that is none of ours"));
        };
        if bytes.len() != place.bytes.len() {
            return Err(Fault::Odd("a chunk of another length"));
        }
        let routes = self.routes;
        let route = &routes.flows[flow];
        self.first.get_or_insert_with(Instant::now);
        if up {
            let child = route.up_from.iter().position(|&child| child == peer_link);
            let slot = child.and_then(|child| place.sums.get_mut(child));
            let Some(slot @ None) = slot else {
                return Err(Fault::Odd("a sum that is not awaited"));
            };
            *slot = Some(bytes);
            if place.sums.iter().all(Option::is_some) {
                self.add(flow, chunk);
            }
            return Ok(());
        }
        if route.down_from != Some(peer_link) || !place.awaits_data {
            return Err(Fault::Odd("data that is not awaited"));
        }
        place.awaits_data = false;
        place.is_final = true;
        let over = !place.waits();
        self.buffer[place.bytes.clone()].copy_from_slice(&bytes);
        if over {
            self.count_over(flow);
        }
        self.send_chunk(&route.down_to, flow, chunk, false, bytes);
        Ok(())
    }

    /// Adds all children's sums to the own values, and sends the sum on.
    fn add(&mut self, flow: usize, chunk: usize) {
        let place = &mut self.chunks[flow][chunk];
        let sums = std::mem::take(&mut place.sums);
        let mut sum = vec![0; place.bytes.len()];
        let parts = std::iter::once(&self.buffer[place.bytes.clone()])
            .chain(sums.iter().flatten().map(|sum| &sum[..]));
        let inputs: Vec<_> =
            parts.map(|bytes| Some(Input { bytes, encoding: Encoding::Element })).collect();
        let format = self.operation.format;
        reduce(format, &inputs, sum.len() / format.dtype.size(), &mut sum, Encoding::Element);
        place.awaits_sums = false;
        let over = !place.waits();
        let routes = self.routes;
        let route = &routes.flows[flow];
        if route.is_root {
            self.buffer[place.bytes.clone()].copy_from_slice(&sum);
            place.is_final = true;
        }
        if over {
            self.count_over(flow);
        }
        let sum = Arc::new(sum);
        match route.up_to {
            Some(parent) => self.send_chunk(&[parent], flow, chunk, true, sum),
            None => self.send_chunk(&route.down_to, flow, chunk, false, sum),
        }
    }

    /// Records the end of a chunk of a flow; the last one determines the flow's duration.
    fn count_over(&mut self, flow: usize) {
        self.left -= 1;
        let since = self.first.map_or(Duration::ZERO, |first| first.elapsed());
        self.micros[flow] = u32::try_from(since.as_micros()).unwrap_or(u32::MAX);
    }

    fn finish(&mut self) {
        let routes = self.routes;
        let shares = Arc::new(to_bytes(&self.next));
        self.send(&routes.children, Body::AllComplete { shares });
        self.over = true;
    }

    fn send_chunk(
        &mut self,
        to: &[usize],
        flow: usize,
        chunk: usize,
        up: bool,
        bytes: Arc<Vec<u8>>,
    ) {
        self.send(to, Body::Chunk { flow: flow as u32, chunk: chunk as u32, up, bytes });
    }

    fn send(&mut self, to: &[usize], body: Body) {
        for &peer_link in to {
            let message = self.message(body.clone());
            match self.ready[peer_link] {
                true => self.peer_links[peer_link].send(message),
                false => self.held[peer_link].push(message),
            }
        }
    }

    fn message(&self, body: Body) -> Message {
        Message { operation: self.operation.number, body }
    }

    /// Whether a peer link still has to deliver messages. If not, it may end.
    pub(super) fn expects_messages(&self, peer_link: usize) -> bool {
        self.expected_senders().contains(&peer_link)
    }

    /// Peer links whose neighbours have not called the operation.
    pub(super) fn absent(&self) -> Vec<usize> {
        (0..self.peer_links.len()).filter(|&peer_link| !self.ready[peer_link]).collect()
    }

    /// Peer links that still have to deliver messages.
    pub(super) fn expected_senders(&self) -> BTreeSet<usize> {
        let mut expected_senders = self.incomplete.clone();
        expected_senders.extend(self.routes.parent.filter(|_| !self.over));
        expected_senders
            .extend((0..self.peer_links.len()).filter(|&peer_link| !self.ready[peer_link]));
        for (route, chunks) in self.routes.flows.iter().zip(&self.chunks) {
            for chunk in chunks {
                let missing =
                    chunk.sums.iter().zip(&route.up_from).filter(|(sum, _)| sum.is_none());
                expected_senders.extend(missing.map(|(_, &child)| child));
                expected_senders.extend(route.down_from.filter(|_| chunk.awaits_data));
            }
        }
        expected_senders
    }

    /// Elements that have all contributions, as ordered disjoint ranges.
    pub(super) fn finals(&self) -> Vec<Range<usize>> {
        let element = self.operation.format.dtype.size();
        let all = self.chunks.iter().flatten().filter(|chunk| chunk.is_final);
        let mut ranges: Vec<Range<usize>> =
            all.map(|chunk| chunk.bytes.start / element..chunk.bytes.end / element).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        let mut merged: Vec<Range<usize>> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => merged.push(range),
            }
        }
        merged
    }
}

impl Chunk {
    fn waits(&self) -> bool {
        self.awaits_sums || self.awaits_data
    }
}

/// Queued bytes of a peer link up to which new chunks are begun on it: some chunks in flight, little memory.
const QUEUED_MAX: usize = 1 << 20;
