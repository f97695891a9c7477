//! The switch on one core, compared with a bare forwarder of the same packets on the same sockets.
//!
//! Four workers (one thread, core 0) stream float32 fragments through the switch (core 1) and receive every sum. The
//! forwarder in its place adds nothing: once a fragment's four packets have arrived, it sends the last one to all four.
//! Rounds alternate, so that all run under the same conditions. The switch runs with sealed and with encrypted packets, too.
//!
//! `cargo bench --profile release -p netsum-net --bench switch -- [--rounds N] [--seconds S] [--window W] [--path
//! loopback|veth] [--out FILE]`; without `--path` both, and the second result is written to `FILE` with `-veth` in its
//! name. veth needs root.

mod cores;
mod forwarder;
mod load;
#[path = "../../../../bench/record.rs"]
mod record;
mod report;
mod veth;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use netsum_net::CpuTime;
use netsum_net::switch::{Role, SwitchDriver, SwitchOptions};
use netsum_net::udp::SocketOptions;
use netsum_proto::Secrets;
use netsum_proto::atp::{Policy, SwitchConfig};
use netsum_proto::panama::{Child, Lease};
use netsum_wire::seal::HopKeys;
use netsum_wire::tag::Mac;
use netsum_wire::{Epoch, TreeId};

use load::{ELEMENTS, FRAGMENT_BYTES, JOB, Load, WORKERS};
use report::Round;

/// Core of the workers, and of the switch or forwarder.
const CORES: [usize; 2] = [0, 1];

struct Arguments {
    rounds: usize,
    seconds: f64,
    window: u16,
    path: Option<Path>,
    out: Option<PathBuf>,
}

/// Path between workers and switch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Path {
    Loopback,
    Veth,
}

impl std::str::FromStr for Path {
    type Err = ();

    fn from_str(text: &str) -> Result<Path, ()> {
        match text {
            "loopback" => Ok(Path::Loopback),
            "veth" => Ok(Path::Veth),
            _ => Err(()),
        }
    }
}

fn main() {
    let arguments = Arguments::parse();
    if arguments.path != Some(Path::Veth) {
        measure(&arguments, Path::Loopback, arguments.out.clone());
    }
    if arguments.path.is_none() && !is_root() {
        eprintln!("veth: left out, needs root (network namespaces)");
    } else if arguments.path != Some(Path::Loopback) {
        let beside = |out: &PathBuf| out.with_file_name(format!("{}-veth.json", stem(out)));
        let out = arguments.out.as_ref();
        let out = if arguments.path.is_none() { out.map(beside) } else { out.cloned() };
        measure(&arguments, Path::Veth, out);
    }
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

fn stem(file: &std::path::Path) -> std::borrow::Cow<'_, str> {
    file.file_stem().unwrap_or_default().to_string_lossy()
}

fn measure(arguments: &Arguments, path: Path, out: Option<PathBuf>) {
    let network = (path == Path::Veth).then(veth::Veth::new);
    let (near, far) = network.as_ref().map_or([LOCALHOST; 2], |v| v.addresses()).into();
    let sides = [Side::Switch, Side::Sealed, Side::Encrypted, Side::Forwarder];
    let mut rounds = sides.map(|_| Vec::new());
    for round in 0..arguments.rounds {
        // The order of sides alternates, too.
        for turn in 0..sides.len() {
            let at = (round + turn) % sides.len();
            let place = Endpoints { near, far, network: network.as_ref() };
            let measured = round_of(arguments, &place, sides[at]);
            eprintln!("{:9} {measured}", format!("{:?}", sides[at]).to_lowercase());
            rounds[at].push(measured);
        }
    }
    let path = if path == Path::Veth { "veth" } else { "loopback" };
    let [ours, sealed, encrypted, bare] = &rounds;
    let sides = report::Sides { ours, sealed, encrypted, bare };
    let report = report::Report::new(path, arguments.window, sides);
    println!("{report}");
    if let Some(file) = out {
        report.write(&file);
    }
}

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Addresses of workers (`near`) and switch (`far`).
struct Endpoints<'a> {
    near: IpAddr,
    far: IpAddr,
    network: Option<&'a veth::Veth>,
}

