//! Packets that reached a thread of the switch beside those of its own leases, on their way to the right thread.
//!
//! The system selects the thread once per datagram, by the first packet of a train. Workers and switches send trains of
//! one tree, but network cards join what follows in the same flow, also packets of other trees.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::udp::{RecvBatch, Wake};

/// Room for packets on their way to one thread; more than the largest train. What exceeds it is lost, as in a full
/// socket.
const ROOM_BYTES: usize = 1 << 20;
/// Packets on their way to one thread: the smallest have a header alone.
const ROOM_PACKETS: usize = ROOM_BYTES / 32;

/// Packets with their senders.
#[derive(Default)]
struct Parcel {
    bytes: Vec<u8>,
    packets: Vec<Stray>,
}

#[derive(Clone, Copy)]
struct Stray {
    from: SocketAddr,
    ce: bool,
    len: u32,
}

impl Parcel {
    /// Whether there was room for it.
    fn push(&mut self, from: SocketAddr, ce: bool, packet: &[u8]) -> bool {
        let fits =
            self.bytes.len() + packet.len() <= ROOM_BYTES && self.packets.len() < ROOM_PACKETS;
        if fits {
            self.bytes.extend_from_slice(packet);
            self.packets.push(Stray { from, ce, len: packet.len() as u32 });
        }
        fits
    }

    fn iter(&self) -> impl Iterator<Item = (SocketAddr, bool, &[u8])> {
        let mut rest = self.bytes.as_slice();
        self.packets.iter().map(move |stray| {
            let (packet, others) = rest.split_at(stray.len as usize);
            rest = others;
            (stray.from, stray.ce, packet)
        })
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.packets.clear();
    }
}

/// The way to one thread. Another takes the lock once per receiving call that brought packets of that thread.
pub(super) struct Letterbox {
    waiting: Mutex<Parcel>,
    wake: Arc<Wake>,
}

impl Letterbox {
    pub(super) fn new(wake: Arc<Wake>) -> Letterbox {
        Letterbox { waiting: Mutex::default(), wake }
    }
}

/// One thread's end of the ways to all.
pub(super) struct Strays {
    own: usize,
    boxes: Arc<[Letterbox]>,
    /// By thread, packets of this receiving call.
    collected: Vec<Parcel>,
    /// Packets that arrived for this thread, while they are handled.
    arrived: Parcel,
    handed_over: u64,
    lost: u64,
}

impl Strays {
    pub(super) fn new(own: usize, boxes: Arc<[Letterbox]>) -> Strays {
        let collected = boxes.iter().map(|_| Parcel::default()).collect();
        Strays { own, boxes, collected, arrived: Parcel::default(), handed_over: 0, lost: 0 }
    }

    /// Takes a packet of another thread.
    pub(super) fn collect(&mut self, thread: usize, from: SocketAddr, ce: bool, packet: &[u8]) {
        let fits = self.collected[thread].push(from, ce, packet);
        self.count(fits);
    }

    /// Hands over what was collected.
    pub(super) fn hand_over(&mut self) {
        for thread in 0..self.collected.len() {
            if self.collected[thread].packets.is_empty() {
                continue;
            }
            let parcel = std::mem::take(&mut self.collected[thread]);
            let to = &self.boxes[thread];
            let mut waiting = to.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let lost = parcel.iter().filter(|&(from, ce, packet)| !waiting.push(from, ce, packet));
            let lost = lost.count() as u64;
            drop(waiting);
            to.wake.ring();
            (self.handed_over, self.lost) = (self.handed_over - lost, self.lost + lost);
            self.collected[thread] = parcel;
            self.collected[thread].clear();
        }
    }

    /// Moves what other threads have handed over to `batch`; returns the number of packets.
    pub(super) fn receive(&mut self, batch: &mut RecvBatch) -> usize {
        self.arrived.clear();
        let own = &self.boxes[self.own];
        let mut waiting = own.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut *waiting, &mut self.arrived);
        drop(waiting);
        batch.take_over(self.arrived.iter())
    }

    /// Packets handed over to other threads, and those for which there was no room.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.handed_over, self.lost)
    }

    fn count(&mut self, fits: bool) {
        match fits {
            true => self.handed_over += 1,
            false => self.lost += 1,
        }
    }
}
