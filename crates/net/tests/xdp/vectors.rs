//! `vectors/atp` through the shipped program, with the user-space switch behind it as in a daemon.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::Arc;

use netsum_net::xdp::{Hop, Plane, PlaneOptions, Verdict};
use netsum_proto::atp::{Claim, Lease, Members, Policy, Rack, Switch, SwitchConfig};
use netsum_proto::row_machines::Standing;
use netsum_proto::values::{Rows, Values};
use netsum_proto::{Aggregator, Hop as SealedHop, Hops, LeaseKey, PortId, SharedNumbers, Time};
use netsum_wire::atp::{HEADER_LEN, Header, VERSION};
use netsum_wire::seal::{HopKeys, unsealed, with_room};
use netsum_wire::tag::Mac;
use netsum_wire::{Epoch, JobId, TreeId};
use serde_json::Value;

use crate::namespace::Namespace;
use crate::rights::load;

pub const OWN: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 9, 9, 9), 7701);

/// Whether each child has an interface of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wiring {
    PortEach,
    OnePort,
}

/// First of the interfaces that a map may name; nothing is sent on them.
pub const FIRST_INTERFACE: u32 = 100;

#[test]
fn the_program_matches_the_vectors() {
    let Some(space) = Namespace::new() else { return };
    let pair = |port| {
        format!("link add d{port} index {} type veth peer name p{port}", FIRST_INTERFACE + port)
    };
    if space.ip(&(10..42).map(pair).collect::<Vec<_>>()) {
        space.run(replay_all);
    }
}

/// The vectors of a protocol.
pub fn files(protocol: &str) -> Vec<Value> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../vectors");
    let digests = fs::read_to_string(folder.join("digests.txt")).unwrap();
    let paths = digests.lines().filter_map(|line| line.split(' ').next());
    let read = |path: &str| {
        let text = fs::read_to_string(folder.join(path));
        let text = text.unwrap_or_else(|_| panic!("{path} is not there; run `make vectors-check`"));
        serde_json::from_str(&text).unwrap()
    };
    paths.filter(|path| path.starts_with(protocol)).map(read).collect()
}

fn replay_all() {
    let mut packets = 0;
    for file in files("atp/") {
        let name = file["name"].as_str().unwrap();
        for (wiring, sealed) in [
            (Wiring::PortEach, false),
            (Wiring::OnePort, false),
            (Wiring::PortEach, true),
            (Wiring::OnePort, true),
        ] {
            // With one port, user space replicates results; there is no other difference.
            if wiring == Wiring::OnePort && !["results", "fin", "walk-rack"].contains(&name) {
                continue;
            }
            let Some(bench) = Bench::new(&file["switch"], wiring, sealed) else { return };
            packets += bench.replay(&file);
        }
    }
    assert!(packets > 14_000, "only {packets} packets in all vectors");
}

struct Bench {
    plane: Plane,
    machine: Switch<Rows>,
    wiring: Wiring,
    sealed: Option<Seals>,
}

/// What keeps packets sealed.
#[derive(Default)]
struct Seals {
    /// Of user space, behind the kernel.
    own: Hops,
    /// The far end of each hop.
    far: HashMap<(JobId, TreeId, u32), SealedHop>,
}

/// The keys between the switch and a neighbour in a lease.
pub fn keys(lease: LeaseKey, neighbour: PortId) -> HopKeys {
    let LeaseKey { job, epoch, tree } = lease;
    let mut secret = [0; 32];
    secret[..4].copy_from_slice(&job.0.to_le_bytes());
    secret[4..6].copy_from_slice(&epoch.0.to_le_bytes());
    secret[6..8].copy_from_slice(&[tree.0, neighbour.0 as u8]);
    secret[16..].fill(1);
    HopKeys::new(Mac::Nh, secret)
}

impl Seals {
    fn install(&mut self, plane: &mut Plane, lease: &Lease) -> Vec<HopKeys> {
        let key = LeaseKey { job: lease.job, epoch: lease.epoch, tree: lease.tree };
        let children = lease.members.neighbours();
        let neighbours: Vec<_> = children.chain([lease.parent]).collect();
        let keys: Vec<_> = neighbours.iter().map(|&port| keys(key, port)).collect();
        self.own.install(&netsum_proto::Lease::Slots(lease.clone()), Some(&keys));
        let by_address = lease.map(|port| SocketAddr::V4(address(port.0)));
        let numbers = plane.numbers(&by_address.into(), &keys).unwrap();
        self.far.retain(|&(job, tree, _), _| (job, tree) != (lease.job, lease.tree));
        for ((&port, &keys), numbers) in neighbours.iter().zip(&keys).zip(numbers) {
            assert!(self.own.share(key, port, numbers as Arc<dyn SharedNumbers>));
            let far = if port == lease.parent {
                SealedHop::to_child(keys)
            } else {
                SealedHop::to_parent(keys)
            };
            self.far.insert((lease.job, lease.tree, port.0), far);
        }
        keys
    }

