//! Messages of the mesh over UCX beside `ucx_perftest` over the same transports, with its active messages and its tagged
//! ones: two processes of this machine, half a round trip of a message, and the rate of messages one way. Rounds alternate.
//!
//! Both ends of ours go through matching, numbering, bounds and deadlines, and check nothing else; ucx_perftest has one
//! handler and no receiver to match.
//!
//! `cargo bench --profile release -p netsum-net --bench ucx -- [--rounds N] [--out FILE]`

#[path = "../../../../bench/record.rs"]
mod record;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netsum_net::Buffer;
use netsum_net::mesh::*;
use record::{commit, machine, median};
use serde_json::{Value, json};

const TRANSPORTS: [&str; 2] = ["tcp", "shm"];
const SIZES: [usize; 6] = [8, 1 << 10, 16 << 10, 64 << 10, 1 << 20, 64 << 20];
const PATIENCE: Duration = Duration::from_secs(60);
const PERFTEST: &str = "ucx_perftest";
/// ucx_perftest's tests by what they are called here.
const PEERS: [(&str, [(&str, &str); 2]); 2] = [
    ("active messages", [("latency", "ucp_am_lat"), ("rate", "ucp_am_bw")]),
    ("tags", [("latency", "tag_lat"), ("rate", "tag_bw")]),
];

fn main() {
    let arguments: Vec<_> = std::env::args().collect();
    let after = |name: &str| arguments.iter().skip_while(|a| *a != name).nth(1);
    if let Some(rank) = after("--rank") {
        return rank_of_two(rank.parse().expect("a rank"));
    }
    let rounds: usize = after("--rounds").and_then(|n| n.parse().ok()).unwrap_or(5);
    if let Err(error) = Listener::bind(Ipv4Addr::LOCALHOST.into(), Network::Ucx) {
        return println!("skipped: {error}");
    }
    let mut times: BTreeMap<(&str, &str, &str, usize), Vec<f64>> = BTreeMap::new();
    for _ in 0..rounds {
        for transport in TRANSPORTS {
            for (what, bytes, seconds) in ours(transport) {
                times.entry((transport, what, "netsum", bytes)).or_default().push(seconds);
            }
            for bytes in SIZES {
                for (peer, (what, test)) in
                    PEERS.iter().flat_map(|(peer, tests)| tests.iter().map(move |t| (*peer, *t)))
                {
                    let Some(seconds) = perftest(transport, test, bytes) else { continue };
                    times.entry((transport, what, peer, bytes)).or_default().push(seconds);
                }
            }
        }
    }
    let mut cells = Vec::new();
    for ((transport, what, library, bytes), ours) in &times {
        if *library != "netsum" {
            continue;
        }
        let own = median(ours);
        let rate = |s: f64| *bytes as f64 / s / 1e9;
        print!("{transport} {what:7} {bytes:>9} B: {:>9.2} µs {:>6.2} GB/s", own * 1e6, rate(own));
        let mut peers = serde_json::Map::new();
        for (peer, _) in PEERS {
            let Some(theirs) = times.get(&(*transport, *what, peer, *bytes)) else { continue };
            let (other, mut theirs) = (median(theirs), figure(theirs));
            theirs["ratio"] = json!(other / own);
            print!(
                "; {peer} {:>9.2} µs {:>6.2} GB/s, {:.2} of it",
                other * 1e6,
                rate(other),
                other / own
            );
            peers.insert(format!("{PERFTEST} {peer}"), theirs);
        }
        println!();
        cells.push(json!({
            "transport": transport, "what": what, "bytes": bytes, "ours": figure(ours), "peers": peers,
        }));
    }
    if let Some(file) = after("--out") {
        let case = |library| times.get(&("tcp", "rate", library, 1 << 20));
        let (ours, theirs) = (case("netsum"), case(PEERS[0].0));
        let ratio = ours.zip(theirs).map(|(ours, theirs)| median(theirs) / median(ours));
        let record = json!({
            "name": "ucx",
            "unit": "s per message of 1 MiB, one after the other, over UCX's tcp between two processes of one host",
            "higher_is_better": false,
            "ours": ours.map(|ours| figure(ours)),
            "peers": {PERFTEST: theirs.map(|theirs| figure(theirs))},
            "ratio": {PERFTEST: ratio},
            "limit": "ucx_perftest itself",
            "cells": cells,
            "machine": machine(),
            "commit": commit(),
        });
        record::write(file.as_ref(), &record);
    }
}

