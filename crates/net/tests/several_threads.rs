//! A switch with several threads: bits, steering, memory, rates and statistics over all of them.

use std::net::{SocketAddr, UdpSocket};
use std::time::Instant;

use common::*;
use netsum_net::NetError;
use netsum_net::switch::{Role, SwitchDriver, SwitchOptions, SwitchSnapshot, THREADS_MOST};
use netsum_net::udp::{RecvBatch, SendBatch, Socket, SocketOptions, Wake};
use netsum_net::worker::WorkerPlan;
use netsum_proto::CongestionRule;
use netsum_proto::panama::{Lease, WorkerConfig};
use netsum_proto::policer::{Owner, RateLimit, TenantCounters};
use netsum_wire::Parties;
use netsum_wire::panama::{HEADER_LEN, Header, Kind, NO_CAP};
use netsum_wire::seal::HopKeys;
use netsum_wire::tag::Mac;
use netsum_wire::{Dtype, Epoch, Format, JobId, Rank, ReduceOp, TreeId, Vid};

mod common;

const MEMORY: u64 = 64 << 20;
const F32: Format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };

/// Sums once over all members and compares every bit.
fn sum(members: &[Member], id: u64, numel: usize) {
    let begin = |(rank, member): (usize, &Member)| {
        submit(member, operation(id, F32, &numbers(Dtype::F32, rank, numel)))
    };
    let buffers: Vec<_> = members.iter().enumerate().map(begin).collect();
    let expected = expected(F32, members.len(), numel);
    for (member, buffer) in members.iter().zip(&buffers) {
        wait_done(member, id);
        assert!(bytes_of(buffer) == expected, "operation {id}");
    }
}

