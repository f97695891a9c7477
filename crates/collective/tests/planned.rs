//! Tree plans between threads over loopback: every collective, results and errors.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use netsum_collective::planned::{PlannedError, PlannedGroup};
use netsum_collective::{Dtype, ReduceOp};
use netsum_plan::pack::{pack, pack_rings};
use netsum_topo::links::{Collective, LinkGraph, LinkKind, TreePlan, built};

const TIMEOUT: Duration = Duration::from_secs(60);

fn fragment(gpus: &str) -> LinkGraph {
    let graph = built("dgx1v").unwrap().only(&[LinkKind::Nvlink]).unwrap();
    graph.select(&gpus.split(',').collect::<Vec<_>>()).unwrap()
}

/// Runs the plan on all ranks; rank r's element i begins as `start(r, i)`. Returns buffers by rank.
fn run(plan: &TreePlan, elements: usize, start: fn(usize, usize) -> i64) -> Vec<Vec<i64>> {
    let ranks = plan.gpus.len();
    let listeners: Vec<TcpListener> =
        (0..ranks).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: BTreeMap<usize, SocketAddr> =
        listeners.iter().map(|listener| listener.local_addr().unwrap()).enumerate().collect();
    thread::scope(|scope| {
        let one = |(rank, listener): (usize, &TcpListener)| {
            let mut group =
                PlannedGroup::connect(plan, rank, listener, &addresses, TIMEOUT).unwrap();
            let mut values = Vec::new();
            // Twice: an operation leaves nothing behind for the next.
            for chunks in [1, 7] {
                let mut buffer: Vec<u8> =
                    (0..elements).flat_map(|i| start(rank, i).to_le_bytes()).collect();
                group.run(&mut buffer, Dtype::I64, ReduceOp::Sum, chunks).unwrap();
                let element = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().unwrap());
                values = buffer.chunks_exact(8).map(element).collect();
            }
            values
        };
        let threads: Vec<_> =
            listeners.iter().enumerate().map(|pair| scope.spawn(move || one(pair))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
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
    for gpus in ["0,1,4", "0,2,3", "0,1,2,3,4,6"] {
        let graph = fragment(gpus);
        let ranks = graph.gpus().len();
        for elements in [1, 5, 1000, 100_003] {
            let plan = |collective| pack(&graph, collective).unwrap().plan(&graph);
            let shard = |rank: usize| elements * rank / ranks..elements * (rank + 1) / ranks;
            for buffer in run(&plan(Collective::Allreduce), elements, value) {
                assert!((0..elements).all(|i| buffer[i] == sum(ranks, i)));
            }
            for buffer in run(&plan(Collective::Broadcast { root: 1 }), elements, value) {
                assert!((0..elements).all(|i| buffer[i] == value(1, i)));
            }
            let reduced = run(&plan(Collective::Reduce { root: 2 }), elements, value);
            assert!((0..elements).all(|i| reduced[2][i] == sum(ranks, i)));
            for buffer in run(&plan(Collective::Allgather), elements, value) {
                for rank in 0..ranks {
                    assert!(shard(rank).all(|i| buffer[i] == value(rank, i)));
                }
            }
            let scattered = run(&plan(Collective::ReduceScatter), elements, value);
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
    for buffer in run(&plan, 10_007, value) {
        assert!((0..10_007).all(|i| buffer[i] == sum(4, i)));
    }
}

#[test]
fn a_rank_that_leaves_is_named() {
    let graph = fragment("0,1,4");
    let plan = pack(&graph, Collective::Allreduce).unwrap().plan(&graph);
    let listeners: Vec<TcpListener> =
        (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: BTreeMap<usize, SocketAddr> =
        listeners.iter().map(|listener| listener.local_addr().unwrap()).enumerate().collect();
    thread::scope(|scope| {
        for (rank, listener) in listeners.iter().enumerate() {
            let (plan, addresses) = (&plan, &addresses);
            scope.spawn(move || {
                let group = PlannedGroup::connect(plan, rank, listener, addresses, TIMEOUT);
                let mut group = group.unwrap();
                if rank == 1 {
                    return;
                }
                let failed = group.run(&mut [0; 4096], Dtype::F32, ReduceOp::Sum, 4);
                // Rank 2 has only rank 0 as neighbour, and hears of it when that gives up.
                let neighbour = if rank == 0 { 1 } else { 0 };
                let named =
                    matches!(failed, Err(PlannedError::PeerLost { rank, .. }) if rank == neighbour);
                assert!(named, "{failed:?}");
            });
        }
    });
}

#[test]
fn plans_that_cannot_run_are_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connect = |plan: &TreePlan, rank| {
        PlannedGroup::connect(plan, rank, &listener, &BTreeMap::new(), Duration::from_millis(50))
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
