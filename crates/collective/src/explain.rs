//! Explains the choice of an operation's algorithm by the cost model.

use std::sync::Arc;

use netsum_topo::SumOrder;
use netsum_wire::Format;
use serde::Serialize;

use crate::Error;
use crate::algorithm::{
    ALLGATHER, ALLREDUCE, ALLTOALL, BARRIER, BROADCAST, GATHER, GatherShape, REDUCE,
    REDUCE_SCATTER, Registry, Request, SCATTER, ScatterShape, SumShape, operations,
};
use crate::link_cost::LinkCost;

/// The choice of an algorithm for an operation of one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// The chosen algorithm.
    pub chosen: &'static str,
    /// Reason, as text.
    pub why: &'static str,
    /// Costs of all algorithms, in the order of the registry.
    pub costs: Vec<Cost>,
}

/// The modelled cost of an algorithm.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// Name, as in options.
    pub name: &'static str,
    /// Time in seconds; `None`: the algorithm is impossible here.
    pub seconds: Option<f64>,
}

/// The algorithm for an operation (by its name in options) of `bytes` per rank on such links. The choice for gather,
/// scatter and all-to-all does not depend on the size.
///
/// `format`: of the elements of a sum. `order`: its order of additions, `None` for the default. `wanted`: the algorithm
/// that options name. Errors: an operation with a single algorithm.
pub fn explain(
    link: &LinkCost,
    operation: &str,
    format: Format,
    bytes: usize,
    order: Option<Arc<SumOrder>>,
    wanted: Option<&str>,
) -> Result<Choice, Error> {
    match operation {
        "allreduce" => {
            let order = order.unwrap_or_else(|| Arc::new(SumOrder::flat(link.ranks)));
            Ok(choice(&ALLREDUCE, link, &SumShape { order, format, bytes }, wanted))
        }
        "allgather" => {
            let all = bytes.saturating_mul(link.ranks as usize);
            Ok(choice(&ALLGATHER, link, &GatherShape { longest: bytes, all }, wanted))
        }
        "broadcast" => Ok(choice(&BROADCAST, link, &bytes, wanted)),
        "reduce" => {
            let order = order.unwrap_or_else(|| Arc::new(SumOrder::flat(link.ranks)));
            Ok(choice(&REDUCE, link, &SumShape { order, format, bytes }, wanted))
        }
        "reduce_scatter" => {
            let order = order.unwrap_or_else(|| Arc::new(SumOrder::flat(link.ranks)));
            let longest = bytes.div_ceil(link.ranks.max(1) as usize);
            Ok(choice(&REDUCE_SCATTER, link, &ScatterShape { order, format, longest }, wanted))
        }
        "gather" => Ok(choice(&GATHER, link, &(), wanted)),
        "scatter" => Ok(choice(&SCATTER, link, &(), wanted)),
        "alltoall" => Ok(choice(&ALLTOALL, link, &(), wanted)),
        "barrier" => Ok(choice(&BARRIER, link, &(), wanted)),
        _ => Err(Error::Unsupported(format!(
            "{operation} is no operation with several ways; those are {}",
            operations()
        ))),
    }
}

fn choice<R: Request + 'static>(
    all: &Registry<R>,
    link: &LinkCost,
    shape: &R::Shape,
    wanted: Option<&str>,
) -> Choice {
    let costs = all.all().map(|a| Cost { name: a.name, seconds: (a.cost)(link, shape) });
    let costs: Vec<Cost> = costs.collect();
    let chosen = all.choose(wanted, link, shape).name;
    let why = match wanted {
        Some(wanted) if wanted == chosen => "the options name it",
        Some(_) => "the one that the options name cannot do it; the least cost of the others",
        None if link.shared_memory => "all ranks share memory",
        None => "the least cost",
    };
    Choice { chosen, why, costs }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsum_wire::{Dtype, ReduceOp};

    #[test]
    fn choices_name_all_candidates_with_their_costs() {
        let link = LinkCost {
            ranks: 4,
            shared_memory: false,
            latency_s: 1e-4,
            bytes_per_s: 1e8,
            by_distance: Vec::new(),
            across: None,
        };
        let format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };
        let of = |operation, bytes, wanted| explain(&link, operation, format, bytes, None, wanted);
        let small = of("allreduce", 1000, None).unwrap();
        assert_eq!((small.chosen, small.why), ("one-hop", "the least cost"));
        let seconds = |choice: &Choice, name| {
            choice.costs.iter().find(|cost| cost.name == name).unwrap().seconds
        };
        assert_eq!(seconds(&small, "one-hop"), Some(1e-4 + 3e-5));
        assert_eq!(seconds(&small, "ring"), None, "floats are added in the group's order");
        let named = of("broadcast", 1000, Some("chain")).unwrap();
        assert_eq!((named.chosen, named.why), ("chain", "the options name it"));
        assert_eq!(of("allgather", 1 << 20, None).unwrap().costs.len(), 5);
        assert!(of("send", 0, None).unwrap_err().to_string().contains("send is no operation"));
    }
}
