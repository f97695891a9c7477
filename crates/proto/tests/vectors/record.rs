//! A switch whose inputs and outputs are recorded, and replayed.

use std::collections::BTreeSet;
use std::fmt::Write;

use netsum_proto::panama::{Child, Lease, Slab, Switch, Transmit};
use netsum_proto::{Aggregator, PortId, Time};
use netsum_wire::Parties;
use netsum_wire::panama::{HEADER_LEN, Header};
use netsum_wire::*;
use serde_json::Value;

/// Aggregation memory of the recorded switch in bytes: enough for the slots that leases request.
pub const MEMORY: u64 = 1 << 24;
const NOW: Time = Time(0);

/// Plays a scenario and records it.
pub struct Record {
    switch: Switch<Slab>,
    about: String,
    formats: BTreeSet<String>,
    steps: Vec<String>,
}

impl Record {
    pub fn new(about: &str) -> Record {
        Record {
            switch: Switch::new(Slab::new(MEMORY)),
            about: about.into(),
            formats: BTreeSet::new(),
            steps: Vec::new(),
        }
    }

    /// Installs a lease.
    pub fn install(&mut self, lease: &Lease) {
        self.switch.install(NOW, lease.clone()).unwrap();
        self.steps.push(format!("{{\"install\": {}}}", lease_json(lease)));
    }

    /// Passes a packet to the switch; returns what it sends.
    pub fn packet(&mut self, port: u32, ce: bool, header: &Header, payload: &[u8]) -> Vec<Sent> {
        let Format { dtype, op } = header.format;
        self.formats.insert(format!("{dtype} {op:?}").to_lowercase());
        if header.parties != Parties::All {
            self.formats.insert("parties".to_owned());
        }
        let mut packet = vec![0; HEADER_LEN];
        header.encode(packet.first_chunk_mut().unwrap());
        packet.extend_from_slice(payload);
        self.bytes(port, ce, &packet)
    }

    /// Passes arbitrary bytes to the switch.
    pub fn bytes(&mut self, port: u32, ce: bool, packet: &[u8]) -> Vec<Sent> {
        let (drop, out) = step(&mut self.switch, port, ce, packet);
        let mut line = format!("{{\"port\": {port}, \"ce\": {ce}, \"in\": \"{}\"", hex(packet));
        if let Some(drop) = drop {
            write!(line, ", \"drop\": \"{drop}\"").unwrap();
        }
        let sent =
            |s: &Sent| format!("{{\"port\": {}, \"packet\": \"{}\"}}", s.port, hex(&s.packet));
        let sent: Vec<_> = out.iter().map(sent).collect();
        write!(line, ", \"out\": [{}]}}", sent.join(", ")).unwrap();
        self.steps.push(line);
        out
    }

    /// The file: one step per line.
    pub fn to_json(&self, name: &str) -> String {
        let formats: Vec<_> = self.formats.iter().map(|f| format!("\"{f}\"")).collect();
        format!(
            "{{\"name\": \"{name}\",\n\"about\": \"{}\",\n\"formats\": [{}],\n\"steps\": [\n{}\n]}}\n",
            self.about,
            formats.join(", "),
            self.steps.join(",\n")
        )
    }
}

/// A packet that the switch sends.
#[derive(Debug, PartialEq, Eq)]
pub struct Sent {
    pub port: u32,
    pub packet: Vec<u8>,
}

/// Replays a file's steps on `switch` and compares the outputs; returns the number of input packets.
pub fn replay(name: &str, file: &Value, switch: &mut Switch<Slab>) -> usize {
    let mut packets = 0;
    for (i, entry) in file["steps"].as_array().unwrap().iter().enumerate() {
        if let Some(lease) = entry.get("install") {
            switch.install(NOW, read_lease(lease)).unwrap();
            continue;
        }
        packets += 1;
        let bytes = unhex(entry["in"].as_str().unwrap());
        let ce = entry["ce"].as_bool().unwrap();
        let (drop, out) = step(switch, number(&entry["port"]), ce, &bytes);
        assert_eq!(drop, entry.get("drop").map(|d| d.as_str().unwrap()), "{name}, step {i}");
        let expected = entry["out"].as_array().unwrap().iter().map(|sent| Sent {
            port: number(&sent["port"]),
            packet: unhex(sent["packet"].as_str().unwrap()),
        });
        assert_eq!(out, expected.collect::<Vec<_>>(), "{name}, step {i}");
    }
    packets
}

fn step(
    switch: &mut Switch<Slab>,
    port: u32,
    ce: bool,
    packet: &[u8],
) -> (Option<&'static str>, Vec<Sent>) {
    let drop = match Header::decode(packet) {
        Ok((header, payload)) => switch.handle(NOW, PortId(port), ce, &header, payload).err(),
        Err(error) => {
            switch.count_decode_error(error);
            Some(error.into())
        }
    };
    let mut out = Vec::new();
    while let Some(transmit) = switch.poll_transmit() {
        out.push(match transmit {
            Transmit::Data { to, buffer } => {
                Sent { port: to.0, packet: switch.memory().packet(buffer).to_vec() }
            }
            Transmit::Control { to, header } => {
                let mut bytes = [0; HEADER_LEN];
                header.encode(&mut bytes);
                Sent { port: to.0, packet: bytes.to_vec() }
            }
        });
    }
    switch.flushed();
    (drop.map(netsum_proto::DropReason::label), out)
}

fn lease_json(lease: &Lease) -> String {
    let child = |c: &Child| {
        format!("{{\"port\": {}, \"ranks\": {}, \"branch\": {}}}", c.port.0, c.ranks, c.branch)
    };
    let children: Vec<_> = lease.children.iter().map(child).collect();
    let parent = lease.parent.map_or("null".into(), |p| p.0.to_string());
    format!(
        "{{\"job\": {}, \"epoch\": {}, \"tree\": {}, \"children\": [{}], \"parent\": {parent}, \
         \"slots\": {}, \"fragment_bytes\": {}, \"release_permille\": {}}}",
        lease.job,
        lease.epoch,
        lease.tree,
        children.join(", "),
        lease.slots,
        lease.fragment_bytes,
        lease.release_permille
    )
}

fn read_lease(lease: &Value) -> Lease {
    let child = |c: &Value| Child {
        port: PortId(number(&c["port"])),
        ranks: c["ranks"].as_u64().unwrap(),
        branch: number(&c["branch"]) as u8,
    };
    Lease {
        job: JobId(number(&lease["job"])),
        epoch: Epoch(number(&lease["epoch"]) as u16),
        tree: TreeId(number(&lease["tree"]) as u8),
        children: lease["children"].as_array().unwrap().iter().map(child).collect(),
        parent: lease["parent"].as_u64().map(|p| PortId(p as u32)),
        slots: number(&lease["slots"]) as u16,
        fragment_bytes: number(&lease["fragment_bytes"]) as u16,
        release_permille: number(&lease["release_permille"]) as u16,
    }
}

pub fn number(value: &Value) -> u32 {
    value.as_u64().unwrap() as u32
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks_exact(2);
    digits.map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}
