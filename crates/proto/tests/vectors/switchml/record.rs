//! A switch whose inputs and outputs are recorded, and replayed.

use std::fmt::Write;

use netsum_proto::switchml::{Lease, Switch};
use netsum_proto::values::{Rows, Values};
use netsum_proto::{Aggregator, DropReason, PortId, Time};
use netsum_wire::switchml::{HEADER_LEN, Header};
use netsum_wire::{Epoch, JobId, TreeId};
use serde_json::Value;

use crate::record::{Sent, hex, number, unhex};

/// Size of the recorded switch.
#[derive(Clone, Copy)]
pub struct Size {
    /// Slots of all pools together.
    pub slots: u32,
    /// Largest payload.
    pub row_bytes: u16,
}

const NOW: Time = Time(0);

fn machine(size: Size) -> Switch<Rows> {
    let rows = 2 * size.slots;
    Switch::new(rows, size.row_bytes, Rows::new(rows as usize + 1, size.row_bytes.into()))
}

/// Plays a scenario and records it.
pub struct Record {
    switch: Switch<Rows>,
    size: Size,
    about: String,
    steps: Vec<String>,
}

impl Record {
    pub fn new(about: &str, size: Size) -> Record {
        Record { switch: machine(size), size, about: about.into(), steps: Vec::new() }
    }

    /// Installs a lease whose slots begin with round `first`.
    pub fn install(&mut self, lease: &Lease, first: u32) {
        self.switch.install_starting_at(NOW, lease.clone(), first.into()).unwrap();
        self.steps.push(format!("{{\"install\": {}}}", lease_json(lease, first)));
    }

    /// Revokes a job's leases.
    pub fn revoke(&mut self, job: JobId, up_to: Epoch) {
        self.switch.revoke(job, up_to);
        self.steps.push(format!("{{\"revoke\": {{\"job\": {job}, \"up_to\": {up_to}}}}}"));
    }

    /// Passes a packet to the switch; returns what it sends.
    pub fn packet(&mut self, port: u32, header: &Header, payload: &[u8]) -> Vec<Sent> {
        let mut packet = vec![0; HEADER_LEN];
        header.encode(packet.first_chunk_mut().unwrap());
        packet.extend_from_slice(payload);
        self.bytes(port, &packet)
    }

    /// Passes arbitrary bytes to the switch.
    pub fn bytes(&mut self, port: u32, packet: &[u8]) -> Vec<Sent> {
        let (drop, out) = step(&mut self.switch, port, packet);
        let mut line = format!("{{\"port\": {port}, \"in\": \"{}\"", hex(packet));
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
        let Size { slots, row_bytes } = self.size;
        format!(
            "{{\"name\": \"{name}\",\n\"about\": \"{}\",\n\"switch\": {{\"slots\": {slots}, \
             \"row_bytes\": {row_bytes}}},\n\"steps\": [\n{}\n]}}\n",
            self.about,
            self.steps.join(",\n")
        )
    }
}

/// Replays a file's steps and compares the outputs; returns the number of input packets.
pub fn replay(name: &str, file: &Value) -> usize {
    let size = &file["switch"];
    let (slots, row_bytes) = (number(&size["slots"]), number(&size["row_bytes"]) as u16);
    let mut switch = machine(Size { slots, row_bytes });
    let mut packets = 0;
    for (i, entry) in file["steps"].as_array().unwrap().iter().enumerate() {
        if let Some(lease) = entry.get("install") {
            let first = number(&lease["first_round"]);
            switch.install_starting_at(NOW, read_lease(lease), first.into()).unwrap();
            continue;
        }
        if let Some(revoke) = entry.get("revoke") {
            let (job, up_to) = (number(&revoke["job"]), number(&revoke["up_to"]));
            switch.revoke(JobId(job), Epoch(up_to as u16));
            continue;
        }
        packets += 1;
        let bytes = unhex(entry["in"].as_str().unwrap());
        let (drop, out) = step(&mut switch, number(&entry["port"]), &bytes);
        assert_eq!(drop, entry.get("drop").map(|d| d.as_str().unwrap()), "{name}, step {i}");
        let expected = entry["out"].as_array().unwrap().iter().map(|sent| Sent {
            port: number(&sent["port"]),
            packet: unhex(sent["packet"].as_str().unwrap()),
        });
        assert_eq!(out, expected.collect::<Vec<_>>(), "{name}, step {i}");
    }
    packets
}

fn step(switch: &mut Switch<Rows>, port: u32, packet: &[u8]) -> (Option<&'static str>, Vec<Sent>) {
    let drop = match Header::decode(packet) {
        Ok((header, payload)) => switch.handle(NOW, PortId(port), false, &header, payload).err(),
        Err(error) => {
            switch.count_decode_error(error);
            Some(error.into())
        }
    };
    let mut out = Vec::new();
    while let Some(transmit) = switch.poll_transmit() {
        let mut packet = vec![0; HEADER_LEN];
        transmit.header.encode(packet.first_chunk_mut().unwrap());
        packet.extend_from_slice(transmit.payload.map_or(&[], |row| switch.values().get(row)));
        out.push(Sent { port: transmit.to.0, packet });
    }
    switch.values_mut().flushed();
    (drop.map(DropReason::label), out)
}

fn lease_json(lease: &Lease, first: u32) -> String {
    let workers: Vec<_> = lease.workers.iter().map(|port| port.0.to_string()).collect();
    format!(
        "{{\"job\": {}, \"epoch\": {}, \"tree\": {}, \"workers\": [{}], \"slots\": {}, \
         \"fragment_bytes\": {}, \"first_round\": {first}}}",
        lease.job,
        lease.epoch,
        lease.tree,
        workers.join(", "),
        lease.slots,
        lease.fragment_bytes
    )
}

fn read_lease(lease: &Value) -> Lease {
    Lease {
        job: JobId(number(&lease["job"])),
        epoch: Epoch(number(&lease["epoch"]) as u16),
        tree: TreeId(number(&lease["tree"]) as u8),
        workers: lease["workers"].as_array().unwrap().iter().map(|p| PortId(number(p))).collect(),
        slots: number(&lease["slots"]) as u16,
        fragment_bytes: number(&lease["fragment_bytes"]) as u16,
    }
}
