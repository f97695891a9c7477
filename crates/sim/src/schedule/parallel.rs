//! Schedules of training steps with tensor, pipeline, data and expert parallelism, from a few numbers.
//!
//! Ranks are numbered as in Megatron-LM: those of a tensor group follow each other, then come data groups, then stages.
//! Stages run one forward and one backward pass in turn (1F1B, Narayanan et al., SC 2021). A layer has two halves,
//! attention and MLP, each with an allreduce of its activations in the tensor group; with experts, the second half has
//! an all-to-all before and after it.

use serde::{Deserialize, Serialize};

use super::{Builder, Collective, Names, Op, Schedule, ScheduleError};

/// What is done about the copies of parameters in a data group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharding {
    /// Every rank has all: a layer's gradients are summed by an allreduce during the last backward pass.
    None,
    /// Every rank has a share of the optimizer's state (ZeRO-1): gradients are scattered during the last backward pass,
    /// and parameters gathered at the end.
    Optimizer,
    /// Every rank has a share of everything (ZeRO-3, FSDP): a layer's parameters are gathered before each forward and
    /// each backward pass of it, and its gradients scattered after each backward pass.
    Full,
}

/// A training step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parallel {
    /// Ranks of a tensor group.
    pub tensor: u32,
    /// Stages.
    pub pipeline: u32,
    /// Ranks of a data group.
    pub data: u32,
    /// Ranks of a data group among which experts are divided; divides `data`.
    pub expert: u32,
    /// Layers of the model; a multiple of `pipeline`.
    pub layers: u32,
    /// Forward and backward passes of a step.
    pub microbatches: u32,
    /// Time of a layer's forward pass, of its backward pass, and of the optimizer's step.
    pub forward_ps: u64,
    /// See `forward_ps`.
    pub backward_ps: u64,
    /// See `forward_ps`.
    pub optimizer_ps: u64,
    /// Bytes between layers, per microbatch and rank.
    pub activation_bytes: u64,
    /// Bytes of a layer's parameters on one rank of a tensor group before sharding, and of its gradients.
    pub parameter_bytes: u64,
    /// Bytes that a rank sends to experts, per layer and microbatch.
    pub token_bytes: u64,
    /// Copies of parameters.
    pub sharding: Sharding,
    /// With `Full`: how many layers ahead parameters are gathered.
    pub prefetch: u32,
}

impl Parallel {
    /// Number of ranks.
    pub fn ranks(&self) -> u64 {
        u64::from(self.tensor) * u64::from(self.pipeline) * u64::from(self.data)
    }

    /// Bound of the number of nodes of all ranks.
    pub fn nodes(&self) -> u64 {
        let layers = u64::from(self.layers / self.pipeline.max(1));
        let per_pass = 10 * layers + 2;
        let per_rank = (2 * u64::from(self.microbatches)).saturating_mul(per_pass) + 3 * layers + 1;
        per_rank.saturating_mul(self.ranks())
    }

    /// The schedule of one step.
    pub fn schedule(&self, source: &str) -> Result<Schedule, ScheduleError> {
        let ranks = u32::try_from(self.ranks()).unwrap_or(u32::MAX);
        let mut builder = Builder::new(Names::Numbers(source.to_owned()), ranks)?;
        let groups = self.groups(&mut builder)?;
        for rank in 0..ranks {
            let mut stage = Stage::new(self, &mut builder, &groups, rank);
            stage.run()?;
        }
        builder.build()
    }

    /// The rank at a place.
    fn rank(&self, stage: u32, data: u32, tensor: u32) -> u32 {
        (stage * self.data + data) * self.tensor + tensor
    }

    fn groups(&self, builder: &mut Builder) -> Result<Groups, ScheduleError> {
        let mut groups = Groups::default();
        for stage in 0..self.pipeline {
            for data in 0..self.data {
                let ranks = (0..self.tensor).map(|tensor| self.rank(stage, data, tensor));
                groups.tensor.push(builder.group(ranks.collect())?);
            }
            for tensor in 0..self.tensor {
                let ranks = (0..self.data).map(|data| self.rank(stage, data, tensor));
                let ranks: Vec<u32> = ranks.collect();
                for part in ranks.chunks(self.expert as usize) {
                    groups.expert.push(builder.group(part.to_vec())?);
                }
                groups.data.push(builder.group(ranks)?);
            }
        }
        Ok(groups)
    }
}

