//! The peer's end of a controller stream, which reconnects as the clients of `netsum-control` do.

use netsum_control::Fence;
use netsum_control::pb::switch_command::Command;
use netsum_control::pb::switch_report::Report as SwitchReport;
use netsum_control::pb::worker_report::Report as WorkerReport;

use super::clock::{MS, Nanos, SECOND};
use super::streams::{Down, StreamId, Up};
use super::{Place, Timer, World};

/// State of a process's connection to the controller.
#[derive(Clone, Debug, Default)]
pub(super) struct Client {
    pub state: ClientState,
    /// Attempts since the last answer of the controller.
    attempts: u32,
    /// Whether the first segment of a connection was retransmitted.
    resent: bool,
    /// The controller that is asked.
    at: usize,
    /// Attempts in this round over the controllers.
    tried: usize,
    /// Refuses controllers whose term is over.
    pub fence: Fence,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ClientState {
    /// Waiting before the next attempt.
    #[default]
    Away,
    /// The first report has been sent.
    Opening(StreamId),
    Open(StreamId),
    /// The session has ended.
    Ended,
}

impl World {
    pub(super) fn client(&mut self, place: Place) -> &mut Client {
        match place < self.first_rank {
            true => &mut self.aggregators[place - 1].client,
            false => &mut self.ranks[place - self.first_rank].client,
        }
    }

    /// Starts an attempt to reach the controller.
    pub(super) fn connect(&mut self, place: Place) {
        if self.client(place).state != ClientState::Away {
            return;
        }
        let at = self.client(place).at;
        let controller = self.controller_place(at);
        let cut = self.active.separated(place, controller, |cut| cut.control);
        if cut && self.has_standbys() {
            return self.retry(place, CONNECT_TIMEOUT_AMONG_OTHERS, None);
        }
        if cut {
            // TCP retransmits its first segment after one second; the client gives up after two.
            let client = self.client(place);
            client.resent = !client.resent;
            return match client.resent {
                true => self.after(place, SYN_AGAIN, Timer::Connect),
                false => self.retry(place, CONNECT_TIMEOUT - SYN_AGAIN, None),
            };
        }
        self.client(place).resent = false;
        if !self.processes[controller].alive {
            return self.retry(place, 1_000_000, None);
        }
        let first = match place < self.first_rank {
            true => Up::Switch(SwitchReport::Hello(self.hello(place))),
            false => Up::Worker(WorkerReport::Join(self.join(place))),
        };
        let stream = self.open_stream(place, controller, first);
        self.client(place).state = ClientState::Opening(stream);
        self.after(place, OPEN_TIMEOUT, Timer::OpenTimeout(stream));
    }

    pub(super) fn open_timeout(&mut self, place: Place, stream: StreamId) {
        if self.client(place).state == ClientState::Opening(stream) {
            self.close_from_peer(stream);
            self.away(place);
        }
    }

    pub(super) fn heartbeat(&mut self, place: Place) {
        let ClientState::Open(stream) = self.client(place).state else { return };
        self.after(place, HEARTBEAT, Timer::Heartbeat);
        let report = match place < self.first_rank {
            true => Up::Switch(SwitchReport::Heartbeat(self.switch_report(place))),
            false => Up::Worker(WorkerReport::Heartbeat(self.statistics(place))),
        };
        self.send_up(stream, report);
    }

    /// Handles a message of the controller.
    pub(super) fn peer_receives(&mut self, place: Place, stream: StreamId, message: Down) {
        let state = self.client(place).state;
        let current =
            matches!(state, ClientState::Opening(s) | ClientState::Open(s) if s == stream);
        if !current {
            return;
        }
        match message {
            Down::Accepted => {
                let client = self.client(place);
                (client.state, client.attempts, client.tried) = (ClientState::Open(stream), 0, 0);
                self.connected(place);
                self.heartbeat(place);
            }
            Down::Refused { finally, reason } => {
                self.log(place, format_args!("refused by the controller: {reason}"));
                self.close_from_peer(stream);
                if finally && place >= self.first_rank {
                    self.client(place).state = ClientState::Ended;
                    self.rank_refused(place, reason);
                } else {
                    self.away(place);
                }
            }
            Down::Follows { leader } => {
                self.close_from_peer(stream);
                self.retry(place, 0, leader);
            }
            Down::Worker(event, term) => {
                if self.admit(place, stream, term) {
                    self.rank_on_event(place, event);
                }
            }
            Down::Switch(command, term) => {
                if let Command::Hello(hello) = &command {
                    self.client(place).fence.meet(hello.incarnation);
                }
                if self.admit(place, stream, term) {
                    self.aggregator_on_command(place, stream, command);
                }
            }
            Down::Closed => {
                self.close_from_peer(stream);
                let at = self.client(place).at;
                self.log(place, format_args!("loses the controller"));
                self.disconnected(place);
                self.retry(place, 0, self.has_standbys().then_some(at));
            }
        }
    }

    /// Whether a controller's message counts. If its term is over, another controller is asked.
    fn admit(&mut self, place: Place, stream: StreamId, term: u64) -> bool {
        match self.client(place).fence.admit(term) {
            Ok(()) => true,
            Err(stale) => {
                self.log(place, format_args!("refuses the controller: {stale}"));
                self.close_from_peer(stream);
                self.away(place);
                false
            }
        }
    }

    fn away(&mut self, place: Place) {
        self.log(place, format_args!("loses the controller"));
        self.disconnected(place);
        self.retry(place, 0, None);
    }

    /// Tries again: at the controller `next`, or at the next one. After a round over all of them it waits.
    fn retry(&mut self, place: Place, after: Nanos, next: Option<usize>) {
        let count = self.controllers.len();
        let client = self.client(place);
        client.state = ClientState::Away;
        client.at = next.unwrap_or((client.at + 1) % count);
        client.tried += 1;
        let is_complete = client.tried >= count;
        if !is_complete {
            return self.after(place, after + HOP, Timer::Connect);
        }
        client.tried = 0;
        client.attempts += 1;
        let attempts = client.attempts - 1;
        let wait = self.backoff(place, attempts);
        self.after(place, after + wait, Timer::Connect);
    }
}

const CONNECT_TIMEOUT: Nanos = 2 * SECOND;
const CONNECT_TIMEOUT_AMONG_OTHERS: Nanos = 500 * MS;
/// Before the next controller is asked.
const HOP: Nanos = MS;
const SYN_AGAIN: Nanos = SECOND;
const OPEN_TIMEOUT: Nanos = 5 * SECOND;
const HEARTBEAT: Nanos = SECOND;
