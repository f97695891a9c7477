//! Sums on trees through real switches and a real controller, and their failures.

mod support;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use netsum_collective::{Combine, Dtype, Error, Group, GroupConfig, Options, ReduceOp};
use netsum_control::decide::Settings;
use netsum_control::{Config, Controller, Security};
use netsum_switch::{Daemon, Role};
use netsum_topo::{Addressing, Fabric, Rate, Server, SlotPolicy, SumOrder, leaf_spine};
use netsum_wire::{Encoding, Format, Input, reduce};
use serde_json::Value;
use support::{SOON, buffer, bytes, config, values, with_group};

const SUM: Combine = Combine::Plain(ReduceOp::Sum);
const RANKS: u32 = 4;

/// Two racks of two hosts, two spines: two trees that add as [[0,1],[2,3]].
struct World {
    fabric: Fabric,
    controller: Option<Controller>,
    address: SocketAddr,
    switches: Vec<Option<Switch>>,
}

struct Switch {
    stop: tokio::sync::oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl World {
    fn new() -> World {
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

    fn start(&mut self, index: usize) {
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

    fn kill(&mut self, name: &str) {
        let index = self.index(name);
        let switch = self.switches[index].take().unwrap();
        drop(switch.stop);
        switch.thread.join().unwrap();
    }

    fn index(&self, name: &str) -> usize {
        let switches = self.fabric.switches.iter().map(|switch| &switch.name);
        let servers = self.fabric.servers.iter().map(|server| &server.name);
        switches.chain(servers).position(|other| other == name).unwrap()
    }

    fn wait_until_up(&self, count: usize) {
        let address = self.address.to_string();
        wait_for("switches up", || {
            let status = netsum_collective::controller_status(&address, None, SOON).unwrap();
            let status: Value = serde_json::from_str(&status).unwrap();
            let up = |s: &&Value| s["state"] == "up";
            status["switches"].as_array().unwrap().iter().filter(up).count() == count
        });
    }

    /// The result of every sum is compared between the ranks.
    fn config(&self, rank: u32) -> GroupConfig {
        let usual = config(rank, RANKS, "trees");
        GroupConfig {
            controller: Some(self.address.to_string()),
            host: Some(format!("h{rank}")),
            options: Options { digest_every: 1, ..usual.options },
            ..usual
        }
    }

    fn run<T: Send>(&self, body: impl Fn(u32, &Group) -> T + Sync) -> Vec<T> {
        with_group(RANKS, |rank| self.config(rank), body)
    }
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < SOON, "waited for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn stats(group: &Group) -> Value {
    serde_json::to_value(group.stats()).unwrap()
}

/// Adds whole buffers in one order; 16-bit floats stay float32 until the root.
fn oracle(order: &SumOrder, format: Format, all: &[Vec<u8>]) -> Vec<u8> {
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

fn expected(dtype: Dtype, op: ReduceOp, n: usize, salt: u64) -> Vec<u8> {
    let all: Vec<_> = (0..RANKS).map(|rank| values(dtype, n, rank, salt)).collect();
    oracle(&"[[0,1],[2,3]]".parse().unwrap(), Format { dtype, op }, &all)
}

/// One allreduce, checked bit for bit.
fn check(group: &Group, rank: u32, dtype: Dtype, op: ReduceOp, n: usize, salt: u64) {
    let mut buffer = buffer(&values(dtype, n, rank, salt));
    group.allreduce(&mut buffer, dtype, Combine::Plain(op), SOON).wait(None).unwrap();
    assert!(bytes(&buffer) == expected(dtype, op, n, salt), "{dtype} {} #{salt}", op.name());
}

#[test]
fn trees_and_hosts_give_the_same_bits() {
    let world = World::new();
    world.run(|rank, group| {
        for dtype in Dtype::ALL.into_iter().filter(|dtype| dtype.in_network()) {
            for op in [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max] {
                check(group, rank, dtype, op, 100_003, 1);
                check(group, rank, dtype, op, 5, 2);
            }
        }
        check(group, rank, Dtype::F64, ReduceOp::Sum, 1000, 3);
        let mut average = buffer(&(rank as f32).to_le_bytes().repeat(10_000));
        group.allreduce(&mut average, Dtype::F32, Combine::Average, SOON).wait(None).unwrap();
        assert_eq!(bytes(&average), 1.5f32.to_le_bytes().repeat(10_000));
        let stats = stats(group);
        assert_eq!((&stats["path"], &stats["epoch"]), (&"trees".into(), &1.into()), "{stats}");
        assert_eq!(stats["network_operations"], 16, "{stats}");
        assert_eq!(stats["trees"].as_array().unwrap().len(), 2);
        assert!(stats["trees"][0]["results"].as_u64().unwrap() > 100, "{stats}");
    });
}

#[test]
fn hosts_run_operations_that_slots_do_not_support() {
    let world = World::new();
    for protocol in ["atp", "switchml"] {
        let of_protocol = |rank| {
            let config = world.config(rank);
            let options = Options { protocol: protocol.to_owned(), ..config.options.clone() };
            GroupConfig { options, ..config }
        };
        let sums = with_group(RANKS, of_protocol, |rank, group| {
            for op in [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max] {
                check(group, rank, Dtype::I32, op, 100_003, 1);
                check(group, rank, Dtype::I64, op, 10_001, 2);
            }
            check(group, rank, Dtype::F32, ReduceOp::Max, 10_001, 3);
            let mut reals = buffer(&values(Dtype::F32, 100_003, rank, 4));
            group.allreduce(&mut reals, Dtype::F32, SUM, SOON).wait(None).unwrap();
            let mut average = buffer(&(rank as f32).to_le_bytes().repeat(10_000));
            group.allreduce(&mut average, Dtype::F32, Combine::Average, SOON).wait(None).unwrap();
            assert_eq!(bytes(&average), 1.5f32.to_le_bytes().repeat(10_000));
            let stats = stats(group);
            assert_eq!((&stats["path"], &stats["protocol"]), (&"trees".into(), &protocol.into()));
            // Three of int32, two of reals; the host path has what slots do not support.
            assert_eq!(stats["network_operations"], 5, "{stats}");
            bytes(&reals)
        });
        assert!(sums.iter().all(|sum| *sum == sums[0]), "the same bits at every rank");
    }
}

#[test]
fn no_sum_is_lost_when_a_server_and_a_switch_die_under_load() {
    let mut world = World::new();
    let done = AtomicU32::new(0);
    let enough = AtomicBool::new(false);
    let configs: Vec<GroupConfig> = (0..RANKS)
        .map(|rank| {
            let config = world.config(rank);
            let options = Options { protocol: "atp".to_owned(), ..config.options.clone() };
            GroupConfig { options, ..config }
        })
        .collect();
    std::thread::scope(|scope| {
        let (done, enough) = (&done, &enough);
        let job = scope.spawn(move || {
            with_group(
                RANKS,
                |rank| configs[rank as usize].clone(),
                |rank, group| {
                    let mut salt = 0;
                    loop {
                        let mut stop =
                            buffer(&u32::from(enough.load(Ordering::Relaxed)).to_le_bytes());
                        let max = Combine::Plain(ReduceOp::Max);
                        group.allreduce(&mut stop, Dtype::I32, max, SOON).wait(None).unwrap();
                        if bytes(&stop)[0] == 1 {
                            return stats(group);
                        }
                        salt += 1;
                        check(group, rank, Dtype::I32, ReduceOp::Sum, 200_001, salt);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                },
            )
        });
        for victim in ["server0", "rack1", "server1"] {
            let before = done.load(Ordering::Relaxed);
            wait_for("sums", || done.load(Ordering::Relaxed) > before + 4 * RANKS);
            world.kill(victim);
        }
        let before = done.load(Ordering::Relaxed);
        wait_for("sums", || done.load(Ordering::Relaxed) > before + 4 * RANKS);
        enough.store(true, Ordering::Relaxed);
        let all = job.join().unwrap();
        assert!(all.iter().all(|stats| stats["path"] == "host"), "{}", all[0]);
        assert!(all[0]["reason"].as_str().unwrap().contains("server1 is down"), "{}", all[0]);
    });
}

/// All ranks sum continuously, with several operations in flight, until stopped; each sum is checked.
fn keep_summing(group: &Group, rank: u32, enough: &AtomicBool, done: &AtomicU32) {
    let mut salt = 0;
    loop {
        // All ranks stop at the same operation.
        let mut stop = buffer(&u32::from(enough.load(Ordering::Relaxed)).to_le_bytes());
        let max = Combine::Plain(ReduceOp::Max);
        group.allreduce(&mut stop, Dtype::I32, max, SOON).wait(None).unwrap();
        if bytes(&stop)[0] == 1 {
            return;
        }
        let works: Vec<_> = (0..4)
            .map(|_| {
                salt += 1;
                let n = 30_000 + salt as usize % 7;
                let mut buffer = buffer(&values(Dtype::F32, n, rank, salt));
                let work = group.allreduce(&mut buffer, Dtype::F32, SUM, SOON);
                (salt, n, buffer, work)
            })
            .collect();
        for (salt, n, buffer, work) in works {
            work.wait(None).unwrap();
            let expected = expected(Dtype::F32, ReduceOp::Sum, n, salt);
            assert!(bytes(&buffer) == expected, "rank {rank}, sum #{salt}");
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_dead_switch_costs_a_pause_and_no_bit() {
    let mut world = World::new();
    let (enough, done) = (AtomicBool::new(false), AtomicU32::new(0));
    let configs: Vec<_> = (0..RANKS).map(|rank| world.config(rank)).collect();
    let after = |rounds: u32| {
        let target = done.load(Ordering::Relaxed) + rounds * RANKS;
        wait_for("sums", || done.load(Ordering::Relaxed) >= target);
    };
    let stats = std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            with_group(
                RANKS,
                |rank| configs[rank as usize].clone(),
                |rank, group| {
                    keep_summing(group, rank, &enough, &done);
                    stats(group)
                },
            )
        });
        after(5);
        world.kill("spine0");
        after(20);
        world.kill("rack1");
        after(5);
        world.start(world.index("rack1"));
        world.start(world.index("spine0"));
        world.wait_until_up(6);
        after(20);
        enough.store(true, Ordering::Relaxed);
        run.join().unwrap()
    });
    for stats in &stats {
        let pauses = stats["pauses"].as_array().unwrap();
        assert!(pauses.len() >= 3, "{stats}");
        assert_eq!(stats["path"], "trees", "{stats}");
        let longest = pauses.iter().map(|p| p["seconds"].as_f64().unwrap()).fold(0.0, f64::max);
        assert!(longest < 3.0, "{stats}");
    }
    println!("{}", stats[0]);
}

#[test]
fn without_a_controller_ranks_abandon_dead_trees() {
    let mut world = World::new();
    let (enough, done) = (AtomicBool::new(false), AtomicU32::new(0));
    let configs: Vec<_> = (0..RANKS).map(|rank| world.config(rank)).collect();
    let stats = std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            with_group(
                RANKS,
                |rank| configs[rank as usize].clone(),
                |rank, group| {
                    keep_summing(group, rank, &enough, &done);
                    stats(group)
                },
            )
        });
        wait_for("sums", || done.load(Ordering::Relaxed) >= 5 * RANKS);
        world.controller.take().unwrap().kill();
        let before = done.load(Ordering::Relaxed);
        wait_for("sums", || done.load(Ordering::Relaxed) >= before + 5 * RANKS);
        world.kill("spine1");
        let before = done.load(Ordering::Relaxed);
        wait_for("sums", || done.load(Ordering::Relaxed) >= before + 5 * RANKS);
        enough.store(true, Ordering::Relaxed);
        run.join().unwrap()
    });
    for stats in stats {
        assert_eq!(stats["path"], "host", "{stats}");
        assert_eq!(stats["reason"], "the trees of plan 1 do not answer");
        let seconds = stats["pauses"][0]["seconds"].as_f64().unwrap();
        assert!(seconds > 1.0 && seconds < 8.0, "{stats}");
    }
}

