//! Messages between the ranks of a job: delivered once and in order per pair until the connection breaks.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::clock::{MS, Nanos};
use super::{Event, Place, World};

/// A message between ranks.
#[derive(Clone, Debug)]
pub(super) enum Message {
    /// A message of the hand-over machine.
    Handover(Vec<u8>),
    /// A rank's elements of an operation on the host path.
    Elements { operation: u64, ranges: Vec<Range<u64>>, bytes: Vec<u8> },
    /// A message of the machine by which ranks leave.
    Departure(Vec<u8>),
    /// The rank leaves: that its connection ends is no loss.
    Bye,
    /// The connection is closed.
    Closed,
}

#[derive(Default)]
struct Link {
    queue: VecDeque<Message>,
    at: Nanos,
    broken: bool,
    unreachable_since: Option<Nanos>,
}

pub(super) struct Mesh {
    links: BTreeMap<(Place, Place), Link>,
}

impl Mesh {
    pub(super) fn new() -> Mesh {
        Mesh { links: BTreeMap::new() }
    }
}

impl World {
    /// A rank sends a message to another of its job.
    pub(super) fn mesh_send(&mut self, from: Place, to: Place, message: Message) {
        let at = self.queue.now() + self.message_delay(from);
        let link = self.mesh.links.entry((from, to)).or_default();
        if link.broken {
            return;
        }
        link.queue.push_back(message);
        link.at = link.at.max(at);
        self.queue.at(link.at, Event::Mesh { from, to });
    }

    pub(super) fn mesh_arrives(&mut self, from: Place, to: Place) {
        if !self.is_up(to) || self.active.separated(from, to, |cut| cut.mesh) {
            return;
        }
        let Some(link) = self.mesh.links.get_mut(&(from, to)) else { return };
        let Some(message) = link.queue.pop_front() else { return };
        self.trace.note(self.queue.now(), 2, (from as u64) << 32 | to as u64);
        self.rank_receives(from, to, message);
    }

    /// Closes the connections of a rank that has ended, after its last messages.
    pub(super) fn close_mesh_of(&mut self, place: Place) {
        for peer in self.peers(place) {
            self.mesh_send(place, peer, Message::Closed);
            if let Some(link) = self.mesh.links.get_mut(&(place, peer)) {
                link.broken = true;
            }
            let back = self.mesh.links.entry((peer, place)).or_default();
            back.broken = true;
            back.queue.clear();
        }
    }

    /// Called when a fault starts or ends: delivers delayed messages, and starts silence timers of unreachable ranks.
    pub(super) fn mesh_changed(&mut self) {
        let now = self.queue.now();
        for place in self.first_rank..self.first_standby {
            for peer in self.peers(place) {
                let cut = self.active.separated(place, peer, |cut| cut.mesh);
                let link = self.mesh.links.entry((place, peer)).or_default();
                match (cut, link.unreachable_since) {
                    (true, None) => {
                        link.unreachable_since = Some(now);
                        let after = self.scenario.mesh_silence_ms * MS;
                        let event = Event::MeshSilence { from: place, to: peer, since: now };
                        self.queue.after(after, event);
                    }
                    (false, since) => {
                        if since.is_some() {
                            link.unreachable_since = None;
                        }
                        for _ in 0..link.queue.len() {
                            self.queue.after(200_000, Event::Mesh { from: place, to: peer });
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    /// Handles that `to` received nothing from `from` for too long.
    pub(super) fn mesh_silence(&mut self, from: Place, to: Place, since: Nanos) {
        let Some(link) = self.mesh.links.get_mut(&(from, to)) else { return };
        if link.unreachable_since != Some(since) || link.broken {
            return;
        }
        link.broken = true;
        link.queue.clear();
        if self.is_up(to) {
            self.rank_receives(from, to, Message::Closed);
        } else {
            self.mesh.links.entry((from, to)).or_default().queue.push_back(Message::Closed);
        }
    }

    /// The other ranks of a rank's job.
    pub(super) fn peers(&self, place: Place) -> Vec<Place> {
        let job = &self.jobs[self.ranks[place - self.first_rank].job];
        (job.first..job.first + job.size as usize).filter(|&other| other != place).collect()
    }
}
