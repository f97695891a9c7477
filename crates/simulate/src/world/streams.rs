//! Streams between the controller and its peers: messages arrive once and in order until a side closes or dies, or
//! detects that the other does not answer.

use std::collections::{BTreeMap, VecDeque};

use netsum_control::decide::SessionId;
use netsum_control::pb;

use super::clock::{MS, Nanos};
use super::{Event, Place, World};

/// Identifies a stream; never reused in a run.
pub(super) type StreamId = u64;

/// The two ends of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Controller,
    Peer,
}

/// A message to the controller.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "messages are in flight for a moment only")]
pub(super) enum Up {
    Worker(pb::worker_report::Report),
    Switch(pb::switch_report::Report),
    Closed,
}

/// A message from the controller.
#[derive(Clone, Debug)]
pub(super) enum Down {
    /// The first report is accepted.
    Accepted,
    /// The first report is refused; `finally`: further attempts are useless.
    Refused {
        finally: bool,
        reason: String,
    },
    /// The controller does not lead; it names the one that does, if it knows.
    Follows {
        leader: Option<usize>,
    },
    /// An event, with the controller's term.
    Worker(pb::worker_event::Event, u64),
    /// A command, with the controller's term.
    Switch(pb::switch_command::Command, u64),
    Closed,
}

pub(super) struct Stream {
    pub peer: Place,
    pub controller: Place,
    pub peer_incarnation: u32,
    pub controller_incarnation: u32,
    pub session: Option<SessionId>,
    pub peer_open: bool,
    pub controller_open: bool,
    up: VecDeque<Up>,
    down: VecDeque<Down>,
    up_at: Nanos,
    down_at: Nanos,
    unreachable_since: Option<Nanos>,
}

pub(super) struct Streams {
    next: StreamId,
    open: BTreeMap<StreamId, Stream>,
}

impl Streams {
    pub(super) fn new() -> Streams {
        Streams { next: 1, open: BTreeMap::new() }
    }

    pub(super) fn get(&self, id: StreamId) -> Option<&Stream> {
        self.open.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: StreamId) -> Option<&mut Stream> {
        self.open.get_mut(&id)
    }

    /// The stream of a session of the running controller.
    pub(super) fn of_session(
        &self,
        controller: Place,
        incarnation: u32,
        session: SessionId,
    ) -> Option<StreamId> {
        let of = |stream: &Stream| {
            (stream.controller, stream.controller_incarnation) == (controller, incarnation)
                && stream.session == Some(session)
        };
        self.open.iter().find(|(_, stream)| of(stream)).map(|(&id, _)| id)
    }

    fn ids(&self) -> Vec<StreamId> {
        self.open.keys().copied().collect()
    }
}

impl World {
    /// Opens a stream with the first report.
    pub(super) fn open_stream(&mut self, peer: Place, controller: Place, first: Up) -> StreamId {
        let id = self.streams.next;
        self.streams.next += 1;
        let now = self.queue.now();
        let stream = Stream {
            peer,
            controller,
            peer_incarnation: self.processes[peer].incarnation,
            controller_incarnation: self.processes[controller].incarnation,
            session: None,
            peer_open: true,
            controller_open: true,
            up: VecDeque::new(),
            down: VecDeque::new(),
            up_at: now,
            down_at: now,
            unreachable_since: None,
        };
        self.streams.open.insert(id, stream);
        self.send_up(id, first);
        self.watch_stream(id);
        id
    }

    /// Delay of a control-plane or mesh message.
    pub(super) fn message_delay(&mut self, from: Place) -> Nanos {
        let jitter = u64::from(self.scenario.noise.message_jitter_us) * 1000;
        let delay = self.active.delay_ms() * MS;
        let random = &mut self.processes[from].random;
        100_000 + random.below(jitter + 1) + random.below(delay + 1)
    }

    pub(super) fn send_up(&mut self, id: StreamId, message: Up) {
        let Some(peer) = self.streams.get(id).map(|stream| stream.peer) else { return };
        let at = self.queue.now() + self.message_delay(peer);
        let Some(stream) = self.streams.get_mut(id) else { return };
        stream.up.push_back(message);
        stream.up_at = stream.up_at.max(at);
        self.queue.at(stream.up_at, Event::Up(id));
    }

    pub(super) fn send_down(&mut self, id: StreamId, message: Down) {
        let Some(controller) = self.streams.get(id).map(|stream| stream.controller) else { return };
        let at = self.queue.now() + self.message_delay(controller);
        let Some(stream) = self.streams.get_mut(id) else { return };
        stream.down.push_back(message);
        stream.down_at = stream.down_at.max(at);
        self.queue.at(stream.down_at, Event::Down(id));
    }

    pub(super) fn stream_up(&mut self, id: StreamId) {
        let Some(stream) = self.streams.open.get(&id) else { return };
        let (peer, incarnation, at) =
            (stream.peer, stream.controller_incarnation, stream.controller);
        let controller = &self.processes[at];
        if !controller.alive || controller.incarnation != incarnation {
            self.forget_if_closed(id);
            return;
        }
        if controller.stopped > 0 || self.active.separated(peer, at, |cut| cut.control) {
            return;
        }
        let Some(stream) = self.streams.open.get_mut(&id) else { return };
        let Some(message) = stream.up.pop_front() else { return };
        if stream.controller_open {
            self.controller_receives(id, message);
        }
        self.forget_if_closed(id);
    }

