//! Rates of tenants at a switch with an accelerator: what is cut does not reach the device. The device here has
//! registers and counts frames; sums are tested with the accelerator itself (hw/tests/test_cosim.py).

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use netsum_net::switch::{Role, SwitchDriver, SwitchOptions, SwitchSnapshot};
use netsum_net::udp::SocketOptions;
use netsum_proto::atp::{Policy, SwitchConfig};
use netsum_proto::panama::{Child, Lease};
use netsum_proto::policer::{Owner, RateLimit, TenantCounters};
use netsum_wire::Parties;
use netsum_wire::panama::{HEADER_LEN, Header, Kind};
use netsum_wire::{Dtype, Epoch, Format, JobId, ReduceOp, TreeId, Vid};

const PATIENCE: Duration = Duration::from_secs(30);
/// Identity, version, shape (8 lines, 16 leases) and memory (1024 slots of 1,024 bytes).
const REGISTERS: [(u32, u32); 4] =
    [(0, 0x6e73_756d), (4, 1), (8, 8 << 8 | 16), (12, 1024 << 16 | 1024)];

/// Answers for registers until the switch closes the connection; counts the frames of each job.
fn device(mut stream: UnixStream, frames: &[AtomicU64; 3]) -> std::io::Result<()> {
    let registers = HashMap::from(REGISTERS);
    loop {
        let mut head = [0; 4];
        stream.read_exact(&mut head)?;
        let mut body = vec![0; usize::from(u16::from_le_bytes([head[2], head[3]]))];
        stream.read_exact(&mut body)?;
        match head[0] {
            // A frame from the wire: the job's number is in the packet after 42 bytes of headers.
            0x01 => {
                frames[usize::from(body[42 + 7])].fetch_add(1, Ordering::SeqCst);
            }
            0x04 => {
                let address = u32::from_le_bytes(body[..4].try_into().unwrap());
                let value = registers.get(&address).copied().unwrap_or(0);
                let answer = [&[0x83, 0, 8, 0], &address.to_le_bytes()[..], &value.to_le_bytes()];
                stream.write_all(&answer.concat())?;
            }
            _ => {}
        }
    }
}

/// A job whose one worker is a plain socket.
fn job(switch: &SwitchDriver, job: u32, tenant: &str, limit: RateLimit) -> UdpSocket {
    let worker = UdpSocket::bind("127.0.0.1:0").unwrap();
    switch.own(JobId(job), Owner { tenant: Some(tenant.into()), limit }).unwrap();
    let child = |port| Child { port, branch: 0, ranks: 1 };
    let lease = Lease {
        job: JobId(job),
        tree: TreeId(0),
        epoch: Epoch(1),
        children: vec![child(worker.local_addr().unwrap())],
        parent: None,
        slots: 16,
        fragment_bytes: 1024,
        release_permille: 1000,
    };
    switch.install(lease).unwrap();
    worker.connect(switch.local_addr()).unwrap();
    worker
}

fn packet(job: u32) -> [u8; HEADER_LEN] {
    let header = Header {
        kind: Kind::Contribution,
        resent: false,
        congested_down: false,
        tree: TreeId(0),
        format: Format { dtype: Dtype::F32, op: ReduceOp::Sum },
        job: JobId(job),
        vid: Vid(0),
        chunk: 0,
        epoch: Epoch(1),
        window_cap: 16,
        n_elems: 0,
        marks: 0,
        missing: 0,
        parties: Parties::All,
        empty: false,
        asks: false,
        others: 0,
    };
    let mut packet = [0; HEADER_LEN];
    header.encode(&mut packet);
    packet
}

fn tenant(snapshot: &SwitchSnapshot, name: &str) -> TenantCounters {
    let found = snapshot.tenants.iter().find(|(tenant, _)| &**tenant == name);
    found.map(|(_, counters)| *counters).unwrap_or_default()
}

#[test]
fn what_a_tenant_sends_beyond_its_rate_does_not_reach_the_accelerator() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("device");
    let listener = UnixListener::bind(&path).unwrap();
    let frames = Arc::new([const { AtomicU64::new(0) }; 3]);
    let serving = thread::spawn({
        let frames = frames.clone();
        move || device(listener.accept().unwrap().0, &frames)
    });
    // An accelerator adds for trees only.
    let config = SwitchConfig {
        slots: 0,
        row_bytes: 0,
        policy: Policy::FirstCome,
        straggler_ns: 1_000_000_000,
    };
    let options = SwitchOptions {
        bind: "127.0.0.1:0".parse().unwrap(),
        memory: 1 << 20,
        role: Role::Switch(config),
        socket: SocketOptions::default(),
        threads: 1,
    };
    let switch = SwitchDriver::start_on(&options, &path).unwrap();
    // A burst of 256 packets, and hardly one more before the test has ended.
    let limited = RateLimit { bytes_per_s: None, packets_per_s: Some(1) };
    let greedy = job(&switch, 1, "greedy", limited);
    let modest = job(&switch, 2, "modest", RateLimit::default());
    for _ in 0..1_000 {
        greedy.send(&packet(1)).unwrap();
        modest.send(&packet(2)).unwrap();
    }
    let end = Instant::now() + PATIENCE;
    let snapshot = loop {
        let snapshot = switch.snapshot().unwrap();
        let greedy = tenant(&snapshot, "greedy");
        let all = greedy.packets + greedy.dropped + tenant(&snapshot, "modest").packets;
        if all == 2_000 {
            break snapshot;
        }
        assert!(Instant::now() < end, "{snapshot:?}");
    };
    let (greedy, modest) = (tenant(&snapshot, "greedy"), tenant(&snapshot, "modest"));
    assert!((256..=256 + PATIENCE.as_secs()).contains(&greedy.packets), "{greedy:?}");
    assert!(greedy.marked >= 128, "{greedy:?}");
    assert_eq!((modest.marked, modest.dropped), (0, 0));
    let over_rate = snapshot.drops.iter().find(|(reason, _)| *reason == "over_rate");
    assert_eq!(over_rate.map(|&(_, count)| count), Some(greedy.dropped));
    switch.stop();
    // Ends with the connection, after all frames.
    let _ = serving.join().unwrap();
    let reached = [1, 2].map(|job| frames[job].load(Ordering::SeqCst));
    assert_eq!(reached, [greedy.packets, 1_000]);
}
