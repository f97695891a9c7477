//! Collectives of ranks that share memory: the arena as algorithms use it, and failures of rounds.
//!
//! All ranks of a group take part in every round ([`netsum_net::arena`]), so an operation that fails at one rank leaves
//! the ranks at different rounds: the group can run no more collectives. `sums` adds, by `small` and `pair` where
//! possible; `moves` only copies.

mod moves;
mod pair;
mod small;
mod sums;

pub(crate) use moves::{allgather, alltoall, barrier, broadcast, gather, scatter};
pub(crate) use small::{SMALL_MAX, wait};
pub(crate) use sums::{allreduce, finish, partials, reduce, reduce_scatter};

use std::sync::Arc;
use std::time::Instant;

use netsum_net::arena::{Arena, ArenaError, Slots, Stamp, Waiting};
use netsum_net::mesh::MeshError;
use netsum_topo::SumOrder;
use netsum_wire::Format;
use smallvec::SmallVec;

use crate::core::Core;
use crate::order::Adder;
use crate::terms::Here;

/// One rank's part of its host's memory, for all operations.
pub(crate) struct Shared {
    arena: Arena,
    /// Ranks of the group, by position on the host.
    ranks: Vec<u32>,
    /// The operation that failed, if one has.
    broken: Option<String>,
    /// The adder of the last sum: the next sum usually has the same order and format.
    adder: Option<Kept>,
}

/// An adder with its order and format.
struct Kept {
    order: Arc<SumOrder>,
    adder: Adder,
    /// Buffer for sums before they are published.
    block: Option<Box<Block>>,
}

/// Sums are made in private memory and copied to the memory that others read: a long copy does not fetch the
/// destination, which other cores have cached, but an addition does. The buffer's offset within a page differs from
/// those of callers' buffers and of slots.
#[repr(align(4096))]
struct Block([u8; BLOCK_AT + BLOCK]);

impl Block {
    fn new() -> Box<Block> {
        Box::new(Block([0; _]))
    }
}

const BLOCK_AT: usize = 1024;
/// A multiple of every element's bytes.
const BLOCK: usize = 32 << 10;

impl Shared {
    /// `ranks`: the ranks of the group that share the arena, ascending.
    pub(crate) fn new(arena: Arena, ranks: Vec<u32>) -> Shared {
        Shared { arena, ranks, broken: None, adder: None }
    }

    /// Refuses further operations, after one that failed with `reason`.
    pub(crate) fn give_up(&mut self, reason: String) {
        self.broken.get_or_insert(reason);
    }

    /// The adder for this order and format: the one of the last sum if that had the same.
    fn adder(last: &mut Option<Kept>, order: &Arc<SumOrder>, format: Format) -> Kept {
        let fits = |kept: &Kept| Arc::ptr_eq(&kept.order, order) && kept.adder.format() == format;
        last.take().filter(fits).unwrap_or_else(|| Kept {
            order: order.clone(),
            adder: Adder::new(order, format),
            block: None,
        })
    }
}

/// A rank's stamp of a round: the operation's number and fingerprint, and a free word.
fn stamp((sequence, fingerprint): (u64, u32), word: u64) -> Stamp {
    Stamp { call: sequence << 32 | u64::from(fingerprint), word, answered: false }
}

/// All ranks' values of a piece, by rank; on the stack for up to eight ranks.
type Values<'a> = SmallVec<[&'a [u8]; 8]>;

/// A whole number of elements of every type, and of cache lines.
const ALIGN: usize = 64;

const MOVED_BYTES_MAX: usize = 128 << 10;

/// The rounds of one operation.
pub(crate) struct Rounds<'a> {
    core: &'a Core,
    shared: &'a mut Shared,
    sequence: u64,
    fingerprint: u32,
    deadline: Instant,
    here: Option<Here>,
    /// Ranks that a failed round waited for.
    missing: Vec<u32>,
}