    pub(super) fn stream_down(&mut self, id: StreamId) {
        let Some(stream) = self.streams.open.get(&id) else { return };
        let (peer, incarnation, at) = (stream.peer, stream.peer_incarnation, stream.controller);
        let process = &self.processes[peer];
        if !process.alive || process.incarnation != incarnation {
            self.forget_if_closed(id);
            return;
        }
        if process.stopped > 0 || self.active.separated(peer, at, |cut| cut.control) {
            return;
        }
        let Some(stream) = self.streams.open.get_mut(&id) else { return };
        let Some(message) = stream.down.pop_front() else { return };
        if stream.peer_open {
            self.peer_receives(peer, id, message);
        }
        self.forget_if_closed(id);
    }

    /// Closes the controller's side; the peer still reads earlier messages.
    pub(super) fn close_from_controller(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        if std::mem::replace(&mut stream.controller_open, false) {
            self.send_down(id, Down::Closed);
            self.queue.after(50_000, Event::SessionEnded(id));
        }
    }

    /// Closes the peer's side; the controller still reads earlier messages.
    pub(super) fn close_from_peer(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        if std::mem::replace(&mut stream.peer_open, false) {
            self.send_up(id, Up::Closed);
        }
    }

    /// Closes the streams of a process that died, as the kernel does.
    pub(super) fn close_all_of(&mut self, place: Place) {
        for id in self.streams.ids() {
            let stream = &self.streams.open[&id];
            if self.controller_index(place).is_some() {
                if stream.controller == place && stream.controller_open {
                    self.streams.get_mut(id).expect("it is there").controller_open = false;
                    self.send_down(id, Down::Closed);
                }
            } else if stream.peer == place {
                self.close_from_peer(id);
            }
        }
    }

    /// Breaks the streams of a process; both sides detect it.
    pub(super) fn break_streams(&mut self, place: Place) {
        for id in self.streams.ids() {
            let stream = &self.streams.open[&id];
            if stream.peer == place && stream.peer_open && stream.controller_open {
                self.close_from_controller(id);
                self.peer_receives(place, id, Down::Closed);
                self.close_from_peer(id);
            }
        }
    }

    /// Called when a fault starts or ends: delivers delayed messages, and starts keep-alive timers of unreachable
    /// sides.
    pub(super) fn streams_changed(&mut self) {
        for id in self.streams.ids() {
            self.watch_stream(id);
            let stream = &self.streams.open[&id];
            if stream.unreachable_since.is_none() {
                let (up, down) = (stream.up.len(), stream.down.len());
                for _ in 0..up {
                    self.queue.after(200_000, Event::Up(id));
                }
                for _ in 0..down {
                    self.queue.after(200_000, Event::Down(id));
                }
            }
            self.forget_if_closed(id);
        }
    }

    fn watch_stream(&mut self, id: StreamId) {
        let now = self.queue.now();
        let Some(stream) = self.streams.open.get(&id) else { return };
        let (peer, controller) = (stream.peer, stream.controller);
        let blocked = self.processes[peer].stopped > 0
            || self.processes[controller].stopped > 0
            || self.active.separated(peer, controller, |cut| cut.control);
        let patience = if self.has_standbys() { 1_000..=2_000 } else { 3_000..=6_000 };
        let random = &mut self.processes[controller].random;
        let (server, client) = (random.within(2_000..=4_000), random.within(patience));
        let stream = self.streams.open.get_mut(&id).expect("it was just there");
        match (blocked, stream.unreachable_since) {
            (true, None) => {
                stream.unreachable_since = Some(now);
                let event = |side| Event::KeepAlive { stream: id, side, since: now };
                self.queue.after(server * MS, event(Side::Controller));
                self.queue.after(client * MS, event(Side::Peer));
            }
            (false, Some(_)) => stream.unreachable_since = None,
            _ => {}
        }
    }

    pub(super) fn keep_alive(&mut self, id: StreamId, side: Side, since: Nanos) {
        let Some(stream) = self.streams.get(id) else { return };
        if stream.unreachable_since != Some(since) {
            return;
        }
        let (peer, controller_open) = (stream.peer, stream.controller_open);
        let peer_open = stream.peer_open;
        let same_peer = self.processes[peer].incarnation == stream.peer_incarnation;
        let controller = stream.controller;
        let same_controller =
            self.processes[controller].incarnation == stream.controller_incarnation;
        match side {
            Side::Controller if controller_open && same_controller && self.is_up(controller) => {
                self.close_from_controller(id);
            }
            Side::Peer if peer_open && same_peer && self.is_up(peer) => {
                self.close_from_peer(id);
                self.peer_receives(peer, id, Down::Closed);
            }
            _ => {}
        }
    }

    fn forget_if_closed(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get(id) else { return };
        let process = &self.processes[stream.peer];
        let peer =
            stream.peer_open && process.alive && process.incarnation == stream.peer_incarnation;
        let controller = &self.processes[stream.controller];
        let same = controller.incarnation == stream.controller_incarnation && controller.alive;
        let waits_for_controller = same && !stream.up.is_empty();
        let waits_for_peer = peer && !stream.down.is_empty();
        let open = peer || same && stream.controller_open;
        if !open && !waits_for_controller && !waits_for_peer {
            self.streams.open.remove(&id);
        }
    }

    /// Delay before the next attempt to reach the controller: doubles, with a random part.
    pub(super) fn backoff(&mut self, place: Place, attempts: u32) -> Nanos {
        let due = ((50 * MS) << attempts.min(10)).min(500 * MS);
        due / 2 + self.processes[place].random.below(due / 2 + 1)
    }
}
