//! `vectors/switchml` through the shipped program.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use netsum_net::xdp::{Hop, Plane, PlaneOptions, ServedCounters, Verdict, WhyNot};
use netsum_proto::atp::{Policy, SwitchConfig};
use netsum_proto::row_machines::Standing;
use netsum_proto::switchml::{Counters, Lease};
use netsum_proto::{DropCounters, Hop as SealedHop, PortId};
use netsum_wire::seal::{HopKeys, unsealed, with_room};
use netsum_wire::switchml::{HEADER_LEN, Header, Kind, VERSION};
use netsum_wire::{Epoch, JobId, Parties, TreeId};
use serde_json::Value;

use crate::namespace::Namespace;
use crate::rights::load;
use crate::vectors::{FIRST_INTERFACE, OWN, Sent, address, files, keys, number, port, unhex};

/// As many as any vectors need.
const SLOTS: u32 = 64;

type LeaseName = (JobId, TreeId);

#[test]
fn the_program_matches_the_vectors_of_pools() {
    let Some(space) = Namespace::new() else { return };
    let pair = |port| {
        format!("link add d{port} index {} type veth peer name p{port}", FIRST_INTERFACE + port)
    };
    if space.ip(&(10..42).map(pair).collect::<Vec<_>>()) {
        space.run(|| {
            let (mut packets, mut counters) = (0, Counters::default());
            for sealed in [false, true] {
                let Some(mut bench) = Bench::new(SLOTS, sealed) else { return };
                for file in files("switchml/") {
                    assert!(number(&file["switch"]["slots"]) <= SLOTS);
                    packets += bench.replay(&file);
                }
                counters += bench.counters;
            }
            assert!(packets > 6_000, "only {packets} packets in all vectors");
            let Counters { added, completed, duplicates, answered, mismatches } = counters;
            assert!(answered > 100 && duplicates > answered && added > completed, "{counters:?}");
            assert!(completed > 450 && mismatches >= 14, "{counters:?}");
        });
    }
}

struct Bench {
    plane: Plane,
    leases: HashMap<LeaseName, Lease>,
    /// The far end of each hop, if packets are sealed.
    far: Option<HashMap<(LeaseName, u32), SealedHop>>,
    /// Of leases that are gone.
    counters: Counters,
    /// Of packets that the kernel has passed on.
    drops_behind: DropCounters,
}

impl Bench {
    /// `None`, with a line, where the program cannot be loaded.
    fn new(slots: u32, sealed: bool) -> Option<Bench> {
        let policy = Policy::FirstCome;
        let switch = SwitchConfig { slots, row_bytes: 1408, policy, straggler_ns: 1 << 40 };
        let plane = load(PlaneOptions { own: OWN, switch })?;
        Some(Bench {
            plane,
            leases: HashMap::new(),
            far: sealed.then(HashMap::new),
            counters: Counters::default(),
            drops_behind: DropCounters::default(),
        })
    }

    /// Replays a file, and ends its jobs; returns the number of packets.
    fn replay(&mut self, file: &Value) -> usize {
        let name = file["name"].as_str().unwrap();
        let mut packets = 0;
        for (i, entry) in file["steps"].as_array().unwrap().iter().enumerate() {
            let what = format!("{name}, step {i}: {entry}");
            if let Some(lease) = entry.get("install") {
                self.install(lease);
                continue;
            }
            if let Some(revoke) = entry.get("revoke") {
                self.revoke(JobId(number(&revoke["job"])), Epoch(number(&revoke["up_to"]) as u16));
                continue;
            }
            packets += 1;
            let (from, packet) = (number(&entry["port"]), unhex(entry["in"].as_str().unwrap()));
            let (on_wire, of_stranger) = self.seal_from(from, &packet);
            let before = self.drops();
            let out = self.packet(from, &on_wire);
            let dropped: Vec<_> = self.new_drops(&before);
            let expected: Vec<_> =
                entry.get("drop").into_iter().map(|d| d.as_str().unwrap()).collect();
            let as_well = match expected.as_slice() {
                ["not_a_neighbour" | "no_lease"] if of_stranger => {
                    &["bad_tag", "unknown_sender"][..]
                }
                ["not_a_neighbour" | "no_lease"] => &["unknown_sender"],
                _ => &[],
            };
            if !as_well.iter().any(|&reason| dropped == [reason]) {
                assert_eq!(dropped, expected, "{what}");
            }
            let sent =
                |sent: &Value| (number(&sent["port"]), unhex(sent["packet"].as_str().unwrap()));
            let wanted: Vec<_> = entry["out"].as_array().unwrap().iter().map(sent).collect();
            assert_eq!(out, wanted, "{what}");
            if self.far.is_some() {
                // A packet that was recorded has no effect.
                let before = self.drops();
                assert_eq!(self.packet(from, &on_wire), [], "again: {what}");
                assert_ne!(self.new_drops(&before), [] as [&str; 0], "again: {what}");
            }
        }
        let jobs: Vec<_> = self.leases.keys().map(|name| name.0).collect();
        jobs.into_iter().for_each(|job| self.revoke(job, Epoch(u16::MAX)));
        packets
    }

