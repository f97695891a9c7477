//! One operation at one rank: what is there, what is awaited, what can go on.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use netsum_wire::{Encoding, Format, Input, reduce};

use super::PlannedError;
use super::lane::{Lane, Message, News};
use super::routes::Route;

pub(super) struct Engine<'a> {
    routes: &'a [Route],
    lanes: &'a BTreeMap<usize, Lane>,
    buffer: &'a mut [u8],
    format: Format,
    operation: u64,
    /// Per flow and chunk.
    chunks: Vec<Vec<Chunk>>,
    /// Per flow, chunks that were begun: sent by a leaf, or by a root without sums.
    begun: Vec<usize>,
    /// Chunks that are not over.
    left: usize,
}

struct Chunk {
    /// Bytes of the buffer.
    bytes: Range<usize>,
    /// Partial sums by child.
    sums: Vec<Option<Arc<Vec<u8>>>>,
    awaits_sums: bool,
    awaits_data: bool,
}

impl<'a> Engine<'a> {
    pub(super) fn new(
        routes: &'a [Route],
        spans: Vec<Range<usize>>,
        lanes: &'a BTreeMap<usize, Lane>,
        buffer: &'a mut [u8],
        format: Format,
        chunks: usize,
        operation: u64,
    ) -> Engine<'a> {
        let element = format.dtype.size();
        let cut = |route: &Route, span: Range<usize>| -> Vec<Chunk> {
            let at = |k: usize| (span.start + span.len() * k / chunks) * element;
            let chunk = |k: usize| Chunk {
                bytes: at(k)..at(k + 1),
                sums: vec![None; route.up_from.len()],
                awaits_sums: !route.up_from.is_empty(),
                awaits_data: route.down_from.is_some(),
            };
            (0..chunks).map(chunk).filter(|chunk| !chunk.bytes.is_empty()).collect()
        };
        let chunks: Vec<Vec<Chunk>> =
            routes.iter().zip(spans).map(|(route, span)| cut(route, span)).collect();
        let left = chunks.iter().flatten().filter(|chunk| chunk.waits()).count();
        let begun = vec![0; routes.len()];
        Engine { routes, lanes, buffer, format, operation, chunks, begun, left }
    }

    /// Whether nothing more is to come, or to be begun.
    pub(super) fn done(&self) -> bool {
        self.left == 0 && self.all_begun()
    }

    /// Whether every chunk that waits for nobody is on its way.
    pub(super) fn all_begun(&self) -> bool {
        self.begun.iter().zip(&self.chunks).all(|(&begun, all)| begun == all.len())
    }

    /// Begins what waits for nobody, as far as lanes have room.
    pub(super) fn start(&mut self) {
        // Chunk by chunk through all flows, so that they keep pace on shared links.
        let most = self.chunks.iter().map(Vec::len).max().unwrap_or(0);
        let least = self.begun.iter().copied().min().unwrap_or(0);
        for chunk in least..most {
            for flow in 0..self.routes.len() {
                if self.begun[flow] != chunk || chunk >= self.chunks[flow].len() {
                    continue;
                }
                let route = &self.routes[flow];
                let waits = !route.up_from.is_empty();
                let to: &[usize] = match route.up_to {
                    Some(ref parent) => std::slice::from_ref(parent),
                    None if route.is_root => &route.down_to,
                    None => &[],
                };
                if !waits && to.iter().any(|peer| self.lanes[peer].queued() > QUEUED_MAX) {
                    continue;
                }
                self.begun[flow] += 1;
                if !waits && !to.is_empty() {
                    let bytes = self.own(flow, chunk);
                    let up = route.up_to.is_some();
                    self.send(to, flow, chunk, up, &bytes);
                }
            }
        }
    }

    /// Takes what a lane brought. Errors: a lost neighbour, or one that runs something else.
    pub(super) fn take(&mut self, news: News) -> Result<(), PlannedError> {
        let (from, message) = match news {
            News::Message { from, message } => (from, message),
            News::Lost { from, reason } => {
                // One that owes us nothing may have finished and left.
                return match self.owed().contains(&from) {
                    true => Err(PlannedError::PeerLost { rank: from, reason }),
                    false => Ok(()),
                };
            }
        };
        let odd = |what: &str| PlannedError::PeerLost {
            rank: from,
            reason: format!("it sent {what}; do all ranks run the same plan on the same size?"),
        };
        let (flow, chunk) = (message.flow as usize, message.chunk as usize);
        let Some(place) = self.chunks.get_mut(flow).and_then(|all| all.get_mut(chunk)) else {
            return Err(odd("a chunk that is none of ours"));
        };
        if message.operation != self.operation || message.bytes.len() != place.bytes.len() {
            return Err(odd("a chunk of another operation or length"));
        }
        let route = &self.routes[flow];
        if message.up {
            let child = route.up_from.iter().position(|&child| child == from);
            let slot = child.and_then(|child| place.sums.get_mut(child));
            let Some(slot @ None) = slot else { return Err(odd("a sum that is not awaited")) };
            *slot = Some(message.bytes);
            if place.sums.iter().all(Option::is_some) {
                self.complete(flow, chunk);
            }
        } else {
            if route.down_from != Some(from) || !place.awaits_data {
                return Err(odd("data that is not awaited"));
            }
            place.awaits_data = false;
            let over = !place.waits();
            self.buffer[place.bytes.clone()].copy_from_slice(&message.bytes);
            self.left -= usize::from(over);
            self.send(&route.down_to, flow, chunk, false, &message.bytes);
        }
        self.start();
        Ok(())
    }

    /// Adds all children's sums to our own, and passes the sum on.
    fn complete(&mut self, flow: usize, chunk: usize) {
        let place = &mut self.chunks[flow][chunk];
        let sums = std::mem::take(&mut place.sums);
        let mut sum = vec![0; place.bytes.len()];
        let parts = std::iter::once(&self.buffer[place.bytes.clone()])
            .chain(sums.iter().flatten().map(|sum| &sum[..]));
        let inputs: Vec<_> =
            parts.map(|bytes| Some(Input { bytes, encoding: Encoding::Element })).collect();
        let count = sum.len() / self.format.dtype.size();
        reduce(self.format, &inputs, count, &mut sum, Encoding::Element);
        place.awaits_sums = false;
        let over = !place.waits();
        let route = &self.routes[flow];
        if route.is_root {
            self.buffer[place.bytes.clone()].copy_from_slice(&sum);
        }
        self.left -= usize::from(over);
        let sum = Arc::new(sum);
        match route.up_to {
            Some(parent) => self.send(&[parent], flow, chunk, true, &sum),
            None => self.send(&route.down_to, flow, chunk, false, &sum),
        }
    }

    fn own(&self, flow: usize, chunk: usize) -> Arc<Vec<u8>> {
        Arc::new(self.buffer[self.chunks[flow][chunk].bytes.clone()].to_vec())
    }

    fn send(&self, to: &[usize], flow: usize, chunk: usize, up: bool, bytes: &Arc<Vec<u8>>) {
        for peer in to {
            let (flow, chunk, bytes) = (flow as u32, chunk as u32, bytes.clone());
            self.lanes[peer].send(Message { operation: self.operation, flow, chunk, up, bytes });
        }
    }

    fn owed(&self) -> BTreeSet<usize> {
        let mut owed = BTreeSet::new();
        for (route, chunks) in self.routes.iter().zip(&self.chunks) {
            for chunk in chunks {
                let missing =
                    chunk.sums.iter().zip(&route.up_from).filter(|(sum, _)| sum.is_none());
                owed.extend(missing.map(|(_, &child)| child));
                owed.extend(route.down_from.filter(|_| chunk.awaits_data));
            }
        }
        owed
    }

    /// Ranks that still owe something, in words.
    pub(super) fn awaited(&self) -> String {
        let names: Vec<String> = self.owed().iter().map(usize::to_string).collect();
        if names.is_empty() { "none, but lanes are full".to_owned() } else { names.join(", ") }
    }
}

impl Chunk {
    fn waits(&self) -> bool {
        self.awaits_sums || self.awaits_data
    }
}

/// Bytes that wait at a lane before new chunks are begun on it: some chunks in flight, little memory.
const QUEUED_MAX: usize = 1 << 20;
