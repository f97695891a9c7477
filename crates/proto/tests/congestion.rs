//! Congestion control at packet level: a job competes with DCTCP flows, on one and on several congested branches.
//!
//! Each worker's uplink is a 10 Gbit/s queue that marks above 85 packets (PANAMA §5) and is shared with one greedy
//! DCTCP flow. The switch and the workers are the shipped machines; payload is a count. The paper ORs the branches'
//! marks into one: with several branches that are congested *independently* the job backs off for all of them and
//! starves. One virtual window per branch prevents most of that.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use netsum_proto::panama::*;
use netsum_proto::{CongestionRule, PortId, Time};
use netsum_wire::panama::Header;
use netsum_wire::*;

const PACKET_NS: u64 = 1_200; // 1,500 bytes at 10 Gbit/s
const PACKET_BITS: f64 = 12_000.0;
const MARK_ABOVE: u64 = 85;
const BASE_DELAY_NS: u64 = 40_000;
const START_NS: u64 = 30_000_000;
const END_NS: u64 = 400_000_000;
const MEASURE_NS: u64 = (END_NS - START_NS) * 6 / 10;

/// Memory that stores a packet's header and its number of contributions.
#[derive(Default)]
struct Counts {
    packets: Vec<(Header, u32)>,
    unused: Vec<usize>,
}

impl Memory for Counts {
    type Payload = u32;
    type Buffer = usize;

    fn store(&mut self, header: &Header, payload: &u32) -> Option<usize> {
        let packet = (*header, *payload);
        let Some(buffer) = self.unused.pop() else {
            self.packets.push(packet);
            return Some(self.packets.len() - 1);
        };
        self.packets[buffer] = packet;
        Some(buffer)
    }

    fn holds(&self, buffer: usize, payload: &u32) -> bool {
        self.packets[buffer].1 == *payload
    }

    fn reduce(
        &mut self,
        header: &Header,
        stored: &[Option<usize>],
        arriving: Option<(usize, &Header, &u32)>,
    ) -> Option<usize> {
        let here: u32 = stored.iter().flatten().map(|&b| self.packets[b].1).sum();
        self.store(header, &(here + arriving.map_or(0, |(_, _, n)| *n)))
    }

    fn mark_resent(&mut self, buffer: usize) {
        self.packets[buffer].0.resent = true;
    }

    fn free(&mut self, buffer: usize) {
        self.unused.push(buffer);
    }

    fn flushed(&mut self) {}

    fn cost(&self, fragment_bytes: u16) -> u64 {
        u64::from(fragment_bytes)
    }

    fn limit(&self) -> u64 {
        64 << 20
    }
}

/// A link's output queue.
#[derive(Default)]
struct Queue {
    busy_until: u64,
}

impl Queue {
    /// Returns when the packet has left, and whether it was marked.
    fn pass(&mut self, now: u64) -> (u64, bool) {
        let waiting = self.busy_until.saturating_sub(now) / PACKET_NS;
        self.busy_until = self.busy_until.max(now) + PACKET_NS;
        (self.busy_until, waiting > MARK_ABOVE)
    }
}

/// A greedy DCTCP flow (RFC 8257), independent of the implementation under test.
struct Cross {
    window: f64,
    slow_start: bool,
    alpha: f64,
    in_flight: u32,
    acked: u32,
    marked: u32,
    left_in_round: u32,
    delay_ns: u64,
    delivered: u64,
}

impl Cross {
    fn new(delay_ns: u64) -> Self {
        Cross {
            window: 10.0,
            slow_start: true,
            alpha: 1.0,
            in_flight: 0,
            acked: 0,
            marked: 0,
            left_in_round: 10,
            delay_ns,
            delivered: 0,
        }
    }

    fn acknowledge(&mut self, marked: bool) {
        self.in_flight -= 1;
        self.acked += 1;
        self.marked += u32::from(marked);
        self.slow_start &= !marked;
        self.window += if self.slow_start { 1.0 } else { 1.0 / self.window };
        self.left_in_round -= 1;
        if self.left_in_round == 0 {
            self.alpha += (f64::from(self.marked) / f64::from(self.acked) - self.alpha) / 16.0;
            if self.marked > 0 {
                self.window = (self.window * (1.0 - self.alpha / 2.0)).max(2.0);
            }
            (self.acked, self.marked) = (0, 0);
            // A round ends with the acknowledgement of the last packet sent so far.
            self.left_in_round = self.in_flight.max(self.window as u32);
        }
    }
}