    /// A packet as its sender seals it. The second: the sender has no key of this job.
    fn seal_from(&mut self, from: u32, packet: &[u8]) -> (Vec<u8>, bool) {
        let whole = packet.len() >= HEADER_LEN && packet[0] == VERSION;
        if !whole || packet[HEADER_LEN - 8..HEADER_LEN] != [0; 8] {
            return (packet.to_vec(), false);
        }
        let (job, tree) = (u32::from_be_bytes(packet[4..8].try_into().unwrap()), packet[3]);
        let mut sealed = with_room(packet);
        match self.far.get_mut(&(JobId(job), TreeId(tree), from)) {
            Some(hop) => {
                hop.seal(&mut sealed, &[]);
                (sealed, false)
            }
            None => {
                let of_nobody = HopKeys::new(Mac::Nh, [9; 32]);
                SealedHop::to_parent(of_nobody).seal(&mut sealed, &[]);
                (sealed, true)
            }
        }
    }

    /// What a neighbour has received, opened.
    fn at_neighbour(&mut self, to: u32, packet: &[u8]) -> Vec<u8> {
        let (header, _) = Header::decode(packet).unwrap();
        let hop = self.far.get_mut(&(header.job, header.tree, to)).expect("a neighbour");
        let mut packet = packet.to_vec();
        assert_eq!(hop.open(&mut packet), Ok(()), "to {to}: {header:?}");
        unsealed(&packet).into_owned()
    }
}

pub type Sent = (u32, Vec<u8>);

impl Bench {
    /// `None`, with a message, if the program cannot be loaded.
    fn new(switch: &Value, wiring: Wiring, sealed: bool) -> Option<Bench> {
        let config = read_config(switch);
        let options = PlaneOptions { own: OWN, switch: config };
        let rows = Rows::new(config.slots as usize + 64, config.row_bytes.into());
        let (plane, sealed) = (load(options)?, sealed.then(Seals::default));
        Some(Bench { plane, machine: Switch::new(config, rows), wiring, sealed })
    }

    fn replay(mut self, file: &Value) -> usize {
        let name = file["name"].as_str().unwrap();
        let mut packets = 0;
        for (i, entry) in file["steps"].as_array().unwrap().iter().enumerate() {
            let what = format!("{name}, step {i}: {entry}");
            let now = Time(entry["at"].as_u64().unwrap_or(0));
            if entry.get("at").is_some() {
                self.plane.set_clock(now.0).unwrap();
            }
            if let Some(lease) = entry.get("install") {
                self.install(now, &read_lease(lease));
                continue;
            }
            let before = self.drops();
            let (mut of_stranger, mut is_of_switchml, mut on_wire) = (false, false, None);
            let out = if let Some(revoke) = entry.get("revoke") {
                self.revoke(JobId(number(&revoke["job"])), Epoch(number(&revoke["up_to"]) as u16));
                Vec::new()
            } else if entry.get("timeout").is_some() {
                self.time_out(now)
            } else {
                packets += 1;
                let ce = entry["ce"].as_bool().unwrap();
                let (from, packet) = (number(&entry["port"]), unhex(entry["in"].as_str().unwrap()));
                is_of_switchml = packet.first() == Some(&netsum_wire::switchml::VERSION);
                let packet = match &mut self.sealed {
                    Some(sealed) => {
                        let (sealed, stranger) = sealed.seal_from(from, &packet);
                        of_stranger = stranger;
                        on_wire = Some((from, sealed.clone()));
                        sealed
                    }
                    None => packet,
                };
                self.packet(now, from, ce, &packet)
            };
            let dropped: Vec<_> = self
                .drops()
                .into_iter()
                .filter(|(reason, count)| before.get(reason).copied().unwrap_or(0) != *count)
                .map(|d| d.0)
                .collect();
            let expected: Vec<_> =
                entry.get("drop").into_iter().map(|d| d.as_str().unwrap()).collect();
            let as_well = match expected.as_slice() {
                ["not_a_neighbour" | "no_lease"] if of_stranger => {
                    &["bad_tag", "unknown_sender"][..]
                }
                ["not_a_neighbour"] => &["unknown_sender"],
                // The program knows it for a damaged packet of switchml.
                ["unknown_version"] if is_of_switchml => &["reserved_field"],
                _ => &[],
            };
            if !as_well.iter().any(|&reason| dropped == [reason]) {
                assert_eq!(dropped, expected, "{what}");
            }
            let sent =
                |sent: &Value| (number(&sent["port"]), unhex(sent["packet"].as_str().unwrap()));
            let wanted = entry
                .get("out")
                .map_or(Vec::new(), |o| o.as_array().unwrap().iter().map(sent).collect());
            assert_eq!(out, wanted, "{what}");
            let held = self.plane.held().unwrap() + self.machine.held();
            assert_eq!(held, number(&entry["held"]), "{what}");
            if let Some((from, packet)) = on_wire {
                self.repeat(now, from, &packet, &what);
            }
        }
        packets
    }

