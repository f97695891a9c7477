//! From recorded operations to a schedule: what a rank did in between, and for what it waited.
//!
//! A recording says when a rank called each operation and when that ended, but not where it waited. An operation that
//! ended while the rank surely computed has held nothing up: all that follows the next call waits for it. Any other
//! that had ended when the next call came counts as waited for: the rank's last computing before the end goes on after
//! it. The rest of the time is computing. An operation that was still running then overlaps with it, as it did.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use super::{Builder, Collective, Op, ScheduleError};

/// An operation of one rank, with times in picoseconds of its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Its name in the source.
    pub name: u64,
    /// When it was called.
    pub called_ps: u64,
    /// When it had ended; not before.
    pub ended_ps: u64,
    /// What it was.
    pub kind: Collective,
    /// Index of its group.
    pub group: u32,
    /// Bytes of the whole buffer.
    pub bytes: u64,
}

/// What one rank did, with times in picoseconds of its clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// In the order of their calls.
    pub operations: Vec<Observed>,
    /// When the rank surely computed: beginnings and ends in ascending order.
    pub busy: Vec<(u64, u64)>,
    /// When the rank began to compute, and when it ended; `None`: with its first call, and with its last one.
    pub span: Option<(u64, u64)>,
}

/// Adds the nodes of a rank for those of its operations that are in `window`. Of those before only the times matter.
pub fn add(
    builder: &mut Builder,
    rank: u32,
    timeline: &Timeline,
    window: Range<usize>,
) -> Result<(), ScheduleError> {
    let Timeline { operations, busy, span } = timeline;
    let begin_ps = span.map(|(begin_ps, _)| begin_ps).filter(|_| window.start == 0);
    let end_ps = span.map(|(_, end_ps)| end_ps).filter(|_| window.end == operations.len());
    let running = BinaryHeap::new();
    let (waits, later, computed_ps) = (Vec::new(), Vec::new(), 0);
    let mut way = Way { builder, rank, busy, at_ps: begin_ps, computed_ps, waits, later, running };
    for (at, operation) in operations[..window.end].iter().enumerate() {
        let inside = window.contains(&at);
        way.advance(operation.called_ps, inside.then_some(operation.name))?;
        let node = if inside { Some(way.call(operation)?) } else { None };
        if !inside {
            way.computed_ps = 0;
        }
        way.running.push(Reverse((operation.ended_ps.max(operation.called_ps), node)));
    }
    if let (Some(end_ps), Some(last)) = (end_ps, operations.last()) {
        way.advance(end_ps, Some(last.name))?;
        if way.computed_ps > 0 {
            way.compute(last.name)?;
        }
    }
    Ok(())
}

/// A rank's way through its timeline.
struct Way<'a> {
    builder: &'a mut Builder,
    rank: u32,
    busy: &'a [(u64, u64)],
    /// Until when the time is accounted for.
    at_ps: Option<u64>,
    /// Computing that is in no node yet.
    computed_ps: u64,
    /// Nodes for which the next computing waits.
    waits: Vec<u32>,
    /// Operations that ended while the rank computed since its last call.
    later: Vec<u32>,
    /// Operations that had not ended; those before the window have no node.
    running: BinaryHeap<Reverse<(u64, Option<u32>)>>,
}

impl Way<'_> {
    /// Goes on until `to_ps`. `name`: of nodes that are needed on the way, if there are to be any.
    fn advance(&mut self, to_ps: u64, name: Option<u64>) -> Result<(), ScheduleError> {
        let mut at_ps = self.at_ps.unwrap_or(to_ps);
        while let Some(&Reverse((end_ps, node))) = self.running.peek()
            && end_ps <= to_ps
        {
            self.running.pop();
            let Some(idle_ps) = self.idle_since(end_ps) else {
                self.later.extend(node);
                continue;
            };
            let before_ps = idle_ps.saturating_sub(at_ps);
            self.computed_ps += before_ps;
            if let Some(name) = name.filter(|_| before_ps > 0) {
                self.compute(name)?;
            }
            self.waits.extend(node);
            at_ps = at_ps.max(end_ps);
        }
        self.computed_ps += to_ps.saturating_sub(at_ps);
        self.at_ps = Some(at_ps.max(to_ps));
        Ok(())
    }

    /// Since when the rank had not surely computed, 0 for never; `None` if it computed then.
    fn idle_since(&self, ps: u64) -> Option<u64> {
        let begun = self.busy.partition_point(|&(begin_ps, _)| begin_ps < ps);
        let Some(&(_, end_ps)) = begun.checked_sub(1).and_then(|at| self.busy.get(at)) else {
            return Some(0);
        };
        (end_ps <= ps).then_some(end_ps)
    }

    /// Adds the computing so far.
    fn compute(&mut self, name: u64) -> Result<u32, ScheduleError> {
        let ps = std::mem::take(&mut self.computed_ps);
        let computing = self.builder.add(self.rank, name, Op::Compute { ps, unit: 0 })?;
        for before in self.waits.drain(..) {
            self.builder.wait(self.rank, computing, before, false)?;
        }
        self.waits.push(computing);
        Ok(computing)
    }

    /// Adds the computing so far, and an operation after it.
    fn call(&mut self, operation: &Observed) -> Result<u32, ScheduleError> {
        let computing = self.compute(operation.name)?;
        let Observed { name, kind, group, bytes, .. } = *operation;
        let op = Op::Collective { kind, group, bytes, number: 0 };
        let communicating = self.builder.add(self.rank, name, op)?;
        self.builder.wait(self.rank, communicating, computing, false)?;
        self.waits.append(&mut self.later);
        Ok(communicating)
    }
}