    fn install(&mut self, lease: &Value) {
        let standing = Standing::Pool { round: number(&lease["first_round"]) };
        let lease = Lease {
            job: JobId(number(&lease["job"])),
            epoch: Epoch(number(&lease["epoch"]) as u16),
            tree: TreeId(number(&lease["tree"]) as u8),
            workers: lease["workers"]
                .as_array()
                .unwrap()
                .iter()
                .map(|port| PortId(number(port)))
                .collect(),
            slots: number(&lease["slots"]) as u16,
            fragment_bytes: number(&lease["fragment_bytes"]) as u16,
        };
        let name = (lease.job, lease.tree);
        self.keep_counters(name);
        let hop =
            |port: &PortId| Hop { ifindex: FIRST_INTERFACE + port.0, mac: [6; 6], own_mac: [8; 6] };
        let hops: Vec<_> = lease.workers.iter().map(hop).collect();
        let of: netsum_proto::Lease = lease.clone().into();
        let secrets: Option<Vec<HopKeys>> = self.far.as_mut().map(|far| {
            far.retain(|(other, _), _| *other != name);
            let keys: Vec<_> = lease.workers.iter().map(|&port| keys(of.key(), port)).collect();
            for (port, &keys) in lease.workers.iter().zip(&keys) {
                far.insert((name, port.0), SealedHop::to_parent(keys));
            }
            keys
        });
        let by_address = of.map(|port| SocketAddr::V4(address(port.0)));
        self.plane.install(&by_address, secrets.as_deref(), standing, &hops).unwrap();
        self.leases.insert(name, lease);
    }

    fn revoke(&mut self, job: JobId, up_to: Epoch) {
        let gone: Vec<_> =
            self.leases.values().filter(|l| l.job == job && l.epoch <= up_to).collect();
        for name in gone.into_iter().map(|lease| (lease.job, lease.tree)).collect::<Vec<_>>() {
            self.keep_counters(name);
            self.leases.remove(&name);
            self.plane.remove(name.0, name.1).unwrap();
            if let Some(far) = &mut self.far {
                far.retain(|(other, _), _| *other != name);
            }
        }
    }

    fn keep_counters(&mut self, name: LeaseName) {
        let served = self.plane.leases().unwrap();
        if let Some(lease) = served.iter().find(|lease| (lease.job, lease.tree) == name) {
            let ServedCounters::Pool(counters) = lease.counters else { panic!("{lease:?}") };
            self.counters += counters;
        }
    }

    /// A packet as its sender seals it. The second: the sender has no key of this job.
    fn seal_from(&mut self, from: u32, packet: &[u8]) -> (Vec<u8>, bool) {
        let Some(far) = &mut self.far else { return (packet.to_vec(), false) };
        if packet.len() < HEADER_LEN || packet[0] != VERSION {
            return (packet.to_vec(), false);
        }
        let mut sealed = with_room(packet);
        let (hop, of_nobody) = match far.get_mut(&(name_of(packet), from)) {
            Some(hop) => (hop, false),
            None => {
                let keys = HopKeys::new(netsum_wire::tag::Mac::Nh, [9; 32]);
                (&mut SealedHop::to_parent(keys), true)
            }
        };
        hop.seal(&mut sealed, &[]);
        (sealed, of_nobody)
    }

