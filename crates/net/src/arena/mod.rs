//! Memory that all ranks of a host share, in which they work in rounds.
//!
//! In a round every rank writes its slot and publishes it, and reads the others' slots. Rounds are counted from the
//! creation of the arena, and every rank takes part in every round, with or without bytes. One rule keeps accesses
//! apart: **a rank that publishes round r has finished with all rounds up to r − 2.** Opening the slot of round r,
//! which held round r − 4, therefore waits until all ranks have published r − 2; in algorithms in which all wait for
//! all, that has already happened, and costs nothing. Every slot carries the number and fingerprint of its operation:
//! ranks that called different operations detect it in the first different round.
//!
//! Small payloads travel in the cache line of the flag ([`Arena::head`]). A rank may also answer in another's slot
//! ([`Arena::answer`]): by agreement, a part of the slot belongs to the answering rank from the round that it saw to
//! the one that it publishes next. The line goes there and back, and no rank fetches a line that another holds just to
//! write a sum.
//!
//! Processes that share an arena trust each other: one that violates the rules corrupts sums, as one that sends wrong
//! values does.
//!
//! Start reading at [`Arena::open`]; `mark` is the publication of a slot, `wait` how ranks wait, `spread` how they move
//! to different cores, `meet` how the arena is set up.

#![allow(unsafe_code)]

mod mark;
mod meet;
mod memory;
mod rings;
mod spread;
mod wait;

use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(crate) use meet::rank_in_hello;
pub use meet::{ArenaPort, ArenaSeat};
pub use memory::HEAD_BYTES;
pub use wait::Waiting;

use memory::Memory;
use spread::Spread;
use wait::{Awaited, Ended};

use crate::external_load::{ExternalLoad, own_cpu};

/// A rank's stamp of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// The operation: must be equal at all ranks.
    pub call: u64,
    /// A word for the operation's own use.
    pub word: u64,
    /// Of two ranks, the other answers in the slot ([`Arena::answer`]).
    pub answered: bool,
}

/// Why a round failed. The arena cannot be used any more, because its ranks are at different rounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArenaError {
    /// The deadline passed; some ranks had not published.
    Timeout {
        /// These ranks.
        missing: Vec<u32>,
    },
    /// The caller stopped waiting.
    Stopped {
        /// Ranks that were awaited.
        missing: Vec<u32>,
    },
    /// A rank is in another operation.
    Differs {
        /// The rank.
        rank: u32,
        /// Its operation.
        call: u64,
    },
}

/// One rank's part of an arena; used by one thread at a time.
pub struct Arena {
    memory: Arc<Memory>,
    rank: usize,
    /// The last round that this rank published.
    round: u32,
    /// By rank: the last round that this rank saw published.
    seen: Vec<u32>,
    /// Whether sleepers must be woken for the last round that this rank published.
    unwoken: bool,
    /// Whether there are fewer cores than ranks.
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

    /// Index of this process.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of processes.
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

    /// Waits until the own slot of the next round is free, and returns it.
    #[inline]
    pub fn open(&mut self, waiting: &Waiting<'_>) -> Result<&mut [u8], ArenaError> {
        let needed = self.round.wrapping_sub(1);
        for rank in 0..self.seen.len() {
            self.see(rank, needed, waiting)?;
        }
        Ok(self.parts().0)
    }

    /// Whether the own slot of the next round is known to be free; if not, [`Arena::open`] checks and waits.
    #[inline]
    pub fn is_open(&self) -> bool {
        let needed = self.round.wrapping_sub(1);
        self.seen.iter().all(|&seen| reached(seen, needed))
    }

    /// The bytes of the next round's own slot that travel with its flag, in addition to those of [`Arena::parts`].
    #[inline]
    pub fn head(&mut self) -> &mut [u8; HEAD_BYTES] {
        assert!(self.is_open(), "the next slot is not open");
        // SAFETY: as for the payload in `parts`.
        unsafe { &mut *self.memory.head(self.rank, self.round.wrapping_add(1)) }
    }

    /// The first `len` bytes of the other rank's slot of the last round that this rank published, mutable.
    ///
    /// The other rank finds the answer there when it has seen this rank's next round ([`Slots::of`] with `ago` 1), and
    /// cannot read its slot before. Panics if the rank was not awaited, is this one or has not marked the round to be
    /// answered, and unless there are two ranks.
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

    /// The own slot of the next round, which [`Arena::open`] has returned, and the others' slots of earlier rounds.
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

