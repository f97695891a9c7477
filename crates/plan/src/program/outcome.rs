//! The outcome of a program: accesses in undefined order, and the result of one run.

use std::collections::{BTreeMap, HashMap};

use netsum_topo::links::Collective;

use super::check::{Fault, Run, malformed};
use super::reach::Order;
use super::{Memory, MemoryLocation};

/// Multiplicity of each rank's values in a sum, by rank and piece of its input.
type Sum = BTreeMap<(usize, u64), u64>;

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
        for ((agent, memory, segment), users) in touched {
            for (i, &(one, writes)) in users.iter().enumerate() {
                for &(other, also) in &users[i + 1..] {
                    if one != other && (writes || also) && !order.ordered(one, other) {
                        let place =
                            format!("{memory:?} {} of agent {agent}", self.borders[segment]);
                        return Err(Fault::Race {
                            one: self.name(one),
                            other: self.name(other),
                            place,
                        });
                    }
                }
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
                    held.insert((rank, memory, segment), Sum::from([((rank, at), 1)]));
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
                Some(send) => carried.get(send).cloned().expect("sends come before receives"),
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
        let nothing = Sum::new();
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
                    let text = |sum: &Sum| {
                        let term = |(&(rank, piece), &times): (&(usize, u64), &u64)| {
                            format!("{times}×rank {rank}[{piece}]")
                        };
                        if sum.is_empty() {
                            "nothing".to_owned()
                        } else {
                            sum.iter().map(term).collect::<Vec<_>>().join(" + ")
                        }
                    };
                    return Err(Fault::Result {
                        place: format!("piece {at} of rank {rank}"),
                        found: text(found),
                        expected: text(&expected),
                    });
                }
            }
        }
        Ok(())
    }

    /// The expected result of a rank at a piece; `None` if any value is allowed.
    fn expected(&self, rank: usize, at: u64) -> Option<Sum> {
        let all = || (0..self.program.ranks).map(|rank| ((rank, at), 1)).collect();
        match self.program.collective {
            Collective::Broadcast { root } => Some(Sum::from([((root, at), 1)])),
            Collective::Reduce { root } => (rank == root).then(all),
            Collective::Allgather => Some(Sum::from([((self.owner(at), at), 1)])),
            Collective::ReduceScatter => (rank == self.owner(at)).then(all),
            Collective::Allreduce => Some(all()),
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

fn added(mut values: Vec<Sum>, more: &[Sum]) -> Vec<Sum> {
    for (value, more) in values.iter_mut().zip(more) {
        for (&term, &times) in more {
            *value.entry(term).or_insert(0) += times;
        }
    }
    values
}
