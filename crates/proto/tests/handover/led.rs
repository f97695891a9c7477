//! Led mode: plans of rank 0.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use netsum_proto::Time;
use netsum_proto::handover::elements::{union, without};
use netsum_proto::handover::{
    Action, Frozen, Handover, HandoverError, Mode, Path, PendingOperation, Piece, Ranges, Resume,
    Settings,
};
use netsum_wire::Rank;
use proptest::prelude::*;

use super::{Network, Random, TestPlan, mutate};

const ELEMENTS: u64 = 24;
const OPERATIONS: u64 = 5;
const TIMEOUT_NS: u64 = 1 << 50;

/// Path of a rank's operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Running {
    /// It waits for a path, or there is no operation.
    No,
    Network,
    Hosts,
}

struct Member {
    machine: Handover<TestPlan>,
    sequence: u64,
    called: bool,
    /// Elements of the operation that have all contributions here.
    finals: Ranges,
    running: Running,
    /// Generation of the connected path; 0: none.
    generation: u64,
    answers: VecDeque<Answer>,
    /// Elements that are still to arrive from others.
    exchange: Option<(Vec<Piece>, Ranges)>,
}

enum Answer {
    Frozen,
    Planned,
    Opened(u64),
}

struct World {
    random: Random,
    now: u64,
    members: Vec<Member>,
    network: Network,
    /// Elements in transit between two ranks, by operation.
    pieces: Vec<(u64, Piece)>,
    /// Elements that were not final when an operation entered its path: the same at all ranks of a generation.
    entered: BTreeMap<(u64, u64), Ranges>,
    agreed: BTreeMap<u64, (Option<TestPlan>, Path)>,
    /// Number of operations that are complete at all ranks.
    complete: u64,
    failures: Vec<(usize, HandoverError)>,
    faults: bool,
    hand_overs: usize,
}

impl World {
    fn new(seed: u64, size: u32) -> World {
        let member = |rank| Member {
            machine: Handover::new(Settings {
                rank: Rank(rank),
                size,
                mode: Mode::Led,
                timeout_ns: TIMEOUT_NS,
            }),
            sequence: 0,
            called: false,
            finals: Vec::new(),
            running: Running::No,
            generation: 1,
            answers: VecDeque::new(),
            exchange: None,
        };
        World {
            random: Random(seed),
            now: 0,
            members: (0..size).map(member).collect(),
            network: Network::default(),
            pieces: Vec::new(),
            entered: BTreeMap::new(),
            agreed: BTreeMap::new(),
            complete: 0,
            failures: Vec::new(),
            faults: true,
            hand_overs: 0,
        }
    }

    fn any_rank(&mut self) -> usize {
        self.random.below(self.members.len() as u64) as usize
    }

    fn step(&mut self) {
        self.now += self.random.below(20);
        let rank = self.any_rank();
        match self.random.below(100) {
            0..30 => self.deliver(),
            30..45 => self.answer(rank),
            45..55 => self.call(rank),
            55..75 => self.progress(),
            75..85 => self.end(rank),
            85..95 => self.transfer(),
            _ if self.faults => self.fault(rank),
            _ => {}
        }
    }

    fn deliver(&mut self) {
        let Some((from, to, bytes)) = self.network.next(&mut self.random) else { return };
        let machine = &mut self.members[to as usize].machine;
        if self.random.one_in(8) {
            mutate(machine, from, &bytes, &mut self.random);
        }
        let now = Time(self.now);
        machine.handle_message(now, Rank(from), &bytes).unwrap_or_else(|error| panic!("{error}"));
        self.drain(to as usize);
    }

    fn call(&mut self, rank: usize) {
        let member = &mut self.members[rank];
        if member.called || member.sequence == OPERATIONS {
            return;
        }
        member.called = true;
        let (sequence, deadline) = (member.sequence, Time(u64::MAX));
        member.machine.handle_operation(PendingOperation {
            sequence,
            elements: ELEMENTS,
            deadline,
        });
        self.drain(rank);
    }

