//! The calls of this rank, and the detection of disagreement with other ranks.
//!
//! Every message of a collective carries the operation's number and a fingerprint of the call. A rank that receives
//! another fingerprint than its own sends its call to all ranks, all ranks answer with theirs, and each finds the rank
//! that differs: no rank waits for a message that never comes.

use std::collections::VecDeque;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::Error;
use crate::call::Call;

#[derive(Default)]
pub(crate) struct Ledger {
    state: Mutex<State>,
}

/// What is known of the calls of all ranks under one number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Opinion {
    /// Too few are known.
    Open,
    /// All called the same.
    Same,
    /// More than half called the same, except for these; none if there is no majority.
    Majority {
        /// The ranks that are known to have called something else.
        differing: Vec<u32>,
    },
}

#[derive(Default)]
struct State {
    /// Number of the first entry.
    first: u64,
    /// Consecutive operations: completed ones are kept for a while, because another rank may detect a disagreement
    /// later.
    entries: VecDeque<Entry>,
    /// Number of completed entries.
    ended: usize,
    /// Calls that other ranks sent, for operations that this rank has called or will call.
    peer_calls: FxHashMap<u64, Vec<(u32, String)>>,
}

struct Entry {
    call: Call,
    fingerprint: u32,
    stage: Stage,
    /// Whether the call was sent to all ranks.
    announced: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Live,
    /// It is done, but the ranks may do a part of it again.
    Done,
    Over,
}

/// Handling of a message of a collective.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It belongs to an operation that is in progress or will be called.
    Keep,
    /// Its operation has completed here.
    Stale,
    /// Its sender's call differs.
    Differs,
}

impl Ledger {
    /// Records a call under its number, which is the next one; true if another rank has sent its own call already.
    ///
    /// The operation is live until [`Ledger::retire`], and accepts messages until then.
    pub(crate) fn enter(&self, sequence: u64, call: Call, fingerprint: u32) -> bool {
        let mut state = self.state.lock();
        assert_eq!(sequence, state.next(), "operations have numbers without a gap");
        state.entries.push_back(Entry { call, fingerprint, stage: Stage::Live, announced: false });
        state.peer_calls.contains_key(&sequence)
    }

    /// All operations before `next` have completed, and agreed at all ranks: they can be forgotten.
    pub(crate) fn agreed(&self, next: u64) {
        let mut state = self.state.lock();
        assert!(next >= state.next(), "operations have numbers in the order of calls");
        assert_eq!(state.ended, state.entries.len(), "operations before {next} have ended");
        state.peer_calls.retain(|&sequence, _| sequence >= next);
        state.entries.clear();
        (state.first, state.ended) = (next, 0);
    }

    /// Records the end of an operation.
    pub(crate) fn retire(&self, sequence: u64) {
        self.state.lock().end(sequence, Stage::Over);
    }

    /// Records the end of an operation of which the ranks may do a part again, after a hand-over.
    pub(crate) fn complete(&self, sequence: u64) {
        self.state.lock().end(sequence, Stage::Done);
    }

    /// The ranks do a part of an operation again. False if it ended too long ago.
    pub(crate) fn repeat(&self, sequence: u64) -> bool {
        let mut state = self.state.lock();
        let Some(entry) = state.entry(sequence) else { return false };
        if std::mem::replace(&mut entry.stage, Stage::Live) != Stage::Live {
            state.ended -= 1;
        }
        true
    }

    /// All operations below this have ended.
    pub(crate) fn ended(&self) -> u64 {
        let state = self.state.lock();
        let live = state.entries.iter().position(|entry| entry.stage == Stage::Live);
        live.map_or(state.next(), |place| state.first + place as u64)
    }

    /// Operations in progress, in order.
    pub(crate) fn live(&self) -> Vec<u64> {
        let state = self.state.lock();
        let numbered = (state.first..).zip(&state.entries);
        numbered
            .filter(|(_, entry)| entry.stage == Stage::Live)
            .map(|(sequence, _)| sequence)
            .collect()
    }

