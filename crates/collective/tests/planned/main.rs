//! Tree plans between threads, over TCP and over shared memory: every collective, results, order of additions, errors.

mod oracle;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use netsum_collective::planned::{
    Patience, PlannedError, PlannedGroup, PortAddress, Ports, Sharing,
};
use netsum_collective::{Dtype, ReduceOp};
use netsum_plan::pack::{coarse, pack, pack_phases, pack_rings};
use netsum_topo::Rate;
use netsum_topo::links::{
    Collective, LinkGraph, LinkKind, Role, TreePlan, Vertex, WeightedLink, built,
};
use proptest::prelude::*;

const LIMIT: Duration = Duration::from_secs(60);
const PATIENCE: Patience = Patience {
    connect: LIMIT,
    timeout: LIMIT,
    silence: LIMIT,
    measure: false,
    sharing: Sharing::SameOrder,
};
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn fragment(gpus: &str) -> LinkGraph {
    let graph = built("dgx1v").unwrap().only(&[LinkKind::Nvlink]).unwrap();
    graph.select(&gpus.split(',').collect::<Vec<_>>()).unwrap()
}

/// Ports of all ranks; paths with an address of their own use TCP.
fn ports(plan: &TreePlan, tcp: bool) -> (Vec<Ports>, BTreeMap<usize, PortAddress>) {
    let ways: BTreeMap<String, IpAddr> = match tcp {
        true => plan.vertices.iter().map(|name| (name.clone(), LOCAL)).collect(),
        false => BTreeMap::new(),
    };
    let open =
        |rank| Ports::open(SocketAddr::new(LOCAL, 0), ways.clone(), [rank as u8; 16]).unwrap();
    let all: Vec<Ports> = (0..plan.gpus.len()).map(open).collect();
    let addresses = all.iter().map(|ports| ports.address().clone()).enumerate().collect();
    (all, addresses)
}

/// Runs `body` on all ranks of a connected plan.
fn on_ranks<T: Send>(
    plan: &TreePlan,
    tcp: bool,
    patience: Patience,
    body: impl Fn(usize, PlannedGroup) -> T + Sync,
) -> Vec<T> {
    on_patient_ranks(plan, tcp, |_| patience, body)
}

