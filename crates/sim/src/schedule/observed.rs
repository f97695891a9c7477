//! From recorded operations to a schedule: what a rank did in between, and for what it waited.
//!
//! A recording says when a rank called each operation and when that ended, but not where it waited. Whatever had ended
//! when the next call came counts as waited for, and the time between is computing: it begins with the last call, or
//! with the last end after that. An operation that was still running then overlaps with computing, as it did.

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

/// Adds the nodes of a rank for those of its operations, in the order of their calls, that are in `window`. Of those
/// before only the times matter.
pub fn add(
    builder: &mut Builder,
    rank: u32,
    operations: &[Observed],
    window: Range<usize>,
) -> Result<(), ScheduleError> {
    // Operations for which nothing has waited yet, by their ends; those before the window have no node.
    let mut running: BinaryHeap<Reverse<(u64, Option<u32>)>> = BinaryHeap::new();
    let mut last: Option<(u64, Option<u32>)> = None;
    for (at, operation) in operations[..window.end].iter().enumerate() {
        let called_ps = operation.called_ps;
        let mut from_ps = last.map_or(called_ps, |(ps, _)| ps);
        let mut ended = Vec::new();
        while let Some(&Reverse((end_ps, node))) = running.peek()
            && end_ps <= called_ps
        {
            running.pop();
            from_ps = from_ps.max(end_ps);
            ended.extend(node);
        }
        let mut call = None;
        let mut node = None;
        if window.contains(&at) {
            let ps = called_ps.saturating_sub(from_ps);
            let computing = builder.add(rank, operation.name, Op::Compute { ps, unit: 0 })?;
            if let Some((_, Some(before))) = last {
                builder.wait(rank, computing, before, false)?;
            }
            for before in ended {
                builder.wait(rank, computing, before, false)?;
            }
            let Observed { kind, group, bytes, .. } = *operation;
            let op = Op::Collective { kind, group, bytes, number: 0 };
            let communicating = builder.add(rank, operation.name, op)?;
            builder.wait(rank, communicating, computing, false)?;
            (call, node) = (Some(computing), Some(communicating));
        }
        running.push(Reverse((operation.ended_ps.max(called_ps), node)));
        last = Some((called_ps, call));
    }
    Ok(())
}
