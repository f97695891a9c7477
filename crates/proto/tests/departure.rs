//! Ranks that leave in any order: none leaves while another lacks a result of an operation that both took part in.

use std::collections::{BTreeMap, VecDeque};

use netsum_proto::Time;
use netsum_proto::departure::Departure;
use netsum_wire::Rank;
use proptest::prelude::*;

/// What happens next, at which rank.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The next result arrives.
    Result(usize),
    /// It closes the group, if all operations that it has called have ended.
    Close(usize),
    /// A message arrives, of the rank that is so many further.
    Message(usize, usize),
}

/// All that is known from outside.
struct World {
    machines: Vec<Departure>,
    /// Operations with their results, by rank; and those that the rank calls.
    ended: Vec<u64>,
    calls: Vec<u64>,
    closes: Vec<bool>,
    left: Vec<bool>,
    lines: BTreeMap<(usize, usize), VecDeque<Vec<u8>>>,
}

const NEVER: Time = Time(u64::MAX);

impl World {
    /// Every rank takes part in all operations below its number of calls.
    fn new(calls: Vec<u64>) -> World {
        let size = calls.len();
        let machine = |rank: usize| Departure::new(Rank(rank as u32), size as u32);
        World {
            machines: (0..size).map(machine).collect(),
            ended: vec![0; size],
            calls,
            closes: vec![false; size],
            left: vec![false; size],
            lines: BTreeMap::new(),
        }
    }

    fn step(&mut self, step: Step) {
        let size = self.machines.len();
        let (Step::Result(rank) | Step::Close(rank) | Step::Message(rank, _)) = step;
        let rank = rank % size;
        if self.left[rank] {
            return;
        }
        let machine = &mut self.machines[rank];
        match step {
            // An operation ends only if all ranks have called it.
            Step::Result(_) if self.ended[rank] < *self.calls.iter().min().unwrap() => {
                self.ended[rank] += 1;
                if machine.is_under_way() {
                    machine.handle_ended(self.ended[rank]);
                }
            }
            Step::Close(_) if self.ended[rank] == self.calls[rank] => {
                self.closes[rank] = true;
                machine.handle_ended(self.ended[rank]);
                machine.leave(NEVER);
            }
            Step::Message(_, further) => {
                let from = (rank + further) % size;
                let line = self.lines.entry((from, rank)).or_default();
                if let Some(bytes) = line.pop_front() {
                    machine.handle_message(Rank(from as u32), &bytes).unwrap();
                    machine.handle_ended(self.ended[rank]);
                }
            }
            _ => {}
        }
        while let Some(transmit) = self.machines[rank].poll_transmit() {
            self.lines.entry((rank, transmit.to.0 as usize)).or_default().push_back(transmit.bytes);
        }
        if self.machines[rank].may_leave(Time(0)) {
            self.leaves(rank);
        }
    }

    fn leaves(&mut self, rank: usize) {
        for other in (0..self.machines.len()).filter(|&other| other != rank) {
            let lacks = !self.left[other] && self.ended[other] < self.ended[rank];
            assert!(
                !lacks,
                "rank {rank} leaves with {} results, rank {other} has {}",
                self.ended[rank], self.ended[other]
            );
            // The goodbye comes after all messages; here, at once.
            self.machines[other].handle_gone(Rank(rank as u32));
        }
        self.left[rank] = true;
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..6usize).prop_map(Step::Result),
        (0..6usize).prop_map(Step::Close),
        (0..6usize, 1..6usize).prop_map(|(rank, further)| Step::Message(rank, further)),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn nobody_is_left_behind_and_all_may_leave(
        size in 2..6usize,
        all in 0..6u64,
        more in prop::collection::vec(0..2u64, 6),
        steps in steps(),
    ) {
        // Some ranks call operations that others never call; these do not end.
        let mut world = World::new((0..size).map(|rank| all + more[rank]).collect());
        steps.into_iter().for_each(|step| world.step(step));
        // In the end everything arrives, and who can closes.
        for _ in 0..100 {
            for rank in 0..size {
                world.step(Step::Result(rank));
                world.step(Step::Close(rank));
                (1..size).for_each(|further| world.step(Step::Message(rank, further)));
            }
        }
        for rank in 0..size {
            let ends = world.ended[rank] == world.calls[rank];
            prop_assert_eq!(world.left[rank], ends, "rank {} of {}", rank, size);
        }
    }
}
