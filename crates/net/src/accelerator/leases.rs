//! Table entries and slots of leases, and the lines of neighbours.
//!
//! A lease's child i is behind line i and its parent behind the line after the last child: the line determines the
//! position in the order of additions. All leases share the lines; a packet's line follows from its sender, job and
//! tree.

use std::net::{SocketAddr, SocketAddrV4};
use std::ops::Range;
use std::time::Instant;

use netsum_proto::panama::{Lease, LeaseError, TreeCounters};
use netsum_proto::{DropReason, LeaseKey, PortId};
use netsum_wire::{Epoch, JobId, TreeId};
use rustc_hash::FxHashMap;

use super::AcceleratorError;
use super::device::{Device, Shape};
use super::{frame, registers as r};
use crate::NetError;
use crate::switch::TreeSnapshot;

/// A ring takes at most this share of all slots, so that several leases find room.
const SHARE: usize = 4;
/// Number of vids for which requests are recorded, in multiples of a ring's slots.
const ASKED: usize = 2;

/// An installed lease.
pub(super) struct Entry {
    pub(super) key: LeaseKey,
    lease: Lease<SocketAddr>,
    place: usize,
    slots: Range<usize>,
    /// Children, then the parent: line i is behind neighbour i.
    pub(super) neighbours: Vec<SocketAddrV4>,
    /// Children that have sent fin.
    finished: u64,
    /// By vid, children that sent again and wait for a notice of the parent.
    asked: FxHashMap<u32, u64>,
    /// Notices "mismatch" that were passed on.
    pub(super) told: Told,
    pub(super) last_seen: Instant,
    pub(super) counters: TreeCounters,
}

impl Entry {
    /// The ranks that a neighbour's notice "mismatch" may name: from a child those beneath it. A single worker sends
    /// none.
    pub(super) fn nameable(&self, line: usize) -> Option<u64> {
        match self.lease.children.get(line) {
            None => Some(u64::MAX),
            Some(child) => Some(child.ranks).filter(|ranks| ranks.count_ones() > 1),
        }
    }

    /// The line of a neighbour.
    pub(super) fn line(&self, address: SocketAddrV4) -> Option<usize> {
        self.neighbours.iter().position(|n| *n == address)
    }

    pub(super) fn children(&self) -> usize {
        self.lease.children.len()
    }

    /// Fragments in flight.
    fn window(&self) -> usize {
        (self.slots.len() / 2).min(usize::from(self.lease.slots))
    }

    /// Records that a child sent a vid again.
    pub(super) fn ask(&mut self, vid: u32, line: usize) {
        if self.asked.len() > ASKED * self.slots.len() {
            self.asked.clear();
        }
        *self.asked.entry(vid).or_default() |= 1 << line;
    }

    /// Takes the children that wait for a notice about a vid.
    pub(super) fn askers(&mut self, vid: u32) -> u64 {
        self.asked.remove(&vid).unwrap_or(0)
    }

    /// Records a child's fin; true if it was the last one.
    pub(super) fn finish(&mut self, line: usize) -> bool {
        self.finished |= 1 << line;
        self.finished.count_ones() as usize == self.children()
    }
}

/// Vids about which notices were passed on, and the ranks that these named, by vid modulo the ring.
pub(super) struct Told(Vec<Option<(u32, u64)>>);

impl Told {
    fn new(ring: usize) -> Told {
        Told(vec![None; ring])
    }

    /// Records a notice about a vid; true if it is the first, or names further ranks: where leases form a circle, a notice
    /// that is passed on again goes round for ever. Vids only advance, so that two with the same place do not replace
    /// each other in turn.
    pub(super) fn is_news(&mut self, vid: u32, ranks: u64) -> bool {
        let ring = self.0.len();
        let place = &mut self.0[vid as usize % ring];
        let named = match *place {
            Some((last, named)) if last == vid && ranks & !named == 0 => return false,
            Some((last, named)) if last == vid => named,
            Some((last, _)) if vid.wrapping_sub(last) as i32 <= 0 => return false,
            _ => 0,
        };
        *place = Some((vid, named | ranks));
        true
    }
}

/// All leases of a device.
pub(super) struct Leases {
    shape: Shape,
    local: SocketAddrV4,
    entries: Vec<Entry>,
}