#[derive(Default)]
struct Groups {
    /// By stage and place in the data group.
    tensor: Vec<u32>,
    /// By stage and place in the tensor group.
    data: Vec<u32>,
    /// By stage, place in the tensor group, and part of the data group.
    expert: Vec<u32>,
}

/// What one rank does.
struct Stage<'a> {
    step: &'a Parallel,
    builder: &'a mut Builder,
    rank: u32,
    stage: u32,
    data: u32,
    place: u32,
    tensor_group: u32,
    data_group: u32,
    expert_group: u32,
    /// Number of the next node.
    name: u64,
    /// The last node of the chain of passes.
    last: Option<u32>,
    /// Layers that the chain has visited: the first node of each, and its last one.
    visits: Vec<(u32, u32)>,
    /// With `Full`, the gathering of parameters for each visit.
    gathers: Vec<u32>,
    /// Sums of gradients for which the optimizer waits.
    sums: Vec<u32>,
}

impl<'a> Stage<'a> {
    fn new(step: &'a Parallel, builder: &'a mut Builder, groups: &Groups, rank: u32) -> Self {
        let (place, above) = (rank % step.tensor, rank / step.tensor);
        let (data, stage) = (above % step.data, above / step.data);
        let (at_stage, parts) = (stage * step.tensor + place, step.data / step.expert);
        Stage {
            step,
            builder,
            rank,
            stage,
            data,
            place,
            tensor_group: groups.tensor[(stage * step.data + data) as usize],
            data_group: groups.data[at_stage as usize],
            expert_group: groups.expert[(at_stage * parts + data / step.expert) as usize],
            name: 0,
            last: None,
            visits: Vec::new(),
            gathers: Vec::new(),
            sums: Vec::new(),
        }
    }

    fn layers(&self) -> u32 {
        self.step.layers / self.step.pipeline
    }

    fn run(&mut self) -> Result<(), ScheduleError> {
        let passes = self.step.microbatches;
        let warm_up = (self.step.pipeline - self.stage - 1).min(passes);
        for microbatch in 0..warm_up {
            self.forward(microbatch)?;
        }
        for microbatch in 0..passes - warm_up {
            self.forward(warm_up + microbatch)?;
            self.backward(microbatch)?;
        }
        for microbatch in passes - warm_up..passes {
            self.backward(microbatch)?;
        }
        self.optimizer()
    }

    fn forward(&mut self, microbatch: u32) -> Result<(), ScheduleError> {
        let tag = 2 * microbatch;
        if self.stage > 0 {
            self.receive(self.stage - 1, tag)?;
        }
        for _ in 0..self.layers() {
            self.visit(self.step.forward_ps)?;
        }
        if self.stage + 1 < self.step.pipeline {
            self.send(self.stage + 1, tag)?;
        }
        Ok(())
    }

    fn backward(&mut self, microbatch: u32) -> Result<(), ScheduleError> {
        let tag = 2 * microbatch + 1;
        if self.stage + 1 < self.step.pipeline {
            self.receive(self.stage + 1, tag)?;
        }
        let is_last = microbatch + 1 == self.step.microbatches;
        for _ in 0..self.layers() {
            self.visit(self.step.backward_ps)?;
            let kind = match self.step.sharding {
                Sharding::None if is_last => Collective::Allreduce,
                Sharding::Optimizer if is_last => Collective::ReduceScatter,
                Sharding::Full => Collective::ReduceScatter,
                _ => continue,
            };
            if self.step.data > 1 {
                let sum = self.collective(kind, self.data_group, self.step.parameter_bytes)?;
                self.wait_for_last(sum)?;
                self.sums.push(sum);
            }
        }
        if self.stage > 0 {
            self.send(self.stage - 1, tag)?;
        }
        Ok(())
    }

    fn optimizer(&mut self) -> Result<(), ScheduleError> {
        let step = self.compute(self.step.optimizer_ps)?;
        self.wait_for_last(step)?;
        for sum in std::mem::take(&mut self.sums) {
            self.builder.wait(self.rank, step, sum, false)?;
        }
        if self.step.sharding == Sharding::Optimizer && self.step.data > 1 {
            for _ in 0..self.layers() {
                let bytes = self.step.parameter_bytes;
                let gather = self.collective(Collective::AllGather, self.data_group, bytes)?;
                self.builder.wait(self.rank, gather, step, false)?;
            }
        }
        Ok(())
    }

