//! Input of a run: fabric, jobs, network noise and faults, all drawn from a seed.

use netsum_topo::{
    Addressing, Bytes, CongestionRule, Fabric, Protocol, Rate, Server, SlotPolicy, leaf_spine,
};
use serde::{Deserialize, Serialize};

use crate::fault::{Direction, Fault, Kind, LinkLoss, Process, StoreAfter};
use crate::random::Random;

/// A complete run: equal scenarios give identical event sequences.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scenario {
    /// Seed of all draws during the run.
    pub seed: u64,
    /// Shape of the fabric.
    pub fabric: FabricShape,
    /// Permanent properties of the network.
    pub noise: Noise,
    /// Jobs, in order of their numbers.
    pub jobs: Vec<JobShape>,
    /// Faults, in order of their times.
    pub faults: Vec<Fault>,
    /// Somebody on the network who is hostile.
    #[serde(default)]
    pub adversary: Option<AdversaryShape>,
    /// Operation time-out, milliseconds.
    pub operation_timeout_ms: u64,
    /// Silence after which the mesh considers a peer lost, milliseconds.
    pub mesh_silence_ms: u64,
    /// Results that every tree has completed when an epoch starts; used to test counters at their wrap-around.
    pub first_number: u64,
    /// The first job number, if not chosen by the store; used to test the wrap-around of job numbers.
    pub first_job: Option<u32>,
    /// Idle time after which leases expire while the controller is unreachable, seconds.
    pub idle_expiry_s: u32,
    /// Number of controllers beside the first. With any, they share a store that is always there, and elect one.
    #[serde(default)]
    pub standbys: u32,
}

/// A leaf-spine fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FabricShape {
    /// Number of racks, with one switch each.
    pub racks: u32,
    /// Number of hosts per rack.
    pub hosts: u32,
    /// Number of spine switches; may be 0 with one rack.
    pub spines: u32,
    /// Number of servers, on the first hosts.
    pub servers: u32,
    /// Aggregation memory of a switch or server, bytes.
    pub memory: u64,
    /// Number of slots per switch.
    pub slots: u32,
    /// Receive buffer of a switch, bytes.
    pub receive_buffer: u64,
    /// MTU of every interface, bytes.
    pub mtu: u32,
    /// Whether packets carry no keyed tags.
    pub trusted: bool,
    /// How jobs share slots: partition, first-come or preempt.
    pub policy: String,
}

/// Noise of the network. Probabilities are in millionths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noise {
    /// Probability of packet loss.
    pub loss: u32,
    /// Probability of packet duplication.
    pub duplication: u32,
    /// Probability of a bit error; the checksum detects most of them.
    pub corruption: u32,
    /// Probability of a congestion mark.
    pub marking: u32,
    /// Maximum additional delay of packets, microseconds.
    pub jitter_us: u32,
    /// Probability of an additional packet delay of up to `SLOW_MS`.
    pub slow: u32,
    /// Maximum additional delay of control-plane and mesh messages, microseconds.
    pub message_jitter_us: u32,
    /// Maximum clock drift in either direction, thousandths.
    pub drift_permille: u32,
}

/// An adversary, who hears packets of sums, and sends any packet under any address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdversaryShape {
    /// Hostile packets per million of others.
    pub per_million: u32,
    /// The job whose key the adversary has, as one of its members.
    pub job: Option<u32>,
}

/// A job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobShape {
    /// Protocol name, or `auto` for the controller's choice.
    pub protocol: String,
    /// Host index in the fabric file, by rank.
    pub hosts: Vec<u32>,
    /// Creation time, milliseconds.
    pub starts_ms: u64,
    /// Maximum number of trees; 0: no limit.
    pub max_trees: u32,
    /// Average time between operations, milliseconds.
    pub gap_ms: u64,
    /// Maximum number of elements per operation.
    pub elements: u32,
    /// Maximum number of concurrent operations.
    pub depth: u32,
    /// Fixed scale of atp's integers; 0: shared exponents.
    pub scale: u32,
    /// Congestion rule of the workers.
    pub congestion: String,
    /// Whether its packets are encrypted, unless the fabric is trusted.
    #[serde(default)]
    pub encrypt: bool,
    /// Whether it does other collectives than allreduce, by switches if it can.
    #[serde(default)]
    pub all_collectives: bool,
}

