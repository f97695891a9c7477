//! Test fixture for protocol `atp`: rack switches, a switch at each server, servers and workers on a faulty network.
//! Checks are in the tests.

use std::collections::BTreeMap;

use netsum_proto::atp::*;
use netsum_proto::operations;
use netsum_proto::values::{RowId, Rows, Values};
use netsum_proto::{CongestionRule, Pattern, PortId, Time};
use netsum_wire::atp::{HEADER_LEN, Header, Level};
use netsum_wire::*;

use super::network::{Arrival, Faults, Network, Start};

/// Layout of a world.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Number of workers of each rack.
    pub racks: Vec<u8>,
    /// Whether racks of one worker have a switch of their own.
    pub lone_switches: bool,
    /// Whether the server has a switch of its own.
    pub middle: bool,
    pub servers: u8,
    /// Whether each server's tree has a copy, for all collectives.
    pub copies: bool,
    pub slots: u32,
    pub window_max: u16,
    pub fragment_bytes: u16,
    pub policy: Policy,
    pub straggler_ns: u64,
    pub congestion: CongestionRule,
    pub start: Start,
}

impl Layout {
    /// Trees, with their copies.
    fn trees(&self) -> u8 {
        if self.copies { 2 * self.servers } else { self.servers }
    }
}

impl Default for Layout {
    fn default() -> Self {
        Layout {
            racks: vec![2, 2],
            lone_switches: false,
            middle: true,
            servers: 1,
            copies: false,
            slots: 64,
            window_max: 16,
            fragment_bytes: 32,
            policy: Policy::FirstCome,
            straggler_ns: 20_000_000,
            congestion: CongestionRule::Aimd { packet_bytes: 306 },
            start: Start::default(),
        }
    }
}

pub struct HostOperation {
    pub what: operations::Submission,
    pub scaling: Scaling,
    pub buffer: Vec<u8>,
    pub done: bool,
}

pub struct Host {
    pub machine: Option<Worker>,
    pub operations: Vec<HostOperation>,
    pub silent: bool,
    pub mismatch: bool,
    above: Vec<usize>,
    wake: Option<Time>,
}

pub struct Job {
    pub id: JobId,
    pub epoch: u16,
    pub hosts: Vec<usize>,
    pub claim: Claim,
}

/// Servers are nodes 1.., their switches 10.., rack switches 100.., hosts 10,000...
pub struct World {
    pub network: Network,
    pub layout: Layout,
    pub switches: BTreeMap<usize, (Switch<Rows>, Option<Time>)>,
    pub servers: BTreeMap<usize, Server<Rows>>,
    pub hosts: Vec<Host>,
    pub jobs: Vec<Job>,
}

pub const FIRST_HOST: usize = 10_000;
/// Number of packets that are forwarded by a switch or sent by a server at a time.
const TRANSIT: usize = 4096;

impl World {
    pub fn new(seed: u64, layout: Layout, faults: Faults) -> World {
        World {
            network: Network::new(seed, faults),
            layout,
            switches: BTreeMap::new(),
            servers: BTreeMap::new(),
            hosts: Vec::new(),
            jobs: Vec::new(),
        }
    }

    pub fn add_job(&mut self, claim: Claim) -> usize {
        let workers: usize = self.layout.racks.iter().map(|&n| usize::from(n)).sum();
        let hosts = (0..workers).map(|i| self.hosts.len() + i).collect();
        self.hosts.extend((0..workers).map(|_| Host {
            machine: None,
            operations: Vec::new(),
            silent: false,
            mismatch: false,
            above: Vec::new(),
            wake: None,
        }));
        let Start { job: before, epoch, .. } = self.layout.start;
        let id = JobId(before.wrapping_add(self.jobs.len() as u32 + 1));
        self.jobs.push(Job { id, epoch, hosts, claim });
        let job = self.jobs.len() - 1;
        self.begin(job);
        job
    }

