//! The controller's accounting compared with the machines of switches and servers: grants equal reservations, and
//! allocations stay below.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use netsum_control::client::LeaseOffer;
use netsum_control::decide::{Event, Settings};
use netsum_control::pb;
use netsum_control::pb::switch_command::Command;
use netsum_proto::Aggregator;
use netsum_proto::panama::{self, Slab, Transmit};
use netsum_proto::values::{Rows, row_cost};
use netsum_proto::{Lease, PortId, Time, atp, switchml};
use netsum_topo::{Addressing, Bytes, Fabric, SLOTS_USUAL, Server, leaf_spine};
use netsum_wire::Parties;
use netsum_wire::panama::{Header, Kind, NO_CAP};
use netsum_wire::{Dtype, Epoch, Format, JobId, ReduceOp, Vid};
use proptest::prelude::*;

use crate::world::{RATE, SLOT_BYTES, World};

const NOW: Time = Time(0);
const FORMAT: Format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };

/// Two racks of two hosts, two spines, a server.
fn fabric() -> Fabric {
    let mut fabric = leaf_spine(2, 2, 2, RATE, RATE, Addressing::default()).unwrap();
    let address = (fabric.hosts[0].address, 7801).into();
    let memory = Bytes(64 << 20);
    fabric.servers.push(Server { name: "ps0".to_owned(), address, memory, metrics: None });
    fabric
}

/// The machines of a daemon, with the memory that it has reported to the controller.
struct Machines {
    trees: panama::Switch<Slab>,
    pools: switchml::Switch<Rows>,
    server: atp::Server<Rows>,
    ports: HashMap<SocketAddr, PortId>,
}

impl Machines {
    fn new(memory: u64) -> Machines {
        let rows = || Rows::new(usize::MAX, SLOT_BYTES.into());
        let all = memory / row_cost(SLOT_BYTES);
        Machines {
            trees: panama::Switch::new(Slab::new(memory)).with_firm_leases(),
            pools: switchml::Switch::new(2 * SLOTS_USUAL, SLOT_BYTES, rows()),
            server: atp::Server::new(SLOT_BYTES, rows()).with_rows(all),
            ports: HashMap::new(),
        }
    }

    fn obey(&mut self, command: &Command) {
        match command {
            Command::Install(lease) => {
                let lease = LeaseOffer::from(lease).terms.unwrap().lease;
                let ports = &mut self.ports;
                let port = |address| {
                    let next = PortId(ports.len() as u32);
                    *ports.entry(address).or_insert(next)
                };
                match lease {
                    Lease::Tree(lease) => self.trees.install(NOW, lease.map(port)).unwrap(),
                    Lease::Pool(lease) => self.pools.install(NOW, lease.map(port)).unwrap(),
                    Lease::Server(lease) => self.server.install(NOW, lease.map(port)).unwrap(),
                    Lease::Slots(_) => {}
                }
            }
            Command::Hello(_) => {}
            Command::Revoke(revoke) => {
                let (job, epoch) = (JobId(revoke.job), Epoch(revoke.epoch as u16));
                self.trees.revoke(job, epoch);
                self.trees.flushed();
                self.pools.revoke(job, epoch);
                self.server.revoke(job, epoch);
            }
        }
    }

    /// Bytes that leases have reserved.
    fn reserved(&self) -> u64 {
        let trees: u64 = self.trees.reserved().map(|(.., bytes)| bytes).sum();
        trees + self.server.reserved() * row_cost(SLOT_BYTES)
    }

    /// Sends fragments of all children of all trees as fast as the protocol allows, in random order and with random
    /// delays. Panics if buffers in use exceed the reservation.
    fn load(&mut self, random: &mut Random) {
        let leases: Vec<panama::Lease> = self.trees.leases().cloned().collect();
        let mut flows: Vec<Flow> = leases.into_iter().map(Flow::new).collect();
        for _ in 0..STEPS * flows.len() {
            let flow = random.below(flows.len());
            if let Some((from, header)) = flows[flow].next(random) {
                let payload = vec![0; usize::from(header.n_elems) * 4];
                self.trees.handle(NOW, from, false, &header, &payload).unwrap();
            }
            let used = self.trees.memory().used();
            assert!(used <= self.reserved(), "{used} bytes of {} reserved", self.reserved());
            if random.below(FLUSH_EVERY) == 0 {
                self.flush(&mut flows);
            }
        }
        for lease in self.trees.leases().cloned().collect::<Vec<_>>() {
            self.trees.revoke(lease.job, lease.epoch);
        }
        self.trees.flushed();
        assert_eq!(self.trees.memory().used(), 0);
    }