/// Maximum additional delay of a slow packet, milliseconds.
pub const SLOW_MS: u64 = 50;

impl Scenario {
    /// The scenario of a seed.
    pub fn of_seed(seed: u64) -> Scenario {
        let mut random = Random::of(seed, &[1]);
        let fabric = FabricShape::draw(&mut Random::of(seed, &[2]));
        let hosts = fabric.racks * fabric.hosts;
        let jobs: Vec<JobShape> = (0..random.within(1..=4))
            .map(|job| JobShape::draw(&mut Random::of(seed, &[3, job]), hosts, &fabric))
            .collect();
        let mut scenario = Scenario {
            seed,
            noise: Noise::draw(&mut Random::of(seed, &[4])),
            faults: Vec::new(),
            adversary: AdversaryShape::draw(&mut Random::of(seed, &[6]), jobs.len() as u64),
            operation_timeout_ms: 90_000,
            mesh_silence_ms: random.within(5..=30) * 1000,
            first_number: draw_first(&mut random),
            first_job: random.chance(200_000).then_some(u32::MAX - 1),
            idle_expiry_s: random.pick(&[0, 30, 900]),
            standbys: Random::of(seed, &[7]).pick(&[0, 0, 2]),
            fabric,
            jobs,
        };
        scenario.faults = draw_faults(&mut Random::of(seed, &[5]), &scenario);
        if scenario.standbys > 0 {
            spread_over_controllers(&mut Random::of(seed, &[8]), &mut scenario);
        }
        scenario
    }

    /// Builds the fabric.
    pub fn build_fabric(&self) -> Fabric {
        let shape = &self.fabric;
        let addressing = Addressing { memory: Bytes(shape.memory), ..Addressing::default() };
        let rate = Rate(10_000_000_000);
        let mut fabric = leaf_spine(shape.racks, shape.hosts, shape.spines, rate, rate, addressing)
            .expect("shapes are within the builder's bounds");
        fabric.trusted = shape.trusted;
        let policy: SlotPolicy = shape.policy.parse().unwrap_or_default();
        for switch in &mut fabric.switches {
            (switch.slots, switch.policy) = (shape.slots, policy);
        }
        for number in 0..shape.servers as usize {
            let host = &fabric.hosts[number * fabric.hosts.len() / shape.servers as usize];
            fabric.servers.push(Server {
                name: format!("server{number}"),
                address: (host.address, 7711 + number as u16).into(),
                memory: Bytes(shape.memory),
                metrics: None,
            });
        }
        fabric
    }

    /// End of the last fault that ends, milliseconds.
    pub fn faults_end_ms(&self) -> u64 {
        self.faults.iter().filter_map(Fault::end_ms).max().unwrap_or(0)
    }

    /// Number of switches and servers.
    pub fn aggregators(&self) -> u32 {
        self.fabric.racks + self.fabric.spines + self.fabric.servers
    }

    /// Number of links in the fabric file.
    pub fn links(&self) -> u32 {
        self.fabric.racks * (self.fabric.hosts + self.fabric.spines)
    }
}

impl FabricShape {
    fn draw(random: &mut Random) -> FabricShape {
        let racks = random.within(1..=3) as u32;
        let hosts = match racks {
            1 => random.within(2..=8),
            2 => random.within(1..=4),
            _ => random.within(1..=2),
        } as u32;
        let short = random.chance(200_000);
        FabricShape {
            racks,
            hosts,
            spines: random.within(u64::from(racks > 1)..=3) as u32,
            servers: random.within(1..=2) as u32,
            memory: if short { random.within(8..=64) << 10 } else { 4 << 20 },
            slots: if short { random.within(4..=32) } else { random.within(64..=512) } as u32,
            receive_buffer: if short { 64 << 10 } else { 16 << 20 },
            mtu: random.pick(&[154, 218, 346]),
            trusted: random.chance(300_000),
            policy: random.pick(&["partition", "first-come", "preempt", "preempt"]).to_owned(),
        }
    }
}