    fn answer(&mut self, rank: usize) {
        let now = Time(self.now);
        let (fails, hosts) = (self.faults && self.random.one_in(4), self.random.one_in(4));
        let trees = 1 + self.random.below(3) as u8;
        let member = &mut self.members[rank];
        match member.answers.pop_front() {
            None => return,
            Some(Answer::Frozen) => {
                let finals = if member.called { member.finals.clone() } else { Vec::new() };
                let faults = if fails { vec![vec![rank as u8]] } else { Vec::new() };
                member.machine.handle_frozen(now, Frozen::Elements { finals, faults });
            }
            Some(Answer::Planned) => {
                let plan = (!hosts).then_some(TestPlan { epoch: 0, trees, cut: 0 });
                member.machine.handle_planned(now, plan, "because".to_owned());
            }
            Some(Answer::Opened(_)) if fails => {
                member.machine.request_plan(now, "it does not connect", vec![vec![9]]);
            }
            Some(Answer::Opened(generation)) => {
                member.generation = generation;
                member.machine.handle_opened(generation);
            }
        }
        self.drain(rank);
    }

    /// Some elements of an operation that all ranks run on one path become final at some rank.
    fn progress(&mut self) {
        let first = &self.members[0];
        let (sequence, running) = (first.sequence, first.running);
        let generation = first.generation;
        let together = |m: &Member| {
            let same = m.running == running && m.sequence == sequence;
            same && (running == Running::Hosts || m.generation == generation)
        };
        if running == Running::No || !self.members.iter().all(together) {
            return;
        }
        let start = self.random.below(ELEMENTS);
        let range: Range<u64> = start..(start + 1 + self.random.below(9)).min(ELEMENTS);
        let rank = self.any_rank();
        let member = &mut self.members[rank];
        member.finals = union(&member.finals, std::slice::from_ref(&range));
        if self.members.iter().all(Member::is_complete) {
            self.complete = self.complete.max(sequence + 1);
        }
    }

    /// A rank learns that the operation is complete at all ranks.
    fn end(&mut self, rank: usize) {
        let now = Time(self.now);
        let member = &mut self.members[rank];
        if member.running == Running::No || self.complete <= member.sequence {
            return;
        }
        let sequence = member.sequence;
        member.next();
        member.machine.handle_over(now, sequence);
        self.drain(rank);
    }

    /// A path breaks, or rank 0's operator has another plan.
    fn fault(&mut self, rank: usize) {
        let now = Time(self.now);
        let member = &mut self.members[rank];
        if member.running == Running::Network || rank == 0 && !member.machine.is_under_way() {
            if member.running == Running::Network {
                member.running = Running::No;
            }
            member.machine.request_plan(now, "it is broken", Vec::new());
            self.drain(rank);
        }
    }

    fn transfer(&mut self) {
        if self.pieces.is_empty() {
            return;
        }
        let at = self.random.below(self.pieces.len() as u64) as usize;
        let (sequence, piece) = self.pieces[at].clone();
        let to = piece.to.0 as usize;
        let member = &mut self.members[to];
        assert_eq!(member.sequence, sequence, "elements of another operation");
        let Some((awaited, _)) = &mut member.exchange else { return };
        let Some(place) = awaited.iter().position(|other| *other == piece) else { return };
        awaited.remove(place);
        self.pieces.remove(at);
        let missing = without(ELEMENTS, &member.finals);
        let lacking =
            missing.iter().any(|r| r.start <= piece.elements.start && piece.elements.end <= r.end);
        assert!(lacking, "rank {to} is given {:?}, of which it has some", piece.elements);
        member.finals = union(&member.finals, std::slice::from_ref(&piece.elements));
        self.end_exchange(to);
    }

    fn end_exchange(&mut self, rank: usize) {
        let now = Time(self.now);
        let member = &mut self.members[rank];
        if member.exchange.as_ref().is_some_and(|(awaited, _)| awaited.is_empty()) {
            let (_, finals) = member.exchange.take().expect("there is one");
            assert_eq!(member.finals, finals, "rank {rank} after the exchange");
            member.machine.handle_exchanged(now);
            self.drain(rank);
        }
    }