    /// Starts a new epoch of a job: leases at switches and servers, fresh machines at the hosts.
    pub fn begin(&mut self, job: usize) {
        self.jobs[job].epoch = self.jobs[job].epoch.wrapping_add(1);
        let places: Vec<Vec<WorkerPosition>> =
            (0..self.layout.trees()).map(|t| self.lease(job, t)).collect();
        let Job { id, epoch, ref hosts, .. } = self.jobs[job];
        for (rank, &host) in hosts.clone().iter().enumerate() {
            let config = WorkerConfig {
                job: id,
                epoch: Epoch(epoch),
                rank: Rank(rank as u32),
                ranks: hosts.len() as u32,
                copies: self.layout.copies,
                places: places.iter().map(|of| of[rank]).collect(),
                window_max: self.layout.window_max,
                fragment_bytes: self.layout.fragment_bytes,
                slots: self.layout.slots,
                congestion: self.layout.congestion,
                scaling: Scaling::Shared,
            };
            self.hosts[host].machine =
                Some(Worker::starting_at(self.network.now, config, self.layout.start.number));
        }
    }

    /// Leases for one tree of a job; returns each rank's position.
    fn lease(&mut self, job: usize, tree: u8) -> Vec<WorkerPosition> {
        let layout = self.layout.clone();
        let server = tree % layout.servers;
        let (node, middle) = (1 + usize::from(server), 10 + usize::from(server));
        let next = if layout.middle { middle } else { node };
        let fan_in = layout.racks.len() as u8;
        let (mut racks, mut members, mut neighbours) = (Vec::new(), Vec::new(), Vec::new());
        let (mut places, mut rank) = (Vec::new(), 0);
        for (rack, &workers) in layout.racks.iter().enumerate() {
            let here: Vec<usize> =
                (0..usize::from(workers)).map(|i| self.jobs[job].hosts[rank + i]).collect();
            racks.push((rank as u32..(rank + here.len()) as u32).collect::<Vec<u32>>());
            let ports: Vec<PortId> =
                here.iter().map(|&h| PortId((FIRST_HOST + h) as u32)).collect();
            let direct = workers == 1 && !layout.lone_switches;
            let above = if direct { next } else { 100 + rack };
            for (worker, &host) in here.iter().enumerate() {
                if tree == 0 {
                    self.hosts[host].above.clear();
                }
                self.hosts[host].above.push(above);
                places.push(WorkerPosition {
                    level: if direct { Level::Server } else { Level::Rack },
                    worker: worker as u8,
                    rack_fan_in: workers,
                    rack: rack as u8,
                    server_fan_in: fan_in,
                });
            }
            let port = if direct { ports[0] } else { PortId(above as u32) };
            if !direct {
                let of = Members::Rack { workers: ports, rack: rack as u8, racks: fan_in };
                self.install(above, job, tree, of, next);
            }
            members.push(Rack { port, workers });
            neighbours.push(Neighbour { port, racks: 1 << rack, workers: Header::all(workers) });
            rank += here.len();
        }
        if layout.middle {
            self.install(middle, job, tree, Members::Server { racks: members }, node);
            let all = Header::all(fan_in);
            let port = PortId(middle as u32);
            neighbours = vec![Neighbour { port, racks: all, workers: u32::MAX }];
        }
        let lease = ServerLease {
            job: self.jobs[job].id,
            epoch: Epoch(self.jobs[job].epoch),
            tree: TreeId(tree),
            racks,
            neighbours,
            window: layout.window_max,
            fragment_bytes: layout.fragment_bytes,
            slots: layout.slots,
        };
        let rows = TRANSIT + 16 * usize::from(layout.window_max) * (places.len() + 4);
        let new =
            || Server::new(layout.fragment_bytes, Rows::new(rows, layout.fragment_bytes.into()));
        let machine = self.servers.entry(node).or_insert_with(new);
        let number = layout.start.number;
        machine.install_starting_at(self.network.now, lease, number).expect("a valid lease");
        places
    }

