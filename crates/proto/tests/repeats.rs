//! A world of `panama` that is moved to later numbers and a later time goes on as the one that stayed.

use std::collections::VecDeque;
use std::sync::Arc;

use netsum_proto::congestion::CongestionRule;
use netsum_proto::panama::{
    Accepted, Aggregator, Child, Fragments, Lease, Memory, Pattern, Submission, Switch, Transmit,
    Worker, WorkerConfig, WorkerMachine, visit_header,
};
use netsum_proto::visit::{Counted, Origin, Visitor};
use netsum_proto::{PortId, Time};
use netsum_wire::panama::{HEADER_LEN, Header};
use netsum_wire::{Dtype, Epoch, Format, JobId, Rank, ReduceOp, TreeId};
use proptest::prelude::*;

const WORKERS: u32 = 3;
/// Trees without copies.
const TREES: u8 = 2;
const FRAGMENT_BYTES: u16 = 64;
const FORMAT: Format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };
/// An operation that no test completes, and one of a few fragments.
const LONG: u64 = 1 << 20;
const SHORT: u64 = 100;
/// A port of a node's parent; children have the numbers of ranks, the lower switch that of no rank.
const PARENT: PortId = PortId(90);
const LOWER: PortId = PortId(80);

/// Headers and the number of contributions.
#[derive(Clone, Default)]
struct Counts(Vec<Option<(Header, u32)>>);

impl Memory for Counts {
    type Payload = u32;
    type Buffer = usize;

    fn store(&mut self, header: &Header, count: &u32) -> Option<usize> {
        self.0.push(Some((*header, *count)));
        Some(self.0.len() - 1)
    }

    fn holds(&self, buffer: usize, count: &u32) -> bool {
        self.0[buffer].is_some_and(|(_, stored)| stored == *count)
    }

    fn reduce(
        &mut self,
        header: &Header,
        stored: &[Option<usize>],
        arriving: Option<(usize, &Header, &u32)>,
    ) -> Option<usize> {
        let here: u32 = stored.iter().flatten().filter_map(|&b| Some(self.0[b]?.1)).sum();
        self.store(header, &(here + arriving.map_or(0, |(_, _, count)| *count)))
    }

    fn mark_resent(&mut self, buffer: usize) {
        self.0[buffer].as_mut().expect("it is stored").0.resent = true;
    }

    fn free(&mut self, buffer: usize) {
        self.0[buffer] = None;
    }

    fn flushed(&mut self) {}

    fn cost(&self, fragment_bytes: u16) -> u64 {
        HEADER_LEN as u64 + u64::from(fragment_bytes)
    }