fn figure(seconds: &[f64]) -> Value {
    let best = seconds.iter().copied().fold(f64::INFINITY, f64::min);
    json!({"median": median(seconds), "best": best})
}

/// Seconds per message by kind and size, of two processes of this program.
fn ours(transport: &str) -> Vec<(&'static str, usize, f64)> {
    let start = |rank: usize| {
        Command::new(std::env::current_exe().expect("this program"))
            .args(["--rank", &rank.to_string()])
            .env("UCX_TLS", transport)
            .env("UCX_LOG_LEVEL", "fatal")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process")
    };
    let mut ranks = [start(0), start(1)];
    let mut outputs = ranks.each_mut().map(|r| BufReader::new(r.stdout.take().expect("piped")));
    let line = |from: &mut dyn BufRead| {
        let mut line = String::new();
        from.read_line(&mut line).expect("a line");
        line
    };
    let addresses = outputs.each_mut().map(|output| line(output));
    for rank in &mut ranks {
        let to = rank.stdin.as_mut().expect("piped");
        addresses.iter().for_each(|address| to.write_all(address.as_bytes()).expect("it reads"));
    }
    let answer: Vec<f64> = serde_json::from_str(&line(&mut outputs[0])).expect("numbers");
    ranks.iter_mut().for_each(|rank| assert!(rank.wait().expect("it ends").success()));
    let kinds = SIZES.iter().flat_map(|&bytes| [("latency", bytes), ("rate", bytes)]);
    kinds.zip(answer).map(|((what, bytes), seconds)| (what, bytes, seconds)).collect()
}

/// ucx_perftest's seconds per message, or nothing where it is not installed.
fn perftest(transport: &str, test: &str, bytes: usize) -> Option<f64> {
    let port = TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port().to_string();
    let count = messages(bytes).to_string();
    let start = |host: Option<&str>| -> Option<Child> {
        Command::new(PERFTEST)
            .args(host)
            .args(["-t", test, "-s", &bytes.to_string(), "-n", &count, "-p", &port, "-f"])
            // As ours: UCX handles errors where it can.
            .args((transport == "tcp").then_some("-e"))
            .env("UCX_TLS", transport)
            .env("UCX_LOG_LEVEL", "fatal")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()
    };
    let mut server = start(None)?;
    let mut answer = None;
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(100));
        let output = start(Some("127.0.0.1"))?.wait_with_output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // Iterations, then microseconds: 50th percentile, average, overall.
        let numbers = |line: &str| -> Vec<f64> {
            line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
        };
        let last = text.lines().map(numbers).rfind(|numbers| numbers.len() >= 7);
        if output.status.success()
            && let Some(numbers) = last
        {
            answer = Some(numbers[3] * 1e-6);
            break;
        }
    }
    // One that nobody has called waits forever.
    let _ = if answer.is_none() { server.kill() } else { Ok(()) };
    let _ = server.wait();
    answer
}

fn messages(bytes: usize) -> usize {
    ((256 << 20) / bytes).clamp(20, 100_000)
}

struct Quiet;

impl Events for Quiet {
    fn control(&self, _: u32, _: Key, _: Vec<u8>) {}
    fn admit(&self, _: u32, _: Key, _: u32) -> bool {
        true
    }
    fn failed(&self, _: &MeshError) {}
}

