//! The operations of the host path: a registry of algorithms for each, and the functions that run them.

use netsum_net::mesh::MeshError;

use super::registry::{Names, Registry};
use super::request::{
    Allgather, Allreduce, Alltoall, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
};
use super::{bruck, chain, exchange, halving_doubling, hierarchical, in_memory, ring};
use crate::comm::Comm;

pub(crate) static ALLREDUCE: Registry<Allreduce> = Registry {
    operation: "allreduce",
    in_memory: in_memory::ALLREDUCE,
    alone: "one-hop",
    over_mesh: &[
        super::allreduce::ONE_HOP,
        super::allreduce::SHARES,
        halving_doubling::ALGORITHM,
        ring::ALLREDUCE,
        hierarchical::ALLREDUCE,
    ],
};
pub(crate) static ALLGATHER: Registry<Allgather> = Registry {
    operation: "allgather",
    in_memory: in_memory::ALLGATHER,
    alone: "one-hop",
    over_mesh: &[exchange::ALLGATHER, bruck::ALLGATHER, ring::ALLGATHER, hierarchical::ALLGATHER],
};
pub(crate) static BROADCAST: Registry<Broadcast> = Registry {
    operation: "broadcast",
    in_memory: in_memory::BROADCAST,
    alone: "binomial",
    over_mesh: &[
        super::broadcast::BINOMIAL,
        super::broadcast::ONE_HOP,
        chain::BROADCAST,
        hierarchical::BROADCAST,
    ],
};
pub(crate) static REDUCE: Registry<Reduce> = Registry {
    operation: "reduce",
    in_memory: in_memory::REDUCE,
    alone: "one-hop",
    over_mesh: &[super::reduce::REDUCE, hierarchical::REDUCE],
};
pub(crate) static REDUCE_SCATTER: Registry<ReduceScatter> = Registry {
    operation: "reduce_scatter",
    in_memory: in_memory::REDUCE_SCATTER,
    alone: "one-hop",
    over_mesh: &[super::reduce::REDUCE_SCATTER, hierarchical::REDUCE_SCATTER],
};
pub(crate) static GATHER: Registry<Gather> = Registry {
    operation: "gather",
    in_memory: in_memory::GATHER,
    alone: "one-hop",
    over_mesh: &[exchange::GATHER, hierarchical::GATHER],
};
pub(crate) static SCATTER: Registry<Scatter> = Registry {
    operation: "scatter",
    in_memory: in_memory::SCATTER,
    alone: "one-hop",
    over_mesh: &[exchange::SCATTER, hierarchical::SCATTER],
};
pub(crate) static ALLTOALL: Registry<Alltoall> = Registry {
    operation: "alltoall",
    in_memory: in_memory::ALLTOALL,
    alone: "one-hop",
    over_mesh: &[exchange::ALLTOALL, hierarchical::ALLTOALL],
};
pub(crate) static BARRIER: Registry<Barrier> = Registry {
    operation: "barrier",
    in_memory: in_memory::BARRIER,
    alone: "dissemination",
    over_mesh: &[super::barrier::DISSEMINATION, hierarchical::BARRIER],
};

static REGISTRIES: [&dyn Names; 9] = [
    &ALLREDUCE,
    &ALLGATHER,
    &BROADCAST,
    &REDUCE,
    &REDUCE_SCATTER,
    &GATHER,
    &SCATTER,
    &ALLTOALL,
    &BARRIER,
];

/// Names of the algorithms of an operation that has several.
pub(crate) fn names(operation: &str) -> Option<Vec<&'static str>> {
    let registry = REGISTRIES.iter().find(|registry| registry.operation() == operation);
    registry.map(|registry| registry.names())
}

/// Operations with several algorithms, by the names of options.
pub(crate) fn operations() -> String {
    REGISTRIES.map(|registry| registry.operation()).join(", ")
}

/// Adds all ranks' buffers, in place.
pub(crate) fn allreduce(comm: &mut Comm<'_>, sum: &mut Allreduce) -> Result<(), MeshError> {
    ALLREDUCE.run(comm, sum)
}

/// Copies every rank's input to all ranks' outputs, by rank.
pub(crate) fn allgather(comm: &mut Comm<'_>, gather: &mut Allgather) -> Result<(), MeshError> {
    ALLGATHER.run(comm, gather)
}

/// Copies the root's buffer to all ranks.
pub(crate) fn broadcast(comm: &mut Comm<'_>, cast: &mut Broadcast) -> Result<(), MeshError> {
    BROADCAST.run(comm, cast)
}

/// Adds all ranks' buffers into the root's; the others are unchanged.
pub(crate) fn reduce(comm: &mut Comm<'_>, reduction: &mut Reduce) -> Result<(), MeshError> {
    REDUCE.run(comm, reduction)
}

/// Adds all ranks' `inputs[rank]` into `output`.
pub(crate) fn reduce_scatter(
    comm: &mut Comm<'_>,
    all: &mut ReduceScatter,
) -> Result<(), MeshError> {
    REDUCE_SCATTER.run(comm, all)
}