    fn install(&mut self, now: Time, lease: &Lease) {
        let known = self.machine.leases().any(|(l, ..)| l == lease);
        self.machine.install(now, lease.clone()).unwrap();
        if known {
            return;
        }
        let (first, passed) = self.machine.standing(lease.job, lease.tree).unwrap();
        let neighbours = lease.members.neighbours().chain([lease.parent]);
        let hop = |port: PortId| Hop {
            ifindex: if self.wiring == Wiring::PortEach {
                FIRST_INTERFACE + port.0
            } else {
                FIRST_INTERFACE + 10
            },
            mac: [6; 6],
            own_mac: [8; 6],
        };
        let hops: Vec<_> = neighbours.map(hop).collect();
        let by_address = lease.map(|port| SocketAddr::V4(address(port.0)));
        let sealed = self.sealed.as_mut();
        let keys = sealed.map(|sealed| sealed.install(&mut self.plane, lease));
        let standing = Standing::Slots { first, passed };
        self.plane.install(&by_address.into(), keys.as_deref(), standing, &hops).unwrap();
    }

    fn revoke(&mut self, job: JobId, up_to: Epoch) {
        let before: Vec<_> = self.machine.leases().map(|(l, ..)| (l.job, l.tree)).collect();
        self.machine.revoke(job, up_to);
        let after: Vec<_> = self.machine.leases().map(|(l, ..)| (l.job, l.tree)).collect();
        for (job, tree) in before.into_iter().filter(|key| !after.contains(key)) {
            self.plane.remove(job, tree).unwrap();
            if let Some(sealed) = &mut self.sealed {
                sealed.far.retain(|&(j, t, _), _| (j, t) != (job, tree));
            }
        }
    }

    /// A packet that was recorded has no effect.
    fn repeat(&mut self, now: Time, from: u32, packet: &[u8], what: &str) {
        let (before, held) = (self.drops(), self.plane.held().unwrap() + self.machine.held());
        assert_eq!(self.packet(now, from, false, packet), [], "again: {what}");
        assert_ne!(self.drops(), before, "nothing is counted: {what}");
        assert_eq!(self.plane.held().unwrap() + self.machine.held(), held, "again: {what}");
    }

    fn time_out(&mut self, now: Time) -> Vec<Sent> {
        let mut out = Vec::new();
        self.plane.sweep(|to, packet| out.push((port(to), packet.to_vec()))).unwrap();
        self.machine.handle_timeout(now);
        assert_eq!(self.drain(), [], "no slot of the user-space switch was ever taken");
        out
    }