    fn packet(&mut self, from: u32, packet: &[u8]) -> Vec<Sent> {
        match self.plane.try_packet(address(from), false, packet).unwrap() {
            Verdict::Taken => Vec::new(),
            Verdict::Sent(to, packet) => {
                let to = port(to);
                let packet = match &mut self.far {
                    Some(far) => {
                        let hop = far.get_mut(&(name_of(&packet), to)).unwrap();
                        assert_eq!(hop.open(&mut packet.clone()), Ok(()), "to {to}");
                        unsealed(&packet).into_owned()
                    }
                    None => packet,
                };
                vec![(to, packet)]
            }
            Verdict::FannedOut(packet) => {
                let packet = unsealed(&packet).into_owned();
                let lease = &self.leases[&name_of(&packet)];
                let each = (0..).zip(&lease.workers);
                each.map(|(worker, to)| (to.0, at_worker(worker, &packet))).collect()
            }
            Verdict::Passed(packet) => {
                // What is no packet of a protocol is user space's.
                let error = Header::decode(&packet).unwrap_err();
                self.drops_behind.count(error.into());
                Vec::new()
            }
        }
    }

    /// Drops by reason.
    fn drops(&self) -> BTreeMap<&'static str, u64> {
        let kernel = self.plane.drops().unwrap().into_iter().map(|(d, n)| (d.label(), n));
        let mut all = BTreeMap::new();
        for (reason, count) in kernel.chain(self.drops_behind.iter()) {
            *all.entry(reason).or_default() += count;
        }
        all
    }

    fn new_drops(&self, before: &BTreeMap<&'static str, u64>) -> Vec<&'static str> {
        let after = self.drops();
        let new = |d: &(&'static str, u64)| before.get(d.0).copied().unwrap_or(0) != d.1;
        after.into_iter().filter(new).map(|d| d.0).collect()
    }
}

/// What the program at the egress makes of a result for a worker. Real packets show that it does: `fabric.rs`.
fn at_worker(worker: u32, packet: &[u8]) -> Vec<u8> {
    let parties = match (packet[25], packet[26]) {
        (0, _) => Parties::All,
        (1, rank) => Parties::ToOne(rank),
        (2, rank) => Parties::FromOne(rank),
        _ => Parties::Nobody,
    };
    let mut packet = packet.to_vec();
    (packet[25], packet[26]) = (0, 0);
    if packet[1] == Kind::Result as u8 && !parties.takes(1 << worker) {
        packet[1] = Kind::Done as u8;
        packet.truncate(HEADER_LEN);
    }
    packet
}

fn name_of(packet: &[u8]) -> LeaseName {
    (JobId(u32::from_be_bytes(packet[4..8].try_into().unwrap())), TreeId(packet[24]))
}

#[test]
fn pools_get_ranges_of_slots_until_there_is_no_room() {
    let Some(mut bench) = Bench::new(10, false) else { return };
    let lease = |job, slots, worker: u32| -> netsum_proto::Lease<SocketAddr> {
        let workers = (worker..worker + 2).map(|port| address(port).into()).collect();
        let (job, epoch, tree, fragment_bytes) = (JobId(job), Epoch(1), TreeId(0), 64);
        Lease { job, epoch, tree, workers, slots, fragment_bytes }.into()
    };
    let mut install = |lease: &netsum_proto::Lease<SocketAddr>, interfaces: [u32; 2]| {
        let hops = interfaces.map(|ifindex| Hop { ifindex, mac: [6; 6], own_mac: [8; 6] });
        bench.plane.install(lease, None, Standing::Pool { round: 0 }, &hops)
    };
    let shared = install(&lease(1, 4, 10), [1, 1]);
    assert!(matches!(shared, Err(WhyNot::SharedInterface)), "{shared:?}");
    // The loopback interface exists everywhere; a pool of one worker has one interface.
    let alone = |job, slots| -> netsum_proto::Lease<SocketAddr> {
        let (job, epoch, tree, fragment_bytes) = (JobId(job), Epoch(1), TreeId(0), 64);
        let workers = vec![address(10).into()];
        Lease { job, epoch, tree, workers, slots, fragment_bytes }.into()
    };
    let hop = [Hop { ifindex: 1, mac: [6; 6], own_mac: [8; 6] }];
    let standing = Standing::Pool { round: 0 };
    for (job, slots, fits) in [(1, 6, true), (2, 5, false), (2, 4, true), (3, 1, false)] {
        let installed = bench.plane.install(&alone(job, slots), None, standing, &hop);
        match fits {
            true => installed.unwrap(),
            false => {
                let refused = installed.unwrap_err().to_string();
                let wanted =
                    format!("the in-kernel switch has no room for a pool of {slots} slots");
                assert_eq!(refused, wanted);
            }
        }
    }
    bench.plane.remove(JobId(1), TreeId(0)).unwrap();
    bench.plane.install(&alone(3, 6), None, standing, &hop).unwrap();
}
