//! Machines that are cut off: three network namespaces, each with a member of etcd and a controller, and one for clients,
//! on a bridge. Needs root.
//!
//! `NETSUM_HA_SEEDS=1..100` chooses the seeds.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use netsum_control::client;

use crate::chaos::{
    ALL_CALLS, FAULTS, Progress, Random, check_leases, check_notices, play, running_job, seeds,
};
use crate::history::check;
use crate::request;
use crate::scene::{FakeSwitch, FakeWorker, PATIENCE, SWITCHES, at, fabric};

const MACHINES: usize = 3;
const CUTS: usize = 3;
/// Set for the process that runs among the clients: the name of the namespaces.
const INSIDE: &str = "NETSUM_HA_INSIDE";
/// Where the clients are.
const CLIENTS: &str = "10.213.9.254";
/// A hardware address that nobody has.
const NOBODY: &str = "02:00:00:00:00:99";

fn address(machine: usize) -> String {
    format!("10.213.9.{}", machine + 1)
}

fn controller(machine: usize) -> String {
    format!("{}:7700", address(machine))
}

fn controllers() -> String {
    (0..MACHINES).map(controller).collect::<Vec<_>>().join(",")
}

/// Runs `ip`; the arguments are separated by spaces.
fn ip(arguments: &str) -> bool {
    let mut ip = Command::new("ip");
    let quiet = ip.args(arguments.split(' ')).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// The namespaces, and what runs in them.
struct Machines {
    name: String,
    processes: Vec<Child>,
    folder: tempfile::TempDir,
}

impl Machines {
    /// `None`, with a line that says why, if this machine cannot have them.
    fn start() -> Option<Machines> {
        let name = format!("nsha{}", std::process::id());
        let skip = |why: &str| eprintln!("skipped: {why}");
        if Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_err() {
            skip("etcd is missing; make setup-etcd installs it");
            return None;
        }
        if !ip(&format!("netns add {name}hub")) {
            skip("network namespaces need root and ip (iproute2)");
            return None;
        }
        let (processes, folder) = (Vec::new(), tempfile::tempdir().unwrap());
        let mut machines = Machines { name, processes, folder };
        machines.wire();
        std::fs::write(machines.folder.path().join("fabric.toml"), fabric().to_toml()).unwrap();
        (0..MACHINES).for_each(|machine| machines.start_etcd(machine));
        (0..MACHINES).for_each(|machine| machines.start_controller(machine));
        Some(machines)
    }

    fn wire(&self) {
        let name = &self.name;
        let run = |arguments: String| assert!(ip(&arguments), "ip {arguments}");
        run(format!("-n {name}hub link add bridge0 type bridge"));
        run(format!("-n {name}hub addr add {CLIENTS}/24 dev bridge0"));
        run(format!("-n {name}hub link set bridge0 up"));
        run(format!("-n {name}hub link set lo up"));
        for machine in 0..MACHINES {
            let own = format!("{name}m{machine}");
            run(format!("netns add {own}"));
            run(format!(
                "link add v{machine} netns {name}hub type veth peer name eth0 netns {own}"
            ));
            run(format!("-n {name}hub link set v{machine} master bridge0"));
            run(format!("-n {name}hub link set v{machine} up"));
            run(format!("-n {own} addr add {}/24 dev eth0", address(machine)));
            run(format!("-n {own} link set eth0 up"));
            run(format!("-n {own} link set lo up"));
        }
    }

    fn on(&self, place: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &format!("{}{place}", self.name), program]);
        command
    }

    fn start_etcd(&mut self, machine: usize) {
        let url = |at: usize, port: u16| format!("http://{}:{port}", address(at));
        let peers: Vec<String> =
            (0..MACHINES).map(|at| format!("m{at}={}", url(at, 2380))).collect();
        let process = self
            .on(&format!("m{machine}"), "etcd")
            .args(["--name", &format!("m{machine}")])
            .arg("--data-dir")
            .arg(self.folder.path().join(format!("m{machine}")))
            .args(["--listen-client-urls", &url(machine, 2379)])
            .args(["--advertise-client-urls", &url(machine, 2379)])
            .args(["--listen-peer-urls", &url(machine, 2380)])
            .args(["--initial-advertise-peer-urls", &url(machine, 2380)])
            .args(["--initial-cluster", &peers.join(",")])
            .args(["--log-level", "error", "--logger", "zap"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.processes.push(process.unwrap());
    }

    fn start_controller(&mut self, machine: usize) {
        let members: Vec<String> =
            (0..MACHINES).map(|at| format!("{}:2379", address(at))).collect();
        let mut process = self
            .on(&format!("m{machine}"), env!("CARGO_BIN_EXE_netsum-controller"))
            .arg("--fabric")
            .arg(self.folder.path().join("fabric.toml"))
            .args(["--listen", &controller(machine), "--min-bytes", "0"])
            .args(["--store", &format!("etcd://{}", members.join(","))])
            .env_remove("NETSUM_CREDENTIALS")
            .env("RUST_LOG", "off")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert!(ready.starts_with("ready "), "controller {machine}: {ready:?}");
        self.processes.push(process);
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
        ip(&format!("netns del {}hub", self.name));
        (0..MACHINES).for_each(|machine| _ = ip(&format!("netns del {}m{machine}", self.name)));
    }
}

/// Runs a test of this file among the clients of machines of its own; `play` is given the name of the namespaces.
fn among_clients(test: &str, play: impl FnOnce(&str)) {
    if let Ok(name) = std::env::var(INSIDE) {
        return play(&name);
    }
    let Some(machines) = Machines::start() else { return };
    let own = std::env::current_exe().unwrap();
    let mut inside = machines.on("hub", own.to_str().unwrap());
    let test = format!("partition::{test}");
    let inside = inside.args(["--exact", &test, "--nocapture"]).env(INSIDE, &machines.name);
    assert!(inside.status().unwrap().success());
}

#[test]
fn another_controller_leads_when_the_leaders_machine_is_cut_off() {
    among_clients("another_controller_leads_when_the_leaders_machine_is_cut_off", |_| cut_off());
}

#[test]
fn calls_are_linearizable_while_machines_are_cut_off() {
    among_clients("calls_are_linearizable_while_machines_are_cut_off", |name| {
        let addresses = controllers();
        let switches: Vec<FakeSwitch> =
            SWITCHES.iter().map(|name| FakeSwitch::start(&addresses, name)).collect();
        wait_for_leader(None);
        let workers = running_job(&addresses);
        let epoch = workers[0].plan().epoch;
        for seed in seeds() {
            let started = Instant::now();
            let mut cuts = Vec::new();
            let history = play(&addresses, seed, |progress| cuts = cut(name, progress, seed));
            if let Err(problem) = check(&history) {
                panic!("seed {seed}, {cuts:?}: {problem}");
            }
            check_leases(&switches);
            let (calls, took) = (history.len(), started.elapsed().as_secs_f64());
            eprintln!("seed {seed}: {calls} calls in {took:.1} s, {cuts:?}");
        }
        wait_for_trees(&addresses);
        check_notices(&workers, epoch);
    });
}

/// What a partition separates.
#[derive(Clone, Copy, Debug)]
enum Partition {
    /// A machine and everybody else.
    Machine(usize),
    /// A machine and the other machines; clients reach it.
    FromMachines(usize),
    /// A machine's packets arrive nowhere; what others send to it arrives.
    Mute(usize),
    /// What is sent to a machine is lost; what it sends arrives.
    Deaf(usize),
    /// A machine and the clients; machines reach each other.
    FromClients(usize),
    /// Two of the machines.
    Pair(usize, usize),
}

impl Partition {
    /// Draws one, more often of the leader's machine than of another.
    fn draw(random: &mut Random, leader: usize) -> Partition {
        let other = (leader + 1 + random.below(MACHINES - 1)) % MACHINES;
        let machine = if random.below(3) > 0 { leader } else { other };
        match random.below(6) {
            0 => Partition::Machine(machine),
            1 => Partition::FromMachines(machine),
            2 => Partition::Mute(machine),
            3 => Partition::Deaf(machine),
            4 => Partition::FromClients(machine),
            _ => Partition::Pair(leader, other),
        }
    }

    /// Whether the leader, on this machine, can neither renew its lease nor know of it.
    fn deposes(self, leader: usize) -> bool {
        match self {
            Partition::Machine(machine)
            | Partition::FromMachines(machine)
            | Partition::Mute(machine)
            | Partition::Deaf(machine) => machine == leader,
            Partition::FromClients(_) | Partition::Pair(..) => false,
        }
    }

    /// Sender and receiver whose packets are lost; the clients count as one more machine.
    fn is_lost(self, from: usize, to: usize) -> bool {
        let either = |machine| from == machine || to == machine;
        let clients = either(MACHINES);
        match self {
            Partition::Machine(machine) => either(machine),
            Partition::FromMachines(machine) => either(machine) && !clients,
            Partition::Mute(machine) => from == machine,
            Partition::Deaf(machine) => to == machine,
            Partition::FromClients(machine) => either(machine) && clients,
            Partition::Pair(one, other) => either(one) && either(other),
        }
    }

    /// Begins or ends it in the namespaces of that name. Nobody is told: packets go to a hardware address that nobody
    /// has.
    fn set(self, name: &str, begins: bool) {
        let end = |at: usize| match at {
            MACHINES => ("hub".to_owned(), "bridge0", CLIENTS.to_owned()),
            _ => (format!("m{at}"), "eth0", address(at)),
        };
        for (from, to) in (0..=MACHINES).flat_map(|from| (0..=MACHINES).map(move |to| (from, to))) {
            if from == to || !self.is_lost(from, to) {
                continue;
            }
            let ((place, interface, _), (_, _, receiver)) = (end(from), end(to));
            let entry = match begins {
                true => format!("replace {receiver} lladdr {NOBODY} nud permanent"),
                false => format!("del {receiver}"),
            };
            let command = format!("-n {name}{place} neigh {entry} dev {interface}");
            assert!(ip(&command), "ip {command}");
        }
    }
}

/// Calls between the election of another leader and the end of the partition.
const BESIDE_OLD_LEADER: usize = 6;

/// Partitions, one after the other; in the end everybody reaches everybody.
fn cut(name: &str, progress: &Progress, seed: u64) -> Vec<Partition> {
    let mut random = Random(!seed);
    let partition = |fault| {
        let from = progress.wait_for_fault(fault, &mut random);
        let leader = wait_for_leader(None);
        let partition = Partition::draw(&mut random, leader);
        partition.set(name, true);
        match partition {
            _ if partition.deposes(leader) => {
                wait_for_leader(Some(leader));
                // The old leader may believe that it still leads, and calls may reach it.
                progress.wait_for((from + BESIDE_OLD_LEADER).min(ALL_CALLS));
            }
            // Calls reach the leader by nobody.
            Partition::FromClients(machine) if machine == leader => {
                std::thread::sleep(Duration::from_millis(random.below(2_000) as u64));
            }
            _ => progress.wait_for((from + 2).min(ALL_CALLS)),
        }
        partition.set(name, false);
        partition
    };
    (0..FAULTS).map(partition).collect()
}

/// The test itself, among the clients.
fn cut_off() {
    let addresses = controllers();
    let switches: Vec<FakeSwitch> =
        SWITCHES.iter().map(|name| FakeSwitch::start(&addresses, name)).collect();
    wait_for_leader(None);
    let workers = running_job(&addresses);
    let plans: Vec<_> = workers.iter().map(FakeWorker::plan).collect();
    let mut numbers = vec![plans[0].job];
    for _ in 0..CUTS {
        let leader = wait_for_leader(None);
        assert!(ip(&format!("link set v{leader} down")));
        let cut = Instant::now();
        let reply = loop {
            // What had reached the old leader has no answer.
            if let Ok(reply) = client::create_job(&at(&addresses), request(), PATIENCE) {
                break reply;
            }
        };
        eprintln!("a job was accepted {:?} after the leader was cut off", cut.elapsed());
        assert!(!numbers.contains(&reply.job), "{} in {numbers:?}", reply.job);
        numbers.push(reply.job);
        wait_for_leader(Some(leader));
        assert!(ip(&format!("link set v{leader} up")));
        let until = Instant::now() + 4 * PATIENCE;
        while !client::leader(&at(controller(leader)), PATIENCE).is_ok_and(|reply| reply.term == 0)
        {
            assert!(Instant::now() < until, "the old leader does not step down");
        }
    }
    wait_for_trees(&addresses);
    drop(switches);
}

/// Returns when all ranks of the first job are connected, and it has both trees.
fn wait_for_trees(addresses: &str) {
    let until = Instant::now() + 4 * PATIENCE;
    loop {
        let status = match client::status(&at(addresses), PATIENCE) {
            Ok(status) => status,
            // The members of etcd may not have found each other again.
            Err(error) => {
                assert!(error.to_string().contains("no member of etcd has answered"), "{error}");
                assert!(Instant::now() < until, "{error}");
                continue;
            }
        };
        let job = &status.jobs[0];
        if job.ranks.iter().all(|rank| rank.state == "connected") && job.trees.len() == 2 {
            break;
        }
        assert!(Instant::now() < until, "{job:?}");
    }
}

fn wait_for_leader(except: Option<usize>) -> usize {
    let until = Instant::now() + 4 * PATIENCE;
    loop {
        let leads = |machine: &usize| {
            client::leader(&at(controller(*machine)), PATIENCE).is_ok_and(|reply| reply.term > 0)
        };
        let found = (0..MACHINES).filter(|&machine| Some(machine) != except).find(leads);
        if let Some(machine) = found {
            return machine;
        }
        assert!(Instant::now() < until, "no controller leads");
    }
}