    /// One pass through one layer.
    fn visit(&mut self, ps: u64) -> Result<(), ScheduleError> {
        let at = self.visits.len();
        if self.step.sharding == Sharding::Full && self.step.data > 1 {
            // Those that no earlier visit has begun.
            while self.gathers.len() <= at {
                self.gather()?;
            }
        }
        let first = self.compute(ps / 2)?;
        self.wait_for_last(first)?;
        if let Some(&gather) = self.gathers.get(at) {
            self.builder.wait(self.rank, first, gather, false)?;
        }
        self.last = Some(first);
        // Known before the layer is complete: what is gathered ahead waits for the start of this one.
        self.visits.push((first, first));
        let total = 2 * u64::from(self.step.microbatches) * u64::from(self.layers());
        let ahead = at + self.step.prefetch as usize;
        if self.step.sharding == Sharding::Full && self.step.data > 1 {
            while self.gathers.len() <= ahead && (self.gathers.len() as u64) < total {
                self.gather()?;
            }
        }
        self.in_tensor_group()?;
        self.exchange_tokens()?;
        let second = self.compute(ps - ps / 2)?;
        self.chain(second)?;
        self.exchange_tokens()?;
        self.in_tensor_group()?;
        self.visits[at].1 = self.last.unwrap_or(second);
        Ok(())
    }

    /// Gathers the parameters for the next visit that has none.
    fn gather(&mut self) -> Result<(), ScheduleError> {
        let at = self.gathers.len();
        let bytes = self.step.parameter_bytes;
        let gather = self.collective(Collective::AllGather, self.data_group, bytes)?;
        let ahead = self.step.prefetch as usize;
        match at.checked_sub(ahead.max(1)).and_then(|before| self.visits.get(before)) {
            Some(&(first, _)) if ahead > 0 => self.builder.wait(self.rank, gather, first, true)?,
            Some(&(_, last)) => self.builder.wait(self.rank, gather, last, false)?,
            None => {}
        }
        self.gathers.push(gather);
        Ok(())
    }

    fn in_tensor_group(&mut self) -> Result<(), ScheduleError> {
        if self.step.tensor > 1 {
            let bytes = self.step.activation_bytes;
            let sum = self.collective(Collective::Allreduce, self.tensor_group, bytes)?;
            self.chain(sum)?;
        }
        Ok(())
    }

    fn exchange_tokens(&mut self) -> Result<(), ScheduleError> {
        if self.step.expert > 1 {
            let bytes = self.step.token_bytes;
            let tokens = self.collective(Collective::AllToAll, self.expert_group, bytes)?;
            self.chain(tokens)?;
        }
        Ok(())
    }

    fn receive(&mut self, stage: u32, tag: u32) -> Result<(), ScheduleError> {
        let from = self.step.rank(stage, self.data, self.place);
        let bytes = self.step.activation_bytes;
        let node = self.add(Op::Recv { from, bytes, tag })?;
        self.chain(node)
    }

    /// Sends what the last node has computed; the next pass does not wait for it.
    fn send(&mut self, stage: u32, tag: u32) -> Result<(), ScheduleError> {
        let to = self.step.rank(stage, self.data, self.place);
        let bytes = self.step.activation_bytes;
        let node = self.add(Op::Send { to, bytes, tag })?;
        self.wait_for_last(node)
    }

    fn compute(&mut self, ps: u64) -> Result<u32, ScheduleError> {
        self.add(Op::Compute { ps, unit: 0 })
    }

    fn collective(
        &mut self,
        kind: Collective,
        group: u32,
        bytes: u64,
    ) -> Result<u32, ScheduleError> {
        self.add(Op::Collective { kind, group, bytes, number: 0 })
    }

    fn add(&mut self, op: Op) -> Result<u32, ScheduleError> {
        self.name += 1;
        self.builder.add(self.rank, self.name - 1, op)
    }

    /// Puts a node behind the last one of the chain of passes.
    fn chain(&mut self, node: u32) -> Result<(), ScheduleError> {
        self.wait_for_last(node)?;
        self.last = Some(node);
        Ok(())
    }

    fn wait_for_last(&mut self, node: u32) -> Result<(), ScheduleError> {
        match self.last {
            Some(last) => self.builder.wait(self.rank, node, last, false),
            None => Ok(()),
        }
    }
}
