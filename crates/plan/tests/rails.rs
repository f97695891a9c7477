//! One root's data over many servers: along chains of them, at the rate of their interfaces.

use netsum_plan::pack::pack;
use netsum_plan::program::verify_plan;
use netsum_topo::links::{Collective, built};

/// Up to 128 GPUs the exact programme starts from these trees, beyond there are no others.
#[test]
fn servers_reach_the_bound() {
    for machine in ["a100x8", "a100x16", "a100x20", "h100x20"] {
        let graph = built(machine).unwrap();
        for collective in [
            Collective::Broadcast { root: 11 },
            Collective::Reduce { root: 11 },
            Collective::Allgather,
            Collective::ReduceScatter,
            Collective::Allreduce,
        ] {
            let packed = pack(&graph, collective).unwrap();
            verify_plan(&graph, &packed.plan(&graph)).unwrap();
            let bound = packed.bound.as_ref().expect("cuts give one").rate;
            assert_eq!(packed.rate, bound, "{machine} {collective:?}");
        }
    }
}