enum Event {
    CrossStarts,
    CrossAck(bool),
    JobStarts,
    AtSwitch(bool, Header),
    Result(Header),
}

/// Gbit/s over the last 60 % of the run.
#[derive(Debug)]
struct Rates {
    job: f64,
    /// Mean over the branches.
    cross: f64,
}

struct Scene {
    now: u64,
    workers: Vec<Worker>,
    switch: Switch<Counts>,
    queues: Vec<Queue>,
    cross: Vec<Option<Cross>>,
    agenda: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, (usize, Event)>,
    sequence: u64,
    /// By branch, when its host received the last packet of each flow.
    taken: Vec<[u64; 2]>,
}

impl Scene {
    fn new(rule: CongestionRule, branches: usize) -> Scene {
        let config = |rank: usize| WorkerConfig {
            job: JobId(1),
            epoch: Epoch(1),
            rank: Rank(rank as u32),
            ranks: branches as u32,
            trees: 1,
            copies: false,
            window_max: 2048,
            fragment_bytes: 1408,
            congestion: rule,
            partial: false,
        };
        let child = |b: usize| Child { port: PortId(b as u32), ranks: 1 << b, branch: b as u8 };
        let mut switch = Switch::new(Counts::default());
        let lease = Lease {
            job: JobId(1),
            epoch: Epoch(1),
            tree: TreeId(0),
            children: (0..branches).map(child).collect(),
            parent: None,
            slots: 2048,
            fragment_bytes: 1408,
            release_permille: 1000,
        };
        switch.install(Time(0), lease).unwrap();
        Scene {
            now: 0,
            workers: (0..branches).map(|r| Worker::new(Time(0), config(r))).collect(),
            switch,
            queues: (0..branches).map(|_| Queue::default()).collect(),
            cross: (0..branches).map(|_| None).collect(),
            agenda: BinaryHeap::new(),
            events: BTreeMap::new(),
            sequence: 0,
            taken: vec![[0; 2]; branches],
        }
    }

    fn plan(&mut self, at: u64, branch: usize, what: Event) {
        self.sequence += 1;
        self.agenda.push(Reverse((at, self.sequence)));
        self.events.insert(self.sequence, (branch, what));
    }

    /// When a host processes a packet that arrives at `at`: after a varying delay (otherwise two flows of equal period
    /// lock in phase, and one of them meets all the marks), but in order.
    fn host_takes(&mut self, branch: usize, flow: usize, at: u64) -> u64 {
        let moment = self.sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let last = &mut self.taken[branch][flow];
        *last = (*last).max(at + moment % (4 * PACKET_NS));
        *last
    }

    /// `apart`: cross flows start at different times and their round trips differ by 21 % from branch to branch, so
    /// that the branches do not mark in phase.
    fn run(rule: CongestionRule, branches: usize, apart: bool) -> Rates {
        let mut scene = Scene::new(rule, branches);
        for branch in 0..branches {
            let start = if apart { 1_700_000 * branch as u64 } else { 0 };
            scene.plan(start, branch, Event::CrossStarts);
            scene.plan(START_NS, branch, Event::JobStarts);
        }
        let mut results = 0;
        while let Some(Reverse((now, sequence))) = scene.agenda.pop() {
            if now > END_NS {
                break;
            }
            scene.now = now;
            let (branch, what) = scene.events.remove(&sequence).unwrap();
            let measured = u64::from(now >= END_NS - MEASURE_NS);
            match what {
                Event::CrossStarts => {
                    let stretch = if apart { 1.21f64.powi(branch as i32) } else { 1.0 };
                    let delay = (BASE_DELAY_NS as f64 * stretch) as u64;
                    scene.cross[branch] = Some(Cross::new(delay));
                }
                Event::CrossAck(marked) => {
                    let cross = scene.cross[branch].as_mut().unwrap();
                    cross.acknowledge(marked);
                    cross.delivered += measured;
                }
                Event::JobStarts => scene.submit(branch),
                Event::AtSwitch(ce, header) => scene.aggregate(branch, ce, &header),
                Event::Result(header) => {
                    let taken = scene.workers[branch].handle(Time(now), false, &header);
                    results += measured * u64::from(branch == 0 && taken.is_ok());
                }
            }
            scene.send(branch);
        }
        let gbps = |packets: u64| packets as f64 * PACKET_BITS / MEASURE_NS as f64;
        let cross: f64 = scene.cross.iter().flatten().map(|c| gbps(c.delivered)).sum();
        Rates { job: gbps(results), cross: cross / branches as f64 }
    }

