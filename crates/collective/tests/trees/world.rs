//! A fabric of real switches with a real controller, in threads, and what is expected of its sums.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use netsum_collective::{Combine, Dtype, Group, GroupConfig, Options, ReduceOp};
use netsum_control::decide::Settings;
use netsum_control::{Config, Controller, Security};
use netsum_switch::{Daemon, Role};
use netsum_topo::{Addressing, Fabric, Rate, Server, SlotPolicy, SumOrder, leaf_spine};
use netsum_wire::{Encoding, Format, Input, reduce};
use serde_json::Value;

use crate::support::{SOON, buffer, bytes, config, values, with_group};

pub const SUM: Combine = Combine::Plain(ReduceOp::Sum);
pub const RANKS: u32 = 4;

/// Two racks of two hosts, two spines: two trees that add as [[0,1],[2,3]].
pub struct World {
    fabric: Fabric,
    pub controller: Option<Controller>,
    address: SocketAddr,
    switches: Vec<Option<Switch>>,
}

struct Switch {
    stop: tokio::sync::oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl World {
    pub fn new() -> World {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let net = 100 + NEXT.fetch_add(1, Ordering::Relaxed) as u8;
        let rate = Rate(10_000_000_000);
        let addressing = Addressing { base: [127, net], ..Addressing::default() };
        let mut fabric = leaf_spine(2, 2, 2, rate, rate, addressing).unwrap();
        for (number, host) in [0, 3].into_iter().enumerate() {
            let address = SocketAddr::new(fabric.hosts[host].address, 7801);
            let (name, memory) = (format!("server{number}"), fabric.switches[0].memory);
            fabric.servers.push(Server { name, address, memory, metrics: None });
        }
        let settings = Settings { min_bytes: 1024, return_hold_ms: 100, ..Settings::default() };
        let listen = SocketAddr::new(fabric.controller.ip(), 0);
        let (store, security) = (None, Security::Trusted);
        let controller =
            Controller::start(Config { fabric: fabric.clone(), listen, store, settings, security })
                .unwrap();
        let address = controller.address();
        let processes = fabric.switches.len() + fabric.servers.len();
        let switches = (0..processes).map(|_| None).collect();
        let mut world = World { fabric, controller: Some(controller), address, switches };
        (0..world.switches.len()).for_each(|index| world.start(index));
        world.wait_until_up(6);
        world
    }

    pub fn start(&mut self, index: usize) {
        let fabric = &self.fabric;
        let config = match fabric.switches.get(index) {
            Some(switch) => netsum_switch::Config {
                name: switch.name.clone(),
                controller: self.address.to_string(),
                credentials: None,
                role: Role::Switch,
                listen: switch.address,
                slots: switch.slots,
                policy: switch.policy,
                memory: switch.memory.0,
                threads: 1,
                ports: Vec::new(),
                metrics: None,
                accelerator: None,
            },
            None => {
                let server = &fabric.servers[index - fabric.switches.len()];
                netsum_switch::Config {
                    name: server.name.clone(),
                    controller: self.address.to_string(),
                    credentials: None,
                    role: Role::Server,
                    listen: server.address,
                    slots: 0,
                    policy: SlotPolicy::default(),
                    memory: server.memory.0,
                    threads: 1,
                    ports: Vec::new(),
                    metrics: None,
                    accelerator: None,
                }
            }
        };
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let daemon = Daemon::start(config).await.unwrap();
                let _ = daemon.run(async { drop(stopped.await) }).await;
            });
        });
        self.switches[index] = Some(Switch { stop, thread });
    }

    /// Address of a rank's host.
    pub fn host(&self, rank: u32) -> std::net::Ipv4Addr {
        let std::net::IpAddr::V4(address) = self.fabric.hosts[rank as usize].address else {
            unreachable!("the fabric has addresses of IPv4")
        };
        address
    }

    pub fn kill(&mut self, name: &str) {
        let index = self.index(name);
        let switch = self.switches[index].take().unwrap();
        drop(switch.stop);
        switch.thread.join().unwrap();
    }

    pub fn index(&self, name: &str) -> usize {
        let switches = self.fabric.switches.iter().map(|switch| &switch.name);
        let servers = self.fabric.servers.iter().map(|server| &server.name);
        switches.chain(servers).position(|other| other == name).unwrap()
    }

    pub fn wait_until_up(&self, count: usize) {
        let address = self.address.to_string();
        wait_for("switches up", || {
            let status = netsum_collective::controller_status(&address, None, SOON).unwrap();
            let status: Value = serde_json::from_str(&status).unwrap();
            let up = |s: &&Value| s["state"] == "up";
            status["switches"].as_array().unwrap().iter().filter(up).count() == count
        });
    }

    /// The result of every sum is compared between the ranks.
    pub fn config(&self, rank: u32) -> GroupConfig {
        let usual = config(rank, RANKS, "trees");
        GroupConfig {
            controller: Some(self.address.to_string()),
            host: Some(format!("h{rank}")),
            options: Options { digest_every: 1, ..usual.options },
            ..usual
        }
    }

    pub fn run<T: Send>(&self, body: impl Fn(u32, &Group) -> T + Sync) -> Vec<T> {
        with_group(RANKS, |rank| self.config(rank), body)
    }
}