    /// Sends everything that is queued: children receive results, parents partials.
    fn flush(&mut self, flows: &mut [Flow]) {
        while let Some(transmit) = self.trees.poll_transmit() {
            let Transmit::Data { buffer, .. } = transmit else { panic!("{transmit:?}") };
            let (header, _) = Header::decode(self.trees.memory().packet(buffer)).unwrap();
            let of =
                |flow: &&mut Flow| (flow.lease.job, flow.lease.tree) == (header.job, header.tree);
            let flow = flows.iter_mut().find(of).unwrap();
            match header.kind {
                Kind::Result => flow.result(header.vid.0),
                _ => flow.partials.push(header.vid.0),
            }
        }
        self.trees.flushed();
    }
}

/// The neighbours of a switch on one tree.
struct Flow {
    lease: panama::Lease,
    /// Next vid by child.
    next: Vec<u32>,
    /// Lowest vid without a result at the children; those above that have one.
    base: u32,
    above: Vec<u32>,
    /// Vids whose partial the parent has received and not answered.
    partials: Vec<u32>,
}

impl Flow {
    fn new(lease: panama::Lease) -> Flow {
        let next = vec![0; lease.children.len()];
        Flow { lease, next, base: 0, above: Vec::new(), partials: Vec::new() }
    }

    /// A packet that some neighbour may send now.
    fn next(&mut self, random: &mut Random) -> Option<(PortId, Header)> {
        if !self.partials.is_empty() && random.below(3) == 0 {
            let vid = self.partials.swap_remove(random.below(self.partials.len()));
            return Some((self.lease.parent.unwrap(), self.header(Kind::Result, vid)));
        }
        let child = random.below(self.next.len());
        let vid = self.next[child];
        if vid >= self.base + u32::from(self.lease.slots) {
            return None;
        }
        self.next[child] += 1;
        Some((self.lease.children[child].port, self.header(Kind::Contribution, vid)))
    }

    fn result(&mut self, vid: u32) {
        if vid >= self.base && !self.above.contains(&vid) {
            self.above.push(vid);
        }
        while let Some(place) = self.above.iter().position(|&vid| vid == self.base) {
            self.above.swap_remove(place);
            self.base += 1;
        }
    }

    fn header(&self, kind: Kind, vid: u32) -> Header {
        Header {
            kind,
            resent: false,
            congested_down: false,
            tree: self.lease.tree,
            format: FORMAT,
            job: self.lease.job,
            vid: Vid(vid),
            chunk: 0,
            epoch: self.lease.epoch,
            window_cap: NO_CAP,
            n_elems: self.lease.fragment_bytes / 4,
            marks: 0,
            missing: 0,
            parties: Parties::All,
            empty: false,
            asks: false,
            others: 0,
        }
    }
}

/// xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// Number of packets for each tree: some windows.
const STEPS: usize = 400;
/// Packets that a driver takes before it sends, on average.
const FLUSH_EVERY: usize = 20;

#[derive(Debug, Clone)]
enum Step {
    Create {
        protocol: &'static str,
        max_trees: u32,
    },
    Stop {
        which: usize,
    },
    /// All jobs become idle.
    Rest,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let protocol = prop_oneof![4 => Just("panama"), 2 => Just("atp"), 1 => Just("switchml")];
    let create =
        (protocol, 0..3u32).prop_map(|(protocol, max_trees)| Step::Create { protocol, max_trees });
    let stop = (0..8usize).prop_map(|which| Step::Stop { which });
    prop::collection::vec(prop_oneof![6 => create, 2 => stop, 1 => Just(Step::Rest)], 1..10)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_controllers_bookings_equal_the_switches_reservations(
        steps in steps(),
        memory in 65_536..4_194_304u64,
        seed in 1..u64::MAX,
    ) {
        let mut world = World::new(fabric(), Settings::default());
        world.memory = memory;
        world.all_up();
        let mut machines: BTreeMap<String, Machines> = BTreeMap::new();
        let mut jobs = Vec::new();
        for step in steps {
            match step {
                Step::Create { protocol, max_trees } => {
                    let request = pb::CreateJobRequest {
                        size: 4,
                        max_trees,
                        protocol: protocol.to_owned(),
                        ..Default::default()
                    };
                    let job = world.create_as(request);
                    for rank in 0..4 {
                        world.join(job, rank, &format!("h{rank}"), 0).unwrap();
                    }
                    jobs.push(job);
                }
                Step::Stop { which } if which < jobs.len() => {
                    let job = jobs.swap_remove(which);
                    let reason = String::new();
                    world.play(Event::StopJob { job, reason }).unwrap();
                }
                Step::Stop { .. } => {}
                Step::Rest => world.wait(Settings::default().idle_yield_ms),
            }
            world.wait(300);
            for (name, command) in std::mem::take(&mut world.commands) {
                machines.entry(name).or_insert_with(|| Machines::new(memory)).obey(&command);
            }
            for switch in world.state().status(world.now_ms).switches {
                let reserved = machines.get(&switch.name).map_or(0, Machines::reserved);
                prop_assert_eq!(switch.memory_leased_bytes, reserved, "at {}", switch.name);
                prop_assert!(reserved <= memory);
            }
        }
        let mut random = Random(seed);
        machines.values_mut().for_each(|machines| machines.load(&mut random));
    }
}
