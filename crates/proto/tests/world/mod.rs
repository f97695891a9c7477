//! Test fixture: switches and workers on a faulty network. Checks are in the tests.

pub mod network;
pub mod transition;

use std::collections::{BTreeMap, BTreeSet};

use netsum_proto::panama::*;
use netsum_proto::{CongestionRule, PortId, Refusal, Time};
use netsum_wire::panama::{HEADER_LEN, Header};
use netsum_wire::*;

use network::{Arrival, Network};
pub use network::{Faults, Random, Start};

/// The shape of a tree, which determines the order of additions.
#[derive(Clone, Debug)]
pub enum Shape {
    Rank(u32),
    Node(Vec<Shape>),
}

impl Shape {
    /// `ranks` under `levels` levels of switches, each with up to `radix` children at the lowest.
    pub fn of(ranks: std::ops::Range<u32>, levels: u32) -> Shape {
        let n = ranks.end - ranks.start;
        if levels <= 1 {
            return Shape::Node(ranks.map(Shape::Rank).collect());
        }
        let groups = if n > 6 { 3 } else { 2 };
        let size = n.div_ceil(groups).max(1);
        let starts = (ranks.start..ranks.end).step_by(size as usize);
        let group = |s: u32| Shape::of(s..(s + size).min(ranks.end), levels - 1);
        Shape::Node(starts.map(group).collect())
    }

    pub fn ranks(&self) -> Vec<u32> {
        match self {
            Shape::Rank(rank) => vec![*rank],
            Shape::Node(children) => children.iter().flat_map(Shape::ranks).collect(),
        }
    }

    pub fn mask(&self) -> u64 {
        self.ranks().iter().fold(0, |m, r| m | 1 << (r % 64))
    }
}

/// One worker's operation.
pub struct HostOperation {
    pub format: Format,
    pub numel: usize,
    pub buffer: Vec<u8>,
    pub done: Option<u64>,
    /// The buffer when the operation was done; the caller has overwritten it since.
    pub result: Option<Vec<u8>>,
    pub pattern: Pattern,
    /// Whether it is done, and contributes again for a rank that lacks its result.
    pub again: bool,
    /// By fragment of the epoch: the ranks that are missing in the result.
    pub missing: BTreeMap<u64, u64>,
}

pub struct Host {
    pub machine: Option<Worker>,
    pub operations: Vec<HostOperation>,
    pub retained: BTreeMap<u64, Vec<u8>>,
    pub silent: bool,
    pub mismatch: bool,
    /// Ranks whose packets switches have refused.
    pub refused: BTreeSet<(u64, Refusal)>,
    /// Port of the switch above, by tree.
    above: Vec<PortId>,
    job: usize,
    wake: Option<Time>,
}

pub struct Job {
    pub id: JobId,
    pub shape: Shape,
    pub hosts: Vec<usize>,
    pub trees: u8,
    pub epoch: u16,
}

impl HostOperation {
    /// The buffer as the caller gets it.
    pub fn values(&self) -> &[u8] {
        self.result.as_deref().unwrap_or(&self.buffer)
    }

    pub fn bytes(&self, elements: &std::ops::Range<u64>) -> std::ops::Range<usize> {
        let size = self.format.dtype.size();
        elements.start as usize * size..elements.end as usize * size
    }
}

/// Layout of a world.
#[derive(Clone, Debug)]
pub struct Layout {
    pub workers: u32,
    pub levels: u32,
    pub trees: u8,
    pub window_max: u16,
    pub fragment_bytes: u16,
    pub memory: u64,
    pub release_permille: u16,
    pub congestion: CongestionRule,
    pub start: Start,
    /// Whether each tree has a copy, for operations that copy.
    pub copies: bool,
}

impl Default for Layout {
    fn default() -> Self {
        Layout {
            workers: 4,
            levels: 2,
            trees: 2,
            window_max: 32,
            fragment_bytes: 64,
            memory: 1 << 22,
            release_permille: 1000,
            congestion: CongestionRule::PerBranch,
            start: Start::default(),
            copies: false,
        }
    }
}

