//! The peer's end of a controller stream, which reconnects as the clients of `netsum-control` do.

use netsum_control::pb::switch_report::Report as SwitchReport;
use netsum_control::pb::worker_report::Report as WorkerReport;

use super::clock::{Nanos, SECOND};
use super::streams::{Down, StreamId, Up};
use super::{CONTROLLER, Place, Timer, World};

/// State of a process's connection to the controller.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Client {
    pub state: ClientState,
    /// Attempts since the last answer of the controller.
    attempts: u32,
    /// Whether the first segment of a connection was retransmitted.
    resent: bool,
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
        if self.active.separated(place, CONTROLLER, |cut| cut.control) {
            // TCP retransmits its first segment after one second; the client gives up after two.
            let client = self.client(place);
            client.resent = !client.resent;
            return match client.resent {
                true => self.after(place, SYN_AGAIN, Timer::Connect),
                false => self.retry(place, CONNECT_TIMEOUT - SYN_AGAIN),
            };
        }
        self.client(place).resent = false;
        if !self.processes[CONTROLLER].alive {
            return self.retry(place, 1_000_000);
        }
        let first = match place < self.first_rank {
            true => Up::Switch(SwitchReport::Hello(self.hello(place))),
            false => Up::Worker(WorkerReport::Join(self.join(place))),
        };
        let stream = self.open_stream(place, first);
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
                (client.state, client.attempts) = (ClientState::Open(stream), 0);
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
            Down::Worker(event) => self.rank_on_event(place, event),
            Down::Switch(command) => self.aggregator_on_command(place, stream, command),
            Down::Closed => {
                self.close_from_peer(stream);
                self.away(place);
            }
        }
    }

    fn away(&mut self, place: Place) {
        self.log(place, format_args!("loses the controller"));
        self.disconnected(place);
        self.retry(place, 0);
    }

    fn retry(&mut self, place: Place, after: Nanos) {
        let client = self.client(place);
        client.state = ClientState::Away;
        client.attempts += 1;
        let attempts = client.attempts - 1;
        let wait = self.backoff(place, attempts);
        self.after(place, after + wait, Timer::Connect);
    }
}

const CONNECT_TIMEOUT: Nanos = 2 * SECOND;
const SYN_AGAIN: Nanos = SECOND;
const OPEN_TIMEOUT: Nanos = 5 * SECOND;
const HEARTBEAT: Nanos = SECOND;