    fn install(&mut self, node: usize, job: usize, tree: u8, members: Members, parent: usize) {
        let layout = &self.layout;
        let lease = Lease {
            job: self.jobs[job].id,
            epoch: Epoch(self.jobs[job].epoch),
            tree: TreeId(tree),
            members,
            parent: PortId(parent as u32),
            window: layout.window_max,
            fragment_bytes: layout.fragment_bytes,
            claim: self.jobs[job].claim,
        };
        let config = SwitchConfig {
            slots: layout.slots,
            row_bytes: layout.fragment_bytes,
            policy: layout.policy,
            straggler_ns: layout.straggler_ns,
        };
        let rows = Rows::new(TRANSIT + layout.slots as usize, layout.fragment_bytes.into());
        let (switch, _) =
            self.switches.entry(node).or_insert_with(|| (Switch::new(config, rows), None));
        let number = layout.start.number;
        switch.install_starting_at(self.network.now, lease, number).expect("a valid lease");
    }

    /// Every worker submits an operation; `values` makes each rank's buffer.
    pub fn submit(
        &mut self,
        job: usize,
        format: Format,
        scaling: Scaling,
        numel: usize,
        values: impl Fn(u32) -> Vec<u8>,
    ) {
        for rank in 0..self.jobs[job].hosts.len() as u32 {
            self.submit_at(job, rank, format, scaling, numel, values(rank));
        }
    }

    pub fn submit_at(
        &mut self,
        job: usize,
        rank: u32,
        format: Format,
        scaling: Scaling,
        numel: usize,
        buffer: Vec<u8>,
    ) {
        self.submit_pattern(job, rank, (format, scaling), numel, buffer, Pattern::Allreduce);
    }

    pub fn submit_pattern(
        &mut self,
        job: usize,
        rank: u32,
        (format, scaling): (Format, Scaling),
        numel: usize,
        buffer: Vec<u8>,
        pattern: Pattern,
    ) {
        let host = self.jobs[job].hosts[rank as usize];
        let id = self.hosts[host].operations.len() as u64;
        let what = operations::Submission {
            id,
            format,
            numel: numel as u64,
            fingerprint: (numel as u32) << 8 ^ id as u32 ^ u32::from(format.code()) << 24,
            fragments: Fragments::All,
            pattern,
        };
        self.hosts[host].operations.push(HostOperation {
            what: what.clone(),
            scaling,
            buffer,
            done: false,
        });
        self.hosts[host].machine.as_mut().unwrap().submit_scaled(what, scaling);
        self.pump_host(host);
    }

    pub fn all_done(&self) -> bool {
        self.hosts.iter().all(|h| h.machine.is_none() || h.operations.iter().all(|o| o.done))
    }

    /// Runs until nothing is left to do, until `until`, or until `done` holds; false at the time limit.
    pub fn run(&mut self, until: Time, mut done: impl FnMut(&World) -> bool) -> bool {
        while !done(self) {
            let Some(at) = self.network.peek() else { return done(self) };
            if at > until {
                self.network.now = until;
                return false;
            }
            match self.network.next() {
                Some(arrival) => self.arrive(arrival),
                None => self.wake(),
            }
        }
        true
    }

    fn arrive(&mut self, Arrival { to, from, ce, packet }: Arrival) {
        let (now, from) = (self.network.now, PortId(from as u32));
        let decoded = Header::decode(&packet);
        if to >= FIRST_HOST {
            if let Ok((header, payload)) = decoded {
                self.host_takes(to - FIRST_HOST, ce, &header, payload);
            }
            self.pump_host(to - FIRST_HOST);
        } else if let Some(server) = self.servers.get_mut(&to) {
            match decoded {
                Ok((header, payload)) => _ = server.handle(now, from, ce, &header, payload),
                Err(error) => server.count_decode_error(error),
            }
            let sent: Vec<_> = std::iter::from_fn(|| server.poll_transmit()).collect();
            let packets = encode_all(&sent, server.values());
            server.values_mut().flushed();
            self.send_all(to, packets);
        } else if let Some((switch, _)) = self.switches.get_mut(&to) {
            match decoded {
                Ok((header, payload)) => _ = switch.handle(now, from, ce, &header, payload),
                Err(error) => switch.count_decode_error(error),
            }
            self.pump_switch(to);
        }
    }