fn rank_of_two(rank: u32) {
    let listener = Listener::bind(Ipv4Addr::LOCALHOST.into(), Network::Ucx).expect("UCX");
    println!("{}", json!({"mesh": listener.address(), "ucx": listener.network_address()}));
    let seats = std::io::stdin().lines().take(2).enumerate().map(|(place, line)| {
        let address: Value = serde_json::from_str(&line.expect("a line")).expect("an address");
        Seat {
            address: serde_json::from_value(address["mesh"].clone()).expect("an address"),
            secret: [place as u8; SECRET_LEN],
            network_address: serde_json::from_value(address["ucx"].clone()).expect("bytes"),
            occupant: None,
        }
    });
    let roster = Roster { group: 1, rank, seats: seats.collect() };
    let deadline = Instant::now() + PATIENCE;
    let mesh = listener.connect(&roster, deadline, PATIENCE, Arc::new(Quiet)).expect("a mesh");
    let pair = Pair { mesh, rank, next: 0.into() };
    let mut answer = Vec::new();
    for bytes in SIZES {
        // As ucx_perftest: what is sent is not what was received.
        let mut buffers = [0, 1].map(|which| Buffer::from_vec(vec![1 + which; bytes]));
        let count = messages(bytes);
        pair.ping_pong(&mut buffers, count / 10);
        answer.push(pair.ping_pong(&mut buffers, count) / 2.0);
        answer.push(pair.one_way(bytes, count));
    }
    if rank == 0 {
        println!("{}", json!(answer));
    }
    pair.mesh.leave(Duration::from_secs(1));
}

struct Pair {
    mesh: Mesh,
    rank: u32,
    next: std::cell::Cell<u64>,
}

impl Pair {
    fn key(&self) -> Key {
        let tag = self.next.replace(self.next.get() + 1);
        Key { channel: Channel::Collective, tag, part: 0 }
    }

    fn send(&self, key: Key, buffer: &Buffer) {
        let payload = Payload::Buffer(buffer.lend(0..buffer.len()));
        let outgoing = Outgoing { key, fingerprint: 0, payload, deadline: None };
        self.mesh.send(1 - self.rank, outgoing, None);
    }

    fn receive(&self, key: Key, buffer: &mut Buffer) -> Receive {
        let wanted = Wanted { from: Some(1 - self.rank), key, fingerprint: 0 };
        let target = Target::Buffer(buffer.lend_all());
        self.mesh.receive(wanted, target, Some(Instant::now() + PATIENCE))
    }

    /// Seconds per round trip.
    fn ping_pong(&self, [given, taken]: &mut [Buffer; 2], count: usize) -> f64 {
        let start = Instant::now();
        for _ in 0..count {
            let (there, back) = (self.key(), self.key());
            if self.rank == 0 {
                let answer = self.receive(back, taken);
                self.send(there, given);
                answer.wait().expect("an answer");
            } else {
                self.receive(there, taken).wait().expect("a message");
                self.send(back, given);
            }
        }
        start.elapsed().as_secs_f64() / count as f64
    }

    /// Seconds per message from rank 0 to rank 1, with a few posted ahead.
    fn one_way(&self, bytes: usize, count: usize) -> f64 {
        let (mut empty, end) = (Buffer::from_vec(Vec::new()), self.key());
        let mut buffers: [Buffer; AHEAD] =
            std::array::from_fn(|_| Buffer::from_vec(vec![1; bytes]));
        let keys: Vec<Key> = (0..count).map(|_| self.key()).collect();
        let start = Instant::now();
        if self.rank == 0 {
            let last = self.receive(end, &mut empty);
            keys.iter().for_each(|&key| self.send(key, &buffers[0]));
            last.wait().expect("the end");
        } else {
            let mut posted = std::collections::VecDeque::new();
            for (number, &key) in keys.iter().enumerate() {
                if posted.len() == AHEAD {
                    let first: Receive = posted.pop_front().expect("it is full");
                    first.wait().expect("a message");
                }
                posted.push_back(self.receive(key, &mut buffers[number % AHEAD]));
            }
            posted.into_iter().for_each(|receive| drop(receive.wait().expect("a message")));
            self.send(end, &empty);
        }
        start.elapsed().as_secs_f64() / count as f64
    }
}

/// Receives that wait at the same time.
const AHEAD: usize = 4;