    /// The slots that the ranks have published.
    pub fn slots(&self) -> Slots<'_> {
        Slots { arena: self }
    }

    /// Publishes the own slot of the next round.
    #[inline]
    pub fn publish(&mut self, stamp: Stamp) {
        self.hand_over(stamp);
        self.wake();
    }

    /// Like [`Arena::publish`], for a rank that waits next ([`Arena::await_all`], [`Arena::await_rank`] or
    /// [`Arena::all_appear`]): the wait wakes sleepers. The rank therefore does not stall until the flag's line has
    /// come from the rank that read it last.
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

    /// Whether the other rank writes to the slot of a rank, whose mark of that round this rank has seen.
    #[inline]
    fn is_answered(&self, rank: usize, round: u32) -> bool {
        self.memory.mark(rank, round).answered.load(Ordering::Relaxed) != 0
    }

    /// Waits until all ranks have published the last round of this rank.
    #[inline]
    pub fn await_all(&mut self, waiting: &Waiting<'_>) -> Result<(), ArenaError> {
        let ranks = self.seen.len();
        // Starts after this rank, so that ranks wait for different ranks first.
        for rank in (self.rank + 1..ranks).chain(0..self.rank) {
            self.see(rank, self.round, waiting)?;
        }
        self.wake();
        Ok(())
    }

    /// Waits until one rank has published the last round of this rank.
    #[inline]
    pub fn await_rank(&mut self, rank: usize, waiting: &Waiting<'_>) -> Result<(), ArenaError> {
        self.see(rank, self.round, waiting)?;
        self.wake();
        Ok(())
    }

    /// Whether all ranks publish the last round of this rank, with the same operation, within a short poll. If not,
    /// [`Arena::await_all`] continues, and reports why.
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

    /// Whether a rank publishes a round within a short poll.
    #[inline(always)]
    fn look(&mut self, rank: usize, round: u32) -> bool {
        if self.awaited(rank, round).appears() {
            return true;
        }
        // Before yielding the core: a sleeper may be the rank that is awaited.
        self.wake();
        if self.spread.is_due() {
            self.spread();
        }
        self.awaited(rank, round).appears_after_others()
    }

    /// Moves to a core with fewer ranks, if this rank is the one to move.
    #[cold]
    fn spread(&mut self) {
        let cpu = |(rank, &seen): (usize, &u32)| match rank == self.rank {
            true => own_cpu(),
            false => self.memory.mark(rank, seen).cpu.load(Ordering::Relaxed),
        };
        self.spread.spread(self.rank, self.seen.iter().enumerate().map(cpu));
    }

    /// Wakes those who sleep until the last round of this rank, once.
    #[inline(always)]
    fn wake(&mut self) {
        if std::mem::take(&mut self.unwoken) {
            self.memory.mark(self.rank, self.round).flag.wake();
        }
    }

    /// A handle that wakes this arena's sleepers from another thread.
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

/// The slots that the ranks have published.
#[derive(Clone, Copy)]
pub struct Slots<'a> {
    arena: &'a Arena,
}

impl<'a> Slots<'a> {
    /// The slot of a rank that was awaited, of this rank's last round (`ago` 0) or the one before (1).
    ///
    /// Panics for a round that was not awaited, or that may not be read any more or not yet: the own slot of a round that
    /// is answered, until this rank has seen the next round.
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

    /// Like [`Slots::of`], for the bytes that travelled with the flag of this rank's last round.
    #[inline]
    pub fn head(&self, rank: usize) -> &'a [u8; HEAD_BYTES] {
        let arena = self.arena;
        assert!(reached(arena.seen[rank], arena.round), "rank {rank} was not awaited");
        // SAFETY: as in `of`.
        unsafe { &*arena.memory.head(rank, arena.round) }
    }

    /// A rank's word in this rank's last round.
    pub fn word(&self, rank: usize) -> u64 {
        let arena = self.arena;
        assert!(reached(arena.seen[rank], arena.round), "rank {rank} was not awaited");
        arena.memory.mark(rank, arena.round).word.load(Ordering::Relaxed)
    }
}

/// Wakes the ranks that sleep in an arena, so that they check whether to stop.
#[derive(Clone)]
pub struct Alarm(Arc<Memory>);

impl Alarm {
    /// Sleepers of other processes check once, too, and continue to sleep.
    pub fn ring(&self) {
        self.0.marks().for_each(|mark| mark.flag.alarm());
    }
}

/// Whether `seen` is `round` or later; rounds wrap around, and ranks are never far apart.
#[inline(always)]
fn reached(seen: u32, round: u32) -> bool {
    seen.wrapping_sub(round) as i32 >= 0
}

#[cfg(test)]
mod tests;