    fn limit(&self) -> u64 {
        1 << 30
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum To {
    Worker(usize),
    Switch(usize, PortId),
}

/// Two workers beneath a switch, one beside it beneath the root.
#[derive(Clone)]
struct World {
    /// Number of trees with copies.
    trees: u8,
    now: Time,
    workers: Vec<Worker>,
    switches: [Switch<Counts>; 2],
    network: VecDeque<(To, Header, u32)>,
    /// What happened since this was last asked.
    seen: Vec<(To, Header)>,
    accepted: Vec<Accepted>,
}

impl World {
    fn new(rule: CongestionRule, window_max: u16, copies: bool) -> World {
        let trees = if copies { 2 * TREES } else { TREES };
        let lease = |tree, children: &[(PortId, u64)], parent| Lease {
            job: JobId(7),
            epoch: Epoch(1),
            tree: TreeId(tree),
            children: (0..)
                .zip(children)
                .map(|(branch, &(port, ranks))| Child { port, ranks, branch })
                .collect(),
            parent,
            slots: window_max,
            fragment_bytes: FRAGMENT_BYTES,
            release_permille: 1000,
        };
        let now = Time(1_000);
        let mut switches = [Switch::new(Counts::default()), Switch::new(Counts::default())];
        for tree in 0..trees {
            let root = lease(tree, &[(LOWER, 3), (PortId(2), 4)], None);
            let lower = lease(tree, &[(PortId(0), 1), (PortId(1), 2)], Some(PARENT));
            switches[0].install(now, root).unwrap();
            switches[1].install(now, lower).unwrap();
        }
        let worker = |rank| {
            let config = WorkerConfig {
                job: JobId(7),
                epoch: Epoch(1),
                rank: Rank(rank),
                ranks: WORKERS,
                trees,
                copies,
                window_max,
                fragment_bytes: FRAGMENT_BYTES,
                congestion: rule,
                partial: false,
            };
            Worker::starting_at(now, config, 0)
        };
        let workers = (0..WORKERS).map(worker).collect();
        let (network, seen, accepted) = Default::default();
        World { trees, now, workers, switches, network, seen, accepted }
    }

    fn submit(&mut self, id: u64, fragments: u64, pattern: &Pattern) {
        for worker in 0..WORKERS as usize {
            self.workers[worker].submit(Submission {
                id,
                format: FORMAT,
                numel: fragments * u64::from(FRAGMENT_BYTES) / 4,
                fingerprint: id as u32,
                fragments: Fragments::All,
                pattern: pattern.clone(),
            });
            self.pump(worker);
        }
    }

    fn pump(&mut self, worker: usize) {
        while let Some(outgoing) = self.workers[worker].poll_transmit(self.now) {
            let (switch, port) = (usize::from(worker < 2), PortId(worker as u32));
            let count = outgoing.payload.is_some().into();
            self.send(To::Switch(switch, port), outgoing.header, count);
        }
        self.accepted.extend(std::iter::from_fn(|| self.workers[worker].poll_settled()));
        while self.workers[worker].poll_event().is_some() {}
    }

    fn send(&mut self, to: To, header: Header, count: u32) {
        self.network.push_back((to, header, count));
        self.seen.push((to, header));
    }

    /// One step, as the numbers say: time goes on, and a packet arrives, is lost, or overtakes others.
    fn step(&mut self, (what, which, ns): (u8, usize, u64)) {
        self.now = self.now.after(ns);
        for worker in 0..WORKERS as usize {
            if self.workers[worker].poll_timeout().is_some_and(|at| at <= self.now) {
                self.workers[worker].handle_timeout(self.now);
                self.pump(worker);
            }
        }
        if self.network.is_empty() {
            return;
        }
        let near = if what < 40 { which % self.network.len() } else { 0 };
        let (to, header, count) = self.network.remove(near).expect("it is within the queue");
        if what >= 250 {
            return;
        }
        let ce = (240..250).contains(&what);
        match to {
            To::Worker(worker) => {
                let outcome = self.workers[worker].handle(self.now, ce, &header);
                self.accepted.extend(outcome.ok().flatten());
                self.pump(worker);
            }
            To::Switch(switch, from) => {
                let machine = &mut self.switches[switch];
                let _ = machine.handle(self.now, from, ce, &header, &count);
                let mut sent = Vec::new();
                while let Some(transmit) = machine.poll_transmit() {
                    sent.push(match transmit {
                        Transmit::Data { to, buffer } => {
                            let (header, count) = machine.memory().0[buffer].expect("it is stored");
                            (to, header, count)
                        }
                        Transmit::Control { to, header } => (to, header, 0),
                    });
                }
                machine.flushed();
                for (port, header, count) in sent {
                    let to = match (switch, port) {
                        (_, PARENT) => To::Switch(0, LOWER),
                        (_, LOWER) => To::Switch(1, PARENT),
                        (_, PortId(rank)) => To::Worker(rank as usize),
                    };
                    self.send(to, header, count);
                }
            }
        }
    }

    fn visit(&mut self, v: &mut impl Visitor) {
        self.workers.iter_mut().for_each(|worker| worker.visit(v));
        for switch in &mut self.switches {
            switch.visit(v, |v, memory, buffer| {
                let (header, count) = memory.0[buffer].as_mut().expect("it is stored");
                visit_header(header, v);
                v.same((*count).into());
            });
        }
        self.network.iter_mut().for_each(|(_, header, _)| visit_header(header, v));
        v.moment(&mut self.now);
    }

    fn origin(&self, operation: u64, within: bool) -> Origin {
        Origin { vids: self.workers[0].first_open(), trees: TREES.into(), operation, within }
    }

    fn record(&mut self, origin: Origin) -> Vec<u64> {
        let (tree, words) = (TreeId(0), Vec::new());
        let mut recorder = Recorder { now: self.now, origin, tree, words };
        self.visit(&mut recorder);
        recorder.words
    }
}

struct Recorder {
    now: Time,
    origin: Origin,
    tree: TreeId,
    words: Vec<u64>,
}

impl Visitor for Recorder {
    fn same(&mut self, value: u64) {
        self.words.push(value);
    }

    fn unlike(&mut self) {
        self.words.push(u64::MAX);
    }

    fn moment(&mut self, at: &mut Time) {
        self.words.push(at.0.wrapping_sub(self.now.0));
    }

    fn unread(&mut self, _: &mut Time) {}

    fn count(&mut self, _: &mut u64) {}

    fn share(&mut self, share: &mut f64) {
        self.words.push(share.to_bits());
    }

    fn of_job(&mut self, _: JobId) {
        self.tree = TreeId(0);
    }

    fn of_tree(&mut self, tree: TreeId) {
        self.tree = tree;
    }

    fn between_operations(&mut self) {
        assert!(!self.origin.within, "only allreduces are compared within an operation");
    }

    fn number(&mut self, number: &mut u64, counted: Counted) {
        self.words.push(number.wrapping_sub(self.origin.of(self.tree, counted)));
    }

    fn number_u32(&mut self, number: &mut u32, counted: Counted) {
        let origin = self.origin.of(self.tree, counted) as u32;
        self.words.push(number.wrapping_sub(origin).into());
    }
}

struct Mover {
    by_ns: u64,
    origins: [Origin; 2],
    tree: TreeId,
}

impl Visitor for Mover {
    fn same(&mut self, _: u64) {}

    fn unlike(&mut self) {}

    fn moment(&mut self, at: &mut Time) {
        at.0 += self.by_ns;
    }

    fn unread(&mut self, at: &mut Time) {
        self.moment(at);
    }

    fn count(&mut self, _: &mut u64) {}

    fn share(&mut self, _: &mut f64) {}

    fn of_job(&mut self, _: JobId) {
        self.tree = TreeId(0);
    }

    fn of_tree(&mut self, tree: TreeId) {
        self.tree = tree;
    }

    fn between_operations(&mut self) {}

    fn number(&mut self, number: &mut u64, counted: Counted) {
        let [from, to] = self.origins.map(|origin| origin.of(self.tree, counted));
        *number = number.wrapping_sub(from).wrapping_add(to);
    }

    fn number_u32(&mut self, number: &mut u32, counted: Counted) {
        let [from, to] = self.origins.map(|origin| origin.of(self.tree, counted) as u32);
        *number = number.wrapping_sub(from).wrapping_add(to);
    }
}

/// What operations do that follow each other, each of 100 fragments.
fn patterns() -> impl Strategy<Value = Vec<Pattern>> {
    let shards = |shards: [u64; 3]| -> Arc<[u64]> {
        shards.map(|fragments| fragments * u64::from(FRAGMENT_BYTES) / 4).into()
    };
    let pattern = prop_oneof![
        Just(Pattern::Allreduce),
        Just(Pattern::ReduceScatter(shards([34, 33, 33]))),
        Just(Pattern::ReduceScatter(shards([90, 0, 10]))),
        Just(Pattern::Allgather(shards([30, 50, 20]))),
        (0..WORKERS).prop_map(|root| Pattern::Reduce(Rank(root))),
        (0..WORKERS).prop_map(|root| Pattern::Broadcast(Rank(root))),
    ];
    proptest::collection::vec(pattern, 5)
}

fn steps(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<(u8, usize, u64)>> {
    // Holes and silence have time-outs.
    let ns = prop_oneof![60 => 0..3_000u64, 2 => Just(15_000_000u64), 1 => Just(150_000_000u64)];
    proptest::collection::vec((any::<u8>(), 0..6usize, ns), count)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_moved_world_goes_on_as_the_one_that_stayed(
        rule in prop_oneof![
            Just(CongestionRule::Panama),
            Just(CongestionRule::PerBranch),
            Just(CongestionRule::Coupled { trees: TREES }),
            Just(CongestionRule::Aimd { packet_bytes: 122 }),
            Just(CongestionRule::Fixed(5)),
        ],
        window_max in prop_oneof![Just(3u16), Just(8), Just(20)],
        (before, after) in (steps(0..600), steps(1..600)),
        (vids, copied) in (0..100_000u64, 0..100_000u64),
        (operations, by_ns) in (0..1_000u64, 0..1_000_000u64),
        patterns in patterns(),
        (within, copies) in (any::<bool>(), any::<bool>()),
    ) {
        let mut stayed = World::new(rule, window_max, copies);
        match (within, copies) {
            (true, _) => stayed.submit(3, LONG, &Pattern::Allreduce),
            (_, false) => (3..8).for_each(|id| stayed.submit(id, SHORT, &Pattern::Allreduce)),
            _ => (3..).zip(&patterns).for_each(|(id, pattern)| stayed.submit(id, SHORT, pattern)),
        }
        before.into_iter().for_each(|step| stayed.step(step));
        let mut moved = stayed.clone();
        let from = stayed.origin(3, within);
        let operations = if within { 0 } else { operations };
        let by = [vids, if copies { copied } else { 0 }];
        let to = Origin {
            vids: [0, 1].map(|half| from.vids[half] + by[half]),
            operation: from.operation + operations,
            ..from
        };
        moved.visit(&mut Mover { by_ns, origins: [from, to], tree: TreeId(0) });
        prop_assert_eq!(moved.workers[0].first_open(), to.vids);
        prop_assert_eq!(stayed.record(from), moved.record(to));
        let bound = moved.workers[0].rounds_left(1);
        if within {
            prop_assert_eq!(bound + vids, stayed.workers[0].rounds_left(1));
        }
        for world in [&mut stayed, &mut moved] {
            world.seen.clear();
            world.accepted.clear();
        }
        for (number, step) in after.into_iter().enumerate() {
            stayed.step(step);
            moved.step(step);
            if number % 16 == 0 {
                prop_assert_eq!(stayed.record(from), moved.record(to), "after {} steps", number);
            }
        }
        let now = stayed.now;
        for (stayed, moved) in stayed.switches.iter().zip(&moved.switches) {
            let [stayed, moved] = [(stayed, now), (moved, now.after(by_ns))].map(|(switch, now)| {
                switch.lateness(now).collect::<Vec<_>>()
            });
            prop_assert_eq!(stayed, moved);
        }
        let mover = &mut Mover { by_ns, origins: [from, to], tree: TreeId(0) };
        stayed.seen.iter_mut().for_each(|(_, header)| visit_header(header, mover));
        prop_assert_eq!(&stayed.seen, &moved.seen);
        let (each, trees) = (u64::from(TREES), u64::from(stayed.trees));
        let elements = if within { vids * each * u64::from(FRAGMENT_BYTES) / 4 } else { 0 };
        let expected = stayed.accepted.iter().map(|accepted| Accepted {
            g: accepted.g + by[usize::from(accepted.g % trees >= each)] * trees,
            id: accepted.id + operations,
            elements: accepted.elements.start + elements..accepted.elements.end + elements,
        });
        prop_assert_eq!(expected.collect::<Vec<_>>(), moved.accepted);
    }
}
