//! Lowers a plan to a program: one thread per flow, agent and neighbour in the flow's tree.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use netsum_topo::lcm;
use netsum_topo::links::{Collective, PlannedFlow, TreePlan};

use super::tree_flow::is_tree;
use super::{Action, Fault, Memory, MemoryLocation, Program, Step, Thread};

/// The program of a plan, in place. Each flow has the first channel on which no earlier flow uses one of its
/// connections.
///
/// Errors: shares that do not add up to 1, or to equal shards; too many pieces. Flows whose paths are not trees are
/// found by [`super::check`].
pub fn lower(plan: &TreePlan) -> Result<Program, Fault> {
    let layout = Layout::of_program(plan)?;
    let mut program = layout.empty();
    let mut taken: Vec<HashSet<(usize, usize)>> = Vec::new();
    for flow in 0..plan.flows.len() {
        let used: Vec<(usize, usize)> = layout.connections(flow).collect();
        let free = |taken: &HashSet<_>| used.iter().all(|pair| !taken.contains(pair));
        let channel = taken.iter().position(free).unwrap_or(taken.len());
        if channel == taken.len() {
            taken.push(HashSet::new());
        }
        taken[channel].extend(used);
        layout.put(&mut program, &mut Threads::new(), flow, channel);
    }
    Ok(program)
}

/// The program of a plan on so many channels (at least one), in place. Flows of one channel share their threads, in the
/// order of flows, so that no steps wait in a circle.
///
/// Errors: as [`lower`].
pub fn lower_onto(plan: &TreePlan, channels: usize) -> Result<Program, Fault> {
    let layout = Layout::of_program(plan)?;
    let mut program = layout.empty();
    let mut threads = Threads::new();
    for flow in 0..plan.flows.len() {
        layout.put(&mut program, &mut threads, flow, flow % channels);
    }
    Ok(program)
}

/// The program of each flow that is not plainly a tree, with its pieces. Flows share no thread, no connection and no
/// piece of memory: if each is correct, so are all together.
pub(super) fn lower_each(
    plan: &TreePlan,
) -> Result<impl Iterator<Item = (Program, Range<u64>)>, Fault> {
    let layout = Layout::new(plan)?;
    let count = plan.flows.len();
    if plan.collective == Collective::Alltoall
        && let Some(flow) = (0..count).find(|&flow| !layout.is_tree(flow))
    {
        let problem = format!("flow {flow} does not bring its blocks to every rank once");
        return Err(Fault::Plan(problem));
    }
    Ok((0..count).filter_map(move |flow| {
        if layout.is_tree(flow) {
            return None;
        }
        let mut program = layout.empty();
        layout.put(&mut program, &mut Threads::new(), flow, 0);
        Some((program, layout.parts[flow].clone()))
    }))
}

/// Senders and receivers, by agent.
type Pairs = Vec<(usize, usize)>;

/// Threads by agent, peer and channel.
type Threads = HashMap<(usize, usize, usize), usize>;

/// The owner of each piece, and the participants.
pub(super) struct Layout<'a> {
    plan: &'a TreePlan,
    pub(super) pieces: u64,
    /// By vertex: ranks, then switches that flows branch at.
    pub(super) agent: BTreeMap<usize, usize>,
    /// Pieces of each flow.
    pub(super) parts: Vec<Range<u64>>,
}