#[test]
fn trees_on_all_threads_sum_exactly_and_statistics_are_those_of_all() {
    let (switch, members) = (switch_of(3, MEMORY), members(4));
    star(1, &[&switch, &switch, &switch, &switch], &members);
    let numel = 200_000;
    for id in 0..4 {
        sum(&members, id, numel);
    }
    let fragments = 4 * numel.div_ceil(352) as u64;
    let snapshot = switch.snapshot().unwrap();
    assert_eq!(snapshot.trees.iter().map(|t| t.lease.tree.0).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(snapshot.trees.iter().map(|t| t.counters.released).sum::<u64>(), fragments);
    let mut leases: Vec<u64> = snapshot.threads.iter().map(|t| t.leases).collect();
    leases.sort_unstable();
    assert_eq!(leases, [1, 1, 2]);
    // Workers' trains are of one tree, so the system gives each to the right thread.
    assert!(snapshot.threads.iter().all(|t| (t.handed_over, t.lost) == (0, 0)), "{snapshot:?}");
    assert_eq!(snapshot.neighbours.len(), 4, "each once, whatever threads it sends to");
    for (neighbour, member) in snapshot.neighbours.iter().zip(&members) {
        assert!(neighbour.received.packets >= fragments && neighbour.sent.packets >= fragments);
        assert!(members.iter().any(|m| m.driver.local_addr() == neighbour.address));
        assert_eq!(member.driver.stats().trees.len(), 4);
    }
    assert_eq!(snapshot.children.len(), 16);
    assert!(snapshot.children.is_sorted_by_key(|child| child.lease.tree));
    assert_eq!(snapshot.memory_limit, MEMORY);
    switch.revoke(JOB, Epoch(1)).unwrap();
    let snapshot = switch.snapshot().unwrap();
    assert_eq!((snapshot.trees.len(), snapshot.memory_used, snapshot.memory_reserved), (0, 0, 0));
}

#[test]
fn sealed_and_encrypted_packets_find_their_threads() {
    for mac in [Mac::SipHash, Mac::Aegis, Mac::AegisAead] {
        let (switch, members) = (switch_of(2, MEMORY), members(3));
        let keys = |tree: u8, rank: usize| HopKeys::new(mac, [16 * tree + rank as u8 + 1; 32]);
        let children: Vec<_> =
            members.iter().enumerate().map(|(r, m)| (m.driver.local_addr(), 1 << r)).collect();
        for tree in 0..2 {
            let secrets = (0..3).map(|rank| keys(tree, rank)).collect();
            switch.install_with(lease(1, tree, &children, None), Some(secrets)).unwrap();
        }
        for (rank, member) in members.iter().enumerate() {
            let config = WorkerConfig {
                job: JOB,
                epoch: Epoch(1),
                rank: Rank(rank as u32),
                ranks: 3,
                trees: 2,
                copies: false,
                window_max: WINDOW,
                fragment_bytes: FRAGMENT_BYTES,
                congestion: CongestionRule::PerBranch,
                partial: false,
            };
            let switches = vec![switch.local_addr(); 2];
            let plan = WorkerPlan { config: config.into(), switches };
            member.driver.begin_with(plan, Some(vec![keys(0, rank), keys(1, rank)]));
        }
        (0..2).for_each(|id| sum(&members, id, 100_000));
        let snapshot = switch.snapshot().unwrap();
        let count = |t: &netsum_net::switch::ThreadSnapshot| (t.leases, t.handed_over);
        assert_eq!(snapshot.threads.iter().map(count).collect::<Vec<_>>(), [(1, 0); 2], "{mac:?}");
        assert!(snapshot.trees.iter().all(|tree| tree.counters.released > 200));
    }
}

/// A packet with two values of a job's tree, as a worker would send it.
fn contribution(job: JobId, tree: u8, vid: u32, values: [f32; 2]) -> Vec<u8> {
    let header = Header {
        kind: Kind::Contribution,
        resent: false,
        congested_down: false,
        tree: TreeId(tree),
        format: F32,
        job,
        vid: Vid(vid),
        chunk: vid,
        epoch: Epoch(1),
        window_cap: NO_CAP,
        n_elems: 2,
        marks: 0,
        missing: 0,
        parties: Parties::All,
        empty: false,
        asks: false,
        others: 0,
    };
    let mut packet = vec![0; HEADER_LEN];
    header.encode(packet.first_chunk_mut().unwrap());
    packet.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    packet
}

#[test]
fn packets_of_a_train_with_several_trees_are_handed_over() {
    const TREES: u8 = 4;
    const VIDS: u32 = 8;
    let switch = switch_of(3, MEMORY);
    let any = SocketAddr::new(LOCAL, 0);
    let bind = || Socket::bind(any, &SocketOptions::default()).unwrap();
    let workers = [bind(), bind()];
    let children: Vec<_> =
        workers.iter().enumerate().map(|(rank, w)| (w.local_addr(), 1 << rank)).collect();
    for tree in 0..TREES {
        switch.install(lease(1, tree, &children, None)).unwrap();
    }
    let value = |worker: usize, tree: u8, vid: u32| {
        [f32::from(tree) + worker as f32 * 100.0, vid as f32 * 0.5]
    };
    for (number, worker) in workers.iter().enumerate() {
        // Packets of all trees in turn, which one message carries.
        let packets: Vec<Vec<u8>> = (0..VIDS)
            .flat_map(|vid| (0..TREES).map(move |tree| (tree, vid)))
            .map(|(tree, vid)| contribution(JOB, tree, vid, value(number, tree, vid)))
            .collect();
        let mut batch = SendBatch::new();
        batch.set_destination(0, switch.local_addr());
        (0..packets.len()).for_each(|packet| batch.push(0, packet));
        batch.flush(worker, |&packet| [packets[packet].as_slice(), &[]]);
        assert_eq!(batch.sent(0).packets, packets.len() as u64);
    }
    let (mut batch, wake, end) =
        (RecvBatch::new(), Wake::new().unwrap(), Instant::now() + PATIENCE);
    for worker in &workers {
        let mut got = Vec::new();
        while got.len() < usize::from(TREES) * VIDS as usize {
            assert!(Instant::now() < end, "{} results", got.len());
            worker.wait(&wake, PATIENCE);
            batch.recv(worker).unwrap();
            for packet in batch.messages().flat_map(|message| batch.packets(message)) {
                let (header, payload) = Header::decode(packet).unwrap();
                let (tree, vid) = (header.tree.0, header.vid.0);
                assert_eq!(header.kind, Kind::Result);
                let [a, b] = [0, 1].map(|number| value(number, tree, vid));
                let sum = [a[0] + b[0], a[1] + b[1]];
                assert_eq!(payload, sum.map(f32::to_le_bytes).concat(), "{tree} {vid}");
                got.push((tree, vid));
            }
        }
        got.sort_unstable();
        got.dedup();
        assert_eq!(got.len(), usize::from(TREES) * VIDS as usize, "each result once");
    }
    let snapshot = switch.snapshot().unwrap();
    let handed_over: u64 = snapshot.threads.iter().map(|t| t.handed_over).sum();
    match workers[0].report().segments_on_send {
        // Of a train, those of the thread of its first packet: trees 0 and 3.
        true => assert_eq!(handed_over, 2 * 2 * u64::from(VIDS)),
        false => assert_eq!(handed_over, 0),
    }
    assert!(snapshot.threads.iter().all(|t| t.lost == 0));
    assert_eq!(snapshot.drops, []);
    for neighbour in snapshot.neighbours {
        assert_eq!(neighbour.received.packets, u64::from(TREES) * u64::from(VIDS));
    }
}

/// A lease of another job, of two children that nobody has.
fn lease_of(job: u32, slots: u16) -> Lease<SocketAddr> {
    let at = |port: u16| (SocketAddr::new(LOCAL, port), 1);
    let lease = lease(1, 0, &[at(9), at(10)], None);
    Lease { job: JobId(job), slots, ..lease }
}

#[test]
fn the_memory_goes_where_leases_are_and_is_never_exceeded() {
    let slots = 1024;
    let wanted = lease_of(0, slots).memory_bytes();
    // One such lease, and a bit.
    let memory = wanted + wanted / 8;
    let switch = switch_of(4, memory);
    for job in [1, 2, 7] {
        switch.install(lease_of(job, slots)).unwrap();
        let snapshot = switch.snapshot().unwrap();
        let [tree] = snapshot.trees[..] else { panic!("{snapshot:?}") };
        assert_eq!((tree.window_cap, tree.memory_reserved), (slots, wanted), "job {job}");
        assert_eq!((snapshot.memory_reserved, snapshot.memory_limit), (wanted, memory));
        switch.revoke(JobId(job), Epoch(1)).unwrap();
    }
    // More than there is: windows shrink, or a lease is refused with the reason.
    let mut installed = 0;
    for job in 1..30 {
        match switch.install(lease_of(job, slots)) {
            Ok(()) => installed += 1,
            Err(NetError::Lease(reason)) => {
                assert!(reason.to_string().contains("memory is full"), "{reason}");
            }
            Err(other) => panic!("{other}"),
        }
        let snapshot = switch.snapshot().unwrap();
        assert!(snapshot.memory_reserved <= memory, "{snapshot:?}");
        assert_eq!(snapshot.trees.len(), installed);
    }
    assert!(installed > 8, "{installed}");
    // What is left has everything again.
    (2..30).for_each(|job| switch.revoke(JobId(job), Epoch(1)).unwrap());
    switch.snapshot().unwrap();
    let snapshot = switch.snapshot().unwrap();
    assert_eq!(snapshot.trees.iter().map(|t| t.window_cap).collect::<Vec<_>>(), [slots]);
}

#[test]
fn leases_come_and_go_on_the_right_threads() {
    let switch = switch_of(2, MEMORY);
    let at = |port: u16| (SocketAddr::new(LOCAL, port), 1);
    for tree in 0..2 {
        switch.install(lease(2, tree, &[at(4000), at(4001)], None)).unwrap();
    }
    let stale = switch.install(lease(1, 1, &[at(4000), at(4002)], None));
    assert!(matches!(stale, Err(NetError::Lease(_))), "{stale:?}");
    let leases = |snapshot: &SwitchSnapshot| -> Vec<u64> {
        snapshot.threads.iter().map(|thread| thread.leases).collect()
    };
    assert_eq!(leases(&switch.snapshot().unwrap()), [1, 1]);
    switch.install(lease(3, 1, &[at(4001), at(4003)], Some(at(4004).0))).unwrap();
    let snapshot = switch.snapshot().unwrap();
    let ports: Vec<u16> = snapshot.neighbours.iter().map(|n| n.address.port()).collect();
    assert_eq!(ports, [4000, 4001, 4003, 4004]);
    assert_eq!(switch.expire(PATIENCE).unwrap(), []);
    switch.revoke(JOB, Epoch(2)).unwrap();
    assert_eq!(leases(&switch.snapshot().unwrap()).iter().sum::<u64>(), 1, "epoch 3 stays");
    assert_eq!(switch.expire(std::time::Duration::ZERO).unwrap().len(), 1);
    assert!(switch.snapshot().unwrap().trees.is_empty());
}

#[test]
fn the_rate_of_a_tenant_holds_for_its_jobs_on_all_threads() {
    let switch = switch_of(2, MEMORY);
    // A burst of 256 packets, and hardly one more before the test has ended.
    let limit = RateLimit { bytes_per_s: None, packets_per_s: Some(1) };
    let owner = |tenant: &str, limit| Owner { tenant: Some(tenant.into()), limit };
    let workers: Vec<UdpSocket> = (1..=3)
        .map(|job| {
            let worker = UdpSocket::bind((LOCAL, 0)).unwrap();
            worker.connect(switch.local_addr()).unwrap();
            let modest = owner("modest", RateLimit::default());
            let owner = if job == 3 { modest } else { owner("greedy", limit) };
            switch.own(JobId(job), owner).unwrap();
            let children = [(worker.local_addr().unwrap(), 1), (SocketAddr::new(LOCAL, 9), 2)];
            let lease = lease(1, 0, &children, None);
            switch.install(Lease { job: JobId(job), ..lease }).unwrap();
            worker
        })
        .collect();
    for _ in 0..500 {
        for (job, worker) in (1..).zip(&workers) {
            worker.send(&contribution(JobId(job), 0, 0, [1.0, 2.0])).unwrap();
        }
    }
    let of = |snapshot: &SwitchSnapshot, name: &str| -> TenantCounters {
        let found = snapshot.tenants.iter().find(|(tenant, _)| &**tenant == name);
        found.map(|(_, counters)| *counters).unwrap_or_default()
    };
    let end = Instant::now() + PATIENCE;
    let snapshot = loop {
        let snapshot = switch.snapshot().unwrap();
        let greedy = of(&snapshot, "greedy");
        if greedy.packets + greedy.dropped == 1_000 && of(&snapshot, "modest").packets == 500 {
            break snapshot;
        }
        assert!(Instant::now() < end, "{snapshot:?}");
    };
    assert_eq!(snapshot.threads.iter().map(|t| t.leases).collect::<Vec<_>>(), [1, 2]);
    let greedy = of(&snapshot, "greedy");
    assert!((256..=256 + PATIENCE.as_secs()).contains(&greedy.packets), "{greedy:?}");
    assert_eq!(of(&snapshot, "modest").dropped, 0);
}

#[test]
fn other_protocols_stay_on_the_first_thread() {
    let switch = switch_of(3, MEMORY);
    let workers = vec![SocketAddr::new(LOCAL, 9), SocketAddr::new(LOCAL, 10)];
    for job in 1..4 {
        let (epoch, workers) = (Epoch(1), workers.clone());
        let pool = netsum_proto::switchml::Lease {
            tree: TreeId(0),
            job: JobId(job),
            epoch,
            workers,
            slots: 4,
            fragment_bytes: 64,
        };
        switch.install(pool).unwrap();
    }
    let snapshot = switch.snapshot().unwrap();
    assert_eq!(snapshot.threads.iter().map(|t| t.leases).collect::<Vec<_>>(), [3, 0, 0]);
    assert_eq!((snapshot.pools.len(), snapshot.slots_limit), (3, 64));
}

#[test]
fn what_cannot_have_several_threads_says_so() {
    let start = |threads, role: Role| {
        let bind = SocketAddr::new(LOCAL, 0);
        let socket = SocketOptions::default();
        SwitchDriver::start(&SwitchOptions { bind, memory: 1 << 20, role, socket, threads })
    };
    let server = start(2, Role::Server { row_bytes: 64, rows: 8 }).unwrap_err().to_string();
    assert_eq!(server, "2 data threads are not possible: a server has one");
    for threads in [0, THREADS_MOST + 1] {
        let error = start(threads, slots(1, 64)).unwrap_err().to_string();
        assert!(error.ends_with("a switch has 1 to 64"), "{error}");
    }
    assert!(start(THREADS_MOST, slots(1, 64)).is_ok());
}