impl Endpoints<'_> {
    /// The calling thread moves to a core and, with veth, to the far or near namespace.
    fn enter(&self, core: usize, far: bool) {
        cores::pin(core);
        if let Some(network) = self.network {
            network.enter(far);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Side {
    /// The switch of a trusted job.
    Switch,
    /// The same with sealed packets.
    Sealed,
    /// The same with encrypted packets.
    Encrypted,
    Forwarder,
}

/// The process in the middle: its address, and its processor time.
trait Middle {
    fn address(&self) -> SocketAddr;
    fn connect(&self, workers: &[SocketAddr], window: u16, secrets: Option<Secrets>);
    fn cpu(&self) -> CpuTime;
}

impl Middle for SwitchDriver {
    fn address(&self) -> SocketAddr {
        self.local_addr()
    }

    fn connect(&self, workers: &[SocketAddr], window: u16, secrets: Option<Secrets>) {
        let child = |(i, &address): (usize, &SocketAddr)| Child {
            port: address,
            ranks: 1 << i,
            branch: i as u8,
        };
        let lease = Lease {
            job: JOB,
            epoch: Epoch(1),
            tree: TreeId(0),
            children: workers.iter().enumerate().map(child).collect(),
            parent: None,
            slots: window,
            fragment_bytes: FRAGMENT_BYTES as u16,
            release_permille: 1000,
        };
        self.install_with(lease, secrets).expect("the lease fits");
    }

    fn cpu(&self) -> CpuTime {
        self.snapshot().expect("the switch runs").cpu
    }
}

fn round_of(arguments: &Arguments, place: &Endpoints<'_>, side: Side) -> Round {
    std::thread::scope(|scope| {
        let middle = scope.spawn(|| -> Box<dyn Middle + Send> {
            // Threads inherit core and namespace of the thread that starts them.
            place.enter(CORES[1], true);
            let bind = SocketAddr::new(place.far, 0);
            match side {
                Side::Switch | Side::Sealed | Side::Encrypted => Box::new(switch(bind)),
                Side::Forwarder => Box::new(forwarder::Forwarder::start(bind)),
            }
        });
        let middle = middle.join().expect("the middle starts");
        let worker = scope.spawn(move || {
            place.enter(CORES[0], false);
            let keys = match side {
                Side::Sealed => Some(hop_keys(Mac::fastest())),
                Side::Encrypted => Some(hop_keys(Mac::AegisAead)),
                Side::Switch | Side::Forwarder => None,
            };
            let mut load =
                Load::new(place.near, middle.address(), arguments.window, keys.as_deref());
            middle.connect(&load.addresses(), arguments.window, keys);
            let adds = side != Side::Forwarder;
            load.run(Duration::from_millis(200), adds);
            let (before, own_before) = (middle.cpu(), CpuTime::of_this_thread());
            let counted = load.run(Duration::from_secs_f64(arguments.seconds), adds);
            Round::new(counted, before, middle.cpu(), own_before, CpuTime::of_this_thread())
        });
        worker.join().expect("the workers finish")
    })
}

/// Keys of all workers' hops.
fn hop_keys(mac: Mac) -> Vec<HopKeys> {
    (0..WORKERS).map(|worker| HopKeys::new(mac, [worker as u8; 32])).collect()
}

fn switch(bind: SocketAddr) -> SwitchDriver {
    let socket = SocketOptions::default();
    let policy = Policy::FirstCome;
    let slots = SwitchConfig { slots: 1, row_bytes: 4, policy, straggler_ns: 200_000_000 };
    let role = Role::Switch(slots);
    SwitchDriver::start(&SwitchOptions { bind, memory: 64 << 20, role, socket, threads: 1 })
        .expect("it starts")
}

impl Arguments {
    fn parse() -> Arguments {
        let mut arguments =
            Arguments { rounds: 7, seconds: 1.0, window: 256, path: None, out: None };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().unwrap_or_else(|| usage(&word));
            match word.as_str() {
                "--rounds" => arguments.rounds = parse(&value()),
                "--seconds" => arguments.seconds = parse(&value()),
                "--window" => arguments.window = parse(&value()),
                "--out" => arguments.out = Some(value().into()),
                "--path" => arguments.path = Some(parse(&value())),
                "--bench" => {}
                _ => usage(&word),
            }
        }
        arguments
    }
}

fn parse<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| usage(text))
}

fn usage(word: &str) -> ! {
    eprintln!(
        "not understood: {word}; options: --rounds N --seconds S --window W --path loopback|veth --out FILE"
    );
    std::process::exit(2)
}

const _: () = assert!(ELEMENTS * 4 == FRAGMENT_BYTES && WORKERS <= 64);
