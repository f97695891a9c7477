//! Ranks that leave: without results that others still lack, and sums that cannot end because a rank has left without
//! taking part, in programs whose ranks make different numbers of steps.

use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use netsum_wire::Rank;

use super::job::JobState;
use super::{LINGER, State};
use crate::Error;
use crate::messages::MessageKind;

/// The oldest sum on the trees while a rank has left: since when nothing of any sum has arrived.
pub(super) struct Stalled {
    sequence: u64,
    results: u64,
    since: Instant,
}

impl State {
    /// This rank wants to leave; `reply` is told when it may. Only switches lose results, so that a rank without them
    /// is not needed by others.
    pub(super) fn leave(&mut self, reply: Sender<()>) {
        let failed = self.core.failure().is_some();
        if self.driver.is_none() || failed || !self.core.ledger.live().is_empty() {
            // The thread that asked may have timed out.
            let _ = reply.send(());
            return;
        }
        self.departure.handle_ended(self.core.ledger.ended());
        self.departure.leave(self.time_of(Instant::now() + LINGER));
        self.leaving = Some(reply);
    }

    /// Tells ranks that leave that this one has their last sums, and the thread that closes this group that it may.
    pub(super) fn depart(&mut self) {
        if !self.departure.is_under_way() {
            return;
        }
        for rank in (0..self.core.size).filter(|&rank| self.core.mesh.has_left(rank)) {
            self.departure.handle_gone(Rank(rank));
        }
        self.departure.handle_ended(self.core.ledger.ended());
        while let Some(transmit) = self.departure.poll_transmit() {
            self.core.send(transmit.to.0, MessageKind::Departure, 0, transmit.bytes);
        }
        if self.core.failure().is_some() || self.departure.may_leave(self.now()) {
            self.leaving.take().into_iter().for_each(|reply| _ = reply.send(()));
        }
    }

    /// Fails the group if switches wait for a rank that has left. A rank leaves once its own operations are done, so a
    /// sum to which it has contributed needs nothing but results, which switches retain.
    pub(super) fn watch_departures(&mut self, now: Instant) {
        let oldest = self.jobs.first_key_value().filter(|(_, job)| job.state == JobState::Trees);
        let left = || (0..self.core.size).filter(|&rank| self.core.mesh.has_left(rank));
        let Some((&sequence, _)) = oldest.filter(|_| left().next().is_some()) else {
            self.stalled = None;
            return;
        };
        let trees = self.driver.as_ref().map(|driver| driver.stats().trees).unwrap_or_default();
        let results = trees.iter().map(|tree| tree.results).sum();
        let stalled = self.stalled.take();
        let stalled = stalled.filter(|last| (last.sequence, last.results) == (sequence, results));
        let stalled = stalled.unwrap_or(Stalled { sequence, results, since: now });
        let waiting = trees.iter().fold(0, |all, tree| all | tree.waiting_for);
        let named = left().find(|rank| waiting >> (rank % 64) & 1 == 1);
        let patience = if named.is_some() { NAMED_PATIENCE } else { UNNAMED_PATIENCE };
        if let Some(rank) = named.or_else(|| left().next())
            && now - stalled.since >= patience
        {
            let operation = self.jobs[&sequence].work.operation();
            self.fail(Error::Left { operation, rank, place: self.core.place(rank) });
            return;
        }
        self.stalled = Some(stalled);
    }
}

/// Longer than a hand-over to other trees takes.
const NAMED_PATIENCE: Duration = Duration::from_secs(5);
/// Static pools and servers do not say for whom they wait.
const UNNAMED_PATIENCE: Duration = Duration::from_secs(30);