/// Node numbers: switches first, then hosts; a node's number is its port at every neighbour.
pub struct World {
    pub network: Network,
    pub layout: Layout,
    pub switches: Vec<Option<Switch<Slab>>>,
    pub hosts: Vec<Host>,
    pub jobs: Vec<Job>,
}

pub const FIRST_HOST: usize = 10_000;

impl World {
    pub fn new(seed: u64, layout: Layout, faults: Faults) -> World {
        World {
            network: Network::new(seed, faults),
            layout,
            switches: Vec::new(),
            hosts: Vec::new(),
            jobs: Vec::new(),
        }
    }

    /// Adds a job whose trees share all but their root with each other and all other jobs.
    pub fn add_job(&mut self) -> usize {
        let Layout { workers, levels, trees, .. } = self.layout;
        let job = self.jobs.len();
        let hosts: Vec<usize> = (0..workers as usize).map(|i| self.hosts.len() + i).collect();
        for _ in 0..workers {
            self.hosts.push(Host {
                machine: None,
                operations: Vec::new(),
                retained: BTreeMap::new(),
                silent: false,
                mismatch: false,
                refused: BTreeSet::new(),
                above: Vec::new(),
                job,
                wake: None,
            });
        }
        let shape = Shape::of(0..workers, levels);
        let Start { job: before, epoch, .. } = self.layout.start;
        let id = JobId(before.wrapping_add(job as u32 + 1));
        self.jobs.push(Job { id, shape, hosts, trees, epoch });
        self.begin(job, trees);
        job
    }

