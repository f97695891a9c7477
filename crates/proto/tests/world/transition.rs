//! The hand-over of a job to its next plan.

use std::collections::VecDeque;

use netsum_proto::Time;
use netsum_proto::handover::{Action, Frozen, Handover, Mode, Plan, Settings, Transmit};
use netsum_proto::panama::{Submission, Worker, WorkerMachine};
use netsum_wire::{Epoch, Rank};

use super::World;

const SECOND: u64 = 1_000_000_000;

/// A plan of these tests, which consists of its epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TestPlan(u16);

impl Plan for TestPlan {
    fn epoch(&self) -> Epoch {
        Epoch(self.0)
    }

    fn has_trees(&self) -> bool {
        true
    }

    fn continues(&self, _: &TestPlan) -> bool {
        true
    }

    fn patience_ns(&self) -> u64 {
        SECOND
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.0.to_be_bytes());
    }

    fn decode(bytes: &[u8], _: u32) -> Result<TestPlan, String> {
        let bytes = bytes.try_into().map_err(|_| "no plan".to_owned())?;
        Ok(TestPlan(u16::from_be_bytes(bytes)))
    }
}

/// A job's hand-over to its next plan, over a lossless network between the workers.
struct Transition<'a> {
    world: &'a mut World,
    hosts: Vec<usize>,
    workers: Vec<Option<Worker>>,
    machines: Vec<Handover<TestPlan>>,
    messages: VecDeque<(usize, Transmit)>,
    /// The remaining work, by rank, once the old epoch has ended.
    rest: Vec<Option<Vec<Submission>>>,
}

/// Ends a job's epoch, and begins the next one on `trees` trees.
pub fn transition(world: &mut World, job: usize, trees: u8) {
    let hosts = world.jobs[job].hosts.clone();
    let workers: Vec<_> = hosts.iter().map(|&h| world.hosts[h].machine.take()).collect();
    let outstanding: Vec<Vec<u64>> =
        workers.iter().map(|w| w.as_ref().unwrap().outstanding().map(|s| s.id).collect()).collect();
    let size = hosts.len() as u32;
    let settings =
        |rank| Settings { rank: Rank(rank), size, mode: Mode::Leaderless, timeout_ns: SECOND };
    let machines = (0..size).map(|rank| Handover::new(settings(rank))).collect();
    let rest = vec![None; hosts.len()];
    let messages = VecDeque::new();
    let mut transition = Transition { world, hosts, workers, machines, messages, rest };
    // The first plan reaches one rank, the next another.
    for (rank, epoch) in [(0, 1), (size as usize - 1, 2)] {
        transition.machines[rank].handle_plan(Time(0), TestPlan(epoch));
        transition.run();
    }
    let Transition { hosts, rest, .. } = transition;
    world.begin(job, trees);
    for (i, (&host, rest)) in hosts.iter().zip(rest).enumerate() {
        let rest = rest.expect("the hand-over ends at every rank");
        for &id in &outstanding[i] {
            if !rest.iter().any(|s| s.id == id) {
                world.hosts[host].operations[id as usize].done = Some(0);
            }
        }
        for submission in rest {
            let operation = &mut world.hosts[host].operations[submission.id as usize];
            operation.again = operation.done.is_some();
            world.hosts[host].machine.as_mut().unwrap().submit(submission);
        }
    }
    for &host in &hosts {
        world.pump_host(host);
    }
}

impl Transition<'_> {
    /// Runs until nothing is left to do.
    fn run(&mut self) {
        loop {
            (0..self.hosts.len()).for_each(|rank| self.drain(rank));
            let Some((from, Transmit { to, bytes })) = self.messages.pop_front() else { return };
            let machine = &mut self.machines[to.0 as usize];
            machine.handle_message(Time(0), Rank(from as u32), &bytes).unwrap();
        }
    }

    fn drain(&mut self, rank: usize) {
        while let Some(action) = self.machines[rank].poll_action() {
            self.act(rank, action);
        }
        while let Some(transmit) = self.machines[rank].poll_transmit() {
            self.messages.push_back((rank, transmit));
        }
    }

    fn act(&mut self, rank: usize, action: Action<TestPlan>) {
        let host = self.hosts[rank];
        match action {
            Action::Freeze => {
                let worker = self.workers[rank].as_ref().unwrap();
                let (progress, submitted) = (worker.progress(), worker.submitted());
                let frozen = Frozen::Fragments { progress, submitted };
                self.machines[rank].handle_frozen(Time(0), frozen);
            }
            Action::Fetch(fragments) => {
                let retained = &self.world.hosts[host].retained;
                let results = fragments.iter().map(|g| retained.get(g).cloned()).collect();
                self.machines[rank].handle_fetched(Time(0), results);
            }
            Action::Deliver(results) => {
                for (g, payload) in results {
                    let worker = self.workers[rank].as_ref().unwrap();
                    let (id, elements) = worker.place_of(g).expect("it lacks the result");
                    let operation = &mut self.world.hosts[host].operations[id as usize];
                    let size = operation.format.dtype.size();
                    let place = elements.start as usize * size..elements.end as usize * size;
                    operation.buffer[place].copy_from_slice(&payload);
                }
            }
            Action::Resume(resume) => {
                if let Some(finished) = resume.finished {
                    let worker = self.workers[rank].take().unwrap();
                    let host = &mut self.world.hosts[host];
                    for repeated in worker.to_repeat(&finished) {
                        let operation = &mut host.operations[repeated.id as usize];
                        let place = operation.bytes(&repeated.elements);
                        operation.buffer[place].copy_from_slice(&host.retained[&repeated.g]);
                    }
                    self.rest[rank] = Some(worker.remaining(&finished));
                }
            }
            other => panic!("{other:?}"),
        }
    }
}
