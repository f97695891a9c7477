//! The verifier of programs: no deadlock, no race, every contribution exactly once.
//!
//! Steps are ordered by their threads, by dependencies, and by messages (FIFO per connection; with [`MESSAGES_AHEAD`]
//! messages in flight the sender waits). If that order has no cycle, there is no deadlock; if it orders any two
//! accesses to the same pieces of which one is a write, every run computes the same result, and one run shows it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use netsum_topo::links::Collective;

use super::reach::Order;
use super::{Memory, MemoryLocation, Program, Step};

/// An invalid program.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum Fault {
    /// A reference to an object that does not exist.
    #[error("{at}: {problem}")]
    Malformed {
        /// The step or thread.
        at: String,
        /// What is wrong.
        problem: String,
    },
    /// Steps that wait for each other.
    #[error("deadlock: {steps} wait for each other")]
    Deadlock {
        /// Some of them.
        steps: String,
    },
    /// Two accesses in undefined order.
    #[error("race: {one} and {other} both touch {place}, in no certain order")]
    Race {
        /// A step.
        one: String,
        /// Another.
        other: String,
        /// The memory.
        place: String,
    },
    /// A result that differs from the collective's.
    #[error("{place} ends with {found}, and should be {expected}")]
    Result {
        /// The memory.
        place: String,
        /// Contributions that arrived, as `gpu0×2`.
        found: String,
        /// The expected contributions.
        expected: String,
    },
    /// Overloaded links, or a plan that does not fit its fabric.
    #[error("{0}")]
    Plan(String),
}

/// Checks that `program` computes its collective in every possible order of steps.
pub fn check(program: &Program) -> Result<(), Fault> {
    check_part(program, 0..program.pieces)
}

/// The same for a program that accesses `part` of its pieces only.
pub(super) fn check_part(program: &Program, part: Range<u64>) -> Result<(), Fault> {
    if program.collective == Collective::Alltoall {
        return Err(Fault::Plan("programs of an all-to-all are not checked".to_owned()));
    }
    let run = Run::new(program, part)?;
    let order = run.order()?;
    run.races(&order)?;
    run.results(&order)
}

pub(super) struct Run<'a> {
    pub(super) program: &'a Program,
    /// The pieces that are checked.
    pub(super) part: Range<u64>,
    /// All steps: agent, thread, index in it.
    pub(super) steps: Vec<(usize, usize, usize)>,
    /// First of a thread's steps in `steps`.
    first: Vec<Vec<usize>>,
    /// Ends of segments: pieces that are always accessed together.
    pub(super) borders: Vec<u64>,
    /// For each receiving step the step that sends.
    pub(super) sender: HashMap<usize, usize>,
}