    /// Starts a new epoch of a job on `trees` trees: leases at the switches, fresh machines at the hosts.
    pub fn begin(&mut self, job: usize, trees: u8) {
        let first = self.jobs[job].epoch == self.layout.start.epoch;
        self.jobs[job].epoch = self.jobs[job].epoch.wrapping_add(1);
        self.jobs[job].trees = trees;
        for &host in &self.jobs[job].hosts.clone() {
            self.hosts[host].above.clear();
            self.hosts[host].retained.clear();
        }
        let shape = self.jobs[job].shape.clone();
        let all = trees * if self.layout.copies { 2 } else { 1 };
        for tree in 0..all {
            let root = usize::from(tree % trees) + usize::from(trees) * usize::from(!first);
            let mut shared = 100;
            let mut branch = 0;
            self.lease(job, tree, &shape, root, None, &mut shared, &mut branch);
        }
        let (id, epoch) = (self.jobs[job].id, self.jobs[job].epoch);
        for (rank, &host) in self.jobs[job].hosts.clone().iter().enumerate() {
            let config = WorkerConfig {
                job: id,
                epoch: Epoch(epoch),
                rank: Rank(rank as u32),
                ranks: self.layout.workers,
                trees: all,
                copies: self.layout.copies,
                window_max: self.layout.window_max,
                fragment_bytes: self.layout.fragment_bytes,
                congestion: self.layout.congestion,
                partial: self.layout.release_permille < 1000,
            };
            self.hosts[host].machine =
                Some(Worker::starting_at(self.network.now, config, self.layout.start.number));
            self.hosts[host].silent = false;
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn lease(
        &mut self,
        job: usize,
        tree: u8,
        shape: &Shape,
        node: usize,
        parent: Option<PortId>,
        shared: &mut usize,
        branch: &mut u8,
    ) {
        let Shape::Node(parts) = shape else { panic!("a switch stands for a node") };
        let mut children = Vec::new();
        for part in parts {
            let port = match part {
                Shape::Rank(rank) => {
                    let host = self.jobs[job].hosts[*rank as usize];
                    self.hosts[host].above.push(PortId(node as u32));
                    FIRST_HOST + host
                }
                Shape::Node(_) => {
                    *shared += 1;
                    let below = *shared;
                    self.lease(job, tree, part, below, Some(PortId(node as u32)), shared, branch);
                    below
                }
            };
            let child =
                Child { port: PortId(port as u32), ranks: part.mask(), branch: *branch % 32 };
            children.push(child);
            *branch += 1;
        }
        let lease = Lease {
            job: self.jobs[job].id,
            epoch: Epoch(self.jobs[job].epoch),
            tree: TreeId(tree),
            children,
            parent,
            slots: self.layout.window_max,
            fragment_bytes: self.layout.fragment_bytes,
            release_permille: self.layout.release_permille,
        };
        if self.switches.len() <= node {
            self.switches.resize_with(node + 1, || None);
        }
        let memory = self.layout.memory;
        let switch = self.switches[node].get_or_insert_with(|| Switch::new(Slab::new(memory)));
        let number = self.layout.start.number;
        switch.install_starting_at(self.network.now, lease, number).expect("a valid lease");
    }

    /// Every worker submits an operation; `values` makes each rank's buffer.
    pub fn submit(
        &mut self,
        job: usize,
        format: Format,
        numel: usize,
        values: impl Fn(u32) -> Vec<u8>,
    ) {
        for rank in 0..self.layout.workers {
            self.submit_at(job, rank, format, numel, values(rank));
        }
    }

    pub fn submit_at(
        &mut self,
        job: usize,
        rank: u32,
        format: Format,
        numel: usize,
        buffer: Vec<u8>,
    ) {
        self.submit_pattern(job, rank, format, numel, buffer, Pattern::Allreduce);
    }

    pub fn submit_pattern(
        &mut self,
        job: usize,
        rank: u32,
        format: Format,
        numel: usize,
        buffer: Vec<u8>,
        pattern: Pattern,
    ) {
        let host = self.jobs[job].hosts[rank as usize];
        let id = self.hosts[host].operations.len() as u64;
        assert_eq!(buffer.len(), numel * format.dtype.size());
        let missing = BTreeMap::new();
        self.hosts[host].operations.push(HostOperation {
            format,
            numel,
            buffer,
            done: None,
            result: None,
            pattern: pattern.clone(),
            again: false,
            missing,
        });
        self.hosts[host].machine.as_mut().unwrap().submit(Submission {
            id,
            format,
            numel: numel as u64,
            fingerprint: (numel as u32) << 8 ^ id as u32 ^ u32::from(format.code()) << 24,
            fragments: Fragments::All,
            pattern,
        });
        self.pump_host(host);
    }

    /// A switch dies: its state is lost, and packets to it are dropped.
    pub fn kill_switch(&mut self, node: usize) {
        self.switches[node] = None;
    }

    /// Bytes on the link of a host, as Ethernet frames with tags: sent and received.
    pub fn traffic_of_host(&self, host: usize) -> (u64, u64) {
        self.network.traffic_of(FIRST_HOST + host)
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
                None => self.wake_hosts(),
            }
        }
        true
    }

    pub fn all_done(&self) -> bool {
        self.hosts.iter().all(|h| h.operations.iter().all(|o| o.done.is_some()))
    }

    /// The world's limit on a switch's memory, checked after each packet.
    fn check_memory(&self, node: usize) {
        if let Some(switch) = &self.switches[node] {
            let used = switch.memory().used();
            assert!(used <= self.layout.memory, "switch {node} holds {used} bytes");
        }
    }

    fn arrive(&mut self, arrival: Arrival) {
        let from = PortId(arrival.from as u32);
        let decoded = Header::decode(&arrival.packet);
        if arrival.to >= FIRST_HOST {
            let host = arrival.to - FIRST_HOST;
            if let Ok((header, payload)) = decoded {
                let payload = payload.to_vec();
                self.host_takes(host, arrival.ce, &header, &payload);
            }
            self.pump_host(host);
            return;
        }
        let Some(switch) = &mut self.switches[arrival.to] else { return };
        match decoded {
            Ok((header, payload)) => {
                let _ = switch.handle(self.network.now, from, arrival.ce, &header, payload);
            }
            Err(error) => switch.count_decode_error(error),
        }
        self.check_memory(arrival.to);
        self.pump_switch(arrival.to);
    }

