//! Whether switches or hosts do an operation: by a threshold that somebody has set, or by measured costs.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Instant;

use netsum_net::Buffer;
use netsum_wire::{Dtype, ReduceOp};

use super::connected::{Connected, Issued};
use super::context::Context;
use crate::call::{Call, Elements};
use crate::combine::Combine;
use crate::coordinator::{JobState, TreeJob};
use crate::explain::Choice;
use crate::pace::Agreement;
use crate::switch_cost::{HostShape, Operation, SwitchCost};
use crate::task::Task;
use crate::terms::Here;
use crate::trial::{self, Outcome, Trial, Way};
use crate::work::{OperationSummary, Work};
use crate::{Cost, Error, address};

/// The name of the trees among algorithms.
const SWITCHES: &str = "switches";

impl Connected {
    /// Whether a collective goes through the coordinator's queue; the same at all ranks, whatever plan they have at the
    /// moment.
    pub(super) fn is_for_switches(&self, task: &Task) -> bool {
        let bytes = task.bytes();
        let barrier = matches!(task, Task::Barrier);
        let supported = match task {
            Task::Allreduce { .. } | Task::AllreduceTogether { .. } => true,
            _ => self.all_collectives && task.is_whole(),
        };
        if !supported || !task.format().in_network() || bytes == 0 && !barrier {
            return false;
        }
        let Some(&least) = self.core.min_bytes.get() else { return false };
        match &self.switch_cost {
            None => barrier || bytes as u64 >= least,
            Some(cost) => cost.0.get(&task.operation()).is_some_and(|measured| {
                let hosts_s = measured.hosts.seconds(bytes) * self.beside_measured(task);
                measured.switches.seconds(bytes) < hosts_s
            }),
        }
    }

    /// How many times longer the hosts need for this operation than for one as it was measured, of as many bytes: other
    /// types may be added in another order, and parts of different sizes take as long as the longest.
    fn beside_measured(&self, task: &Task) -> f64 {
        let shape = task.host_shape();
        let measured = HostShape::measured(shape.operation, self.core.size, shape.bytes);
        if shape == measured { 1.0 } else { self.modelled_s(shape) / self.modelled_s(measured) }
    }

    fn modelled_s(&self, shape: HostShape) -> f64 {
        let order = self.core.order.load_full();
        let named = |operation: &str| self.core.algorithms.get(operation).map(String::as_str);
        shape.seconds(&self.link(), order, named)
    }

    /// Adds the switches to the hosts' algorithms for an operation of `bytes` per rank, and what was measured to the
    /// modelled costs of hosts.
    pub(super) fn with_switches(&self, operation: &str, bytes: usize, mut hosts: Choice) -> Choice {
        let Some(cost) = &self.switch_cost else { return hosts };
        let measured = Operation::named(operation)
            .and_then(|operation| Some((operation, cost.0.get(&operation)?)));
        let Some((operation, measured)) = measured else {
            hosts.costs.push(Cost { name: SWITCHES, seconds: None });
            return hosts;
        };
        let bytes = match operation {
            Operation::Allgather => bytes.saturating_mul(self.core.size as usize),
            _ => bytes,
        };
        let shape = HostShape::measured(operation, self.core.size, bytes);
        let correction = measured.hosts.seconds(bytes) / self.modelled_s(shape);
        for seconds in hosts.costs.iter_mut().filter_map(|cost| cost.seconds.as_mut()) {
            *seconds *= correction;
        }
        let chosen = hosts.costs.iter().find(|cost| cost.name == hosts.chosen);
        let hosts_s = chosen.and_then(|cost| cost.seconds).unwrap_or(f64::INFINITY);
        let seconds = measured.switches.seconds(bytes);
        if seconds < hosts_s {
            (hosts.chosen, hosts.why) = (SWITCHES, "the least cost");
        }
        hosts.costs.push(Cost { name: SWITCHES, seconds: Some(seconds) });
        hosts
    }