/// Like `on_ranks`, with settings for each rank.
fn on_patient_ranks<T: Send>(
    plan: &TreePlan,
    tcp: bool,
    patience: impl Fn(usize) -> Patience + Sync,
    body: impl Fn(usize, PlannedGroup) -> T + Sync,
) -> Vec<T> {
    let (all, addresses) = ports(plan, tcp);
    let one = |(rank, ports): (usize, &Ports)| {
        let group =
            PlannedGroup::connect(plan, rank, ports, &addresses, 1, patience(rank)).unwrap();
        let medium = if tcp { "TCP" } else { "shared memory" };
        assert!(
            group.peer_links().iter().all(|peer_link| peer_link.1 == medium),
            "{:?}",
            group.peer_links()
        );
        body(rank, group)
    };
    thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> =
            all.iter().enumerate().map(|pair| scope.spawn(move || one(pair))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Runs the plan on all ranks; rank r's element i begins as `value(r, i)`. Returns buffers by rank.
fn run(plan: &TreePlan, elements: usize, tcp: bool) -> Vec<Vec<i64>> {
    on_ranks(plan, tcp, PATIENCE, |rank, mut group| {
        let mut values = Vec::new();
        // Repeatedly: an operation must not affect the next.
        for chunks in [Some(1), Some(7), None] {
            let mut buffer: Vec<u8> =
                (0..elements).flat_map(|i| value(rank, i).to_le_bytes()).collect();
            group.run(&mut buffer, Dtype::I64, ReduceOp::Sum, chunks).unwrap();
            let element = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().unwrap());
            values = buffer.chunks_exact(8).map(element).collect();
        }
        values
    })
}

fn value(rank: usize, i: usize) -> i64 {
    (i * 31 + rank * 1009) as i64
}

fn sum(ranks: usize, i: usize) -> i64 {
    (0..ranks).map(|rank| value(rank, i)).sum()
}

#[test]
fn every_collective_gives_its_result() {
    for (gpus, tcp) in [("0,1,4", true), ("0,2,3", false), ("0,1,2,3,4,6", true)] {
        let graph = fragment(gpus);
        let ranks = graph.gpus().len();
        for elements in [1, 5, 1000, 100_003] {
            let plan = |collective| pack(&graph, collective).unwrap().plan(&graph);
            let shard = |rank: usize| elements * rank / ranks..elements * (rank + 1) / ranks;
            for buffer in run(&plan(Collective::Allreduce), elements, tcp) {
                assert!((0..elements).all(|i| buffer[i] == sum(ranks, i)));
            }
            for buffer in run(&plan(Collective::Broadcast { root: 1 }), elements, tcp) {
                assert!((0..elements).all(|i| buffer[i] == value(1, i)));
            }
            let reduced = run(&plan(Collective::Reduce { root: 2 }), elements, tcp);
            assert!((0..elements).all(|i| reduced[2][i] == sum(ranks, i)));
            assert!((0..elements).all(|i| reduced[0][i] == value(0, i)), "others are left alone");
            for buffer in run(&plan(Collective::Allgather), elements, tcp) {
                for rank in 0..ranks {
                    assert!(shard(rank).all(|i| buffer[i] == value(rank, i)));
                }
            }
            let scattered = run(&plan(Collective::ReduceScatter), elements, tcp);
            for (rank, buffer) in scattered.iter().enumerate() {
                assert!(shard(rank).all(|i| buffer[i] == sum(ranks, i)));
            }
        }
    }
}

#[test]
fn rings_run_too() {
    let graph = fragment("0,1,2,3");
    let plan = pack_rings(&graph).unwrap().unwrap().plan(&graph);
    for buffer in run(&plan, 10_007, true) {
        assert!((0..10_007).all(|i| buffer[i] == sum(4, i)));
    }
}

/// Three-phase plans over several servers run as ordinary tree plans.
#[test]
fn three_phases_run_too() {
    let graph = built("a100x2").unwrap().select(&["0", "1", "2", "8", "9"]).unwrap();
    let plan = pack_phases(&graph, Collective::Allreduce).unwrap().plan(&graph);
    for found in run(&plan, 5003, false) {
        assert!(found.iter().enumerate().all(|(i, &value)| value == sum(5, i)));
    }
}

/// Two GPUs with a link and a slower path through a switch.
fn two_ways() -> LinkGraph {
    let gpu = |name: &str| Vertex { name: name.to_owned(), role: Role::Gpu };
    let passes = Role::Switch { aggregates: false, multicasts: false };
    let vertices = vec![gpu("a"), gpu("b"), Vertex { name: "pcie".to_owned(), role: passes }];
    let link = |ends, rate| WeightedLink {
        ends,
        rate: Rate(rate),
        latency_ns: 0,
        kind: LinkKind::Link,
        one_way: false,
    };
    LinkGraph::new("two ways", vertices, vec![link([0, 1], 3), link([0, 2], 1), link([1, 2], 1)])
        .unwrap()
}

#[test]
fn unequal_paths_to_one_rank_are_used_together() {
    let graph = two_ways();
    let plan = pack(&graph, Collective::Allreduce).unwrap().plan(&graph);
    assert_eq!(plan.rate_bps, netsum_topo::Ratio::from(4));
    let peer_links = on_ranks(&plan, true, PATIENCE, |_, group| group.peer_links().len());
    assert_eq!(peer_links, [2, 2]);
    for buffer in run(&plan, 10_007, false) {
        assert!((0..10_007).all(|i| buffer[i] == sum(2, i)));
    }
}

/// A connected graph: a random tree and some more links.
fn graphs() -> impl Strategy<Value = LinkGraph> {
    (2usize..7).prop_flat_map(|gpus| {
        let parents: Vec<_> = (1..gpus).map(|child| 0..child).collect();
        let more = proptest::collection::vec((0..gpus, 0..gpus), 0..6);
        let rates = proptest::collection::vec(1u64..4, gpus + 6);
        (parents, more, rates).prop_map(move |(parents, more, rates)| {
            let name = |place: usize| format!("g{place}");
            let vertices = (0..gpus).map(|v| Vertex { name: name(v), role: Role::Gpu }).collect();
            let tree = parents.into_iter().enumerate().map(|(child, parent)| (child + 1, parent));
            let ends = tree.chain(more.into_iter().filter(|(a, b)| a != b));
            let links = ends.zip(rates).map(|((a, b), rate)| WeightedLink {
                ends: [a, b],
                rate: Rate(rate),
                latency_ns: 0,
                kind: LinkKind::Link,
                one_way: false,
            });
            LinkGraph::new("random", vertices, links.collect()).unwrap()
        })
    })
}

fn formats() -> impl Strategy<Value = (Dtype, ReduceOp)> {
    let pairs =
        Dtype::ALL.iter().flat_map(|&dtype| ReduceOp::ALL.iter().map(move |&op| (dtype, op)));
    let float = |dtype| matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::F64);
    let bitwise = |op| matches!(op, ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor);
    let pairs = pairs.filter(|&(dtype, op)| !(float(dtype) && bitwise(op)));
    // Sums of narrow contributions are in units of their own.
    let pairs: Vec<_> = pairs.filter(|(dtype, op)| !dtype.is_narrow() || op.in_network()).collect();
    proptest::sample::select(pairs)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_plan_gives_the_documented_bits(
        graph in graphs(),
        kind in 0usize..5,
        root in 0usize..6,
        (dtype, op) in formats(),
        elements in prop_oneof![0usize..40, 1000usize..3000],
        chunks in proptest::option::of(1usize..9),
        pieces in proptest::option::of(4u64..20),
        (tcp, salt) in any::<(bool, u64)>(),
    ) {
        let ranks = graph.gpus().len();
        let collective = match kind {
            0 => Collective::Broadcast { root: root % ranks },
            1 => Collective::Reduce { root: root % ranks },
            2 => Collective::Allgather,
            3 => Collective::ReduceScatter,
            _ => Collective::Allreduce,
        };
        let packed = pack(&graph, collective).unwrap();
        let fewer = pieces.and_then(|pieces| coarse(&packed, pieces));
        let plan = fewer.as_ref().unwrap_or(&packed).plan(&graph);
        let begin: Vec<Vec<u8>> =
            (0..ranks).map(|rank| oracle::values(dtype, elements, rank, salt)).collect();
        let found = on_ranks(&plan, tcp, PATIENCE, |rank, mut group| {
            let mut buffer = begin[rank].clone();
            group.run(&mut buffer, dtype, op, chunks).unwrap();
            buffer
        });
        oracle::check(&plan, dtype, op, &begin, &found);
    }
}

