//! Memory that all ranks of a host share, in which they work in rounds.
//!
//! In a round every rank writes its slot and publishes it, and reads the others' slots. Rounds are counted from the
//! making of the arena, and every rank takes part in every round, with or without bytes. One rule keeps slots apart:
//! **a rank that publishes round r has done with all rounds up to r − 2.** So who opens the slot of round r, which held
//! round r − 4, waits until everybody has published r − 2; in algorithms in which all wait for all, that has happened
//! already, and costs nothing. Every slot carries the number and fingerprint of its operation: ranks that called
//! different ones find out in the round in which they part.
//!
//! What is small travels in the line of the flag itself ([`Arena::head`]). A rank may also answer in another's slot
//! ([`Arena::answer`]): a part of it that ranks agree on is the answerer's from the round that it saw to the one that
//! it publishes next. The line goes there and back, and nobody fetches one that the other holds to write a sum of its
//! own.
//!
//! Processes that share an arena trust each other: one that writes where it may not garbles sums, as one that sends
//! wrong values does.
//!
//! Start reading at [`Arena::open`]; `mark` is how a slot is handed over, `wait` how ranks wait, `spread` how they get
//! to different cores, `meet` how they come to share memory.

#![allow(unsafe_code)]

mod mark;
mod meet;
mod memory;
mod rings;
mod spread;
mod wait;

use std::sync::Arc;
use std::sync::atomic::Ordering;

pub use meet::{ArenaPort, ArenaSeat};
pub use memory::HEAD_BYTES;
pub use wait::Waiting;

use memory::Memory;
use spread::Spread;
use wait::{Awaited, Ended};

use crate::external_load::{ExternalLoad, own_cpu};

/// What a rank says about a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Of the operation: must be equal at all ranks.
    pub call: u64,
    /// For the operation's own use.
    pub word: u64,
    /// Of two ranks, the other answers in the slot ([`Arena::answer`]).
    pub answered: bool,
}

/// Why a round could not be had. The arena is of no use any more: its ranks are not at the same round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArenaError {
    /// The deadline passed; these ranks had not published.
    Timeout {
        /// Who was waited for.
        missing: Vec<u32>,
    },
    /// The caller does not want to wait any more.
    Stopped {
        /// Who was waited for.
        missing: Vec<u32>,
    },
    /// A rank is in another operation.
    Differs {
        /// Which rank.
        rank: u32,
        /// Its operation.
        call: u64,
    },
}

/// One rank's part of an arena; used by one thread at a time.
pub struct Arena {
    memory: Arc<Memory>,
    rank: usize,
    /// The last round that we published.
    round: u32,
    /// By rank: the last round that we saw of it.
    seen: Vec<u32>,
    /// Who sleeps until the round that we published last has not been woken.
    unwoken: bool,
    /// There are fewer cores than ranks.
    oversubscribed: bool,
    load: ExternalLoad,
    spread: Spread,
}

impl Arena {
    fn new(
        memory: Memory,
        rank: usize,
        ranks: usize,
        oversubscribed: bool,
        spread: Spread,
    ) -> Arena {
        let memory = Arc::new(memory);
        Arena {
            memory,
            rank,
            round: 0,
            seen: vec![0; ranks],
            unwoken: false,
            oversubscribed,
            load: ExternalLoad::default(),
            spread,
        }
    }

    /// This process's index.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Processes.
    pub fn ranks(&self) -> usize {
        self.seen.len()
    }

    /// Whether there are fewer cores than ranks.
    #[inline]
    pub fn is_oversubscribed(&self) -> bool {
        self.oversubscribed
    }

    /// Bytes of a slot, a multiple of 64; equal at all ranks.
    pub fn slot_bytes(&self) -> usize {
        self.memory.slot_bytes()
    }

    /// The number of the round that was published last.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Waits until our slot of the next round is free, and gives it.
    #[inline]
    pub fn open(&mut self, waiting: &Waiting<'_>) -> Result<&mut [u8], ArenaError> {
        let needed = self.round.wrapping_sub(1);
        for rank in 0..self.seen.len() {
            self.see(rank, needed, waiting)?;
        }
        Ok(self.parts().0)
    }

    /// Whether our slot of the next round is free as far as we have seen; [`Arena::open`] looks and waits.
    #[inline]
    pub fn is_open(&self) -> bool {
        let needed = self.round.wrapping_sub(1);
        self.seen.iter().all(|&seen| reached(seen, needed))
    }

    /// The bytes of our next round's slot that travel with its flag, beside those of [`Arena::parts`].
    #[inline]
    pub fn head(&mut self) -> &mut [u8; HEAD_BYTES] {
        assert!(self.is_open(), "the next slot is not open");
        // SAFETY: as for the payload in `parts`.
        unsafe { &mut *self.memory.head(self.rank, self.round.wrapping_add(1)) }
    }

