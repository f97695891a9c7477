//! `vectors/atp` through the shipped program, with the user-space switch behind it as in a daemon.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;

use netsum_net::xdp::{Hop, Plane, PlaneOptions, Verdict};
use netsum_proto::atp::{Claim, Lease, Members, Policy, Rack, Switch, SwitchConfig};
use netsum_proto::values::{Rows, Values};
use netsum_proto::{Aggregator, PortId, Time};
use netsum_wire::atp::{HEADER_LEN, Header};
use netsum_wire::{Epoch, JobId, TreeId};
use serde_json::Value;

use crate::namespace::Namespace;

const OWN: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 9, 9, 9), 7701);

/// Whether each child has an interface of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wiring {
    PortEach,
    OnePort,
}

/// First of the interfaces that a map may name; nothing is sent on them.
const FIRST_INTERFACE: u32 = 100;

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

fn replay_all() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../vectors");
    let digests = fs::read_to_string(folder.join("digests.txt")).unwrap();
    let files = digests.lines().filter_map(|line| line.split(' ').next());
    let mut packets = 0;
    for path in files.filter(|path| path.starts_with("atp/")) {
        let text = fs::read_to_string(folder.join(path));
        let text = text.unwrap_or_else(|_| panic!("{path} is not there; run `make vectors-check`"));
        let file: Value = serde_json::from_str(&text).unwrap();
        let name = file["name"].as_str().unwrap();
        for wiring in [Wiring::PortEach, Wiring::OnePort] {
            // With one port, user space replicates results; there is no other difference.
            if wiring == Wiring::OnePort && !["results", "fin", "walk-rack"].contains(&name) {
                continue;
            }
            let Some(bench) = Bench::new(&file["switch"], wiring) else { return };
            packets += bench.replay(&file);
        }
    }
    assert!(packets > 7_000, "only {packets} packets in all vectors");
}

struct Bench {
    plane: Plane,
    machine: Switch<Rows>,
    wiring: Wiring,
}

type Sent = (u32, Vec<u8>);

impl Bench {
    /// `None`, with a message, if the program cannot be loaded.
    fn new(switch: &Value, wiring: Wiring) -> Option<Bench> {
        let config = read_config(switch);
        let options = PlaneOptions { own: OWN, switch: config };
        let rows = Rows::new(config.slots as usize + 64, config.row_bytes.into());
        match Plane::load(options) {
            Ok(plane) => Some(Bench { plane, machine: Switch::new(config, rows), wiring }),
            Err(reason) => {
                println!("skipped: {reason}");
                None
            }
        }
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
            let out = if let Some(revoke) = entry.get("revoke") {
                self.revoke(JobId(number(&revoke["job"])), Epoch(number(&revoke["up_to"]) as u16));
                Vec::new()
            } else if entry.get("timeout").is_some() {
                self.time_out(now)
            } else {
                packets += 1;
                let ce = entry["ce"].as_bool().unwrap();
                let packet = unhex(entry["in"].as_str().unwrap());
                self.packet(now, number(&entry["port"]), ce, &packet)
            };
            let dropped: Vec<_> = self
                .drops()
                .into_iter()
                .filter(|(reason, count)| before.get(reason).copied().unwrap_or(0) != *count)
                .map(|d| d.0)
                .collect();
            let expected: Vec<_> =
                entry.get("drop").into_iter().map(|d| d.as_str().unwrap()).collect();
            if !(dropped == ["unknown_sender"] && expected == ["not_a_neighbour"]) {
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
        let neighbours = [lease.parent].into_iter().chain(lease.members.neighbours());
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
        self.plane.install(&by_address, None, first, passed, &hops).unwrap();
    }

    fn revoke(&mut self, job: JobId, up_to: Epoch) {
        let before: Vec<_> = self.machine.leases().map(|(l, ..)| (l.job, l.tree)).collect();
        self.machine.revoke(job, up_to);
        let after: Vec<_> = self.machine.leases().map(|(l, ..)| (l.job, l.tree)).collect();
        for (job, tree) in before.into_iter().filter(|key| !after.contains(key)) {
            self.plane.remove(job, tree).unwrap();
        }
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
            Verdict::Sent(to, packet) => vec![(port(to), packet)],
            Verdict::FannedOut(packet) => {
                let (header, _) = Header::decode(&packet).unwrap();
                let lease = self.machine.leases().map(|(lease, ..)| lease);
                let lease =
                    lease.into_iter().find(|l| l.job == header.job && l.tree == header.tree);
                let lease = lease.unwrap();
                let addressed = lease.members.addressed(&header);
                let to = lease.members.neighbours().enumerate();
                let to = to.filter(|(bit, _)| addressed >> bit & 1 == 1);
                to.map(|(_, to)| (to.0, packet.clone())).collect()
            }
            Verdict::Passed(packet) => {
                let (header, payload) = match Header::decode(&packet) {
                    Ok(decoded) => decoded,
                    Err(error) => {
                        self.machine.count_decode_error(error);
                        return Vec::new();
                    }
                };
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
            out.push((transmit.to.0, packet));
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

fn address(port: u32) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 1, 0, port as u8), 7000 + port as u16)
}

fn port(address: SocketAddrV4) -> u32 {
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

fn number(value: &Value) -> u32 {
    value.as_u64().unwrap() as u32
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks_exact(2);
    digits.map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}