#[test]
fn a_rank_that_leaves_is_named() {
    let graph = fragment("0,1,4");
    let plan = pack(&graph, Collective::Allreduce).unwrap().plan(&graph);
    for tcp in [true, false] {
        on_ranks(&plan, tcp, PATIENCE, |rank, mut group| {
            if rank == 1 {
                return;
            }
            let failed = group.run(&mut [0; 4096], Dtype::F32, ReduceOp::Sum, Some(4));
            // Rank 2 has only rank 0 as neighbour, and fails when rank 0 does.
            let neighbour = if rank == 0 { 1 } else { 0 };
            let named =
                matches!(failed, Err(PlannedError::PeerLost { rank, .. }) if rank == neighbour);
            assert!(named, "{failed:?}");
        });
    }
}

#[test]
fn a_silent_rank_is_named_in_time() {
    let graph = fragment("0,1,4");
    let plan = pack(&graph, Collective::Allreduce).unwrap().plan(&graph);
    let short = Duration::from_millis(300);
    // Rank 2 waits for rank 0 and must not time out first.
    let patience = |rank| match rank {
        0 => Patience { timeout: short, ..PATIENCE },
        _ => PATIENCE,
    };
    let (begun, named) = (Instant::now(), Barrier::new(2));
    on_patient_ranks(&plan, true, patience, |rank, mut group| {
        if rank == 1 {
            // In the group, but never calls.
            named.wait();
            return;
        }
        let failed = group.run(&mut [0; 4096], Dtype::F32, ReduceOp::Sum, None).unwrap_err();
        if rank == 0 {
            let right =
                matches!(&failed, PlannedError::Timeout { ranks, .. } if ranks.contains(&1));
            named.wait();
            assert!(right, "{failed}");
        }
    });
    assert!(begun.elapsed() < LIMIT / 2);
}

#[test]
fn different_calls_are_an_error_at_every_rank() {
    let graph = fragment("0,1,4");
    let plan = pack(&graph, Collective::Allreduce).unwrap().plan(&graph);
    let failed = on_ranks(&plan, false, PATIENCE, |rank, mut group| {
        let mut buffer = vec![0; if rank == 1 { 400 } else { 404 }];
        group.run(&mut buffer, Dtype::F32, ReduceOp::Sum, None).unwrap_err()
    });
    assert_eq!(failed[0], PlannedError::Differs { rank: 1 });
    assert_eq!(failed[1], PlannedError::Differs { rank: 0 });
    let odd = on_ranks(&plan, false, PATIENCE, |_, mut group| {
        group.run(&mut [0; 5], Dtype::F32, ReduceOp::Sum, None).unwrap_err().to_string()
    });
    assert!(odd[0].contains("5 bytes is no whole number of elements of 4"), "{odd:?}");
}

#[test]
fn plans_that_cannot_run_are_refused() {
    let short = Duration::from_millis(50);
    let patience = Patience { connect: short, ..PATIENCE };
    let connect = |plan: &TreePlan, rank| {
        let own = Ports::open(SocketAddr::new(LOCAL, 0), BTreeMap::new(), [0; 16]).unwrap();
        PlannedGroup::connect(plan, rank, &own, &BTreeMap::new(), 1, patience)
            .err()
            .expect("it is refused")
            .to_string()
    };
    let graph = built("h100").unwrap();
    let plan = pack(&graph, Collective::Allreduce).unwrap().plan(&graph);
    assert!(connect(&plan, 0).contains("branches at a switch"));
    let graph = fragment("0,1,4");
    let plan = pack(&graph, Collective::Allreduce).unwrap().plan(&graph);
    assert!(connect(&plan, 3).contains("no rank 3"));
    assert!(connect(&plan, 1).contains("rank 0 could not be reached"));
    assert!(connect(&plan, 0).contains("did not connect"));
}