    fn packet(&mut self, now: Time, from: u32, ce: bool, packet: &[u8]) -> Vec<Sent> {
        match self.plane.try_packet(address(from), ce, packet).unwrap() {
            Verdict::Taken => Vec::new(),
            Verdict::Sent(to, packet) => {
                let to = port(to);
                let packet = match &mut self.sealed {
                    Some(sealed) => sealed.at_neighbour(to, &packet),
                    None => packet,
                };
                vec![(to, packet)]
            }
            Verdict::FannedOut(packet) => {
                let (header, _) = Header::decode(&packet).unwrap();
                let lease = self.machine.leases().map(|(lease, ..)| lease);
                let lease =
                    lease.into_iter().find(|l| l.job == header.job && l.tree == header.tree);
                let lease = lease.unwrap();
                let addressed = lease.members.addressed(&header);
                let to = lease.members.neighbours().enumerate();
                let to = to.filter(|(bit, _)| addressed >> bit & 1 == 1);
                // The program at the egress seals each copy.
                to.map(|(_, to)| (to.0, unsealed(&packet).into_owned())).collect()
            }
            Verdict::Passed(packet) => {
                let (header, payload) = match Header::decode(&packet) {
                    Ok(decoded) => decoded,
                    Err(error) => {
                        self.machine.count_decode_error(error);
                        return Vec::new();
                    }
                };
                if let Some(sealed) = &mut self.sealed
                    && let Err(reason) =
                        sealed.own.open(header.job, header.tree, PortId(from), &mut packet.clone())
                {
                    self.machine.count_drop(reason);
                    return Vec::new();
                }
                self.machine.handle(now, PortId(from), ce, &header, payload).unwrap();
                let out = self.drain();
                if header.kind == netsum_wire::atp::Kind::Fin && !out.is_empty() {
                    self.plane.release(header.job, header.tree).unwrap();
                }
                out
            }
        }
    }

    fn drain(&mut self) -> Vec<Sent> {
        let mut out = Vec::new();
        while let Some(transmit) = self.machine.poll_transmit() {
            let mut packet = vec![0; HEADER_LEN];
            transmit.header.encode(packet.first_chunk_mut().unwrap());
            let values = transmit.payload.map_or(&[][..], |row| self.machine.values().get(row));
            packet.extend_from_slice(values);
            let to = transmit.to;
            if let Some(sealed) = &mut self.sealed {
                let Header { job, tree, .. } = transmit.header;
                let on_wire = sealed.own.sealed(job, tree, to, &packet);
                packet = sealed.at_neighbour(to.0, &on_wire);
            }
            out.push((to.0, packet));
        }
        self.machine.values_mut().flushed();
        out
    }

    /// Drops by reason, of kernel and user space together.
    fn drops(&self) -> BTreeMap<&'static str, u64> {
        let kernel = self.plane.drops().unwrap().into_iter().map(|(d, n)| (d.label(), n));
        let mut all = BTreeMap::new();
        for (reason, count) in kernel.chain(self.machine.drops().iter()) {
            *all.entry(reason).or_default() += count;
        }
        all
    }
}

pub fn address(port: u32) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 1, 0, port as u8), 7000 + port as u16)
}

pub fn port(address: SocketAddrV4) -> u32 {
    u32::from(address.port()) - 7000
}

fn read_config(switch: &Value) -> SwitchConfig {
    let policy = match switch["policy"].as_str().unwrap() {
        "partition" => Policy::Partition,
        "first-come" => Policy::FirstCome,
        "preempt" => Policy::Preempt { patience_ns: switch["patience_ns"].as_u64().unwrap() },
        other => panic!("no policy {other:?}"),
    };
    SwitchConfig {
        slots: number(&switch["slots"]),
        row_bytes: number(&switch["row_bytes"]) as u16,
        policy,
        straggler_ns: switch["straggler_ns"].as_u64().unwrap(),
    }
}

fn read_lease(lease: &Value) -> Lease {
    let port = |p: &Value| PortId(number(p));
    let members = match lease.get("workers") {
        Some(workers) => Members::Rack {
            workers: workers.as_array().unwrap().iter().map(port).collect(),
            rack: number(&lease["rack"]) as u8,
            racks: number(&lease["racks"]) as u8,
        },
        None => {
            let rack =
                |r: &Value| Rack { port: port(&r["port"]), workers: number(&r["workers"]) as u8 };
            Members::Server { racks: lease["racks"].as_array().unwrap().iter().map(rack).collect() }
        }
    };
    Lease {
        job: JobId(number(&lease["job"])),
        epoch: Epoch(number(&lease["epoch"]) as u16),
        tree: TreeId(number(&lease["tree"]) as u8),
        members,
        parent: port(&lease["parent"]),
        window: number(&lease["window"]) as u16,
        fragment_bytes: number(&lease["fragment_bytes"]) as u16,
        claim: Claim {
            guaranteed: number(&lease["guaranteed"]),
            limit: number(&lease["limit"]),
            priority: number(&lease["priority"]) as u8,
        },
    }
}

pub fn number(value: &Value) -> u32 {
    value.as_u64().unwrap() as u32
}

pub fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks_exact(2);
    digits.map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}
