//! The outcome of a program: accesses in undefined order, and the result of one run.

use std::collections::HashMap;

use netsum_topo::links::Collective;

use super::check::{Fault, Run, malformed};
use super::reach::Order;
use super::sum::Sum;
use super::{Memory, MemoryLocation};

impl Run<'_> {
    pub(super) fn races(&self, order: &Order) -> Result<(), Fault> {
        // By agent, memory and segment: readers and writers.
        let mut touched: HashMap<(usize, Memory, usize), Vec<(usize, bool)>> = HashMap::new();
        for (id, &(agent, ..)) in self.steps.iter().enumerate() {
            let step = self.step(id);
            for (used, place, writes) in
                [(step.action.reads(), step.from, false), (step.action.writes(), step.to, true)]
            {
                for segment in self.segments(place, step.count).filter(|_| used) {
                    touched
                        .entry((agent, self.memory(place.memory), segment))
                        .or_default()
                        .push((id, writes));
                }
            }
        }
        for ((agent, memory, segment), mut users) in touched {
            users.sort_unstable_by_key(|&(id, writes)| (order.position(id), writes));
            if let Some((one, other)) = unordered(&users, order) {
                let place = format!("{memory:?} {} of agent {agent}", self.borders[segment]);
                return Err(Fault::Race { one: self.name(one), other: self.name(other), place });
            }
        }
        Ok(())
    }

    pub(super) fn results(&self, order: &Order) -> Result<(), Fault> {
        let ranks = self.program.ranks;
        let mut held: HashMap<(usize, Memory, usize), Sum> = HashMap::new();
        for rank in 0..ranks {
            for segment in 0..self.borders.len() - 1 {
                let at = self.borders[segment];
                if self.part.contains(&at) && self.has_at_start(rank, at) {
                    let memory = self.memory(Memory::Input);
                    held.insert((rank, memory, segment), Sum::once(ranks, [rank], at));
                }
            }
        }
        let mut carried: HashMap<usize, Vec<Sum>> = HashMap::new();
        for &id in &order.sequence {
            let agent = self.steps[id].0;
            let step = *self.step(id);
            let read = |place: MemoryLocation| -> Result<Vec<Sum>, Fault> {
                let key = |segment| (agent, self.memory(place.memory), segment);
                let value = |segment| {
                    held.get(&key(segment))
                        .cloned()
                        .ok_or_else(|| malformed(self.name(id), "it reads what nobody has written"))
                };
                self.segments(place, step.count).map(value).collect()
            };
            let mut values = match self.sender.get(&id) {
                // A message is received once.
                Some(send) => carried.remove(send).expect("sends come before receives"),
                None => Vec::new(),
            };
            if step.action.reads() {
                let own = read(step.from)?;
                values = if values.is_empty() { own } else { added(values, &own) };
            }
            if step.action == super::Action::Reduce {
                values = added(values, &read(step.to)?);
            }
            if step.action.writes() {
                for (segment, value) in self.segments(step.to, step.count).zip(&values) {
                    held.insert((agent, self.memory(step.to.memory), segment), value.clone());
                }
            }
            if step.action.sends() {
                carried.insert(id, values);
            }
        }
        self.compare(&held)
    }

    fn compare(&self, held: &HashMap<(usize, Memory, usize), Sum>) -> Result<(), Fault> {
        let nothing = Sum::nothing();
        let memory = self.memory(Memory::Output);
        for rank in 0..self.program.ranks {
            for segment in 0..self.borders.len() - 1 {
                let at = self.borders[segment];
                if !self.part.contains(&at) {
                    continue;
                }
                let Some(expected) = self.expected(rank, at) else { continue };
                let found = held.get(&(rank, memory, segment)).unwrap_or(&nothing);
                if *found != expected {
                    return Err(Fault::Result {
                        place: format!("piece {at} of rank {rank}"),
                        found: found.to_string(),
                        expected: expected.to_string(),
                    });
                }
            }
        }
        Ok(())
    }

    /// The expected result of a rank at a piece; `None` if any value is allowed.
    fn expected(&self, rank: usize, at: u64) -> Option<Sum> {
        let ranks = self.program.ranks;
        let one = |rank: usize| Sum::once(ranks, [rank], at);
        let all = || Sum::once(ranks, 0..ranks, at);
        match self.program.collective {
            Collective::Broadcast { root } => Some(one(root)),
            Collective::Reduce { root } => (rank == root).then(all),
            Collective::Allgather => Some(one(self.owner(at))),
            Collective::ReduceScatter => (rank == self.owner(at)).then(all),
            Collective::Allreduce => Some(all()),
            // `check` refuses it.
            Collective::Alltoall => None,
        }
    }

    fn has_at_start(&self, rank: usize, at: u64) -> bool {
        match self.program.collective {
            Collective::Broadcast { root } => rank == root,
            Collective::Allgather => self.owner(at) == rank,
            _ => true,
        }
    }

    /// The owner of a piece's shard.
    fn owner(&self, at: u64) -> usize {
        (u128::from(at) * self.program.ranks as u128 / u128::from(self.program.pieces)) as usize
    }
}

/// Two accesses to one memory, of which one is a write, that no dependency orders. `users`: steps and whether they
/// write, in the order of one run.
///
/// "Before" is transitive: it is sufficient to compare each write with the write before it and the reads between the two,
/// and each read with the write before it.
fn unordered(users: &[(usize, bool)], order: &Order) -> Option<(usize, usize)> {
    let mut write: Option<usize> = None;
    let mut reads: Vec<usize> = Vec::new();
    for &(id, writes) in users {
        let earlier = write.iter().chain(reads.iter().filter(|_| writes));
        let fault = earlier.copied().find(|&other| other != id && !order.before(other, id));
        if let Some(other) = fault {
            return Some((other, id));
        }
        if writes {
            write = Some(id);
            reads.clear();
        } else {
            reads.push(id);
        }
    }
    None
}

fn added(mut values: Vec<Sum>, more: &[Sum]) -> Vec<Sum> {
    values.iter_mut().zip(more).for_each(|(value, more)| value.add(more));
    values
}
