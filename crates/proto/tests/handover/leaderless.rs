//! Leaderless mode: plans of a controller.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use netsum_proto::Time;
use netsum_proto::handover::{
    Action, Finished, Frozen, Handover, HandoverError, Mode, Path, PendingOperation, Progress,
    Resume, Settings, TreeProgress,
};
use netsum_wire::Rank;
use proptest::prelude::*;

use super::{Network, PATIENCE_NS, Random, TestPlan, mutate};

/// Fragments of an operation.
const FRAGMENTS: usize = 6;
/// Maximum number of fragments that a rank sends beyond the lowest that it lacks.
const WINDOW: u64 = 5;
const OPERATIONS: usize = 8;
const TIMEOUT_NS: u64 = 1 << 50;

/// One position in a rank's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// The rank's own contribution, intact.
    Own,
    /// The sum of all contributions: the own contribution is overwritten.
    Sum,
}

/// Operation and index of a fragment.
type Part = (usize, usize);

/// State of one epoch's switches.
#[derive(Default)]
struct Fabric {
    /// By fragment number, the contribution of each rank.
    contributions: BTreeMap<u64, BTreeMap<u32, Part>>,
    dead: BTreeSet<u64>,
}

/// A rank's use of an epoch.
struct Attached {
    plan: TestPlan,
    /// Fragments in the order of submission; the first has number `first`.
    submitted: Vec<Part>,
    next: usize,
    received: BTreeSet<u64>,
    frozen: bool,
}

struct Member {
    machine: Handover<TestPlan>,
    called: usize,
    buffers: Vec<Vec<Value>>,
    attached: Option<Attached>,
    /// By operation on the host path, what this rank sums there.
    hosts: BTreeMap<usize, Vec<usize>>,
    /// Pending answers of the driver.
    answers: VecDeque<Answer>,
    silent: Vec<u8>,
}

enum Answer {
    Frozen(Progress, u64),
    Fetched(Vec<u64>),
}

/// Plan, path of operations, path of the rest, complete fragments, silent trees.
type Agreed = (Option<TestPlan>, Path, Path, Option<Finished>, Vec<u8>);

struct World {
    random: Random,
    now: u64,
    members: Vec<Member>,
    network: Network,
    fabrics: BTreeMap<u16, Fabric>,
    epoch: u16,
    /// Number of the first fragment of each tree: near the wrap of a vid.
    first: u64,
    /// By generation, the agreed conclusion.
    agreed: BTreeMap<u64, Agreed>,
    failures: Vec<(u32, HandoverError)>,
    hand_overs: usize,
}