impl Noise {
    fn draw(random: &mut Random) -> Noise {
        let mut rare = |most: u64| {
            if random.chance(500_000) { random.below(most) as u32 } else { 0 }
        };
        Noise {
            loss: rare(30_000),
            duplication: rare(30_000),
            corruption: rare(10_000),
            marking: rare(300_000),
            jitter_us: rare(2_000),
            slow: rare(3_000),
            message_jitter_us: rare(20_000),
            drift_permille: rare(101),
        }
    }
}

impl AdversaryShape {
    /// In a fourth of the seeds.
    fn draw(random: &mut Random, jobs: u64) -> Option<AdversaryShape> {
        random.chance(250_000).then(|| AdversaryShape {
            per_million: random.pick(&[1_000, 20_000, 100_000, 500_000]),
            job: (jobs > 1 && random.chance(500_000)).then(|| random.below(jobs) as u32),
        })
    }
}

impl JobShape {
    fn draw(random: &mut Random, hosts: u32, fabric: &FabricShape) -> JobShape {
        let protocol = draw_protocol(random);
        let size = random.within(2..=8.min(u64::from(hosts).max(2))) as u32;
        let first = random.below(u64::from(hosts)) as u32;
        let step = random.pick(&[1, 1, fabric.hosts]);
        JobShape {
            protocol: protocol.to_owned(),
            hosts: (0..size).map(|rank| place(first, rank * step, hosts)).collect(),
            starts_ms: if random.chance(600_000) { 0 } else { random.below(4000) },
            max_trees: random.pick(&[0, 0, 0, 1, 2]),
            gap_ms: random.pick(&[20, 50, 100, 300]),
            elements: random.pick(&[1, 16, 64, 300, 300, 1000]),
            depth: random.within(1..=3) as u32,
            scale: random.pick(&[0, 0, 1024]),
            congestion: random.pick(CongestionRule::ALL).to_string(),
            encrypt: random.chance(300_000),
            all_collectives: random.chance(400_000),
        }
    }
}

/// Draws the default protocol for half of the jobs, `auto` for one in twenty, and the other protocols evenly for the
/// rest.
fn draw_protocol(random: &mut Random) -> &'static str {
    let default = Protocol::default();
    let others: Vec<Protocol> =
        Protocol::ALL.iter().copied().filter(|&protocol| protocol != default).collect();
    match random.below(20) {
        0..=9 => default.name(),
        19 => "auto",
        drawn => others[(drawn as usize - 10) * others.len() / 9].name(),
    }
}

/// Draws 0 mostly, otherwise a number shortly before a 16- or 32-bit wrap-around.
fn draw_first(random: &mut Random) -> u64 {
    match random.below(6) {
        0 => (1 << 16) - random.within(1..=100),
        1 => (1 << 32) - random.within(1..=100),
        2 => (1 << 31) - random.within(1..=100),
        _ => 0,
    }
}

/// A step that shares a divisor with the number of hosts still reaches all of them.
fn place(first: u32, offset: u32, hosts: u32) -> u32 {
    (first + offset + offset / hosts) % hosts
}

fn draw_faults(random: &mut Random, scenario: &Scenario) -> Vec<Fault> {
    let count = random.pick(&[0, 1, 1, 2, 2, 3, 4, 6, 8]);
    let horizon_ms = random.pick(&[3_000, 6_000, 12_000, 25_000]);
    let mut faults: Vec<Fault> =
        (0..count).map(|_| draw_fault(random, scenario, horizon_ms)).collect();
    faults.sort_by_key(|fault| fault.at_ms);
    faults
}