#[test]
fn moving_shares_are_the_same_at_all_ranks_and_sums_stay_correct() {
    let graph = fragment("0,1,2,3,4,6");
    let plan = pack(&graph, Collective::Allreduce).unwrap().plan(&graph);
    let ranks = plan.gpus.len();
    let elements = 1_000_003;
    for tcp in [true, false] {
        let patience = Patience { sharing: Sharing::Any, ..PATIENCE };
        let found = on_ranks(&plan, tcp, patience, |rank, mut group| {
            let mut all = Vec::new();
            for _ in 0..10 {
                let mut buffer: Vec<u8> =
                    (0..elements).flat_map(|i| value(rank, i).to_le_bytes()).collect();
                group.run(&mut buffer, Dtype::I64, ReduceOp::Sum, None).unwrap();
                for (i, found) in buffer.chunks_exact(8).enumerate() {
                    assert_eq!(i64::from_le_bytes(found.try_into().unwrap()), sum(ranks, i));
                }
                all.push(group.shares());
            }
            all
        });
        assert!(found.iter().all(|shares| *shares == found[0]), "{found:?}");
        let planned: Vec<f64> = plan.flows.iter().map(|flow| flow.share.to_f64()).collect();
        assert!(found[0][9] != planned, "sums of this size take more than 2 ms, and not alike");
    }
}

#[test]
fn both_ends_of_a_link_have_the_same_measurement() {
    let graph = fragment("0,1,4");
    let plan = pack(&graph, Collective::Allreduce).unwrap().plan(&graph);
    for tcp in [true, false] {
        let patience = Patience { measure: true, ..PATIENCE };
        let found = on_ranks(&plan, tcp, patience, |_, mut group| {
            group.run(&mut [0; 400], Dtype::F32, ReduceOp::Sum, None).unwrap();
            group.measured()
        });
        let (link, measured) = &found[0][0];
        assert_eq!(link, &["gpu0", "gpu1"]);
        assert!(measured.latency_s > 0.0 && measured.rate_bps > 1e6, "{measured:?}");
        assert_eq!(
            (&found[1][0].0[..], found[1][0].1),
            (&["gpu1".into(), "gpu0".into()][..], *measured)
        );
    }
}

#[test]
fn connections_of_other_groups_are_refused() {
    use std::io::{Read, Write};
    let graph = fragment("0,1,4");
    let plan = pack(&graph, Collective::Allreduce).unwrap().plan(&graph);
    let (all, mut addresses) = ports(&plan, true);
    let port = serde_json::to_value(all[0].address()).unwrap()["tcp"].as_str().unwrap().to_owned();
    // One that sends nothing, one that sends garbage, and ranks of another epoch and of another group.
    let silent = std::net::TcpStream::connect(&port).unwrap();
    let mut loud = std::net::TcpStream::connect(&port).unwrap();
    loud.write_all(&[7; 52]).unwrap();
    let short = Patience { connect: Duration::from_millis(300), ..PATIENCE };
    // Listeners wait longer than callers try.
    let longer = Patience { connect: Duration::from_secs(1), ..PATIENCE };
    // On a busy machine either may begin late: the caller retries until the listener has received its hello.
    let refused = |caller: &Ports, addresses: &BTreeMap<usize, PortAddress>, epoch| {
        let refusal = |_| PlannedGroup::connect(&plan, 1, caller, addresses, epoch, short).err();
        let mut errors = (0..20).map(refusal).map(|error| error.unwrap().to_string());
        errors.any(|error| error.contains("it refused the hello"))
    };
    thread::scope(|scope| {
        let old = scope.spawn(|| refused(&all[1], &addresses, 7));
        let waiting = PlannedGroup::connect(&plan, 0, &all[0], &addresses, 8, longer);
        assert!(waiting.err().unwrap().to_string().contains("did not connect"));
        assert!(old.join().unwrap());
    });
    assert_eq!(loud.read(&mut [0; 1]).unwrap(), 0);
    drop(silent);
    let stolen = Ports::open(SocketAddr::new(LOCAL, 0), BTreeMap::new(), [9; 16]).unwrap();
    addresses.insert(0, PortAddress::tcp(port.parse().unwrap(), [9; 16]));
    thread::scope(|scope| {
        let addresses = &addresses;
        scope.spawn(|| {
            PlannedGroup::connect(&plan, 0, &all[0], addresses, 8, longer).err().unwrap();
        });
        assert!(refused(&stolen, addresses, 8));
    });
}