#[test]
fn a_timeout_on_trees_names_the_missing_ranks() {
    let world = World::new();
    world.run(|rank, group| {
        check(group, rank, Dtype::F32, ReduceOp::Sum, 10_000, 1);
        if rank == 2 {
            std::thread::sleep(Duration::from_millis(3000));
            return;
        }
        let timeout = Duration::from_millis(1500);
        let work = group.allreduce(buffer(&vec![0; 40_000]), Dtype::F32, SUM, timeout);
        let error = work.wait(None).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Timeout { .. }), "{text}");
        assert!(
            text.contains("allreduce float32[10000] sum (operation #1, 40000 bytes)"),
            "{text}"
        );
        assert!(text.contains("rank 2 (host h2, pid "), "{text}");
    });
}

#[test]
fn different_calls_on_trees_are_an_error_at_every_rank() {
    let world = World::new();
    let errors = world.run(|rank, group| {
        check(group, rank, Dtype::F32, ReduceOp::Sum, 10_000, 1);
        let n = if rank == 1 { 12_000 } else { 10_000 };
        let work = group.allreduce(buffer(&vec![0; n * 4]), Dtype::F32, SUM, SOON);
        work.wait(Some(Duration::from_secs(10))).unwrap_err().to_string()
    });
    for text in errors {
        assert!(text.contains("rank 1 called allreduce float32[12000] sum"), "{text}");
        assert!(text.contains("called allreduce float32[10000] sum"), "{text}");
        assert!(text.contains("; rank 1 differs from most ranks"), "{text}");
    }
}