    pub(crate) fn judge(&self, sequence: u64, fingerprint: u32) -> Verdict {
        let mut state = self.state.lock();
        let next = state.next();
        match state.entry(sequence) {
            Some(entry) if entry.stage == Stage::Over => Verdict::Stale,
            Some(entry) if entry.fingerprint == fingerprint => Verdict::Keep,
            Some(_) => Verdict::Differs,
            None if sequence >= next => Verdict::Keep,
            None => Verdict::Stale,
        }
    }

    /// Records another rank's call. False if its operation ended long ago or is too far ahead.
    pub(crate) fn on_peer_call(&self, sequence: u64, from: u32, call: String) -> bool {
        let mut state = self.state.lock();
        let known = state.entry(sequence).is_some();
        let ahead = sequence >= state.next() && sequence - state.next() < AHEAD_MAX;
        if known || ahead {
            let peer_calls = state.peer_calls.entry(sequence).or_default();
            peer_calls.retain(|(rank, _)| *rank != from);
            peer_calls.push((from, call));
        }
        known || ahead
    }

    /// The own call, if it must be sent to all ranks now: once per operation.
    pub(crate) fn announce(&self, sequence: u64) -> Option<String> {
        let mut state = self.state.lock();
        let entry = state.entry(sequence)?;
        (!std::mem::replace(&mut entry.announced, true)).then(|| entry.call.to_string())
    }

    /// The first rank whose call was received and differs from the own one.
    pub(crate) fn mismatch(&self, sequence: u64, rank: u32) -> Option<Error> {
        let mut state = self.state.lock();
        let ours = state.entry(sequence)?.call.to_string();
        let peer_calls = state.peer_calls.get(&sequence)?.iter();
        let (other, theirs) = peer_calls.filter(|(_, call)| *call != ours).min()?.clone();
        Some(Error::Mismatch { sequence, rank, ours, other, theirs, differing: Vec::new() })
    }

    /// What the calls say that are known of `size` ranks, of which `rank` is this one.
    pub(crate) fn opinion(&self, sequence: u64, (rank, size): (u32, u32)) -> Opinion {
        let mut state = self.state.lock();
        let Some(ours) = state.entry(sequence).map(|entry| entry.call.to_string()) else {
            return Opinion::Open;
        };
        let peers = state.peer_calls.get(&sequence).map_or(&[][..], Vec::as_slice);
        let calls = || peers.iter().map(|(rank, call)| (*rank, call)).chain([(rank, &ours)]);
        let votes = |call: &String| calls().filter(|(_, other)| *other == call).count();
        let complete = calls().count() == size as usize;
        match calls().find(|(_, call)| 2 * votes(call) > size as usize) {
            Some((_, most)) if complete && votes(most) == size as usize => Opinion::Same,
            Some((_, most)) => {
                let mut differing: Vec<u32> =
                    calls().filter(|(_, call)| *call != most).map(|(rank, _)| rank).collect();
                differing.sort_unstable();
                Opinion::Majority { differing }
            }
            None if complete => Opinion::Majority { differing: Vec::new() },
            None => Opinion::Open,
        }
    }
}