    fn host_takes(&mut self, host: usize, ce: bool, header: &Header, payload: &[u8]) {
        let host = &mut self.hosts[host];
        let Some(machine) = &mut host.machine else { return };
        let handled = machine.handle(self.network.now, ce, header);
        while let Some(settled) = machine.poll_settled() {
            assert!(!host.operations[settled.id as usize].done, "it is complete before it is done");
        }
        let Ok(Some(accepted)) = handled else { return };
        assert_eq!(accepted.content.payload_len(), payload.len());
        let buffer = &mut host.operations[accepted.id as usize].buffer;
        let size = accepted.dtype.size();
        let place = accepted.content.elements().unwrap_or(0..0);
        let place = place.start as usize * size..place.end as usize * size;
        machine.read(&accepted, payload, &mut buffer[place]);
    }

    pub fn pump_host(&mut self, host: usize) {
        loop {
            let h = &mut self.hosts[host];
            let Some(machine) = &mut h.machine else { return };
            let Some(mut outgoing) = machine.poll_transmit(self.network.now) else { break };
            let mut payload = vec![0; outgoing.header.payload_len()];
            if let Some((id, _)) = outgoing.payload {
                let operation = &h.operations[id as usize];
                let size = operation.what.format.dtype.size();
                let bytes = |r: std::ops::Range<u64>| {
                    &operation.buffer[r.start as usize * size..r.end as usize * size]
                };
                machine.write(&mut outgoing, bytes, &mut payload);
            }
            let to = h.above[usize::from(outgoing.header.tree.0)];
            self.network.send(FIRST_HOST + host, to, encode(&outgoing.header, &payload));
        }
        let h = &mut self.hosts[host];
        while let Some(event) = h.machine.as_mut().and_then(|m| m.poll_event()) {
            match event {
                Event::Done { id, .. } => {
                    let operation = &mut h.operations[id as usize];
                    assert!(!operation.done, "operation {id} is done twice");
                    operation.done = true;
                }
                Event::Mismatch { .. } | Event::Refused { .. } => h.mismatch = true,
                Event::Silent { .. } => h.silent = true,
            }
        }
        let deadline = h.machine.as_ref().and_then(|m| m.poll_timeout());
        if deadline != h.wake {
            h.wake = deadline;
            deadline.into_iter().for_each(|at| self.network.wake_at(at));
        }
    }

    fn pump_switch(&mut self, node: usize) {
        let (switch, wake) = self.switches.get_mut(&node).unwrap();
        let sent: Vec<_> = std::iter::from_fn(|| switch.poll_transmit()).collect();
        let packets = encode_all(&sent, switch.values());
        switch.values_mut().flushed();
        assert_eq!(switch.values().used(), switch.held() as usize, "rows without a slot");
        let due = switch.poll_timeout();
        if due != *wake {
            *wake = due;
            due.into_iter().for_each(|at| self.network.wake_at(at));
        }
        self.send_all(node, packets);
    }

    fn send_all(&mut self, from: usize, packets: Vec<(PortId, Vec<u8>)>) {
        packets.into_iter().for_each(|(to, packet)| self.network.send(from, to.0 as usize, packet));
    }

    fn wake(&mut self) {
        let now = self.network.now;
        for host in 0..self.hosts.len() {
            if self.hosts[host].wake.is_some_and(|at| at <= now) {
                self.hosts[host].wake = None;
                if let Some(machine) = &mut self.hosts[host].machine {
                    machine.handle_timeout(now);
                }
                self.pump_host(host);
            }
        }
        let due = |(_, wake): &(Switch<Rows>, Option<Time>)| wake.is_some_and(|at| at <= now);
        let nodes: Vec<usize> =
            self.switches.iter().filter(|(_, s)| due(s)).map(|(n, _)| *n).collect();
        for node in nodes {
            let (switch, wake) = self.switches.get_mut(&node).unwrap();
            *wake = None;
            switch.handle_timeout(now);
            self.pump_switch(node);
        }
    }
}

fn encode_all(sent: &[Transmit<RowId>], values: &Rows) -> Vec<(PortId, Vec<u8>)> {
    let payload = |t: &Transmit<RowId>| t.payload.map_or(&[][..], |row| values.get(row));
    sent.iter().map(|t| (t.to, encode(&t.header, payload(t)))).collect()
}

pub fn encode(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut head = [0; HEADER_LEN];
    header.encode(&mut head);
    [&head[..], payload].concat()
}
