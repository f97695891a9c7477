//! Operations of one round between ranks of a host, on the thread of their caller.
//!
//! The values go out first, and what is to be written down is written while they travel: a line of memory takes longer from
//! one core to another than all of that. If everybody comes within a moment, that was all; if not, the operation goes
//! on as any other one, where it is.

use std::time::Instant;

use netsum_net::Buffer;
use netsum_wire::Format;
use parking_lot::MutexGuard;

use super::Group;
use super::connected::Connected;
use super::operations::{check_combination, conclude, prepare};
use crate::call::{Call, Combine};
use crate::comm::Comm;
use crate::coordinator::Event;
use crate::core::after;
use crate::lane::{Desk, Idle, Job};
use crate::shared::{self, SMALL_MAX};
use crate::terms::Terms;
use crate::work::{Operation, Work};

/// What is added, if anything.
#[derive(Clone, Copy)]
pub(super) struct Small<'a> {
    pub(super) format: Format,
    pub(super) how: Combine,
    pub(super) buffer: &'a Buffer,
}

impl Group {
    /// Does a quick operation; `None`, and nothing has happened, if it is not one, or not the next. `sum`: `None` for a
    /// barrier.
    #[inline]
    pub(super) fn at_once(
        &self,
        call: &Call,
        terms: Terms,
        sum: Option<Small<'_>>,
    ) -> Option<Work> {
        let small = match sum {
            None => true,
            Some(Small { format, how, buffer }) => {
                buffer.len() <= SMALL_MAX && check_combination(format.dtype, how).is_ok()
            }
        };
        if terms.here.is_none() || !small {
            return None;
        }
        let fingerprint = call.fingerprint();
        let mut desk = self.desk.lock();
        let Idle { next, shared, quick } = desk.idle().filter(|idle| idle.shared.can_begin())?;
        let sequence = *next;
        match sum {
            None => shared.begin((sequence, fingerprint), &[]),
            Some(Small { format, how, buffer }) => {
                prepare(how, format.dtype, buffer);
                shared.begin((sequence, fingerprint), buffer.slice(0..buffer.len()));
            }
        }
        // No locked instruction from here until everybody has come: it would wait until the line of our flag is ours.
        *next += 1;
        let called = Instant::now();
        quick.log(call, called);
        if !shared.all_appear() {
            return Some(self.go_on(call, fingerprint, terms, called, desk, sum));
        }
        if let Some(Small { format, how, buffer }) = sum {
            shared.add(&quick.order, format, buffer);
            conclude(how, format.dtype, buffer, shared.ranks() as u32);
        }
        desk.ended_here += 1;
        Some(Work::ended_at_once(Operation::Collective(call.clone(), sequence), called))
    }

    /// The rest of an operation of which not everybody has come within a moment.
    #[cold]
    fn go_on(
        &self,
        call: &Call,
        fingerprint: u32,
        terms: Terms,
        called: Instant,
        mut desk: MutexGuard<'_, Desk>,
        sum: Option<Small<'_>>,
    ) -> Work {
        let (sequence, connected) = desk.take_up();
        let Connected { core, coordinator, lane, .. } = &*connected;
        if core.ledger.enter(sequence, call.clone(), fingerprint) {
            coordinator.tell(Event::Differs(sequence));
        }
        let work = Work::new(Operation::Collective(call.clone(), sequence), called);
        core.recorder.add(&work);
        let turn = lane.turn(&mut desk).expect("it was idle, and is locked");
        drop(desk);
        let order = core.order.load_full();
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