impl<'a> Layout<'a> {
    pub(super) fn new(plan: &'a TreePlan) -> Result<Layout<'a>, Fault> {
        let wrong = |problem: String| Fault::Plan(problem);
        let ranks = plan.gpus.len();
        if ranks == 0 {
            return Err(wrong("it has no GPUs".to_owned()));
        }
        // Shards have whole pieces.
        let sharded = matches!(
            plan.collective,
            Collective::Allgather | Collective::ReduceScatter | Collective::Alltoall
        );
        let start = if sharded { ranks as i128 } else { 1 };
        let common = plan.flows.iter().try_fold(start, |all, flow| lcm(all, flow.share.den()));
        let pieces = common.filter(|&pieces| pieces <= PIECES_MAX).ok_or_else(|| {
            wrong("its shares have no common denominator below 2⁶²; round them".to_owned())
        })? as u64;
        let mut agent: BTreeMap<usize, usize> =
            plan.gpus.iter().enumerate().map(|(rank, &vertex)| (vertex, rank)).collect();
        for way in plan.flows.iter().flat_map(|flow| flow.up.iter().chain(&flow.down)) {
            let [from, .., to] = way.as_slice() else {
                return Err(wrong(format!("way {way:?} has fewer than two vertices")));
            };
            for end in [from, to] {
                let next = agent.len();
                agent.entry(*end).or_insert(next);
            }
        }
        let mut parts = Vec::with_capacity(plan.flows.len());
        let mut at = 0u64;
        for (channel, flow) in plan.flows.iter().enumerate() {
            if !flow.share.is_positive() {
                return Err(wrong(format!("flow {channel} has share {}", flow.share)));
            }
            let count = flow.share.num() * (i128::from(pieces) / flow.share.den());
            let end = u64::try_from(i128::from(at) + count).ok().filter(|&end| end <= pieces);
            let end = end.ok_or_else(|| wrong("its shares add up to more than 1".to_owned()))?;
            check_shard(plan, flow, at, end - at, pieces, channel)?;
            parts.push(at..end);
            at = end;
        }
        if at < pieces {
            return Err(wrong("its shares add up to less than 1".to_owned()));
        }
        Ok(Layout { plan, pieces, agent, parts })
    }

    /// The same for a plan that becomes a program.
    fn of_program(plan: &'a TreePlan) -> Result<Layout<'a>, Fault> {
        if plan.collective == Collective::Alltoall {
            let problem = "an all-to-all has no program: it is written as JSON, SVG or PNG";
            return Err(Fault::Plan(problem.to_owned()));
        }
        Layout::new(plan)
    }

    fn empty(&self) -> Program {
        Program {
            collective: self.plan.collective,
            ranks: self.plan.gpus.len(),
            pieces: self.pieces,
            in_place: true,
            threads: vec![Vec::new(); self.agent.len()],
        }
    }

    /// Agents that send and receive.
    fn ends(&self, way: &[usize]) -> (usize, usize) {
        (self.agent[&way[0]], self.agent[&way[way.len() - 1]])
    }

    /// Agents that send and receive, up and down.
    pub(super) fn ways(&self, flow: usize) -> (Pairs, Pairs) {
        let PlannedFlow { up, down, .. } = &self.plan.flows[flow];
        let pairs = |ways: &[Vec<usize>]| ways.iter().map(|way| self.ends(way)).collect();
        (pairs(up), pairs(down))
    }

    /// Whether a flow is correct as it plainly is a tree.
    fn is_tree(&self, flow: usize) -> bool {
        let (ranks, agents) = (self.plan.gpus.len(), self.agent.len());
        let (up, down) = self.ways(flow);
        let root = self.agent.get(&self.plan.flows[flow].root);
        root.is_some_and(|&root| {
            ranks > 1 && is_tree(self.plan.collective, ranks, agents, root, &up, &down)
        })
    }

    fn connections(&self, flow: usize) -> impl Iterator<Item = (usize, usize)> {
        let PlannedFlow { up, down, .. } = &self.plan.flows[flow];
        up.iter().chain(down).map(|way| self.ends(way))
    }

    fn put(&self, program: &mut Program, threads: &mut Threads, flow: usize, channel: usize) {
        let (up, down) = self.ways(flow);
        let Range { start: at, end } = self.parts[flow];
        let place = MemoryLocation { memory: Memory::Input, at };
        let mut adding = Adding { program, threads, channel, place, count: end - at };
        adding.flow(&up, &down);
    }
}

/// Flows of all-gather and reduce-scatter lie in their root's shard.
fn check_shard(
    plan: &TreePlan,
    flow: &PlannedFlow,
    at: u64,
    count: u64,
    pieces: u64,
    index: usize,
) -> Result<(), Fault> {
    if !matches!(
        plan.collective,
        Collective::Allgather | Collective::ReduceScatter | Collective::Alltoall
    ) {
        return Ok(());
    }
    let shard = pieces / plan.gpus.len() as u64;
    let owner = plan.gpus.get((at / shard) as usize);
    if owner == Some(&flow.root) && (at + count - 1) / shard == at / shard {
        return Ok(());
    }
    Err(Fault::Plan(format!(
        "flow {index} of root {} lies outside of that root's shard",
        flow.root
    )))
}

/// A flow that is added to a program: per agent and neighbour a thread that receives from and sends to it.
struct Adding<'a> {
    program: &'a mut Program,
    threads: &'a mut Threads,
    channel: usize,
    place: MemoryLocation,
    count: u64,
}

impl Adding<'_> {
    fn flow(&mut self, up: &[(usize, usize)], down: &[(usize, usize)]) {
        // By agent the last step that wrote the flow's pieces there.
        let mut written: HashMap<usize, (usize, usize)> = HashMap::new();
        let ranks = self.program.ranks;
        for &(from, to) in up {
            self.step(from, to, Action::Send, written.get(&from).copied());
            // A switch has no contribution to which the first message would be added.
            let first = to >= ranks && !written.contains_key(&to);
            let action = if first { Action::Receive } else { Action::ReceiveReduce };
            let step = self.step(to, from, action, written.get(&to).copied());
            written.insert(to, step);
        }
        // Results must not overwrite what is still to be sent up: the result depends on all contributions through the
        // root, so messages order the two.
        for &(from, to) in down {
            self.step(from, to, Action::Send, written.get(&from).copied());
            let step = self.step(to, from, Action::Receive, written.get(&to).copied());
            written.insert(to, step);
        }
    }

    fn step(
        &mut self,
        agent: usize,
        peer: usize,
        action: Action,
        after: Option<(usize, usize)>,
    ) -> (usize, usize) {
        let Adding { channel, place, count, .. } = *self;
        let own = &mut self.program.threads[agent];
        let index = *self.threads.entry((agent, peer, channel)).or_insert_with(|| {
            own.push(Thread { send: Some(peer), receive: Some(peer), channel, steps: Vec::new() });
            own.len() - 1
        });
        let steps = &mut own[index].steps;
        // Earlier steps of the same thread precede anyway, and so do the steps that these waited for.
        let known = |after: (usize, usize)| steps.iter().any(|step| step.after == Some(after));
        let after = after.filter(|&after| after.0 != index && !known(after));
        steps.push(Step { action, from: place, to: place, count, after });
        (index, steps.len() - 1)
    }
}

const PIECES_MAX: i128 = 1 << 62;