    fn submit(&mut self, branch: usize) {
        self.workers[branch].submit(Submission {
            id: 0,
            format: Format { dtype: Dtype::F32, op: ReduceOp::Sum },
            numel: 1 << 34,
            fingerprint: 1,
            fragments: Fragments::All,
            pattern: Default::default(),
        });
    }

    fn aggregate(&mut self, branch: usize, ce: bool, header: &Header) {
        let _ = self.switch.handle(Time(self.now), PortId(branch as u32), ce, header, &1);
        while let Some(transmit) = self.switch.poll_transmit() {
            let (to, header) = match transmit {
                Transmit::Data { to, buffer } => {
                    let (header, count) = self.switch.memory().packets[buffer];
                    assert_eq!(count as usize, self.workers.len(), "each contribution counts once");
                    (to, header)
                }
                Transmit::Control { to, header } => (to, header),
            };
            let at = self.host_takes(to.0 as usize, 1, self.now + BASE_DELAY_NS / 2);
            self.plan(at, to.0 as usize, Event::Result(header));
        }
        self.switch.flushed();
    }

    fn send(&mut self, branch: usize) {
        while let Some(cross) = &mut self.cross[branch] {
            if cross.in_flight >= cross.window as u32 {
                break;
            }
            cross.in_flight += 1;
            let delay = cross.delay_ns;
            let (left, marked) = self.queues[branch].pass(self.now);
            let at = self.host_takes(branch, 0, left + delay);
            self.plan(at, branch, Event::CrossAck(marked));
        }
        while let Some(outgoing) = self.workers[branch].poll_transmit(Time(self.now)) {
            let (left, marked) = self.queues[branch].pass(self.now);
            let at = left + BASE_DELAY_NS / 2;
            self.plan(at, branch, Event::AtSwitch(marked, outgoing.header));
        }
    }
}

#[test]
fn one_bottleneck_is_shared_equally_with_dctcp() {
    // PANAMA Fig. 10a, and b: without congestion control the other flow starves.
    for rule in [CongestionRule::Panama, CongestionRule::PerBranch] {
        let rates = Scene::run(rule, 1, false);
        assert!((4.0..=6.0).contains(&rates.job), "{rule:?}: {rates:?}");
        assert!((4.0..=6.0).contains(&rates.cross), "{rule:?}: {rates:?}");
    }
    let rates = Scene::run(CongestionRule::Fixed(600), 1, false);
    assert!(rates.cross < 0.5 && rates.job > 9.0, "{rates:?}");
}

#[test]
fn with_several_bottlenecks_the_papers_rule_starves_the_job_and_the_per_branch_rule_does_not() {
    println!(
        "branches  OR-ed marks (paper)   window per branch   (Gbit/s of a fair 5; cross flows)"
    );
    let mut rows = Vec::new();
    for branches in [2, 4, 8] {
        let paper = Scene::run(CongestionRule::Panama, branches, true);
        let per_branch = Scene::run(CongestionRule::PerBranch, branches, true);
        println!(
            "{branches:8}  {:8.2} ({:5.2})      {:8.2} ({:5.2})",
            paper.job, paper.cross, per_branch.job, per_branch.cross
        );
        rows.push((paper.job, per_branch.job));
    }
    for ((paper, per_branch), better) in rows.into_iter().zip([1.4, 3.0, 3.0]) {
        assert!(paper < 1.6, "the flaw is gone: {paper}");
        assert!(per_branch > better * paper, "{per_branch} against {paper}");
    }
}