impl State {
    fn next(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    fn end(&mut self, sequence: u64, stage: Stage) {
        let Some(entry) = self.entry(sequence).filter(|entry| entry.stage == Stage::Live) else {
            return;
        };
        entry.stage = stage;
        self.ended += 1;
        self.forget();
    }

    /// Drops entries that are no longer needed.
    fn forget(&mut self) {
        while self.ended > PAST_MAX
            && self.entries.front().is_some_and(|entry| entry.stage != Stage::Live)
        {
            let oldest = self.first;
            self.entries.pop_front();
            self.first += 1;
            self.ended -= 1;
            self.peer_calls.remove(&oldest);
        }
    }

    fn entry(&mut self, sequence: u64) -> Option<&mut Entry> {
        let place = sequence.checked_sub(self.first)?;
        self.entries.get_mut(usize::try_from(place).ok()?)
    }
}

/// A rank that does not wait for the others can be this many operations ahead and still send its call.
const PAST_MAX: usize = 1024;

/// Ranks are ahead of each other by the operations that a caller has in flight; a larger number is invalid.
const AHEAD_MAX: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_ranks_are_named() {
        let ledger = Ledger::default();
        let barrier = Call::barrier();
        let fingerprint = barrier.fingerprint();
        let sequence = 0;
        ledger.enter(sequence, barrier.clone(), fingerprint);
        assert_eq!(ledger.judge(sequence, fingerprint), Verdict::Keep);
        assert_eq!(ledger.judge(sequence, 1), Verdict::Differs);
        assert_eq!(ledger.judge(sequence + 1, 1), Verdict::Keep);
        assert_eq!(ledger.announce(sequence).as_deref(), Some("barrier"));
        assert_eq!(ledger.announce(sequence), None);
        assert!(ledger.on_peer_call(sequence, 3, "barrier".into()));
        assert_eq!(ledger.mismatch(sequence, 0), None);
        assert!(ledger.on_peer_call(sequence, 2, "alltoall".into()));
        let error = ledger.mismatch(sequence, 0).unwrap().to_string();
        assert_eq!(error, "rank 2 called alltoall, rank 0 called barrier (operation #0)");
        assert_eq!(ledger.ended(), 0);
        ledger.retire(sequence);
        assert_eq!(ledger.ended(), 1);
        assert_eq!(ledger.judge(sequence, fingerprint), Verdict::Stale);
        assert!(ledger.mismatch(sequence, 0).is_some(), "the call is still kept");
        for next in 1..=PAST_MAX as u64 + 1 {
            ledger.enter(next, barrier.clone(), fingerprint);
            ledger.retire(next);
        }
        assert!(!ledger.on_peer_call(sequence, 2, "alltoall".into()));
    }

    #[test]
    fn the_ranks_that_differ_from_most_are_named() {
        let ledger = Ledger::default();
        let barrier = Call::barrier();
        ledger.enter(0, barrier.clone(), barrier.fingerprint());
        let of = |rank: u32| ledger.opinion(0, (rank, 4));
        assert_eq!(ledger.opinion(5, (0, 4)), Opinion::Open);
        assert_eq!(of(0), Opinion::Open);
        ledger.on_peer_call(0, 2, "alltoall".into());
        ledger.on_peer_call(0, 1, "barrier".into());
        assert_eq!(of(0), Opinion::Open, "rank 3 can decide");
        ledger.on_peer_call(0, 3, "barrier".into());
        assert_eq!(of(0), Opinion::Majority { differing: vec![2] });
        ledger.on_peer_call(0, 3, "alltoall".into());
        assert_eq!(of(0), Opinion::Majority { differing: vec![] }, "two and two");
        ledger.on_peer_call(0, 1, "alltoall".into());
        assert_eq!(of(0), Opinion::Majority { differing: vec![0] }, "it is this one");
        (1..4).for_each(|rank| _ = ledger.on_peer_call(0, rank, "barrier".into()));
        assert_eq!(of(0), Opinion::Same);
    }

    #[test]
    fn calls_that_peers_sent_before_the_own_call_are_kept() {
        let ledger = Ledger::default();
        assert!(ledger.on_peer_call(0, 1, "alltoall".into()));
        assert!(ledger.enter(0, Call::barrier(), 7));
        assert!(ledger.mismatch(0, 0).is_some());
        assert!(!ledger.on_peer_call(1 + AHEAD_MAX, 1, "x".into()));
    }

    #[test]
    fn calls_on_which_all_ranks_agreed_are_forgotten() {
        let ledger = Ledger::default();
        let barrier = || Call::barrier();
        ledger.enter(0, barrier(), 7);
        ledger.retire(0);
        for sequence in [1, 41] {
            assert!(ledger.on_peer_call(sequence, 1, "alltoall".into()));
        }
        ledger.agreed(41);
        assert_eq!(ledger.announce(0), None);
        assert!(!ledger.on_peer_call(40, 1, "alltoall".into()));
        assert!(ledger.enter(41, barrier(), 7));
        assert!(ledger.mismatch(41, 0).is_some());
        assert_eq!(ledger.live(), [41]);
    }
}
