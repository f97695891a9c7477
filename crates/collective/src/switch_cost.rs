//! Costs of operations through switches and between hosts, as measured when the group connected, and the choice that
//! follows from them.

use std::collections::BTreeMap;
use std::sync::Arc;

use netsum_topo::SumOrder;
use netsum_wire::{Dtype, Format, ReduceOp};
use serde::Serialize;

use crate::algorithm::{
    ALLGATHER, ALLREDUCE, BARRIER, BROADCAST, GatherShape, REDUCE, REDUCE_SCATTER, ScatterShape,
    SumShape,
};
use crate::link_cost::LinkCost;

/// A collective that switches can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Sums at all ranks.
    Allreduce,
    /// Sums at the root.
    Reduce,
    /// A part of the sums at each rank.
    ReduceScatter,
    /// The root's values at all ranks.
    Broadcast,
    /// All ranks' values at all ranks.
    Allgather,
    /// No values.
    Barrier,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 6] = [
        Operation::Allreduce,
        Operation::Reduce,
        Operation::ReduceScatter,
        Operation::Broadcast,
        Operation::Allgather,
        Operation::Barrier,
    ];

    /// As options name it.
    pub const fn name(self) -> &'static str {
        match self {
            Operation::Allreduce => "allreduce",
            Operation::Reduce => "reduce",
            Operation::ReduceScatter => "reduce_scatter",
            Operation::Broadcast => "broadcast",
            Operation::Allgather => "allgather",
            Operation::Barrier => "barrier",
        }
    }

    /// The one that options name so.
    pub fn named(name: &str) -> Option<Operation> {
        Operation::ALL.into_iter().find(|operation| operation.name() == name)
    }
}

/// Costs of operations through switches and between the hosts; equal at all ranks. An operation that is missing was not
/// measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct SwitchCost(pub BTreeMap<Operation, OperationCost>);

/// Times of an operation, from the call to its end at the slowest rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OperationCost {
    /// Through switches.
    pub switches: Curve,
    /// Between the hosts, by the algorithm of the least modelled cost.
    pub hosts: Curve,
}

/// Measured seconds by bytes of all elements, ascending.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Curve(pub Vec<(usize, f64)>);

impl Curve {
    /// Seconds of so many bytes: between two measured sizes in proportion, below them as the smallest, above them with
    /// the rate of the two largest. Infinite if nothing was measured.
    pub fn seconds(&self, bytes: usize) -> f64 {
        let Some(&(least, first_s)) = self.0.first() else { return f64::INFINITY };
        if bytes <= least {
            return first_s;
        }
        for pair in self.0.windows(2) {
            let [(from, from_s), (to, to_s)] = [pair[0], pair[1]];
            if bytes <= to {
                let share = (bytes - from) as f64 / (to - from) as f64;
                return from_s + share * (to_s - from_s);
            }
        }
        let (most, last_s) = self.0[self.0.len() - 1];
        let before = self.0.len().checked_sub(2).map_or((0, 0.0), |place| self.0[place]);
        let slope = (last_s - before.1) / (most - before.0).max(1) as f64;
        // A disturbance of the smaller of the two must not make more bytes free.
        let slope = slope.max(last_s / most.max(1) as f64 / 2.0);
        last_s + (bytes - most) as f64 * slope
    }
}

/// What the modelled cost of an operation between the hosts depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HostShape {
    pub(crate) operation: Operation,
    pub(crate) format: Format,
    /// Of all elements.
    pub(crate) bytes: usize,
    /// Of the longest rank's part, if each rank has one.
    pub(crate) longest: usize,
}

impl HostShape {
    /// Of an operation as it is measured: float32, equal parts.
    pub(crate) fn measured(operation: Operation, ranks: u32, bytes: usize) -> HostShape {
        let (format, longest) = match operation {
            Operation::Broadcast | Operation::Barrier => (COPIED, bytes),
            Operation::Allgather => (COPIED, bytes.div_ceil(ranks.max(1) as usize)),
            Operation::ReduceScatter => (SUMMED, bytes.div_ceil(ranks.max(1) as usize)),
            Operation::Allreduce | Operation::Reduce => (SUMMED, bytes),
        };
        HostShape { operation, format, bytes, longest }
    }

    /// Seconds by the cost model. `named`: the algorithm of an operation that options name.
    pub(crate) fn seconds<'a>(
        &self,
        link: &LinkCost,
        order: Arc<SumOrder>,
        named: impl Fn(&str) -> Option<&'a str>,
    ) -> f64 {
        let HostShape { operation, format, bytes, longest } = *self;
        let named = named(operation.name());
        match operation {
            Operation::Allreduce => {
                ALLREDUCE.seconds(named, link, &SumShape { order, format, bytes })
            }
            Operation::Reduce => REDUCE.seconds(named, link, &SumShape { order, format, bytes }),
            Operation::ReduceScatter => {
                REDUCE_SCATTER.seconds(named, link, &ScatterShape { order, format, longest })
            }
            Operation::Broadcast => BROADCAST.seconds(named, link, &bytes),
            Operation::Allgather => {
                ALLGATHER.seconds(named, link, &GatherShape { longest, all: bytes })
            }
            Operation::Barrier => BARRIER.seconds(named, link, &()),
        }
    }
}

/// Bits are copied in words of four bytes.
pub(crate) const COPIED: Format = Format { dtype: Dtype::I32, op: ReduceOp::Sum };
/// The sums that are measured.
const SUMMED: Format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_pass_through_what_was_measured() {
        let curve = Curve(vec![(8, 1.0), (108, 2.0), (1108, 4.0)]);
        for (bytes, seconds) in
            [(0, 1.0), (8, 1.0), (58, 1.5), (108, 2.0), (608, 3.0), (1108, 4.0), (2108, 6.0)]
        {
            assert!((curve.seconds(bytes) - seconds).abs() < 1e-12, "{bytes}");
        }
        assert_eq!(Curve(vec![(0, 0.5)]).seconds(0), 0.5, "a barrier");
        assert_eq!(Curve::default().seconds(8), f64::INFINITY);
    }

    #[test]
    fn more_bytes_than_were_measured_are_never_free() {
        // The smaller size was disturbed, and took longer than the larger one.
        let curve = Curve(vec![(8, 1.0), (1000, 9.0), (4000, 8.0)]);
        assert!((curve.seconds(8000) - 12.0).abs() < 1e-9, "{}", curve.seconds(8000));
        let one = Curve(vec![(1000, 2.0)]);
        assert!(one.seconds(2000) > 3.9, "in proportion: {}", one.seconds(2000));
    }

    #[test]
    fn names_are_those_of_options() {
        for operation in Operation::ALL {
            assert_eq!(Operation::named(operation.name()), Some(operation));
            let written = serde_json::to_string(&operation).unwrap();
            assert_eq!(written, format!("\"{}\"", operation.name()));
        }
        assert_eq!(Operation::named("alltoall"), None);
    }
}