    /// The first `len` bytes of the other rank's slot of the last round that we published, to be changed.
    ///
    /// It finds our answer there when it has seen our next round ([`Slots::of`] with `ago` 1), and cannot read its slot
    /// before. Panics if the rank was not awaited, is ours or has not said that the round is to be answered, and unless
    /// there are two ranks.
    #[inline]
    pub fn answer(&mut self, rank: usize, len: usize) -> &mut [u8] {
        assert!(
            rank != self.rank && reached(self.seen[rank], self.round),
            "rank {rank} was not awaited"
        );
        assert!(len <= self.memory.slot_bytes(), "{len} bytes of a slot");
        let answered = self.ranks() == 2 && self.is_answered(rank, self.round);
        assert!(answered, "the round of rank {rank} is not to be answered");
        let start = self.memory.payload(rank, self.round);
        // SAFETY: the bytes are of the mapping. Their owner has published them, which the flag's acquire saw, to be
        // answered: it reads them when it has seen our next round (`Slots::of`), and writes them again when we have
        // published the one after that; `publish` takes the arena mutably, which ends this borrow. There is no third
        // rank.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    /// Our slot of the next round, which [`Arena::open`] has given, and the others' of earlier ones.
    #[inline]
    pub fn parts(&mut self) -> (&mut [u8], Slots<'_>) {
        let (rank, next, len) = (self.rank, self.round.wrapping_add(1), self.memory.slot_bytes());
        assert!(self.is_open(), "the next slot is not open");
        let start = self.memory.payload(rank, next);
        // SAFETY: the payload is `len` bytes of the mapping. All ranks have published round `next` − 2, so none reads
        // round `next` − 4 that the slot held, and none may read it before we publish; `Slots` refuses our own next
        // round, and `&mut self` keeps a second call away.
        let own = unsafe { std::slice::from_raw_parts_mut(start, len) };
        (own, Slots { arena: self })
    }

    /// What the ranks have published.
    pub fn slots(&self) -> Slots<'_> {
        Slots { arena: self }
    }

    /// Hands our slot of the next round to the others.
    #[inline]
    pub fn publish(&mut self, stamp: Stamp) {
        self.hand_over(stamp);
        self.wake();
    }

    /// As [`Arena::publish`] for who waits next ([`Arena::await_all`], [`Arena::await_rank`] or [`Arena::all_appear`]):
    /// the wait wakes who sleeps. So nothing stands still until the line of our flag has come from the rank that read
    /// it last.
    #[inline]
    pub fn hand_over(&mut self, stamp: Stamp) {
        assert!(!self.unwoken, "nobody waited since the last round was handed over");
        self.round = self.round.wrapping_add(1);
        self.seen[self.rank] = self.round;
        let mark = self.memory.mark(self.rank, self.round);
        // Published by the flag.
        mark.call.store(stamp.call, Ordering::Relaxed);
        mark.word.store(stamp.word, Ordering::Relaxed);
        mark.cpu.store(own_cpu(), Ordering::Relaxed);
        mark.answered.store(u32::from(stamp.answered), Ordering::Relaxed);
        mark.flag.hand_over(self.round);
        self.unwoken = true;
    }

    /// Whether the other rank writes to the slot of a rank, whose mark of that round we have seen.
    #[inline]
    fn is_answered(&self, rank: usize, round: u32) -> bool {
        self.memory.mark(rank, round).answered.load(Ordering::Relaxed) != 0
    }

    /// Waits until everybody has published the round that we published last.
    #[inline]
    pub fn await_all(&mut self, waiting: &Waiting<'_>) -> Result<(), ArenaError> {
        let ranks = self.seen.len();
        // Beginning behind us: not everybody waits for the same rank first.
        for rank in (self.rank + 1..ranks).chain(0..self.rank) {
            self.see(rank, self.round, waiting)?;
        }
        self.wake();
        Ok(())
    }

    /// Waits until one rank has published the round that we published last.
    #[inline]
    pub fn await_rank(&mut self, rank: usize, waiting: &Waiting<'_>) -> Result<(), ArenaError> {
        self.see(rank, self.round, waiting)?;
        self.wake();
        Ok(())
    }

    /// Whether everybody publishes the round that we published last, and of the same operation, while we look for a
    /// moment. [`Arena::await_all`] goes on where not, and says why.
    #[inline]
    pub fn all_appear(&mut self) -> bool {
        let all = (self.rank + 1..self.seen.len()).all(|rank| self.appears(rank))
            && (0..self.rank).all(|rank| self.appears(rank));
        self.wake();
        all
    }

    #[inline(always)]
    fn appears(&mut self, rank: usize) -> bool {
        let ours = self.memory.mark(self.rank, self.round).call.load(Ordering::Relaxed);
        let here = self.look(rank, self.round)
            && self.memory.mark(rank, self.round).call.load(Ordering::Relaxed) == ours;
        if here {
            self.seen[rank] = self.round;
        }
        here
    }

    /// Whether a rank publishes a round while we look for a moment.
    #[inline(always)]
    fn look(&mut self, rank: usize, round: u32) -> bool {
        if self.awaited(rank, round).appears() {
            return true;
        }
        // Before the core is given away: who sleeps may be who is waited for.
        self.wake();
        if self.spread.is_due() {
            self.spread();
        }
        self.awaited(rank, round).appears_after_others()
    }

