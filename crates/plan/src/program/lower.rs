//! From a plan to a program: one thread per flow, agent and neighbour in the flow's tree.

use std::collections::BTreeMap;

use netsum_topo::lcm;
use netsum_topo::links::{Collective, PlannedFlow, TreePlan};

use super::{Action, Fault, Memory, Place, Program, Step, Thread};

/// The program of a plan, in place. Flow i uses channel i.
///
/// Errors: shares that do not add up to 1, or to equal shards; too many pieces; flows whose ways are
/// no trees are for [`super::check`] to find.
pub fn lower(plan: &TreePlan) -> Result<Program, Fault> {
    let wrong = |problem: String| Fault::Plan(problem);
    let ranks = plan.gpus.len();
    let common = plan.flows.iter().try_fold(ranks as i128, |all, flow| lcm(all, flow.share.den()));
    let pieces = common.filter(|&pieces| pieces <= PIECES_MAX).ok_or_else(|| {
        wrong("its shares have no common denominator below 2⁶²; round them".to_owned())
    })? as u64;
    // Agents: ranks, then switches that flows branch at.
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
    let mut program = Program {
        collective: plan.collective,
        ranks,
        pieces,
        in_place: true,
        threads: vec![Vec::new(); agent.len()],
    };
    let mut at = 0u64;
    for (channel, flow) in plan.flows.iter().enumerate() {
        if !flow.share.is_positive() {
            return Err(wrong(format!("flow {channel} has share {}", flow.share)));
        }
        let count = (flow.share.num() * (i128::from(pieces) / flow.share.den())) as u64;
        check_shard(plan, flow, at, count, pieces, channel)?;
        let ways = |ways: &[Vec<usize>]| -> Vec<(usize, usize)> {
            ways.iter().map(|way| (agent[&way[0]], agent[&way[way.len() - 1]])).collect()
        };
        add(
            &mut program,
            channel,
            Place { memory: Memory::Input, at },
            count,
            &ways(&flow.up),
            &ways(&flow.down),
        );
        at = at
            .checked_add(count)
            .filter(|&end| end <= pieces)
            .ok_or_else(|| wrong("its shares add up to more than 1".to_owned()))?;
    }
    if at < pieces {
        return Err(wrong("its shares add up to less than 1".to_owned()));
    }
    Ok(program)
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
    if !matches!(plan.collective, Collective::Allgather | Collective::ReduceScatter) {
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

/// Threads of one flow: per agent and neighbour one that receives from and sends to it.
fn add(
    program: &mut Program,
    channel: usize,
    place: Place,
    count: u64,
    up: &[(usize, usize)],
    down: &[(usize, usize)],
) {
    let mut threads: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    // Per agent the last step that wrote the flow's pieces there.
    let mut written: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    let mut put = |agent: usize, peer: usize, action: Action, after: Option<(usize, usize)>| {
        let index = *threads.entry((agent, peer)).or_insert_with(|| {
            let thread =
                Thread { send: Some(peer), receive: Some(peer), channel, steps: Vec::new() };
            program.threads[agent].push(thread);
            program.threads[agent].len() - 1
        });
        let steps = &mut program.threads[agent][index].steps;
        // Steps of the same thread come before anyway, and so does what they waited for.
        let known = |after: (usize, usize)| steps.iter().any(|step| step.after == Some(after));
        let after = after.filter(|&after| after.0 != index && !known(after));
        steps.push(Step { action, from: place, to: place, count, after });
        (index, steps.len() - 1)
    };
    let ranks = program.ranks;
    for &(from, to) in up {
        put(from, to, Action::Send, written.get(&from).copied());
        // A switch has nothing of its own to add the first message to.
        let first = to >= ranks && !written.contains_key(&to);
        let action = if first { Action::Receive } else { Action::ReceiveReduce };
        let step = put(to, from, action, written.get(&to).copied());
        written.insert(to, step);
    }
    // What comes down must not overwrite what is still to be sent up: the result depends on all of it,
    // through the root, so messages order the two.
    for &(from, to) in down {
        put(from, to, Action::Send, written.get(&from).copied());
        let step = put(to, from, Action::Receive, written.get(&to).copied());
        written.insert(to, step);
    }
}

const PIECES_MAX: i128 = 1 << 62;