    fn host_takes(&mut self, host: usize, ce: bool, header: &Header, payload: &[u8]) {
        let host = &mut self.hosts[host];
        let Some(machine) = &mut host.machine else { return };
        let accepted = machine.handle(self.network.now, ce, header);
        let keep = u64::from(self.layout.window_max)
            * u64::from(self.jobs[host.job].trees)
            * if self.layout.copies { 2 } else { 1 };
        let mut retain = |g: u64, bytes: Vec<u8>| {
            host.retained.insert(g, bytes);
            // The vid that is a window below on the same tree.
            if let Some(old) = g.checked_sub(keep) {
                host.retained.remove(&old);
            }
        };
        while let Some(settled) = machine.poll_settled() {
            let operation = &host.operations[settled.id as usize];
            retain(settled.g, operation.buffer[operation.bytes(&settled.elements)].to_vec());
        }
        if let Ok(Some(accepted)) = accepted {
            let operation = &mut host.operations[accepted.id as usize];
            let place = operation.bytes(&accepted.elements);
            operation.buffer[place].copy_from_slice(payload);
            operation.missing.insert(accepted.elements.start, header.missing);
            retain(accepted.g, payload.to_vec());
        }
    }

    fn pump_switch(&mut self, node: usize) {
        loop {
            let switch = self.switches[node].as_mut().unwrap();
            let Some(transmit) = switch.poll_transmit() else { break };
            let (to, packet) = match transmit {
                Transmit::Data { to, buffer } => (to, switch.memory().packet(buffer).to_vec()),
                Transmit::Control { to, header } => (to, encode(&header, &[])),
            };
            self.network.send(node, to.0 as usize, packet);
        }
        self.switches[node].as_mut().unwrap().flushed();
    }

    pub fn pump_host(&mut self, host: usize) {
        loop {
            let h = &mut self.hosts[host];
            let Some(machine) = &mut h.machine else { return };
            let Some(mut outgoing) = machine.poll_transmit(self.network.now) else { break };
            let mut payload = vec![0; outgoing.header.payload_len()];
            if let Some((id, _)) = outgoing.payload {
                let operation = &h.operations[id as usize];
                let elements = |range| &operation.buffer[operation.bytes(&range)];
                machine.write(&mut outgoing, elements, &mut payload);
            }
            let packet = encode(&outgoing.header, &payload);
            let to = h.above[usize::from(outgoing.tree.0)].0 as usize;
            self.network.send(FIRST_HOST + host, to, packet);
        }
        self.drain_events(host);
        let h = &mut self.hosts[host];
        let deadline = h.machine.as_ref().and_then(|m| m.poll_timeout());
        if deadline != h.wake {
            h.wake = deadline;
            if let Some(at) = deadline {
                self.network.wake_at(at);
            }
        }
    }

    fn drain_events(&mut self, host: usize) {
        let h = &mut self.hosts[host];
        while let Some(event) = h.machine.as_mut().and_then(|m| m.poll_event()) {
            match event {
                Event::Done { id, missing } => {
                    let operation = &mut h.operations[id as usize];
                    if std::mem::take(&mut operation.again) {
                        continue;
                    }
                    let free = vec![0xaa; operation.buffer.len()];
                    operation.result = Some(std::mem::replace(&mut operation.buffer, free));
                    assert!(operation.done.is_none(), "operation {id} is done twice");
                    operation.done = Some(missing);
                }
                Event::Mismatch { .. } => h.mismatch = true,
                Event::Refused { ranks, refusal, .. } => _ = h.refused.insert((ranks, refusal)),
                Event::Silent { .. } => h.silent = true,
            }
        }
    }

    fn wake_hosts(&mut self) {
        for host in 0..self.hosts.len() {
            if self.hosts[host].wake.is_some_and(|at| at <= self.network.now) {
                self.hosts[host].wake = None;
                if let Some(machine) = &mut self.hosts[host].machine {
                    machine.handle_timeout(self.network.now);
                }
                self.pump_host(host);
            }
        }
    }
}

fn encode(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut head = [0; HEADER_LEN];
    header.encode(&mut head);
    [&head[..], payload].concat()
}