impl Leases {
    /// An empty table. `local`: the address that neighbours send to.
    pub(super) fn new(shape: Shape, local: SocketAddrV4) -> Leases {
        Leases { shape, local, entries: Vec::new() }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// The lease of a packet. Errors: `NoLease`.
    pub(super) fn find(&mut self, job: JobId, tree: TreeId) -> Result<&mut Entry, DropReason> {
        let found = self.entries.iter_mut().find(|e| (e.key.job, e.key.tree) == (job, tree));
        found.ok_or(DropReason::NoLease)
    }

    /// Installs a lease, replacing an earlier epoch's. An error leaves the state unchanged; otherwise the registers are
    /// written.
    pub(super) fn install(
        &mut self,
        device: &mut Device,
        lease: Lease<SocketAddr>,
    ) -> Result<(), NetError> {
        let neighbours = self.check(&lease)?;
        let old =
            self.entries.iter().position(|e| (e.key.job, e.key.tree) == (lease.job, lease.tree));
        if let Some(at) = old {
            if self.entries[at].lease == lease {
                return Ok(());
            }
            let (offered, installed) = (lease.epoch, self.entries[at].key.epoch);
            if offered.0.wrapping_sub(installed.0) as i16 <= 0 {
                return Err(LeaseError::Epoch { offered, installed }.into());
            }
        }
        let place = place(self.shape.leases, lease.job, lease.tree);
        let other =
            self.entries.iter().enumerate().find(|(at, e)| e.place == place && Some(*at) != old);
        if let Some((_, other)) = other {
            let (other_job, other_tree) = (other.key.job, other.key.tree);
            let (job, tree) = (lease.job, lease.tree);
            return Err(AcceleratorError::Place { job, tree, other_job, other_tree }.into());
        }
        let slots = match old {
            Some(at) => Some(self.entries[at].slots.clone()),
            None => self.room(usize::from(lease.slots)),
        };
        let slots = slots.ok_or(AcceleratorError::Slots { slots: self.shape.slots })?;
        if let Some(at) = old {
            self.entries.swap_remove(at);
        }
        let ring = slots.len();
        let entry = Entry {
            key: LeaseKey { job: lease.job, epoch: lease.epoch, tree: lease.tree },
            lease,
            place,
            slots,
            neighbours,
            finished: 0,
            asked: FxHashMap::default(),
            told: Told::new(ring),
            last_seen: Instant::now(),
            counters: TreeCounters::default(),
        };
        self.program(device, &entry)?;
        self.entries.push(entry);
        Ok(())
    }

    /// Removes the leases that `goes` selects, and returns them.
    pub(super) fn remove(
        &mut self,
        device: &mut Device,
        goes: impl Fn(&Entry) -> bool,
    ) -> Result<Vec<LeaseKey>, AcceleratorError> {
        let gone: Vec<Entry> = self.entries.extract_if(.., |entry| goes(entry)).collect();
        for entry in &gone {
            device.write(word(entry.place, r::WORD_VALID), 0)?;
        }
        if !gone.is_empty() {
            device.idle()?;
        }
        Ok(gone.iter().map(|entry| entry.key).collect())
    }

    /// Clears a lease's slots and restarts it at vid 0: its children have sent fin.
    pub(super) fn clear(
        &mut self,
        device: &mut Device,
        key: LeaseKey,
    ) -> Result<(), AcceleratorError> {
        if let Some(entry) = self.entries.iter_mut().find(|e| e.key == key) {
            entry.finished = 0;
            entry.asked.clear();
            entry.told = Told::new(entry.slots.len());
            device.idle()?;
            device.write(r::CLEAR, entry.place as u32)?;
            device.idle()?;
        }
        Ok(())
    }

    /// Statistics of each lease.
    pub(super) fn snapshots(&self) -> Vec<TreeSnapshot> {
        let snapshot = |e: &Entry| TreeSnapshot {
            lease: e.key,
            window_cap: e.window() as u16,
            memory_reserved: self.reserved(e),
            counters: e.counters,
        };
        let mut all: Vec<_> = self.entries.iter().map(snapshot).collect();
        all.sort_by_key(|t| (t.lease.job, t.lease.tree));
        all
    }

    /// Bytes of port buffers, reserved by leases and in total.
    pub(super) fn memory(&self) -> (u64, u64) {
        let all = self.shape.slots * self.shape.buffer_bytes * self.shape.lines;
        (self.entries.iter().map(|e| self.reserved(e)).sum(), all as u64)
    }

    /// A slot is a buffer on every line, even on unused ones.
    fn reserved(&self, entry: &Entry) -> u64 {
        (entry.slots.len() * self.shape.buffer_bytes * self.shape.lines) as u64
    }

    /// The lease's neighbours, if the device supports the lease.
    fn check(&self, lease: &Lease<SocketAddr>) -> Result<Vec<SocketAddrV4>, NetError> {
        let mut ports = 0..;
        lease.map(|_| PortId(ports.next().expect("it does not end"))).validate()?;
        let children = lease.children.len();
        let (needed, lines) = (children + usize::from(lease.parent.is_some()), self.shape.lines);
        if needed > lines {
            return Err(AcceleratorError::Lines { needed, lines }.into());
        }
        if lease.release_permille < 1000 {
            return Err(AcceleratorError::Partial.into());
        }
        if usize::from(lease.fragment_bytes) > self.shape.buffer_bytes {
            let limit = self.shape.buffer_bytes;
            return Err(AcceleratorError::Fragment { offered: lease.fragment_bytes, limit }.into());
        }
        let neighbours = lease.children.iter().map(|c| c.port).chain(lease.parent);
        neighbours.map(|address| Ok(v4(address)?)).collect()
    }

    /// The largest useful free ring: a power of two, at least twice the window.
    fn room(&self, window: usize) -> Option<Range<usize>> {
        let mut ring = (2 * window).next_power_of_two().min(self.shape.slots / SHARE);
        while ring >= 2 {
            let starts = (0..self.shape.slots).step_by(ring);
            let ranges = starts.map(|start| start..start + ring);
            let free = |range: &Range<usize>| {
                self.entries
                    .iter()
                    .all(|e| e.slots.end <= range.start || range.end <= e.slots.start)
            };
            if let Some(range) = ranges.clone().find(free) {
                return Some(range);
            }
            ring /= 2;
        }
        None
    }

    fn program(&self, device: &mut Device, entry: &Entry) -> Result<(), AcceleratorError> {
        let (place, key) = (entry.place, entry.key);
        let write = |device: &mut Device, at, value| device.write(word(place, at), value);
        write(device, r::WORD_VALID, 0)?;
        device.idle()?;
        let window = entry.window() as u32;
        let (ring, first) = (entry.slots.len() as u32 - 1, entry.slots.start as u32);
        let members = (1u64 << entry.children()) - 1;
        let parent = if entry.lease.parent.is_some() { members + 1 } else { 0 };
        write(device, r::WORD_JOB, key.job.0)?;
        write(device, r::WORD_KEY, u32::from(key.epoch.0) << 8 | u32::from(key.tree.0))?;
        write(device, r::WORD_WINDOW, window << 16 | window)?;
        write(device, r::WORD_RING, ring << 16 | first)?;
        write(device, r::WORD_ELEMENTS, u32::from(entry.lease.fragment_bytes) / 4)?;
        for half in 0..2 {
            write(device, r::WORD_MEMBERS + half, (members >> (32 * half)) as u32)?;
            write(device, r::WORD_PARENT + half, (parent >> (32 * half)) as u32)?;
        }
        for (port, child) in entry.lease.children.iter().enumerate() {
            let at = r::CHILDREN + (place * 1024 + port * 16) as u32;
            device.write(at, child.branch.into())?;
            device.write(at + 4, (child.ranks >> 32) as u32)?;
            device.write(at + 8, child.ranks as u32)?;
        }
        for (port, neighbour) in entry.neighbours.iter().enumerate() {
            let template = frame::template(self.local, *neighbour);
            let at = r::TEMPLATES + (port * 2048 + place * 128) as u32;
            for (word, bytes) in template.as_chunks::<4>().0.iter().enumerate() {
                device.write(at + 4 * word as u32, u32::from_le_bytes(*bytes))?;
            }
        }
        device.write(r::CLEAR, place as u32)?;
        device.idle()?;
        write(device, r::WORD_VALID, 1)
    }
}

/// Whether an epoch is not after another.
pub(super) fn up_to(epoch: Epoch, last: Epoch) -> bool {
    epoch.0.wrapping_sub(last.0) as i16 <= 0
}

/// The address as IPv4.
pub(super) fn v4(address: SocketAddr) -> Result<SocketAddrV4, AcceleratorError> {
    match address {
        SocketAddr::V4(address) => Ok(address),
        SocketAddr::V6(_) => Err(AcceleratorError::Address { address }),
    }
}

/// The index of a lease in the table: low bits of the job, rotated by those of the tree.
fn place(leases: usize, job: JobId, tree: TreeId) -> usize {
    let bits = leases.trailing_zeros();
    let turned = if bits == 0 { 0 } else { u32::from(tree.0).reverse_bits() >> (32 - bits) };
    (job.0 ^ turned) as usize & (leases - 1)
}

fn word(place: usize, word: u32) -> u32 {
    r::LEASES + 64 * place as u32 + 4 * word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_passed_on_once_per_vid() {
        let mut told = Told::new(4);
        let mut first =
            |vids: &[u32]| vids.iter().map(|&vid| told.is_news(vid, 0)).collect::<Vec<_>>();
        assert_eq!(first(&[u32::MAX, u32::MAX, 0, 1, 0]), [true, false, true, true, false]);
        assert_eq!(first(&[4, 0, 4, 8]), [true, false, false, true], "the same place");
    }

    #[test]
    fn a_notice_is_passed_on_once_per_rank_that_it_names() {
        let mut told = Told::new(4);
        let named = [0b1, 0b1, 0b11, 0b10, 0].map(|ranks| told.is_news(3, ranks));
        assert_eq!(named, [true, false, true, false, false]);
    }

    #[test]
    fn trees_of_a_job_spread_over_the_table() {
        let places: Vec<_> = (0..4).map(|tree| place(16, JobId(3), TreeId(tree))).collect();
        assert_eq!(places, [3, 11, 7, 15]);
        assert_eq!(
            place(16, JobId(19), TreeId(0)),
            3,
            "and exclude those of a job with the same low bits"
        );
        assert_eq!(place(1, JobId(3), TreeId(1)), 0);
    }
}
