//! An overloaded switch with 64 tenants, one of which floods: what part of their packets do the others keep?
//!
//! Every tenant has a job of protocol `switchml` with SipHash tags, one of which each packet costs the switch.
//! 63 tenants send at one steady rate; the flood is sent as fast as one thread can, without tags, which would slow it
//! down. Two kinds of round alternate: with each tenant on its own, and with all jobs as one tenant's, whom no fair share
//! can protect from each other.
//!
//! The switch's thread and the senders' thread need a core each.
//!
//! `cargo bench --profile release -p netsum-net --bench fairness -- [--rounds N] [--out FILE]`

#[path = "../../../../bench/record.rs"]
mod record;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use netsum_net::switch::{Role, SwitchDriver, SwitchOptions};
use netsum_net::udp::{SendBatch, Socket, SocketOptions};
use netsum_proto::atp::{Policy, SwitchConfig};
use netsum_proto::policer::{Owner, Policer, RateLimit, Verdict};
use netsum_proto::{Hop, PortId, Time, switchml};
use netsum_wire::seal::{HopKeys, with_room};
use netsum_wire::switchml::{Header, Kind};
use netsum_wire::tag::Mac;
use netsum_wire::{Arithmetic, Epoch, JobId, PacketHeader, Parties, TreeId};
use record::{commit, machine, median};
use serde_json::json;

const TENANTS: u32 = 64;
const ROW: u16 = 1408;
/// Packets per second of each tenant but the first.
const STEADY: u64 = 3_000;
/// The senders' clock.
const STEP: Duration = Duration::from_millis(1);
/// Packets of the flood between two looks at the clock.
const TRAIN: usize = 40;
/// The fair share settles in the first part of a round, which does not count.
const SETTLE: Duration = Duration::from_millis(1_000);
const MEASURE: Duration = Duration::from_secs(3);
/// A buffer that any system grants; with more, the flood takes longer to fill it.
const RECEIVE_BUFFER: usize = 4 << 20;

fn main() {
    let arguments: Vec<_> = std::env::args().collect();
    let after = |name: &str| arguments.iter().skip_while(|a| *a != name).nth(1);
    let rounds: usize = after("--rounds").and_then(|n| n.parse().ok()).unwrap_or(5);
    let kinds = ["calm", "fair-share", "one-tenant"];
    let mut figures = kinds.map(|_| Vec::new());
    for _ in 0..rounds {
        for (kind, figures) in kinds.iter().zip(&mut figures) {
            let figure = round(*kind != "calm", *kind == "one-tenant");
            println!("{kind}: {figure:?}");
            figures.push(figure);
        }
    }
    let costs: Vec<f64> = (0..rounds).map(|_| policer_ns()).collect();
    println!("the policer takes {:.1} ns per packet", median(&costs));
    let mut detail = serde_json::Map::new();
    detail.insert("policer_ns_per_packet".into(), median(&costs).into());
    for (kind, figures) in kinds.iter().zip(&figures) {
        let of = |value: fn(&Figure) -> f64| median(&figures.iter().map(value).collect::<Vec<_>>());
        let figure = json!({
            "least_kept": of(|f| f.least), "median_kept": of(|f| f.middle),
            "flood_packets_per_s": of(|f| f.flood_sent), "flood_passed_per_s": of(|f| f.flood_passed),
        });
        println!("{kind}: {figure}");
        detail.insert((*kind).into(), figure);
    }
    if let Some(file) = after("--out") {
        let record = json!({
            "name": "fairness", "unit": "part of the packets of 63 tenants beside a flood that is processed",
            "higher_is_better": true, "ours": detail, "rounds": rounds, "machine": machine(), "commit": commit(),
        });
        record::write(Path::new(file), &record);
    }
}

/// Nanoseconds that the policer takes for a packet, while nobody is cut: trains of many senders in turn.
fn policer_ns() -> f64 {
    const PACKETS: u32 = 8_000_000;
    let mut policer = Policer::new();
    for number in 1..=TENANTS {
        let tenant = Some(number.to_string().as_str().into());
        policer.own(Time(0), JobId(number), Owner { tenant, limit: RateLimit::default() });
        policer.lease(Time(0), JobId(number), [PortId(number)].into_iter());
    }
    let packets: Vec<Vec<u8>> = (1..=TENANTS).map(packet).collect();
    let start = Instant::now();
    for number in 0..PACKETS {
        let sender = number / TRAIN as u32 % TENANTS;
        let (now, port) = (Time(number.into()), PortId(sender + 1));
        let verdict = policer.admit_packet(now, port, &packets[sender as usize]);
        assert_eq!(std::hint::black_box(verdict), Verdict::Pass);
    }
    start.elapsed().as_nanos() as f64 / f64::from(PACKETS)
}

#[derive(Debug)]
struct Figure {
    /// Part of their packets that the tenants beside the flood had processed: the least, and the one in the middle.
    least: f64,
    middle: f64,
    /// The flood, in packets per second.
    flood_sent: f64,
    flood_passed: f64,
}

