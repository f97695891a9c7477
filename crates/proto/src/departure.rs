//! Leaving a group without results that other ranks still lack.
//!
//! When a switch dies, a rank that lacks a result gets it from one that has it ([`handover`](crate::handover)), or all
//! ranks do the rest of the operation again. So a rank that leaves as soon as it has all its results may leave others
//! behind that wait in vain. This machine, one per rank, says when a rank may leave: when all others have the results of
//! all operations that it took part in, or are gone, or when its patience is over.
//!
//! A rank that wants to leave says so, with the number of its operations. The others answer when they have the results
//! of all of these; a rank that wants to leave, too, has said so by that. Messages between two ranks must arrive once
//! and in order. All numbers are big-endian:
//!
//! | message | |
//! |---|---|
//! | version u8 | 1 |
//! | kind u8 | 1: the rank leaves, and has ended all operations below; 2: it has ended them |
//! | operation u64 | |
//!
//! [`Departure`] is driven as the other machines: call a `handle_*` method, then drain
//! [`poll_transmit`](Departure::poll_transmit), and ask [`may_leave`](Departure::may_leave).

use std::collections::VecDeque;

use netsum_wire::Rank;

use crate::Time;
use crate::handover::Transmit;

/// One rank's part in the departures of its group. See the [module](self).
#[derive(Clone, Debug)]
pub struct Departure {
    rank: Rank,
    /// Operations below this have ended here.
    ended: u64,
    peers: Vec<Peer>,
    leaving: Option<Leaving>,
    transmits: VecDeque<Transmit>,
}

/// What is known of another rank.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    /// Operations below this have ended there.
    ended: u64,
    /// It wants to be told when operations below this have ended here.
    waits_for: Option<u64>,
    gone: bool,
}

#[derive(Clone, Copy, Debug)]
struct Leaving {
    /// Operations below this must have ended at all ranks.
    until: u64,
    deadline: Time,
}

/// Why bytes are not a message; the machine is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message about leaving that has another length, version or kind")]
pub struct NotADeparture;

impl Departure {
    /// The machine of a rank in a group of `size`. Panics if the rank is not in the group.
    pub fn new(rank: Rank, size: u32) -> Departure {
        assert!(rank.0 < size, "rank {} of {size}", rank.0);
        let peers = vec![Peer::default(); size as usize];
        Departure { rank, ended: 0, peers, leaving: None, transmits: VecDeque::new() }
    }

    /// All operations below `operation` have ended here, with their results.
    pub fn handle_ended(&mut self, operation: u64) {
        self.ended = self.ended.max(operation);
        for at in 0..self.peers.len() {
            if self.peers[at].waits_for.is_some_and(|operation| operation <= self.ended) {
                self.peers[at].waits_for = None;
                self.send(at, ENDED);
            }
        }
    }

    /// This rank wants to leave after the operations that have ended, at the latest at `deadline`. Later calls have no
    /// effect.
    pub fn leave(&mut self, deadline: Time) {
        if self.leaving.is_some() {
            return;
        }
        self.leaving = Some(Leaving { until: self.ended, deadline });
        (0..self.peers.len()).for_each(|at| self.send(at, LEAVING));
    }

    /// Handles another rank's message.
    pub fn handle_message(&mut self, from: Rank, bytes: &[u8]) -> Result<(), NotADeparture> {
        let (kind, operation) = match bytes {
            [VERSION, kind @ (LEAVING | ENDED), rest @ ..] => (*kind, rest),
            _ => return Err(NotADeparture),
        };
        let operation = operation.try_into().map(u64::from_be_bytes).map_err(|_| NotADeparture)?;
        let peer = self.peers.get_mut(from.0 as usize).ok_or(NotADeparture)?;
        peer.ended = peer.ended.max(operation);
        if kind == LEAVING {
            // What this rank has said on leaving is an answer, too.
            let told = self.leaving.is_some_and(|leaving| leaving.until >= operation);
            peer.waits_for = (!told).then_some(operation);
            self.handle_ended(self.ended);
        }
        Ok(())
    }

