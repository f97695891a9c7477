//! Operations within a host that start on the caller's thread: those that fit into one round, and small asynchronous
//! sums.
//!
//! The caller publishes its values first and records the operation meanwhile: the transfer of a cache line between
//! cores takes longer than the recording. If all ranks arrive within a short time, the operation completes at once, or
//! the caller completes it; otherwise it continues as any other, on the operation queue unless the caller waits.

use std::time::{Duration, Instant};

use netsum_net::Buffer;
use netsum_wire::Format;
use parking_lot::MutexGuard;

use super::Group;
use crate::call::Call;
use crate::combine::{Combine, check_combination, conclude, prepare};
use crate::comm::Comm;
use crate::deadline::after;
use crate::queue::{Body, Idle, Job, QueueState};
use crate::shared::{self, SMALL_MAX};
use crate::terms::Terms;
use crate::work::{OperationSummary, Work};

/// The buffer to reduce, if any.
pub(super) struct Small<'a> {
    pub(super) format: Format,
    pub(super) how: Combine,
    pub(super) buffer: &'a mut Buffer,
}

/// A started operation.
struct StartedCall<'a> {
    call: &'a Call,
    fingerprint: u32,
    called: Instant,
    sum: Option<Small<'a>>,
    /// Whether all ranks have started it.
    all: bool,
}

impl Group {
    /// Performs or starts a quick operation; returns `None` without effect if the operation is not quick, or not the
    /// next. `sum`: `None` for a barrier.
    #[inline]
    pub(super) fn at_once(
        &self,
        call: &Call,
        terms: Terms,
        mut sum: Option<Small<'_>>,
    ) -> Option<Work> {
        let bytes = sum.as_ref().map_or(0, |sum| sum.buffer.len());
        // The ordinary path reports the error.
        if !self.maker.is_this() {
            return None;
        }
        let adds = |sum: &Small<'_>| check_combination(sum.format.dtype, sum.how).is_ok();
        if bytes > if terms.waits { SMALL_MAX } else { EARLY_MAX } || !sum.as_ref().is_none_or(adds)
        {
            return None;
        }
        let fingerprint = call.fingerprint();
        let mut state = self.state.lock();
        let Idle { next, shared, quick } = state.idle().filter(|idle| idle.shared.can_begin())?;
        // A caller that does not wait can poll for a short time, but must not yield its core to other ranks.
        if !terms.waits && (shared.is_oversubscribed() || !shared.begins(bytes)) {
            return None;
        }
        let sequence = *next;
        match &mut sum {
            None => shared.begin((sequence, fingerprint), &[]),
            Some(Small { format, how, buffer }) => {
                prepare(*how, format.dtype, buffer);
                match bytes <= SMALL_MAX {
                    true => shared.begin((sequence, fingerprint), buffer.slice(0..bytes)),
                    false => shared.begin_sum((sequence, fingerprint), buffer),
                }
            }
        }
        // No locked instruction until all ranks have arrived: it would stall until this core owns the cache line of its
        // flag.
        *next += 1;
        let called = Instant::now();
        quick.log(call, called);
        let mut all = shared.all_appear();
        while !all && !terms.waits && called.elapsed() < POLL_TIME {
            all = shared.all_appear();
        }
        if !all || bytes > SMALL_MAX {
            let started = StartedCall { call, fingerprint, called, sum, all };
            return Some(self.finish(started, terms, state));
        }
        if let Some(Small { format, how, buffer }) = sum {
            shared.add(&quick.order, format, buffer);
            conclude(how, format.dtype, buffer, shared.ranks() as u32);
        }
        state.ended_at_once += 1;
        Some(Work::ended_at_once(OperationSummary::Collective(call.clone(), sequence), called))
    }

    /// Completes an operation that needs more than the first round, or that not all ranks started in time.
    #[cold]
    fn finish(
        &self,
        started: StartedCall<'_>,
        terms: Terms,
        mut state: MutexGuard<'_, QueueState>,
    ) -> Work {
        let StartedCall { call, fingerprint, called, sum, all } = started;
        let (sequence, queue) = state.move_to_queue();
        let core = queue.core();
        if core.ledger.enter(sequence, call.clone(), fingerprint) {
            core.events.differs(sequence);
        }
        let work = Work::new(OperationSummary::Collective(call.clone(), sequence), called);
        core.recorder.add(&work);
        let order = core.order.load_full();
        let sum = sum.map(|Small { format, how, buffer }| (format, how, buffer.lend_all()));
        let body = move |comm: &mut Comm<'_>| {
            let rounds = comm.memory()?;
            let Some((format, how, mut buffer)) = sum else { return shared::wait(rounds) };
            shared::finish(rounds, &order, format, &mut buffer)?;
            conclude(how, format.dtype, &mut buffer, comm.size());
            Ok(())
        };
        let (deadline, running) = (after(called, terms.timeout), work.clone());
        if terms.waits || all {
            let turn = queue.turn(&mut state).expect("it was idle, and is locked");
            drop(state);
            let here = Some(terms.here);
            turn.run(Job { sequence, fingerprint, deadline, work: running, here, body });
        } else {
            let body: Body = Box::new(body);
            let job = Job { sequence, fingerprint, deadline, work: running, here: None, body };
            queue.push_at(state, job);
        }
        work
    }
}

/// How long a caller that does not wait polls for the other ranks: less than the time to wake the queue's thread, which
/// costs both threads 20 to 100 µs.
const POLL_TIME: Duration = Duration::from_micros(50);
/// Up to this size adding takes no longer than handing over to the queue. Larger buffers are queued, so that the caller
/// can compute meanwhile.
const EARLY_MAX: usize = 1 << 20;