    fn drain(&mut self, rank: usize) {
        while let Some(transmit) = self.members[rank].machine.poll_transmit() {
            self.network.send(rank as u32, transmit);
        }
        while let Some(action) = self.members[rank].machine.poll_action() {
            self.act(rank, action);
        }
    }

    fn act(&mut self, rank: usize, action: Action<TestPlan>) {
        let member = &mut self.members[rank];
        match action {
            Action::Freeze => {
                assert_ne!(member.running, Running::Hosts, "what is on the hosts stays there");
                member.running = Running::No;
                member.generation = 0;
                // A path that is being opened is abandoned.
                member.answers.clear();
                member.answers.push_back(Answer::Frozen);
            }
            Action::Plan { .. } => member.answers.push_back(Answer::Planned),
            Action::Faults { .. } => {}
            Action::Exchange { pieces, finals } => {
                let (sent, received): (Vec<Piece>, Vec<Piece>) =
                    pieces.into_iter().partition(|piece| piece.from.0 as usize == rank);
                for piece in sent {
                    let missing = without(ELEMENTS, &member.finals);
                    let overlaps = |r: &Range<u64>| {
                        r.start < piece.elements.end && piece.elements.start < r.end
                    };
                    assert!(!missing.iter().any(overlaps), "rank {rank} sends what it lacks");
                    self.pieces.push((member.sequence, piece));
                }
                member.exchange = Some((received, finals));
                self.end_exchange(rank);
            }
            Action::Resume(resume) => {
                self.hand_overs += 1;
                let Resume { generation, plan, path, .. } = *resume;
                let agreed = self.agreed.entry(generation).or_insert((plan, path));
                assert_eq!(*agreed, (plan, path), "rank {rank} in hand-over {generation}");
                if path == Path::Network {
                    member.answers.push_back(Answer::Opened(generation));
                }
            }
            Action::Run { sequence, path } => {
                assert_eq!((member.sequence, member.running), (sequence, Running::No));
                let (running, key) = match path {
                    Path::Network => (Running::Network, member.generation),
                    Path::Hosts => (Running::Hosts, 0),
                };
                member.running = running;
                let rest = without(ELEMENTS, &member.finals);
                let entered = self.entered.entry((sequence, key)).or_insert_with(|| rest.clone());
                assert_eq!(
                    *entered, rest,
                    "rank {rank} sums other elements of operation {sequence}"
                );
            }
            Action::Over { sequence } => {
                assert_eq!(member.sequence, sequence);
                assert!(member.is_complete(), "rank {rank} lacks results of operation {sequence}");
                member.next();
            }
            Action::Fail(error) => self.failures.push((rank, error)),
            other => panic!("rank 0 leads: {other:?}"),
        }
    }

    fn is_done(&self) -> bool {
        self.members.iter().all(|m| m.sequence == OPERATIONS)
    }
}

impl Member {
    fn is_complete(&self) -> bool {
        without(ELEMENTS, &self.finals).is_empty()
    }

    fn next(&mut self) {
        self.sequence += 1;
        self.called = false;
        self.finals = Vec::new();
        self.running = Running::No;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, ..ProptestConfig::default() })]

    #[test]
    fn every_element_is_summed_once_in_any_schedule(
        seed: u64, size in 2..=5u32, steps in 0..1500usize,
    ) {
        let mut world = World::new(seed, size);
        for _ in 0..steps {
            world.step();
        }
        world.faults = false;
        for _ in 0..100_000 {
            if world.is_done() {
                break;
            }
            world.step();
        }
        prop_assert!(world.failures.is_empty(), "{:?}", world.failures);
        let waits: Vec<_> = world.members.iter().map(|m| (m.sequence, m.machine.missing())).collect();
        prop_assert!(world.is_done(), "not done after {} hand-overs; waits: {waits:?}", world.hand_overs);
    }
}
