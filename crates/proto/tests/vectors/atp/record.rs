//! A switch whose inputs and outputs are recorded, and replayed.

use std::fmt::Write;

use netsum_proto::atp::{Claim, Lease, Members, Policy, Rack, Switch, SwitchConfig};
use netsum_proto::values::{Rows, Values};
use netsum_proto::{Aggregator, DropReason, PortId, Time};
use netsum_wire::atp::{HEADER_LEN, Header};
use netsum_wire::{Epoch, JobId, TreeId};
use serde_json::Value;

use crate::record::{Sent, hex, number, unhex};

/// Rows beyond the slots, for packets that are forwarded.
const TRANSIT: usize = 64;

fn machine(config: SwitchConfig) -> Switch<Rows> {
    Switch::new(config, Rows::new(config.slots as usize + TRANSIT, config.row_bytes.into()))
}

/// Plays a scenario and records it.
pub struct Record {
    switch: Switch<Rows>,
    config: SwitchConfig,
    about: String,
    steps: Vec<String>,
    now: Time,
}

impl Record {
    pub fn new(about: &str, config: SwitchConfig) -> Record {
        let about = about.into();
        Record { switch: machine(config), config, about, steps: Vec::new(), now: Time(0) }
    }

    /// Advances the time.
    pub fn wait(&mut self, ns: u64) {
        self.now = self.now.after(ns);
    }

    /// Installs a lease.
    pub fn install(&mut self, lease: &Lease) {
        self.switch.install(self.now, lease.clone()).unwrap();
        let at = self.now.0;
        self.steps.push(format!("{{\"at\": {at}, \"install\": {}}}", lease_json(lease)));
    }

    /// Revokes a job's leases.
    pub fn revoke(&mut self, job: JobId, up_to: Epoch) {
        self.switch.revoke(job, up_to);
        let step = format!("{{\"revoke\": {{\"job\": {job}, \"up_to\": {up_to}}}");
        self.steps.push(format!("{step}, \"held\": {}}}", self.switch.held()));
    }

    /// Handles deadlines, if one has passed: the switch flushes slots of stragglers.
    pub fn timeout(&mut self) {
        if self.switch.poll_timeout().is_none_or(|due| due > self.now) {
            return;
        }
        self.switch.handle_timeout(self.now);
        let out = drain(&mut self.switch);
        let line = format!("{{\"at\": {}, \"timeout\": true", self.now.0);
        self.push(line, None, &out);
    }

    /// Passes a packet to the switch; returns what it sends.
    pub fn packet(&mut self, port: u32, ce: bool, header: &Header, payload: &[u8]) -> Vec<Sent> {
        let mut packet = vec![0; HEADER_LEN];
        header.encode(packet.first_chunk_mut().unwrap());
        packet.extend_from_slice(payload);
        self.bytes(port, ce, &packet)
    }

    /// Passes arbitrary bytes to the switch.
    pub fn bytes(&mut self, port: u32, ce: bool, packet: &[u8]) -> Vec<Sent> {
        let (drop, out) = step(&mut self.switch, self.now, port, ce, packet);
        let (at, hex) = (self.now.0, hex(packet));
        let line = format!("{{\"at\": {at}, \"port\": {port}, \"ce\": {ce}, \"in\": \"{hex}\"");
        self.push(line, drop, &out);
        out
    }

    fn push(&mut self, mut line: String, drop: Option<&str>, out: &[Sent]) {
        if let Some(drop) = drop {
            write!(line, ", \"drop\": \"{drop}\"").unwrap();
        }
        let sent =
            |s: &Sent| format!("{{\"port\": {}, \"packet\": \"{}\"}}", s.port, hex(&s.packet));
        let sent: Vec<_> = out.iter().map(sent).collect();
        let held = self.switch.held();
        write!(line, ", \"out\": [{}], \"held\": {held}}}", sent.join(", ")).unwrap();
        self.steps.push(line);
    }