impl<'a> Rounds<'a> {
    pub(crate) fn new(
        core: &'a Core,
        shared: &'a mut Shared,
        (sequence, fingerprint): (u64, u32),
        deadline: Instant,
        here: Option<Here>,
    ) -> Rounds<'a> {
        Rounds { core, shared, sequence, fingerprint, deadline, here, missing: Vec::new() }
    }

    pub(crate) fn missing(&self) -> &[u32] {
        &self.missing
    }

    /// Refuses further operations, after one that failed with `reason`.
    pub(crate) fn give_up(&mut self, reason: String) {
        self.shared.give_up(reason);
    }

    /// [`MeshError::Aborted`] if an earlier operation failed.
    pub(crate) fn check(&self) -> Result<(), MeshError> {
        match &self.shared.broken {
            None => Ok(()),
            Some(reason) => Err(MeshError::Aborted(format!(
                "ranks are at different places since this one failed: {reason}"
            ))),
        }
    }

    /// An adder for this order and format; [`Rounds::keep`] takes it back.
    fn adder(&mut self, order: &Arc<SumOrder>, format: Format) -> Kept {
        Shared::adder(&mut self.shared.adder, order, format)
    }

    fn keep(&mut self, kept: Kept) {
        self.shared.adder = Some(kept);
    }

    fn rank(&self) -> usize {
        self.shared.arena.rank()
    }

    fn ranks(&self) -> usize {
        self.shared.arena.ranks()
    }

    fn slot_bytes(&self) -> usize {
        self.shared.arena.slot_bytes()
    }

    /// Bytes of a slot used by operations that only copy: shorter rounds, so that one rank reads while the other
    /// writes.
    fn moved_bytes(&self) -> usize {
        self.slot_bytes().min(MOVED_BYTES_MAX)
    }

    /// All other ranks, starting after this one.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, ranks) = (self.rank(), self.ranks());
        (rank + 1..ranks).chain(0..rank)
    }

    /// Waits until the own slot of the next round is free, and returns it.
    #[inline]
    fn open(&mut self) -> Result<&mut [u8], MeshError> {
        let Shared { arena, ranks, .. } = &mut *self.shared;
        let opened = waiting(self.core, ranks, (self.deadline, self.here), |waiting| {
            arena.open(waiting).map(drop)
        });
        match opened {
            Ok(()) => Ok(self.shared.arena.parts().0),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// The own open slot, and the slots that the ranks have published.
    #[inline]
    fn parts(&mut self) -> (&mut [u8], Slots<'_>) {
        self.shared.arena.parts()
    }

    /// Like [`Rounds::publish`], for a rank that waits next.
    #[inline]
    fn hand_over(&mut self, word: u64) {
        self.shared.arena.hand_over(stamp((self.sequence, self.fingerprint), word));
    }

    #[inline]
    fn publish(&mut self, word: u64) {
        self.shared.arena.publish(stamp((self.sequence, self.fingerprint), word));
    }

    /// As [`Rounds::publish`] where the other one of two ranks answers in our slot.
    #[inline]
    fn publish_to_be_answered(&mut self) {
        let stamp = stamp((self.sequence, self.fingerprint), 0);
        self.shared.arena.publish(Stamp { answered: true, ..stamp });
    }

    /// Waits until all ranks have published the last round.
    #[inline]
    fn await_all(&mut self) -> Result<(), MeshError> {
        let Shared { arena, ranks, .. } = &mut *self.shared;
        let outcome = waiting(self.core, ranks, (self.deadline, self.here), |waiting| {
            arena.await_all(waiting)
        });
        outcome.map_err(|error| self.failed(error))
    }

    /// Waits until one rank has published it.
    #[inline]
    fn await_rank(&mut self, rank: usize) -> Result<(), MeshError> {
        let Shared { arena, ranks, .. } = &mut *self.shared;
        let outcome = waiting(self.core, ranks, (self.deadline, self.here), |waiting| {
            arena.await_rank(rank, waiting)
        });
        outcome.map_err(|error| self.failed(error))
    }

    #[cold]
    fn failed(&mut self, error: ArenaError) -> MeshError {
        let name = |place: u32| self.shared.ranks[place as usize];
        let names = |places: Vec<u32>| places.into_iter().map(name).collect::<Vec<u32>>();
        match error {
            ArenaError::Timeout { missing } => {
                self.missing = names(missing);
                MeshError::Timeout
            }
            ArenaError::Stopped { missing } => {
                let missing = names(missing);
                let left = missing.iter().copied().find(|&rank| self.core.mesh.has_left(rank));
                self.missing = missing;
                match (self.core.failure(), left) {
                    (Some(_), _) => MeshError::Cancelled,
                    (None, Some(rank)) => MeshError::Left { rank },
                    (None, None) => MeshError::Aborted("the caller was interrupted".to_owned()),
                }
            }
            ArenaError::Differs { rank, call } => {
                // Sequence numbers of the two, as far as 32 bits identify them; the ranks differ from the lower one on.
                let ahead = ((call >> 32) as u32).wrapping_sub(self.sequence as u32) as i32;
                let parted = self.sequence.saturating_add_signed(i64::from(ahead.min(0)));
                self.missing = vec![name(rank)];
                self.core.events.differs(parted);
                match self.core.await_failure(self.deadline) {
                    true => MeshError::Cancelled,
                    false => MeshError::Timeout,
                }
            }
        }
    }
}

#[inline]
fn waiting<T>(
    core: &Core,
    ranks: &[u32],
    (deadline, here): (Instant, Option<Here>),
    body: impl FnOnce(&Waiting<'_>) -> T,
) -> T {
    let stopped = |place: usize| {
        core.failure().is_some()
            || core.mesh.has_left(ranks[place])
            || here.is_some_and(|here| (here.interrupted)())
    };
    body(&Waiting { deadline, stopped: &stopped })
}
