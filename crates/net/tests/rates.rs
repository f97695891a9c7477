//! Rates of tenants at a real switch.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use netsum_net::switch::{Role, SwitchDriver, SwitchOptions, SwitchSnapshot};
use netsum_net::udp::SocketOptions;
use netsum_proto::atp::{Policy, SwitchConfig};
use netsum_proto::policer::{Owner, RateLimit, TenantCounters};
use netsum_proto::switchml;
use netsum_wire::{Arithmetic, Epoch, JobId, PacketHeader, Parties, TreeId};

const ROW: u16 = 64;
const PATIENCE: Duration = Duration::from_secs(30);

fn switch() -> SwitchDriver {
    let policy = Policy::FirstCome;
    let config = SwitchConfig { slots: 64, row_bytes: ROW, policy, straggler_ns: 1_000_000_000 };
    let bind = "127.0.0.1:0".parse().unwrap();
    let (role, socket) = (Role::Switch(config), SocketOptions::default());
    SwitchDriver::start(&SwitchOptions { bind, memory: 1 << 20, role, socket, threads: 1 }).unwrap()
}

/// A job with one worker that is a plain socket; it waits for another worker, so each packet after the first is a
/// duplicate.
fn job(switch: &SwitchDriver, job: u32, owner: Owner) -> UdpSocket {
    let worker = UdpSocket::bind("127.0.0.1:0").unwrap();
    switch.own(JobId(job), owner).unwrap();
    let nobody = SocketAddr::from(([127, 0, 0, 1], 9));
    let workers = vec![worker.local_addr().unwrap(), nobody];
    let lease = switchml::Lease {
        tree: TreeId(0),
        job: JobId(job),
        epoch: Epoch(1),
        workers,
        slots: 4,
        fragment_bytes: ROW,
    };
    switch.install(lease).unwrap();
    worker.connect(switch.local_addr()).unwrap();
    worker
}

fn packet(job: u32) -> Vec<u8> {
    use netsum_wire::switchml::{Header, Kind};
    let header = Header {
        tree: TreeId(0),
        parties: Parties::All,
        kind: Kind::Contribution,
        resent: false,
        arithmetic: Arithmetic::Max,
        worker: 0,
        job: JobId(job),
        round: 0,
        chunk: 0,
        epoch: Epoch(1),
        slot: 0,
        n_elems: 4,
        next_exponent: 0,
    };
    let mut packet = vec![0; Header::LEN + header.payload_len()];
    header.write(&mut packet[..Header::LEN]);
    packet
}

fn owner(tenant: &str, limit: RateLimit) -> Owner {
    Owner { tenant: Some(tenant.into()), limit }
}

/// The first snapshot that is as wanted.
fn snapshot(switch: &SwitchDriver, wanted: impl Fn(&SwitchSnapshot) -> bool) -> SwitchSnapshot {
    let end = Instant::now() + PATIENCE;
    loop {
        let snapshot = switch.snapshot().unwrap();
        if wanted(&snapshot) {
            return snapshot;
        }
        assert!(Instant::now() < end, "{snapshot:?}");
    }
}

fn tenant(snapshot: &SwitchSnapshot, name: &str) -> TenantCounters {
    let found = snapshot.tenants.iter().find(|(tenant, _)| &**tenant == name);
    found.map(|(_, counters)| *counters).unwrap_or_default()
}

#[test]
fn a_tenant_beyond_its_rate_is_cut_and_others_are_not() {
    let switch = switch();
    // A burst of 256 packets, and hardly one more before the test has ended.
    let limited = RateLimit { bytes_per_s: None, packets_per_s: Some(1) };
    let greedy = job(&switch, 1, owner("greedy", limited));
    let modest = job(&switch, 2, owner("modest", RateLimit::default()));
    for _ in 0..1_000 {
        greedy.send(&packet(1)).unwrap();
        modest.send(&packet(2)).unwrap();
    }
    let snapshot = snapshot(&switch, |snapshot| {
        let greedy = tenant(snapshot, "greedy");
        greedy.packets + greedy.dropped == 1_000 && tenant(snapshot, "modest").packets == 1_000
    });
    let (greedy, modest) = (tenant(&snapshot, "greedy"), tenant(&snapshot, "modest"));
    assert!((256..=256 + PATIENCE.as_secs()).contains(&greedy.packets), "{greedy:?}");
    assert!(greedy.marked >= 128, "{greedy:?}");
    assert_eq!((modest.marked, modest.dropped), (0, 0));
    let over_rate = snapshot.drops.iter().find(|(reason, _)| *reason == "over_rate");
    assert_eq!(over_rate.map(|&(_, count)| count), Some(greedy.dropped));
    let duplicates: Vec<u64> = snapshot.pools.iter().map(|p| p.counters.duplicates).collect();
    assert_eq!(duplicates, [greedy.packets - 1, 999], "what is cut reaches no machine");
}

#[test]
fn forged_job_numbers_cost_the_forger() {
    let switch = switch();
    let limited = RateLimit { bytes_per_s: None, packets_per_s: Some(1) };
    let victim = job(&switch, 1, owner("victim", limited));
    let hostile = job(&switch, 2, owner("hostile", RateLimit::default()));
    for _ in 0..1_000 {
        hostile.send(&packet(1)).unwrap();
    }
    victim.send(&packet(1)).unwrap();
    let snapshot = snapshot(&switch, |snapshot| {
        tenant(snapshot, "victim").packets > 0 && tenant(snapshot, "hostile").packets == 1_000
    });
    assert_eq!((tenant(&snapshot, "victim").packets, tenant(&snapshot, "victim").dropped), (1, 0));
}

#[test]
fn the_tenants_of_revoked_leases_are_forgotten() {
    let switch = switch();
    let _worker = job(&switch, 1, owner("gone", RateLimit::default()));
    assert_eq!(switch.snapshot().unwrap().tenants.len(), 1);
    switch.revoke(JobId(1), Epoch(1)).unwrap();
    assert!(switch.snapshot().unwrap().tenants.is_empty());
}