    /// The file: one step per line.
    pub fn to_json(&self, name: &str) -> String {
        let SwitchConfig { slots, row_bytes, policy, straggler_ns } = self.config;
        let (policy, patience_ns) = match policy {
            Policy::Partition => ("partition", 0),
            Policy::FirstCome => ("first-come", 0),
            Policy::Preempt { patience_ns } => ("preempt", patience_ns),
        };
        format!(
            "{{\"name\": \"{name}\",\n\"about\": \"{}\",\n\"switch\": {{\"slots\": {slots}, \
             \"row_bytes\": {row_bytes}, \"policy\": \"{policy}\", \"patience_ns\": {patience_ns}, \
             \"straggler_ns\": {straggler_ns}}},\n\"steps\": [\n{}\n]}}\n",
            self.about,
            self.steps.join(",\n")
        )
    }
}

/// Replays a file's steps and compares the outputs; returns the number of input packets.
pub fn replay(name: &str, file: &Value) -> usize {
    let mut switch = machine(read_config(&file["switch"]));
    let mut packets = 0;
    for (i, entry) in file["steps"].as_array().unwrap().iter().enumerate() {
        let now = Time(entry["at"].as_u64().unwrap_or(0));
        let what = format!("{name}, step {i}");
        if let Some(lease) = entry.get("install") {
            switch.install(now, read_lease(lease)).unwrap();
            continue;
        }
        if let Some(revoke) = entry.get("revoke") {
            let (job, up_to) = (number(&revoke["job"]), number(&revoke["up_to"]));
            switch.revoke(JobId(job), Epoch(up_to as u16));
            assert_eq!(switch.held(), number(&entry["held"]), "{what}");
            continue;
        }
        let (drop, out) = match entry.get("timeout") {
            Some(_) => {
                switch.handle_timeout(now);
                (None, drain(&mut switch))
            }
            None => {
                packets += 1;
                let bytes = unhex(entry["in"].as_str().unwrap());
                let ce = entry["ce"].as_bool().unwrap();
                step(&mut switch, now, number(&entry["port"]), ce, &bytes)
            }
        };
        assert_eq!(drop, entry.get("drop").map(|d| d.as_str().unwrap()), "{what}");
        let expected = entry["out"].as_array().unwrap().iter().map(|sent| Sent {
            port: number(&sent["port"]),
            packet: unhex(sent["packet"].as_str().unwrap()),
        });
        assert_eq!(out, expected.collect::<Vec<_>>(), "{what}");
        assert_eq!(switch.held(), number(&entry["held"]), "{what}");
    }
    packets
}

fn step(
    switch: &mut Switch<Rows>,
    now: Time,
    port: u32,
    ce: bool,
    packet: &[u8],
) -> (Option<&'static str>, Vec<Sent>) {
    let drop = match Header::decode(packet) {
        Ok((header, payload)) => switch.handle(now, PortId(port), ce, &header, payload).err(),
        Err(error) => {
            switch.count_decode_error(error);
            Some(error.into())
        }
    };
    (drop.map(DropReason::label), drain(switch))
}

fn drain(switch: &mut Switch<Rows>) -> Vec<Sent> {
    let mut out = Vec::new();
    while let Some(transmit) = switch.poll_transmit() {
        let mut packet = vec![0; HEADER_LEN];
        transmit.header.encode(packet.first_chunk_mut().unwrap());
        packet.extend_from_slice(transmit.payload.map_or(&[], |row| switch.values().get(row)));
        out.push(Sent { port: transmit.to.0, packet });
    }
    switch.values_mut().flushed();
    out
}

fn lease_json(lease: &Lease) -> String {
    let members = match &lease.members {
        Members::Rack { workers, rack, racks } => {
            let workers: Vec<_> = workers.iter().map(|p| p.0.to_string()).collect();
            let workers = workers.join(", ");
            format!("\"workers\": [{workers}], \"rack\": {rack}, \"racks\": {racks}")
        }
        Members::Server { racks } => {
            let rack = |r: &Rack| format!("{{\"port\": {}, \"workers\": {}}}", r.port.0, r.workers);
            let racks: Vec<_> = racks.iter().map(rack).collect();
            format!("\"racks\": [{}]", racks.join(", "))
        }
    };
    let Claim { guaranteed, limit, priority } = lease.claim;
    format!(
        "{{\"job\": {}, \"epoch\": {}, \"tree\": {}, {members}, \"parent\": {}, \"window\": {}, \
         \"fragment_bytes\": {}, \"guaranteed\": {guaranteed}, \"limit\": {limit}, \
         \"priority\": {priority}}}",
        lease.job, lease.epoch, lease.tree, lease.parent.0, lease.window, lease.fragment_bytes
    )
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
