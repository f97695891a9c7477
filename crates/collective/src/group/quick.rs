//! Operations of one round between ranks of a host, on the thread of their caller.
//!
//! The values go out first, and what is to be written down is written while they travel: a line of memory takes longer from
//! one core to another than all of that. If everybody comes within a moment, that was all; if not, the operation goes
//! on as any other one, where it is.

use std::time::Instant;

use netsum_net::Buffer;
use netsum_wire::Format;
use parking_lot::MutexGuard;

use super::connected::Connected;
use super::operations::{conclude, prepare};
use crate::call::{Call, Combine};
use crate::comm::Comm;
use crate::coordinator::Event;
use crate::core::after;
use crate::lane::{Desk, Job};
use crate::shared::{self, SMALL_MAX};
use crate::terms::Terms;
use crate::work::{Operation, Work};

/// What is added, if anything.
pub(super) struct Small<'a> {
    pub(super) format: Format,
    pub(super) how: Combine,
    pub(super) buffer: &'a mut Buffer,
}

impl Connected {
    /// Whether an operation on so many bytes may be given to [`Connected::at_once`].
    #[inline]
    pub(super) fn is_quick(&self, terms: Terms, bytes: usize) -> bool {
        self.silent && terms.here.is_some() && bytes <= SMALL_MAX
    }

    /// Does a quick operation; `None`, and nothing has happened, if others are before it. `sum`: `None` for a barrier.
    #[inline]
    pub(super) fn at_once(
        &self,
        call: &Call,
        terms: Terms,
        mut sum: Option<Small<'_>>,
    ) -> Option<Work> {
        let fingerprint = call.fingerprint();
        let mut desk = self.lane.desk();
        let (sequence, shared) = desk.idle().filter(|(_, shared)| shared.can_begin())?;
        match &sum {
            None => shared.begin((sequence, fingerprint), &[]),
            Some(Small { format, how, buffer }) => {
                prepare(*how, format.dtype, buffer);
                shared.begin((sequence, fingerprint), buffer.slice(0..buffer.len()));
            }
        }
        let called = Instant::now();
        // No messages belong to it, which is all that a live entry is for.
        let told = self.core.ledger.enter(desk.number(), call.clone(), fingerprint, false);
        let operation = Operation::Collective(call.clone(), sequence);
        let work = Work::ended_at_once(operation, called);
        self.core.recorder.add(&work);
        if told {
            self.coordinator.tell(Event::Differs(sequence));
        }
        if let Some((_, shared)) = desk.idle()
            && shared.all_appear()
        {
            if let Some(Small { format, how, buffer }) = &mut sum {
                shared.add(|| self.core.order.load_full(), *format, buffer);
                conclude(*how, format.dtype, buffer, self.core.size);
            }
            desk.ended_here += 1;
            return Some(work);
        }
        Some(self.go_on(call, (sequence, fingerprint), terms, called, desk, sum))
    }

    /// The rest of an operation of which not everybody has come within a moment.
    #[cold]
    fn go_on(
        &self,
        call: &Call,
        (sequence, fingerprint): (u64, u32),
        terms: Terms,
        called: Instant,
        mut desk: MutexGuard<'_, Desk>,
        sum: Option<Small<'_>>,
    ) -> Work {
        let work = Work::new(Operation::Collective(call.clone(), sequence), called);
        self.core.recorder.amend(sequence, &work);
        let turn = self.lane.turn(&mut desk).expect("it was idle, and is locked");
        drop(desk);
        let order = self.core.order.load_full();
        let body = |comm: &mut Comm<'_>| {
            let rounds = comm.memory()?;
            let Some(Small { format, how, buffer }) = sum else { return shared::wait(rounds) };
            shared::finish(rounds, &order, format, buffer)?;
            conclude(how, format.dtype, buffer, comm.size());
            Ok(())
        };
        let deadline = after(called, terms.timeout);
        let (here, work_then) = (terms.here, work.clone());
        turn.run(Job { sequence, fingerprint, deadline, work: work_then, here, body });
        work
    }
}
