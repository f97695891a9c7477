//! Plans in the form of executors that exist, rounded to what these take.

mod mscclpp_rules;
mod rccl_rules;

use netsum_topo::links::{Collective, LinkGraph, TreePlan};

use crate::error::PackError;
use crate::pack::{Packed, variants};
use crate::program::{check, lower, lower_onto, write_msccl, write_mscclpp};

pub use mscclpp_rules::mscclpp_refuses;
pub use rccl_rules::rccl_refuses;

/// A program that runs plans on GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Executor {
    /// MSCCL's XML, as RCCL reads it.
    Msccl,
    /// MSCCL++'s execution plan.
    Mscclpp,
}

/// A plan in the form of an executor.
#[derive(Debug, Clone, PartialEq)]
pub struct Exported {
    /// The file.
    pub text: String,
    /// Its rate over the plan's; below 1 if shares were rounded or trees changed.
    pub kept: f64,
    /// Equal pieces of the whole buffer (of all shards): sizes must be multiples of them.
    pub pieces: u64,
    /// Number of trees.
    pub trees: usize,
}

impl Exported {
    /// What users must know, as a sentence.
    pub fn note(&self, executor: Executor) -> String {
        let (name, unit) = match executor {
            Executor::Msccl => ("RCCL", "elements"),
            Executor::Mscclpp => ("MSCCL++", "times 16 bytes"),
        };
        format!(
            "for {name}: {:.1} % of the plan's rate, {} trees; used in place, for buffers (of all shards \
             together) of a multiple of {} {unit}",
            100.0 * self.kept,
            self.trees,
            self.pieces
        )
    }
}

/// The plan for an executor: as it is if the executor takes that, else with rounded shares, or other trees. The file
/// computes the collective, and breaks no rule of the executor's parser.
///
/// The plan must be valid on the graph. Errors: nothing near the plan fits, with the rule that is broken.
pub fn export(
    graph: &LinkGraph,
    plan: &TreePlan,
    executor: Executor,
) -> Result<Exported, PackError> {
    if plan.collective == Collective::Alltoall {
        let problem = "an all-to-all has no such form; write it as JSON, SVG or PNG".to_owned();
        return Err(PackError::Format { format: executor.format(), problem });
    }
    let mut refused = None;
    let mut best: Option<Exported> = None;
    for packed in variants(graph, plan)? {
        let attempts = std::iter::once(packed.clone())
            .chain(PIECES.iter().filter_map(|&pieces| packed.in_pieces(pieces)));
        for attempt in attempts {
            let kept = attempt.rate_bps() / plan.rate_bps.to_f64();
            if best.as_ref().is_some_and(|best| kept <= best.kept * WORTH) {
                continue;
            }
            match written(graph, &attempt, executor) {
                Ok((text, pieces)) => {
                    best = Some(Exported { text, kept, pieces, trees: attempt.flows.len() });
                }
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        if best.as_ref().is_some_and(|best| best.kept >= ENOUGH) {
            break;
        }
    }
    best.ok_or_else(|| refused.expect("an attempt was made"))
}

/// The file of a packing, and its pieces. Errors: the executor would refuse it.
fn written(
    graph: &LinkGraph,
    packed: &Packed,
    executor: Executor,
) -> Result<(String, u64), PackError> {
    let plan = packed.plan(graph);
    let refuse = |problem: String| PackError::Format { format: executor.format(), problem };
    let program = lower(&plan).map_err(|fault| refuse(fault.to_string()))?;
    if program.pieces > PIECES_MAX {
        return Err(refuse(format!("{} pieces are more than {PIECES_MAX}", program.pieces)));
    }
    let text = match executor {
        Executor::Mscclpp => {
            let text = write_mscclpp(&plan)?;
            mscclpp_refuses(&text).map_or(Ok(text), |problem| Err(refuse(problem)))
        }
        Executor::Msccl => {
            let shared = CHANNELS.iter().map(|&channels| lower_onto(&plan, channels));
            let mut programs = std::iter::once(Ok(program.clone())).chain(shared);
            let mut first = None;
            let found = programs.find_map(|program| {
                let program = program.ok()?;
                let text = write_msccl(&program, &plan.fabric).ok()?;
                match rccl_refuses(&text) {
                    Some(problem) => {
                        first.get_or_insert(problem);
                        None
                    }
                    // Threads that flows share are checked together.
                    None => check(&program).is_ok().then_some(text),
                }
            });
            found.ok_or_else(|| refuse(first.unwrap_or_else(|| "too many channels".to_owned())))
        }
    };
    Ok((text?, program.pieces))
}

impl Executor {
    fn format(self) -> &'static str {
        match self {
            Executor::Msccl => "MSCCL XML",
            Executor::Mscclpp => "MSCCL++ JSON",
        }
    }
}

/// Pieces of a buffer, or of a shard, that are tried: powers of two divide most sizes of buffers.
const PIECES: [u64; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
/// Both executors hold positions in 16 bits.
const PIECES_MAX: u64 = 1 << 15;
/// Channels that are tried if each flow on its own takes too many thread blocks.
const CHANNELS: [usize; 6] = [32, 16, 8, 4, 2, 1];
/// More pieces are worth this much of the rate.
const WORTH: f64 = 1.001;
/// The part of the plan's rate at which nothing else is tried.
const ENOUGH: f64 = 0.99;