struct Sender {
    job: u32,
    socket: Socket,
    batch: SendBatch<usize>,
    hop: Hop,
    /// One contribution, sealed under a new number whenever it is sent.
    packets: Vec<Vec<u8>>,
}

fn round(flood: bool, one_tenant: bool) -> Figure {
    let policy = Policy::FirstCome;
    let config = SwitchConfig { slots: 4_096, row_bytes: ROW, policy, straggler_ns: 200_000_000 };
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let socket = SocketOptions { recv_buffer: RECEIVE_BUFFER, ..SocketOptions::default() };
    let options =
        SwitchOptions { bind: any, memory: 0, role: Role::Switch(config), socket, threads: 1 };
    let switch = SwitchDriver::start(&options).expect("it starts");
    let mut senders: Vec<Sender> =
        (1..=TENANTS).map(|job| Sender::new(&switch, job, one_tenant)).collect();
    let start = Instant::now();
    let (mut steps, mut before) = (0, None);
    let mut sent = vec![0; senders.len()];
    while start.elapsed() < SETTLE + MEASURE {
        if before.is_none() && start.elapsed() >= SETTLE {
            before = Some((processed(&switch), sent.clone(), Instant::now()));
        }
        if start.elapsed() >= STEP * steps {
            steps += 1;
            for (sender, sent) in senders.iter_mut().zip(&mut sent).skip(1) {
                *sent += sender.send(STEADY as usize / 1_000);
            }
        } else if flood {
            sent[0] += senders[0].repeat(TRAIN);
        }
    }
    let (processed_before, sent_before, since) = before.expect("the measurement has begun");
    let elapsed_s = since.elapsed().as_secs_f64();
    // What is in the buffer now was sent before.
    let processed = processed(&switch);
    let part =
        |n: usize| (processed[n] - processed_before[n]) as f64 / (sent[n] - sent_before[n]) as f64;
    let mut kept: Vec<f64> = (1..senders.len()).map(part).collect();
    kept.sort_by(f64::total_cmp);
    Figure {
        least: kept[0],
        middle: median(&kept),
        flood_sent: (sent[0] - sent_before[0]) as f64 / elapsed_s,
        flood_passed: (processed[0] - processed_before[0]) as f64 / elapsed_s,
    }
}

/// Packets that each job's machine has taken, by job.
fn processed(switch: &SwitchDriver) -> Vec<u64> {
    let pools = switch.snapshot().expect("it runs").pools;
    pools.iter().map(|pool| pool.counters.added + pool.counters.duplicates).collect()
}

impl Sender {
    fn new(switch: &SwitchDriver, job: u32, one_tenant: bool) -> Sender {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let socket = Socket::bind(any, &SocketOptions::default()).expect("it binds");
        let tenant = if one_tenant { "all".to_owned() } else { format!("tenant{job}") };
        let owner = Owner { tenant: Some(tenant.as_str().into()), limit: RateLimit::default() };
        switch.own(JobId(job), owner).expect("it runs");
        // The other worker never sends, so that each packet but the first is a duplicate.
        let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
        let workers = vec![socket.local_addr(), nobody];
        let (job_id, epoch) = (JobId(job), Epoch(1));
        let lease = switchml::Lease {
            tree: TreeId(0),
            job: job_id,
            epoch,
            workers,
            slots: 1,
            fragment_bytes: ROW,
        };
        switch.install_with(lease, Some(vec![keys(); 2])).expect("the lease fits");
        let mut batch = SendBatch::new();
        batch.set_destination(0, switch.local_addr());
        let packets = vec![with_room(&packet(job)); TRAIN];
        Sender { job, socket, batch, hop: Hop::to_parent(keys()), packets }
    }

    /// Sends that many packets; returns the number.
    fn send(&mut self, packets: usize) -> u64 {
        debug_assert_eq!(netsum_wire::job_of(&self.packets[0]), Some(JobId(self.job)));
        self.packets[..packets].iter_mut().for_each(|packet| self.hop.seal(packet, &[]));
        self.repeat(packets)
    }

    /// Sends that many packets as they are, at no cost for seals; returns the number.
    fn repeat(&mut self, packets: usize) -> u64 {
        (0..packets).for_each(|packet| self.batch.push(0, packet));
        let sealed = &self.packets;
        self.batch.flush(&self.socket, |&packet| [&sealed[packet], &[]]);
        packets as u64
    }
}

fn keys() -> HopKeys {
    HopKeys::new(Mac::SipHash, *b"keys of the bench, 32 bytes long")
}

fn packet(job: u32) -> Vec<u8> {
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
        n_elems: ROW / 4,
        next_exponent: 0,
    };
    let mut packet = vec![0; Header::LEN + header.payload_len()];
    header.write(&mut packet[..Header::LEN]);
    packet
}