    /// Moves to a core with fewer ranks, if it is ours to move.
    #[cold]
    fn spread(&mut self) {
        let cpu = |(rank, &seen): (usize, &u32)| match rank == self.rank {
            true => own_cpu(),
            false => self.memory.mark(rank, seen).cpu.load(Ordering::Relaxed),
        };
        self.spread.spread(self.rank, self.seen.iter().enumerate().map(cpu));
    }

    /// Wakes who sleeps until the round that we published last, once.
    #[inline(always)]
    fn wake(&mut self) {
        if std::mem::take(&mut self.unwoken) {
            self.memory.mark(self.rank, self.round).flag.wake();
        }
    }

    /// What can wake this arena's sleepers from another thread.
    pub fn alarm(&self) -> Alarm {
        Alarm(self.memory.clone())
    }

    #[inline(always)]
    fn see(&mut self, rank: usize, round: u32, waiting: &Waiting<'_>) -> Result<(), ArenaError> {
        if reached(self.seen[rank], round) {
            return Ok(());
        }
        if !self.look(rank, round)
            && let Err(ended) = self.awaited(rank, round).wait(waiting)
        {
            return Err(self.late(round, ended));
        }
        self.seen[rank] = round;
        let ours = self.memory.mark(self.rank, round).call.load(Ordering::Relaxed);
        let call = self.memory.mark(rank, round).call.load(Ordering::Relaxed);
        if call == ours {
            return Ok(());
        }
        Err(ArenaError::Differs { rank: rank as u32, call })
    }

    #[inline(always)]
    fn awaited(&self, rank: usize, round: u32) -> Awaited<'_> {
        let flag = &self.memory.mark(rank, round).flag;
        let cpu = &self.memory.mark(rank, self.seen[rank]).cpu;
        Awaited { rank, round, flag, cpu, oversubscribed: self.oversubscribed, load: &self.load }
    }

    #[cold]
    fn late(&self, round: u32, ended: Ended) -> ArenaError {
        let here = |rank: &usize| {
            reached(self.seen[*rank], round) || self.memory.mark(*rank, round).flag.round() == round
        };
        let missing = (0..self.seen.len()).filter(|rank| !here(rank)).map(|r| r as u32).collect();
        match ended {
            Ended::Deadline => ArenaError::Timeout { missing },
            Ended::Stopped => ArenaError::Stopped { missing },
        }
    }
}

/// What the ranks have published.
#[derive(Clone, Copy)]
pub struct Slots<'a> {
    arena: &'a Arena,
}

impl<'a> Slots<'a> {
    /// The slot of a rank that was awaited, of the last round that we published (`ago` 0) or the one before (1).
    ///
    /// Panics for a round that was not awaited, or is not ours to read any more, or not yet: our own slot of a round that
    /// is answered, until we have seen the round behind it.
    #[inline]
    pub fn of(&self, rank: usize, ago: u32) -> &'a [u8] {
        let arena = self.arena;
        let round = arena.round.wrapping_sub(ago);
        assert!(ago <= 1 && reached(arena.seen[rank], round), "rank {rank}, {ago} rounds ago");
        if rank == arena.rank && arena.is_answered(rank, round) {
            let answers = ago == 1 && arena.seen.iter().all(|&seen| reached(seen, arena.round));
            assert!(answers, "the answer to our own round is not awaited yet");
        }
        let start = arena.memory.payload(rank, round);
        // SAFETY: the payload is that many bytes of the mapping. Its owner has published it, which the flag's acquire
        // saw, and writes it again only when we have published round + 2: `publish` takes the arena mutably, which
        // ends this borrow. If the round is answered, by us: `answer` takes the arena mutably; by the other rank: it
        // has done so when it publishes the round behind, which was seen.
        unsafe { std::slice::from_raw_parts(start, arena.memory.slot_bytes()) }
    }

    /// As [`Slots::of`], the bytes that travelled with the flag of the last round that we published.
    #[inline]
    pub fn head(&self, rank: usize) -> &'a [u8; HEAD_BYTES] {
        let arena = self.arena;
        assert!(reached(arena.seen[rank], arena.round), "rank {rank} was not awaited");
        // SAFETY: as in `of`.
        unsafe { &*arena.memory.head(rank, arena.round) }
    }

    /// What a rank said besides, of the last round that we published.
    pub fn word(&self, rank: usize) -> u64 {
        let arena = self.arena;
        assert!(reached(arena.seen[rank], arena.round), "rank {rank} was not awaited");
        arena.memory.mark(rank, arena.round).word.load(Ordering::Relaxed)
    }
}

/// Wakes the ranks that sleep in an arena, so that they see that there is nothing to wait for.
#[derive(Clone)]
pub struct Alarm(Arc<Memory>);

impl Alarm {
    /// Sleepers of other processes, too, look once and sleep on.
    pub fn ring(&self) {
        self.0.marks().for_each(|mark| mark.flag.alarm());
    }
}

/// Whether `seen` is `round` or later; rounds wrap, and ranks are never far apart.
#[inline(always)]
fn reached(seen: u32, round: u32) -> bool {
    seen.wrapping_sub(round) as i32 >= 0
}

#[cfg(test)]
mod tests;
