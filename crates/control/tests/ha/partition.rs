//! Machines that are cut off: three network namespaces, each with a member of etcd and a controller, and one for clients,
//! on a bridge. Needs root.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use netsum_control::client;

use crate::chaos::running_job;
use crate::request;
use crate::scene::{FakeSwitch, FakeWorker, PATIENCE, SWITCHES, at, fabric};

const MACHINES: usize = 3;
const CUTS: usize = 3;
/// Set for the process that runs among the clients.
const INSIDE: &str = "NETSUM_HA_INSIDE";

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
        run(format!("-n {name}hub addr add 10.213.9.254/24 dev bridge0"));
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

#[test]
fn another_controller_leads_when_the_leaders_machine_is_cut_off() {
    if std::env::var_os(INSIDE).is_some() {
        return cut_off();
    }
    let Some(machines) = Machines::start() else { return };
    let own = std::env::current_exe().unwrap();
    let mut inside = machines.on("hub", own.to_str().unwrap());
    let test = "partition::another_controller_leads_when_the_leaders_machine_is_cut_off";
    let inside = inside.args(["--exact", test, "--nocapture"]).env(INSIDE, "1");
    assert!(inside.status().unwrap().success());
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
    let until = Instant::now() + 4 * PATIENCE;
    loop {
        let status = client::status(&at(&addresses), PATIENCE).unwrap();
        let job = &status.jobs[0];
        if job.ranks.iter().all(|rank| rank.state == "connected") && job.trees.len() == 2 {
            break;
        }
        assert!(Instant::now() < until, "{job:?}");
    }
    drop(switches);
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