/// Keeps operations of all ranks in flight, with these configurations, until told that it is enough, and counts rounds.
pub type Load = fn(&Group, u32, &AtomicBool, &AtomicU32);

impl World {
    /// Lets faults happen while the ranks are under load: `story` waits for rounds of all ranks by its second argument.
    /// Returns each rank's statistics at the end.
    pub fn under_load(
        &mut self,
        configs: Vec<GroupConfig>,
        load: Load,
        story: impl FnOnce(&mut World, &dyn Fn(u32)),
    ) -> Vec<Value> {
        let (enough, done) = (AtomicBool::new(false), AtomicU32::new(0));
        let after = |rounds: u32| {
            let target = done.load(Ordering::Relaxed) + rounds * RANKS;
            wait_for("rounds", || done.load(Ordering::Relaxed) >= target);
        };
        std::thread::scope(|scope| {
            let run = scope.spawn(|| {
                with_group(
                    RANKS,
                    |rank| configs[rank as usize].clone(),
                    |rank, group| {
                        load(group, rank, &enough, &done);
                        stats(group)
                    },
                )
            });
            story(self, &after);
            enough.store(true, Ordering::Relaxed);
            run.join().unwrap()
        })
    }
}

pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < SOON, "waited for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn stats(group: &Group) -> Value {
    serde_json::to_value(group.stats()).unwrap()
}

/// Adds whole buffers in one order; 16-bit floats stay float32 until the root.
pub fn oracle(order: &SumOrder, format: Format, all: &[Vec<u8>]) -> Vec<u8> {
    fn at(order: &SumOrder, format: Format, all: &[Vec<u8>], root: bool) -> (Vec<u8>, Encoding) {
        let SumOrder::Sum(children) = order else {
            let SumOrder::Rank(rank) = order else { unreachable!() };
            return (all[*rank as usize].clone(), Encoding::Element);
        };
        let parts: Vec<_> = children.iter().map(|child| at(child, format, all, false)).collect();
        let input = |(bytes, encoding): &'_ (Vec<u8>, Encoding)| (bytes.clone(), *encoding);
        let owned: Vec<_> = parts.iter().map(input).collect();
        let mut inputs = Vec::new();
        for (bytes, encoding) in &owned {
            inputs.push(Some(Input { bytes, encoding: *encoding }));
        }
        let n = all[0].len() / format.dtype.size();
        let encoding = if root { Encoding::Element } else { Encoding::Accumulator };
        let mut out = vec![0; n * encoding.size(format.dtype)];
        reduce(format, &inputs, n, &mut out, encoding);
        (out, encoding)
    }
    at(order, format, all, true).0
}

pub fn expected(dtype: Dtype, op: ReduceOp, n: usize, salt: u64) -> Vec<u8> {
    let all: Vec<_> = (0..RANKS).map(|rank| values(dtype, n, rank, salt)).collect();
    oracle(&"[[0,1],[2,3]]".parse().unwrap(), Format { dtype, op }, &all)
}

/// One allreduce, checked bit for bit.
pub fn check(group: &Group, rank: u32, dtype: Dtype, op: ReduceOp, n: usize, salt: u64) {
    let mut buffer = buffer(&values(dtype, n, rank, salt));
    group.allreduce(&mut buffer, dtype, Combine::Plain(op), SOON).wait(None).unwrap();
    assert!(bytes(&buffer) == expected(dtype, op, n, salt), "{dtype} {} #{salt}", op.name());
}