fn draw_fault(random: &mut Random, scenario: &Scenario, horizon_ms: u64) -> Fault {
    let at_ms = random.below(horizon_ms);
    let length = random.below(4);
    let for_ms = match length {
        0 => random.within(1..=200),
        1 => random.within(200..=2_000),
        2 => random.within(2_000..=6_000),
        _ => random.within(5_000..=20_000),
    };
    let (kind, instant) = match random.below(100) {
        0..=11 => (Kind::Kill { process: Process::Controller, store: store(random) }, false),
        12..=27 => {
            (Kind::Kill { process: aggregator(random, scenario), store: StoreAfter::Kept }, false)
        }
        28..=29 => (Kind::Kill { process: rank(random, scenario), store: StoreAfter::Kept }, true),
        30..=45 => (Kind::Stop { process: any(random, scenario) }, false),
        46..=60 => (partition(random, scenario), false),
        61..=74 => (link(random, scenario), false),
        75..=79 => (Kind::Loss { per_million: random.within(10_000..=400_000) as u32 }, false),
        80..=83 => (Kind::Delay { ms: random.within(1..=1500) as u32 }, false),
        84..=89 => (Kind::BreakStream { process: not_controller(random, scenario) }, true),
        90..=91 => (Kind::RekeyJob { job: random.below(scenario.jobs.len() as u64) as u32 }, true),
        92..=94 => (Kind::DiskFull, false),
        95..=98 => {
            let ms = random.within(1..=8_000) as u32;
            (Kind::ClockJump { process: any(random, scenario), ms }, true)
        }
        _ => (Kind::StopJob { job: random.below(scenario.jobs.len() as u64) as u32 }, true),
    };
    let endless = !instant && random.chance(20_000);
    let for_ms = if instant { Some(0) } else { (!endless).then_some(for_ms) };
    Fault { at_ms, for_ms, kind }
}

/// Lets faults of the controller meet any of several, and adds some that only they can meet.
fn spread_over_controllers(random: &mut Random, scenario: &mut Scenario) {
    let standbys = scenario.standbys;
    let mut other = |process: &mut Process| {
        if *process == Process::Controller {
            *process = controller(random, standbys);
        }
    };
    for fault in &mut scenario.faults {
        match &mut fault.kind {
            Kind::Kill { process, .. }
            | Kind::Stop { process }
            | Kind::ClockJump { process, .. } => {
                other(process);
            }
            Kind::Partition { group, .. } => group.iter_mut().for_each(&mut other),
            _ => {}
        }
    }
    for _ in 0..random.within(1..=6) {
        let process = controller(random, standbys);
        let kind = match random.below(3) {
            0 => Kind::Kill { process, store: StoreAfter::Kept },
            1 => Kind::Stop { process },
            _ => Kind::StoreSilent { process },
        };
        let (at_ms, for_ms) = (random.below(12_000), Some(random.within(1..=8_000)));
        scenario.faults.push(Fault { at_ms, for_ms, kind });
    }
    scenario.faults.sort_by_key(|fault| fault.at_ms);
}

fn controller(random: &mut Random, standbys: u32) -> Process {
    match random.below(u64::from(standbys) + 1) {
        0 => Process::Controller,
        standby => Process::Standby(standby as u32 - 1),
    }
}

fn store(random: &mut Random) -> StoreAfter {
    match random.below(10) {
        0 => StoreAfter::Lost,
        _ => StoreAfter::Kept,
    }
}

fn aggregator(random: &mut Random, scenario: &Scenario) -> Process {
    Process::Aggregator(random.below(scenario.aggregators().into()) as u32)
}

fn rank(random: &mut Random, scenario: &Scenario) -> Process {
    let job = random.below(scenario.jobs.len() as u64);
    let size = scenario.jobs[job as usize].hosts.len() as u64;
    Process::Rank(job as u32, random.below(size) as u32)
}

fn not_controller(random: &mut Random, scenario: &Scenario) -> Process {
    match random.chance(500_000) {
        true => rank(random, scenario),
        false => aggregator(random, scenario),
    }
}

fn any(random: &mut Random, scenario: &Scenario) -> Process {
    match random.below(4) {
        0 => Process::Controller,
        _ => not_controller(random, scenario),
    }
}

fn partition(random: &mut Random, scenario: &Scenario) -> Kind {
    let members = random.within(1..=3);
    let mut group: Vec<Process> = (0..members).map(|_| any(random, scenario)).collect();
    group.sort();
    group.dedup();
    let [data, control, mesh] = random.pick(&[
        [true, true, true],
        [true, false, false],
        [true, false, false],
        [false, true, false],
        [false, true, false],
        [false, false, true],
    ]);
    Kind::Partition { group, data, control, mesh }
}

fn link(random: &mut Random, scenario: &Scenario) -> Kind {
    Kind::Link {
        link: random.below(scenario.links().into()) as u32,
        direction: random.pick(&[Direction::Both, Direction::Forward, Direction::Backward]),
        loss: match random.below(4) {
            0 => LinkLoss::Large,
            1 => LinkLoss::Some(random.within(50_000..=900_000) as u32),
            _ => LinkLoss::All,
        },
    }
}