impl World {
    fn new(seed: u64, size: u32, epoch: u16, first: u64) -> World {
        let member = |rank| Member {
            machine: Handover::new(Settings {
                rank: Rank(rank),
                size,
                mode: Mode::Leaderless,
                timeout_ns: TIMEOUT_NS,
            }),
            called: 0,
            buffers: vec![vec![Value::Own; FRAGMENTS]; OPERATIONS],
            attached: None,
            hosts: BTreeMap::new(),
            answers: VecDeque::new(),
            silent: Vec::new(),
        };
        World {
            random: Random(seed),
            now: 0,
            members: (0..size).map(member).collect(),
            network: Network::default(),
            fabrics: BTreeMap::new(),
            epoch,
            first,
            agreed: BTreeMap::new(),
            failures: Vec::new(),
            hand_overs: 0,
        }
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    fn any_rank(&mut self) -> usize {
        let size = self.size() as u64;
        self.random.below(size) as usize
    }

    /// One random event. `faults`: whether trees may die, and the controller may make new plans.
    fn step(&mut self, faults: bool) {
        self.now += self.random.below(20);
        let rank = self.any_rank();
        match self.random.below(if faults { 100 } else { 90 }) {
            0..30 => self.deliver(),
            30..40 => self.answer(rank),
            40..45 => self.call(rank),
            45..65 => self.contribute(rank),
            65..80 => self.receive(rank),
            80..85 => self.sum_on_hosts(),
            85..90 => self.watch(rank),
            90..96 => self.plan(),
            _ => self.kill(),
        }
        let rank = self.any_rank();
        self.time_out(rank);
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

    fn answer(&mut self, rank: usize) {
        let now = Time(self.now);
        let first = self.first;
        let member = &mut self.members[rank];
        match member.answers.pop_front() {
            None => return,
            Some(Answer::Frozen(progress, submitted)) => {
                member.machine.handle_frozen(now, Frozen::Fragments { progress, submitted });
            }
            Some(Answer::Fetched(fragments)) => {
                let attached = member.attached.as_ref().expect("it is frozen, not gone");
                let first = first * u64::from(attached.plan.trees);
                let result = |&g: &u64| {
                    let (operation, index) = attached.submitted[(g - first) as usize];
                    assert!(attached.received.contains(&g), "it is asked for what it has");
                    Some(vec![operation as u8, index as u8])
                };
                let results = fragments.iter().map(result).collect();
                member.machine.handle_fetched(now, results);
            }
        }
        self.drain(rank);
    }

    fn call(&mut self, rank: usize) {
        let member = &mut self.members[rank];
        if member.called == OPERATIONS {
            return;
        }
        let (sequence, elements) = (member.called as u64, FRAGMENTS as u64);
        member.called += 1;
        member.machine.handle_operation(PendingOperation {
            sequence,
            elements,
            deadline: Time(u64::MAX),
        });
        self.drain(rank);
    }

    /// A rank sends its next fragment.
    fn contribute(&mut self, rank: usize) {
        let first = self.first;
        let member = &mut self.members[rank];
        let Some(attached) = member.attached.as_mut().filter(|a| !a.frozen) else { return };
        let Some(&(operation, index)) = attached.submitted.get(attached.next) else { return };
        let start = first * u64::from(attached.plan.trees);
        let g = start + attached.next as u64;
        let base = (start..).find(|g| !attached.received.contains(g)).expect("there is one");
        if g >= base + WINDOW {
            return;
        }
        attached.next += 1;
        let intact = member.buffers[operation][index] == Value::Own;
        assert!(intact, "rank {rank} contributes to {operation}.{index}, which it has");
        let fabric = self.fabrics.entry(attached.plan.epoch).or_default();
        let parts = fabric.contributions.entry(g).or_default();
        parts.insert(rank as u32, (operation, index));
        let same = parts.values().all(|part| *part == (operation, index));
        assert!(same, "fragment {g} is of different operations: {parts:?}");
    }

    /// A rank receives a result.
    fn receive(&mut self, rank: usize) {
        let size = self.size();
        let member = &mut self.members[rank];
        let Some(attached) = member.attached.as_mut().filter(|a| !a.frozen) else { return };
        let fabric = self.fabrics.entry(attached.plan.epoch).or_default();
        let trees = u64::from(attached.plan.trees);
        let ready = |(g, parts): (&u64, &BTreeMap<u32, Part>)| {
            let alive = !fabric.dead.contains(&(g % trees));
            let complete = parts.len() == size && !attached.received.contains(g);
            (alive && complete).then(|| (*g, parts[&0]))
        };
        let ready: Vec<(u64, Part)> = fabric.contributions.iter().filter_map(ready).collect();
        if ready.is_empty() {
            return;
        }
        let (g, (operation, index)) = ready[self.random.below(ready.len() as u64) as usize];
        attached.received.insert(g);
        let value = &mut member.buffers[operation][index];
        assert_eq!(*value, Value::Own, "rank {rank} gets {operation}.{index} twice");
        *value = Value::Sum;
    }

    /// Sums an operation that all ranks have begun on the host path.
    fn sum_on_hosts(&mut self) {
        for operation in 0..OPERATIONS {
            let parts: Vec<_> =
                self.members.iter().filter_map(|m| m.hosts.get(&operation)).collect();
            if parts.len() < self.size() {
                continue;
            }
            let same = parts.iter().all(|part| *part == parts[0]);
            assert!(same, "operation {operation} on the hosts: {parts:?}");
            let indices = parts[0].clone();
            for member in &mut self.members {
                member.hosts.remove(&operation);
                for &index in &indices {
                    let value = &mut member.buffers[operation][index];
                    assert_eq!(*value, Value::Own, "{operation}.{index} is summed twice");
                    *value = Value::Sum;
                }
            }
        }
    }

    /// A rank checks whether its trees answer.
    fn watch(&mut self, rank: usize) {
        let now = Time(self.now);
        let member = &mut self.members[rank];
        let Some(attached) = member.attached.as_ref().filter(|a| !a.frozen) else { return };
        let Some(fabric) = self.fabrics.get(&attached.plan.epoch) else { return };
        let trees = u64::from(attached.plan.trees);
        let start = self.first * trees;
        for tree in 0..trees {
            let sent = start..start + attached.next as u64;
            let waits = |g: &u64| g % trees == tree && !attached.received.contains(g);
            let results = attached.received.iter().filter(|g| *g % trees == tree).count() as u64;
            if fabric.dead.contains(&tree) && sent.clone().any(|g| waits(&g)) {
                member.machine.handle_silence(now, tree as u8, 1, results);
            }
            member.machine.handle_results(tree as u8, results);
        }
        self.drain(rank);
    }

    fn plan(&mut self) {
        let trees = self.random.below(4) as u8;
        let cut = self.random.below(2) as u8;
        self.epoch = self.epoch.wrapping_add(1);
        let plan = TestPlan { epoch: self.epoch, trees, cut };
        // The plan reaches some ranks only.
        let reached: Vec<usize> = (0..self.size()).filter(|_| self.random.one_in(2)).collect();
        reached.into_iter().for_each(|rank| self.bring(rank, plan));
    }

    fn bring(&mut self, rank: usize, plan: TestPlan) {
        let now = Time(self.now);
        self.members[rank].machine.handle_plan(now, plan);
        self.drain(rank);
    }

    fn kill(&mut self) {
        let epoch = self.epoch;
        let tree = self.random.below(3);
        self.fabrics.entry(epoch).or_default().dead.insert(tree);
    }

    fn time_out(&mut self, rank: usize) {
        let now = Time(self.now);
        let machine = &mut self.members[rank].machine;
        if machine.poll_timeout().is_some_and(|at| at <= now) {
            machine.handle_timeout(now);
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
        let first = self.first;
        let member = &mut self.members[rank];
        match action {
            Action::Freeze => {
                let attached = member.attached.as_mut().expect("trees are in use");
                attached.frozen = true;
                let submitted = attached.submitted.len() as u64;
                let submitted = submitted + first * u64::from(attached.plan.trees);
                let progress = attached.progress(first);
                member.answers.push_back(Answer::Frozen(progress, submitted));
            }
            Action::Fetch(fragments) => member.answers.push_back(Answer::Fetched(fragments)),
            Action::Deliver(results) => {
                let attached = member.attached.as_ref().expect("it is frozen, not gone");
                let first = first * u64::from(attached.plan.trees);
                for (g, result) in results {
                    let (operation, index) = attached.submitted[(g - first) as usize];
                    assert_eq!(result, [operation as u8, index as u8], "another fragment's result");
                    let value = &mut member.buffers[operation][index];
                    assert_eq!(
                        *value,
                        Value::Own,
                        "rank {rank} is served {operation}.{index} twice"
                    );
                    *value = Value::Sum;
                }
            }
            Action::Resume(resume) => self.resume(rank, *resume),
            Action::Run { sequence, path } => {
                self.give(rank, sequence as usize, (0..FRAGMENTS).collect(), path);
            }
            Action::SilentTrees(trees) => member.silent = trees,
            Action::Fail(error) => self.failures.push((rank as u32, error)),
            other => panic!("nobody leads: {other:?}"),
        }
    }

    fn resume(&mut self, rank: usize, resume: Resume<TestPlan>) {
        let Resume { generation, finished, plan, path, rest, silent, .. } = resume;
        self.hand_overs += 1;
        let word = (plan, path, rest, finished.clone(), silent);
        let agreed = self.agreed.entry(generation).or_insert_with(|| word.clone());
        assert_eq!(*agreed, word, "rank {rank} concludes something else in hand-over {generation}");
        let first = self.first;
        let member = &mut self.members[rank];
        let old = member.attached.take();
        let mut left: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        if let (Some(old), Some(finished)) = (&old, &finished) {
            let first = first * u64::from(old.plan.trees);
            for (i, &(operation, index)) in old.submitted.iter().enumerate() {
                if finished.contains(first + i as u64) {
                    let value = member.buffers[operation][index];
                    assert_eq!(value, Value::Sum, "rank {rank} lacks {operation}.{index}");
                } else {
                    left.entry(operation).or_default().push(index);
                }
            }
        }
        if path == Path::Network {
            let plan = plan.expect("trees are of a new plan");
            let (submitted, received) = (Vec::new(), BTreeSet::new());
            member.attached = Some(Attached { plan, submitted, next: 0, received, frozen: false });
        }
        for (operation, indices) in left {
            self.give(rank, operation, indices, rest);
        }
    }

    fn give(&mut self, rank: usize, operation: usize, indices: Vec<usize>, path: Path) {
        let member = &mut self.members[rank];
        match path {
            Path::Hosts => {
                let before = member.hosts.insert(operation, indices);
                assert_eq!(before, None, "operation {operation} is given twice");
            }
            Path::Network => {
                let attached = member.attached.as_mut().expect("trees are in use");
                attached.submitted.extend(indices.into_iter().map(|index| (operation, index)));
            }
        }
    }

    fn is_done(&self) -> bool {
        let sums = |m: &Member| m.buffers.iter().flatten().all(|value| *value == Value::Sum);
        self.members.iter().all(sums)
    }

    /// Without further faults: the controller plans around silent trees, and everything completes.
    fn finish(&mut self) {
        let mut planned_at = self.now;
        for _ in 0..200_000 {
            let quiet = self.network.is_empty()
                && self.members.iter().all(|m| !m.machine.is_under_way() && m.answers.is_empty());
            let silent = self.members.iter().any(|m| !m.silent.is_empty());
            if self.is_done() && quiet && !silent {
                break;
            }
            if silent && self.now > planned_at + 40 * PATIENCE_NS {
                planned_at = self.now;
                self.epoch = self.epoch.wrapping_add(1);
                let plan = TestPlan { epoch: self.epoch, trees: 2, cut: 0 };
                let rank = self.any_rank();
                self.bring(rank, plan);
            }
            self.step(false);
        }
    }
}

impl Attached {
    fn progress(&self, first: u64) -> Progress {
        let trees = u64::from(self.plan.trees);
        let tree = |tree: u64| {
            let number = |g: &u64| (g % trees == tree).then_some(g / trees);
            let received: BTreeSet<u64> = self.received.iter().filter_map(number).collect();
            let base = (first..).find(|n| !received.contains(n)).expect("there is one");
            let end = received.last().map_or(base, |last| last + 1).max(base);
            TreeProgress {
                base,
                above: (base..end).map(|n| received.contains(&n)).collect(),
                untaken: Vec::new(),
            }
        };
        Progress { trees: (0..trees).map(tree).collect() }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, ..ProptestConfig::default() })]

    #[test]
    fn every_fragment_is_summed_once_in_any_schedule(
        seed: u64, size in 2..=5u32, steps in 0..1500usize, wraps: bool,
    ) {
        let (epoch, first) = if wraps { (65_533, (1 << 32) - 7) } else { (0, 0) };
        let mut world = World::new(seed, size, epoch, first);
        for _ in 0..steps {
            world.step(true);
        }
        world.finish();
        prop_assert!(world.failures.is_empty(), "{:?}", world.failures);
        let waits: Vec<_> = world.members.iter().map(|m| m.machine.missing()).collect();
        prop_assert!(world.is_done(), "not done after {} hand-overs; waits for {waits:?}", world.hand_overs);
        for member in &world.members {
            prop_assert_eq!(&member.silent, &Vec::<u8>::new());
        }
    }
}

/// Delivers all messages of a small group; returns the actions of each rank, with freezes answered.
fn settle(machines: &mut [Handover<TestPlan>], now: Time) -> Vec<Vec<Action<TestPlan>>> {
    let mut actions: Vec<Vec<Action<TestPlan>>> = vec![Vec::new(); machines.len()];
    let mut messages = VecDeque::new();
    loop {
        for (rank, machine) in machines.iter_mut().enumerate() {
            while let Some(action) = machine.poll_action() {
                if action == Action::Freeze {
                    let trees = machine.plan().map_or(0, |plan| plan.trees);
                    let trees = vec![TreeProgress::default(); trees.into()];
                    let progress = Progress { trees };
                    machine.handle_frozen(now, Frozen::Fragments { progress, submitted: 0 });
                }
                actions[rank].push(action);
            }
            let transmits = std::iter::from_fn(|| machine.poll_transmit());
            messages.extend(transmits.map(|transmit| (Rank(rank as u32), transmit)));
        }
        let Some((from, transmit)) = messages.pop_front() else { return actions };
        machines[transmit.to.0 as usize].handle_message(now, from, &transmit.bytes).unwrap();
    }
}

fn pair() -> Vec<Handover<TestPlan>> {
    let settings = |rank| Settings {
        rank: Rank(rank),
        size: 2,
        mode: Mode::Leaderless,
        timeout_ns: 10 * PATIENCE_NS,
    };
    let mut machines: Vec<_> = (0..2).map(|rank| Handover::new(settings(rank))).collect();
    machines[0].handle_plan(Time(0), TestPlan { epoch: 65_535, trees: 2, cut: 0 });
    settle(&mut machines, Time(0));
    assert!(machines.iter().all(|machine| machine.path() == Path::Network));
    machines
}

#[test]
fn a_silent_tree_is_reported_at_once_and_until_another_plan_arrives() {
    let mut machines = pair();
    machines[1].handle_silence(Time(100), 1, 50, 7);
    assert_eq!(machines[1].poll_action(), Some(Action::SilentTrees(vec![1])));
    // The tree answers again.
    machines[1].handle_results(1, 8);
    assert_eq!(machines[1].poll_action(), Some(Action::SilentTrees(vec![])));
    assert_eq!(machines[1].poll_timeout(), None);
    // The tree stays silent: the ranks abandon the trees.
    machines[1].handle_silence(Time(200), 1, 50, 8);
    let end = Time(200 + PATIENCE_NS);
    assert_eq!(machines[1].poll_timeout(), Some(end));
    machines[1].handle_timeout(end);
    let actions = settle(&mut machines, end);
    for (machine, actions) in machines.iter().zip(&actions) {
        assert_eq!((machine.path(), machine.silent_trees()), (Path::Hosts, vec![1]));
        let silent = |action: &Action<TestPlan>| match action {
            Action::Resume(resume) => Some(resume.silent.clone()),
            _ => None,
        };
        assert_eq!(actions.iter().find_map(silent), Some(vec![1]));
    }
    assert_eq!(actions[0].last(), Some(&Action::SilentTrees(vec![1])), "rank 0 did not notice");
    // The next epoch uses the trees again, past the wrap of the numbers.
    machines[0].handle_plan(end, TestPlan { epoch: 0, trees: 2, cut: 0 });
    let actions = settle(&mut machines, end);
    for (machine, actions) in machines.iter().zip(&actions) {
        assert_eq!((machine.path(), machine.silent_trees()), (Path::Network, vec![]));
        assert_eq!(actions.last(), Some(&Action::SilentTrees(vec![])));
    }
}

#[test]
fn a_plan_within_the_patience_avoids_the_host_path() {
    let mut machines = pair();
    machines[0].handle_silence(Time(100), 0, 50, 7);
    machines[1].handle_plan(Time(200), TestPlan { epoch: 0, trees: 1, cut: 0 });
    settle(&mut machines, Time(200));
    assert!(machines.iter().all(|machine| machine.path() == Path::Network));
    assert!(machines.iter().all(|machine| machine.silent_trees().is_empty()));
}

#[test]
fn time_outs_name_the_missing_ranks() {
    let mut machines = pair();
    machines[0].handle_plan(Time(5), TestPlan { epoch: 0, trees: 1, cut: 0 });
    assert_eq!(machines[0].poll_action(), Some(Action::Freeze));
    let progress = Progress { trees: vec![TreeProgress::default(); 2] };
    machines[0].handle_frozen(Time(5), Frozen::Fragments { progress, submitted: 0 });
    assert_eq!(machines[0].missing(), [Rank(1)]);
    let operation = PendingOperation { sequence: 3, elements: 1, deadline: Time(50) };
    machines[0].handle_operation(operation);
    assert_eq!(machines[0].poll_timeout(), Some(Time(50)), "the operation cannot wait for longer");
    machines[0].handle_timeout(Time(50));
    let Some(Action::Fail(error)) = machines[0].poll_action() else { panic!("it goes on") };
    assert_eq!(error.to_string(), "waited too long for the reports of rank 1");
    assert!(matches!(error, HandoverError::Timeout { operation: Some(3), .. }));
}

#[test]
fn operations_stay_on_the_host_path_if_fragments_differ() {
    let mut machines = pair();
    // Rank 0 has begun operation 0 on the trees; rank 1 calls it after the hand-over.
    machines[0].handle_operation(PendingOperation {
        sequence: 0,
        elements: 1,
        deadline: Time(1 << 40),
    });
    machines[0].handle_plan(Time(5), TestPlan { epoch: 0, trees: 1, cut: 1 });
    let actions = settle(&mut machines, Time(5));
    let rest = |action: &Action<TestPlan>| match action {
        Action::Resume(resume) => Some(resume.rest),
        _ => None,
    };
    assert_eq!(actions[0].iter().find_map(rest), Some(Path::Hosts));
    for (sequence, path) in [(0, Path::Hosts), (1, Path::Network)] {
        let deadline = Time(1 << 40);
        machines[1].handle_operation(PendingOperation { sequence, elements: 1, deadline });
        assert_eq!(machines[1].poll_action(), Some(Action::Run { sequence, path }));
    }
}

#[test]
fn unneeded_results_are_refused() {
    let mut machines = pair();
    machines[0].handle_plan(Time(5), TestPlan { epoch: 0, trees: 1, cut: 0 });
    machines[0].poll_action();
    // Version, kind, generation 2, one result of no bytes for fragment 0.
    let mut bytes = vec![1, 5, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1];
    bytes.extend([0; 12]);
    let error = machines[0].handle_message(Time(5), Rank(1), &bytes).unwrap_err();
    assert_eq!(error.from, Rank(1));
    bytes[9] = 7;
    let error = machines[0].handle_message(Time(5), Rank(1), &bytes).unwrap_err();
    assert!(error.to_string().contains("of hand-over 7, this rank is in 2"), "{error}");
}