    /// A rank has left, or is lost: it lacks nothing any more.
    pub fn handle_gone(&mut self, rank: Rank) {
        if let Some(peer) = self.peers.get_mut(rank.0 as usize) {
            peer.gone = true;
        }
    }

    /// Whether this rank wants to leave, or another one waits for it to end operations: only then must the driver call
    /// [`Departure::handle_ended`].
    pub fn is_under_way(&self) -> bool {
        self.leaving.is_some() || self.peers.iter().any(|peer| peer.waits_for.is_some())
    }

    /// Whether this rank wants to leave and no other needs it, or its patience is over.
    pub fn may_leave(&self, now: Time) -> bool {
        let Some(Leaving { until, deadline }) = self.leaving else { return false };
        now >= deadline || self.others().all(|(_, peer)| peer.gone || peer.ended >= until)
    }

    /// When this rank leaves at the latest.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.leaving.map(|leaving| leaving.deadline)
    }

    /// Next message to another rank.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    fn others(&self) -> impl Iterator<Item = (usize, &Peer)> {
        let own = self.rank.0 as usize;
        self.peers.iter().enumerate().filter(move |(at, _)| *at != own)
    }

    fn send(&mut self, to: usize, kind: u8) {
        if to == self.rank.0 as usize || self.peers[to].gone {
            return;
        }
        let mut bytes = vec![VERSION, kind];
        bytes.extend(self.ended.to_be_bytes());
        self.transmits.push_back(Transmit { to: Rank(to as u32), bytes });
    }
}

const VERSION: u8 = 1;
const LEAVING: u8 = 1;
const ENDED: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(machine: &mut Departure) -> Vec<(u32, u8, u64)> {
        let mut all = Vec::new();
        while let Some(Transmit { to, bytes }) = machine.poll_transmit() {
            all.push((to.0, bytes[1], u64::from_be_bytes(bytes[2..].try_into().unwrap())));
        }
        all
    }

    fn message(kind: u8, operation: u64) -> Vec<u8> {
        [&[VERSION, kind][..], &operation.to_be_bytes()].concat()
    }

    #[test]
    fn a_rank_stays_until_others_have_ended_what_it_took_part_in() {
        let mut machine = Departure::new(Rank(1), 3);
        machine.handle_ended(5);
        assert!(!machine.may_leave(Time(0)), "it does not want to");
        machine.leave(Time(100));
        assert_eq!(sent(&mut machine), [(0, LEAVING, 5), (2, LEAVING, 5)]);
        machine.handle_message(Rank(0), &message(ENDED, 5)).unwrap();
        machine.handle_message(Rank(2), &message(LEAVING, 4)).unwrap();
        assert!(!machine.may_leave(Time(99)), "rank 2 gives up operation 4, and has not left");
        assert_eq!(sent(&mut machine), [], "it has been told");
        assert!(machine.may_leave(Time(100)));
        machine.handle_gone(Rank(2));
        assert!(machine.may_leave(Time(0)));
    }

    #[test]
    fn a_rank_answers_when_it_has_ended_them() {
        let mut machine = Departure::new(Rank(0), 2);
        machine.handle_message(Rank(1), &message(LEAVING, 3)).unwrap();
        machine.handle_ended(2);
        assert_eq!(sent(&mut machine), []);
        assert!(machine.is_under_way());
        machine.handle_ended(4);
        assert_eq!(sent(&mut machine), [(1, ENDED, 4)]);
        assert!(!machine.is_under_way());
        machine.leave(Time(9));
        assert!(!machine.may_leave(Time(0)), "operation 3 has not ended at rank 1");
    }

    #[test]
    fn other_bytes_are_refused() {
        let mut machine = Departure::new(Rank(0), 2);
        let good = message(LEAVING, 3);
        for bytes in [&good[..9], &[&good[..], &[0]].concat(), &[2; 10], &[1, 3, 0, 0], &[]] {
            assert_eq!(machine.handle_message(Rank(1), bytes), Err(NotADeparture));
        }
        assert_eq!(machine.handle_message(Rank(2), &good), Err(NotADeparture));
        machine.handle_message(Rank(1), &message(LEAVING, u64::MAX)).unwrap();
        machine.handle_ended(7);
        assert_eq!(sent(&mut machine), []);
    }
}