    /// Measures what operations through switches cost, beside the hosts, unless somebody has set a threshold; all ranks
    /// call it. `None` where switches have not done all that they were given.
    pub(super) fn measure_switches(
        &self,
        context: &Context<'_>,
    ) -> Result<Option<SwitchCost>, Error> {
        let trees = self.status.lock().trees;
        let options = &context.config.options;
        // Hosts of one machine share its cores and have its memory for links: whoever starts switches there wants to see
        // them work, whatever they cost.
        let apart = options.always_measured || !address::are_on_one_machine(context.all);
        // Whoever gives the costs of links wants no bytes sent to measure them.
        let given = options.link_latency_s.and(options.link_bytes_per_s).is_some();
        // The same at all ranks.
        if given || options.min_bytes.is_some() || self.core.size < 2 || !apart {
            return Ok(None);
        }
        let counters = &self.core.counters;
        let done = counters.network_operations.load(Ordering::Relaxed);
        let count = Cell::new(0);
        let run = |trial: Trial| {
            count.set(count.get() + u64::from(trial.way == Way::Switches));
            let (call, task) = self.example(trial);
            let bytes = task.bytes();
            // A rank that is done sooner than others, as the root of a broadcast, waits for them.
            self.time(Call::barrier(), Task::Barrier, Way::Hosts, context.until)?;
            let seconds = self.time(call, task, trial.way, context.until)?;
            Ok(Outcome { bytes, seconds })
        };
        let in_network =
            || counters.network_operations.load(Ordering::Relaxed) == done + count.get();
        let operations = if self.all_collectives { &Operation::ALL[..] } else { &ALWAYS[..] };
        let mut agreement = Agreement::new(&self.core, context.until);
        let slowest = |values: &mut [f64]| agreement.slowest(values);
        let cost = trial::compare(slowest, trees, operations, run, in_network)?;
        // What a user counts begins now.
        counters.network_operations.store(0, Ordering::Relaxed);
        counters.operations.store(0, Ordering::Relaxed);
        Ok(cost)
    }

    /// The operation to time. Its memory has been written to: pages that the kernel has yet to provide would count.
    fn example(&self, trial: Trial) -> (Call, Task) {
        let Trial { operation, bytes, .. } = trial;
        let (ranks, root) = (self.core.size as usize, 0);
        let (dtype, how) = (Dtype::F32, Combine::Plain(ReduceOp::Sum));
        let of = |bytes: usize| Buffer::from_vec(vec![FILL; bytes]);
        let numel = (bytes / dtype.size()) as u64;
        let elements = Elements::default();
        // At least an element for each rank.
        let part = (numel as usize / ranks).max(1) * dtype.size();
        let parts = || (0..ranks).map(|_| of(part)).collect::<Vec<Buffer>>();
        match operation {
            Operation::Allreduce => (
                Call::Allreduce { dtype, numel, how },
                Task::Allreduce { dtype, how, buffer: of(bytes) },
            ),
            Operation::Reduce => (
                Call::Reduce { dtype, numel, how, root },
                Task::Reduce { dtype, how, buffer: of(bytes), root },
            ),
            Operation::ReduceScatter => {
                let counts = vec![(part / dtype.size()) as u64; ranks].into();
                let (output, inputs) = (Some(of(part)), parts());
                (
                    Call::ReduceScatter { dtype, counts, how },
                    Task::ReduceScatter { dtype, how, output, inputs },
                )
            }
            Operation::Broadcast => (
                Call::Broadcast { bytes: bytes as u64, root, elements },
                Task::Broadcast { buffer: of(bytes), root },
            ),
            Operation::Allgather => {
                let sizes = vec![part as u64; ranks].into();
                let (input, outputs) = (of(part), parts());
                (Call::Allgather { sizes, elements }, Task::Allgather { input, outputs })
            }
            Operation::Barrier => (Call::barrier(), Task::Barrier),
        }
    }

    /// Seconds of an operation that the user has not called.
    fn time(&self, call: Call, mut task: Task, way: Way, until: Instant) -> Result<f64, Error> {
        let called = Instant::now();
        let fingerprint = call.fingerprint();
        let mut turn = self.queue.lock();
        let sequence = turn.number();
        if self.core.ledger.enter(sequence, call.clone(), fingerprint) {
            self.core.events.differs(sequence);
        }
        let work = Work::new(OperationSummary::Collective(call, sequence), called);
        let here = Some(Here { interrupted: || false });
        let issued =
            Issued { sequence, fingerprint, deadline: until, work: work.clone(), here, turn };
        match way {
            Way::Switches => self.give_to_switches(issued, task),
            Way::Hosts => {
                let order = self.core.order.load_full();
                self.on_host(issued, move |comm| {
                    task.prepare(comm.rank());
                    task.run(comm, order)
                });
            }
        }
        work.wait(None)?;
        Ok(called.elapsed().as_secs_f64())
    }

    /// Gives an operation to the coordinator, which has it done by switches if there are any at the moment.
    pub(super) fn give_to_switches(&self, issued: Issued<'_>, task: Task) {
        let Issued { sequence, fingerprint, deadline, work, turn, here } = issued;
        let (state, waits) = (JobState::Waiting, work.clone());
        let job = TreeJob { sequence, fingerprint, task, deadline, work, state };
        let given = self.coordinator.submit(job, here.is_some());
        drop(turn);
        if let (true, Some(here), Some(driver)) = (given, here, &self.driver) {
            driver.help(|| waits.is_done(), here.interrupted);
        }
    }
}

/// What switches do of every job.
const ALWAYS: [Operation; 1] = [Operation::Allreduce];
/// Every byte of the measured buffers: 0.75 as float32.
const FILL: u8 = 0x3f;