impl<'a> Run<'a> {
    fn new(program: &'a Program, part: Range<u64>) -> Result<Run<'a>, Fault> {
        let mut steps = Vec::new();
        let mut first = Vec::new();
        let mut borders = BTreeSet::from([part.start, part.end]);
        let shards =
            (0..program.ranks as u64).map(|rank| program.pieces / program.ranks as u64 * rank);
        borders.extend(shards.filter(|border| part.contains(border)));
        for (agent, threads) in program.threads.iter().enumerate() {
            first.push(Vec::new());
            for (index, thread) in threads.iter().enumerate() {
                first[agent].push(steps.len());
                steps.extend((0..thread.steps.len()).map(|step| (agent, index, step)));
                for step in &thread.steps {
                    for (used, place) in
                        [(step.action.reads(), step.from), (step.action.writes(), step.to)]
                    {
                        if used {
                            let end = place.at.checked_add(step.count);
                            borders.extend([Some(place.at), end].into_iter().flatten());
                        }
                    }
                }
            }
        }
        let mut run = Run {
            program,
            part,
            steps,
            first,
            borders: borders.into_iter().collect(),
            sender: HashMap::new(),
        };
        run.check_fields()?;
        // Messages carry values between locations: a border at one is a border at the other.
        run.match_messages()?;
        run.spread_borders();
        Ok(run)
    }

    fn check_fields(&self) -> Result<(), Fault> {
        if self.program.threads.len() < self.program.ranks || self.program.ranks < 2 {
            return Err(malformed(
                "the program",
                "it has fewer agents than ranks, or fewer than 2 ranks",
            ));
        }
        if let Collective::Broadcast { root } | Collective::Reduce { root } =
            self.program.collective
            && root >= self.program.ranks
        {
            return Err(malformed("the program", "its root is no rank"));
        }
        for (id, &(agent, thread, _)) in self.steps.iter().enumerate() {
            let step = self.step(id);
            let own = &self.program.threads[agent][thread];
            let agents = self.program.threads.len();
            for (needed, peer) in
                [(step.action.sends(), own.send), (step.action.receives(), own.receive)]
            {
                if needed && !peer.is_some_and(|peer| peer < agents && peer != agent) {
                    return Err(malformed(self.name(id), "its thread has no such peer"));
                }
            }
            for (used, place) in [(step.action.reads(), step.from), (step.action.writes(), step.to)]
            {
                let end = place.at.checked_add(step.count);
                let inside = place.memory == Memory::Scratch
                    || end.is_some_and(|end| end <= self.program.pieces);
                if used && (!inside || end.is_none() || step.count == 0) {
                    return Err(malformed(
                        self.name(id),
                        "it reaches beyond the memory, or nowhere",
                    ));
                }
            }
            if let Some((other, at)) = step.after {
                let threads = &self.program.threads[agent];
                if threads.get(other).is_none_or(|thread| at >= thread.steps.len()) {
                    return Err(malformed(self.name(id), "it waits for a step that is not there"));
                }
            }
        }
        Ok(())
    }

    fn match_messages(&mut self) -> Result<(), Fault> {
        let mut sends: HashMap<(usize, usize, usize), Vec<usize>> = HashMap::new();
        let mut receives: HashMap<(usize, usize, usize), Vec<usize>> = HashMap::new();
        let mut owner: HashMap<(bool, usize, usize, usize), usize> = HashMap::new();
        for (id, &(agent, index, _)) in self.steps.iter().enumerate() {
            let (action, thread) = (self.step(id).action, &self.program.threads[agent][index]);
            let mut note = |sending: bool, key: (usize, usize, usize)| {
                let known = *owner.entry((sending, key.0, key.1, key.2)).or_insert(index);
                if known != index {
                    let problem = "two threads use the same connection; give one another channel";
                    return Err(malformed(self.name(id), problem));
                }
                let list = if sending { &mut sends } else { &mut receives };
                list.entry(key).or_default().push(id);
                Ok(())
            };
            if let (true, Some(peer)) = (action.sends(), thread.send) {
                note(true, (agent, peer, thread.channel))?;
            }
            if let (true, Some(peer)) = (action.receives(), thread.receive) {
                note(false, (peer, agent, thread.channel))?;
            }
        }
        let nothing = Vec::new();
        let keys: BTreeSet<_> = sends.keys().chain(receives.keys()).copied().collect();
        for key in keys {
            let (out, back) =
                (sends.get(&key).unwrap_or(&nothing), receives.get(&key).unwrap_or(&nothing));
            if out.len() != back.len() {
                let at = format!("connection {}→{}, channel {}", key.0, key.1, key.2);
                let problem = format!("{} sends and {} receives", out.len(), back.len());
                return Err(malformed(at, &problem));
            }
            for (&send, &receive) in out.iter().zip(back) {
                if self.step(send).count != self.step(receive).count {
                    let problem = format!(
                        "receives {} pieces of {}",
                        self.step(receive).count,
                        self.step(send).count
                    );
                    return Err(malformed(self.name(receive), &problem));
                }
                self.sender.insert(receive, send);
            }
        }
        Ok(())
    }

    /// Divides both sides of every copy alike, until nothing changes.
    fn spread_borders(&mut self) {
        let mut borders: BTreeSet<u64> = self.borders.iter().copied().collect();
        loop {
            let before = borders.len();
            for id in 0..self.steps.len() {
                let step = self.step(id);
                let mut starts = value_starts(step);
                if let Some(&send) = self.sender.get(&id) {
                    starts.extend(value_starts(self.step(send)));
                }
                // Most steps move values from a place to the same one elsewhere.
                if starts.iter().all(|start| *start == starts[0]) {
                    continue;
                }
                let inside: BTreeSet<u64> = (starts.iter())
                    .flat_map(|&at| {
                        borders.range(at..at + step.count).map(move |border| border - at)
                    })
                    .collect();
                for &at in &starts {
                    borders.extend(inside.iter().map(|offset| at + offset));
                }
            }
            if borders.len() == before {
                break;
            }
        }
        self.borders = borders.into_iter().collect();
    }

    fn order(&self) -> Result<Order, Fault> {
        let mut after: Vec<Vec<usize>> = vec![Vec::new(); self.steps.len()];
        for (id, &(agent, _, place)) in self.steps.iter().enumerate() {
            if place > 0 {
                after[id].push(id - 1);
            }
            if let Some((thread, step)) = self.step(id).after {
                after[id].push(self.first[agent][thread] + step);
            }
        }
        let mut connections: BTreeMap<(usize, usize, usize), Vec<(usize, usize)>> = BTreeMap::new();
        let mut pairs: Vec<(usize, usize)> = self.sender.iter().map(|(&r, &s)| (s, r)).collect();
        pairs.sort_unstable();
        for (send, receive) in pairs {
            after[receive].push(send);
            let (agent, thread, _) = self.steps[send];
            let channel = self.program.threads[agent][thread].channel;
            connections
                .entry((agent, self.steps[receive].0, channel))
                .or_default()
                .push((send, receive));
        }
        for messages in connections.values() {
            for (early, late) in messages.iter().zip(messages.iter().skip(MESSAGES_AHEAD)) {
                after[late.0].push(early.1);
            }
        }
        Order::new(after).map_err(|stuck| {
            let names: Vec<String> = stuck.iter().take(4).map(|&id| self.name(id)).collect();
            Fault::Deadlock { steps: names.join(", ") }
        })
    }

    pub(super) fn memory(&self, memory: Memory) -> Memory {
        if self.program.in_place && memory == Memory::Output { Memory::Input } else { memory }
    }

    pub(super) fn segments(
        &self,
        place: MemoryLocation,
        count: u64,
    ) -> impl Iterator<Item = usize> + use<> {
        let start = self.borders.partition_point(|&border| border < place.at);
        let end = self.borders.partition_point(|&border| border < place.at + count);
        start..end
    }

    pub(super) fn step(&self, id: usize) -> &Step {
        let (agent, thread, step) = self.steps[id];
        &self.program.threads[agent][thread].steps[step]
    }

    pub(super) fn name(&self, id: usize) -> String {
        let (agent, thread, step) = self.steps[id];
        format!("agent {agent}, thread {thread}, step {step} ({:?})", self.step(id).action)
    }
}

/// Where the values of a step start in the memories that it reads and writes.
fn value_starts(step: &Step) -> Vec<u64> {
    let reads = step.action.reads().then_some(step.from.at);
    reads.into_iter().chain(step.action.writes().then_some(step.to.at)).collect()
}

pub(super) fn malformed(at: impl Into<String>, problem: &str) -> Fault {
    Fault::Malformed { at: at.into(), problem: problem.to_owned() }
}

/// Messages of one connection in flight before the sender waits. One is the strictest: a program that does not block
/// with one does not block with more.
const MESSAGES_AHEAD: usize = 1;