/// Copies every rank's input to the root's outputs.
pub(crate) fn gather(comm: &mut Comm<'_>, collect: &mut Gather) -> Result<(), MeshError> {
    GATHER.run(comm, collect)
}

/// Copies the root's inputs to the ranks' outputs.
pub(crate) fn scatter(comm: &mut Comm<'_>, deal: &mut Scatter) -> Result<(), MeshError> {
    SCATTER.run(comm, deal)
}

/// Copies input i of rank r to output r of rank i.
pub(crate) fn alltoall(comm: &mut Comm<'_>, exchange: &mut Alltoall) -> Result<(), MeshError> {
    ALLTOALL.run(comm, exchange)
}

/// Returns when all ranks have called it.
pub(crate) fn barrier(comm: &mut Comm<'_>) -> Result<(), MeshError> {
    BARRIER.run(comm, &mut Barrier)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use netsum_topo::SumOrder;
    use netsum_wire::{Dtype, Format, ReduceOp};

    use super::*;
    use crate::algorithm::request::{GatherShape, Request, SumShape};
    use crate::link_cost::LinkCost;

    fn chosen(ranks: u32, bytes: usize, dtype: Dtype, wanted: Option<&str>) -> &'static str {
        let link = LinkCost {
            ranks,
            shared_memory: false,
            latency_s: 30e-6,
            bytes_per_s: 1.25e9,
            by_distance: Vec::new(),
            across: None,
        };
        let format = Format { dtype, op: ReduceOp::Sum };
        let order = Arc::new(SumOrder::flat(ranks));
        ALLREDUCE.choose(wanted, &link, &SumShape { order, format, bytes }).name
    }

    #[test]
    fn sums_cross_links_that_ranks_share_seldom() {
        // Two racks of four, each with a link as fast as a rank's: of all with all, 16 of 28 pairs share one.
        let link = LinkCost {
            ranks: 8,
            shared_memory: false,
            latency_s: 1e-4,
            bytes_per_s: 12.5e6 * 7.0 / 16.0,
            by_distance: vec![12.5e6, 12.5e6, 12.5e6 / 4.0],
            across: None,
        };
        let of = |bytes| {
            let format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };
            let order = Arc::new(SumOrder::flat(8));
            let shape = SumShape { order, format, bytes };
            (ALLREDUCE.choose(None, &link, &shape).name, ALLREDUCE.seconds(None, &link, &shape))
        };
        assert_eq!(of(64).0, "one-hop");
        let (name, seconds) = of(64 << 20);
        // The rank's own link carries 1.75 times the buffer each way.
        let least = 1.75 * f64::from(64 << 20) / 12.5e6;
        assert_eq!(name, "halving-doubling");
        let gathered = |bytes| {
            let pieces = GatherShape { all: 8 * bytes, longest: bytes };
            ALLGATHER.choose(None, &link, &pieces).name
        };
        assert_eq!([64, 1 << 20].map(gathered), ["one-hop", "ring"]);
        assert!((1.0..1.1).contains(&(seconds / least)), "{seconds} s, at least {least}");
    }

    #[test]
    fn every_registry_finds_its_algorithms_by_unique_names() {
        fn check<R: Request>(registry: &Registry<R>) {
            let names = registry.names();
            for (index, name) in names.iter().enumerate() {
                assert_eq!(names.iter().position(|other| other == name), Some(index));
                assert!(registry.find(name).is_some_and(|found| found.name == *name));
            }
            assert_eq!(registry.in_memory.name, "shared-memory");
            // A group of one rank has no shared memory.
            assert_ne!(registry.alone, "shared-memory");
            assert!(registry.find(registry.alone).is_some(), "{}", registry.operation);
        }
        check(&ALLREDUCE);
        check(&ALLGATHER);
        check(&BROADCAST);
        check(&REDUCE);
        check(&REDUCE_SCATTER);
        check(&GATHER);
        check(&SCATTER);
        check(&ALLTOALL);
        check(&BARRIER);
        assert!(names("allreduce").unwrap().contains(&"ring") && names("send").is_none());
    }

    #[test]
    fn the_cheapest_is_chosen_unless_options_name_another_that_is_possible() {
        assert_eq!(chosen(4, 64, Dtype::F32, None), "one-hop");
        assert_eq!(chosen(4, 16 << 20, Dtype::F32, None), "shares");
        assert_eq!(chosen(4, 64, Dtype::F32, Some("halving-doubling")), "halving-doubling");
        assert_eq!(chosen(4, 64, Dtype::I32, Some("ring")), "ring");
        // Ring would add in another order.
        assert_eq!(chosen(4, 64, Dtype::F32, Some("ring")), "one-hop");
        assert_eq!(chosen(4, 64, Dtype::F32, Some("shared-memory")), "one-hop");
    }
}
