//! Rates of whole machines against the known optimum.

use netsum_plan::pack::pack;
use netsum_topo::Ratio;
use netsum_topo::links::{Collective, LinkKind, built};

/// algbw in GB/s.
fn rate(machine: &str, collective: Collective) -> Ratio {
    let graph = built(machine).unwrap();
    let fast = [LinkKind::Nvlink, LinkKind::Xgmi, LinkKind::Nic, LinkKind::Link];
    let packed = pack(&graph.only(&fast).unwrap(), collective).unwrap();
    assert_eq!(Some(packed.rate), packed.bound.as_ref().map(|bound| bound.rate), "{machine}");
    packed.rate * Ratio::new(packed.net.unit_bps.into(), 8_000_000_000)
}

/// Source: ForestColl's tool gives the all-gather rates; equal shards are optimal here.
#[test]
fn known_optimum() {
    for (machine, allgather) in [
        ("dgx1p", Ratio::new(640, 7)),
        ("dgx1v", Ratio::new(1200, 7)),
        ("dgx2", Ratio::new(160, 1)),
        ("a100", Ratio::new(2400, 7)),
        ("a100x2", Ratio::new(1040, 3)),
        ("mi250", Ratio::new(2400, 7)),
        ("torus:4x4", Ratio::new(640, 3)),
    ] {
        assert_eq!(rate(machine, Collective::Allgather), allgather, "{machine}");
        let allreduce = rate(machine, Collective::Allreduce);
        assert!(allreduce >= allgather * Ratio::new(1, 2), "{machine}: {allreduce}");
    }
}
