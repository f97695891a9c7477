//! Whether switches or hosts do an operation: by a threshold that somebody has set, or by measured costs.

use std::sync::atomic::Ordering;
use std::time::Instant;

use netsum_net::Buffer;
use netsum_wire::{Dtype, ReduceOp};

use super::connected::{Connected, Issued};
use super::context::Context;
use crate::call::Call;
use crate::combine::Combine;
use crate::coordinator::{JobState, TreeJob};
use crate::explain::Choice;
use crate::link_cost::SwitchCost;
use crate::pace::{self, Timed, WORD};
use crate::task::Task;
use crate::terms::Here;
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
            Some(cost) => {
                let order = self.core.order.load_full();
                let hosts_s = task.host_seconds(&self.link(), order, |operation| {
                    self.core.algorithms.get(operation).map(String::as_str)
                });
                let switches_s = match barrier {
                    true => cost.barrier_s.unwrap_or(f64::INFINITY),
                    false => cost.seconds(task.link_bytes()),
                };
                switches_s < hosts_s + cost.hosts_extra_s
            }
        }
    }

    /// Adds the switches to the hosts' algorithms for an operation of `bytes` per rank.
    pub(super) fn with_switches(&self, operation: &str, bytes: usize, mut hosts: Choice) -> Choice {
        let Some(cost) = &self.switch_cost else { return hosts };
        let others = self.core.size.saturating_sub(1) as usize;
        let seconds = match operation {
            "allreduce" => Some(cost.seconds(bytes)),
            "barrier" => cost.barrier_s,
            "reduce" | "reduce_scatter" | "broadcast" if self.all_collectives => {
                Some(cost.seconds(bytes))
            }
            "allgather" if self.all_collectives => Some(cost.seconds(bytes.saturating_mul(others))),
            _ => None,
        };
        for seconds in hosts.costs.iter_mut().filter_map(|cost| cost.seconds.as_mut()) {
            *seconds += cost.hosts_extra_s;
        }
        let chosen = hosts.costs.iter().find(|cost| cost.name == hosts.chosen);
        let hosts_s = chosen.and_then(|cost| cost.seconds).unwrap_or(f64::INFINITY);
        if seconds.is_some_and(|seconds| seconds < hosts_s) {
            (hosts.chosen, hosts.why) = (SWITCHES, "the least cost");
        }
        hosts.costs.push(Cost { name: SWITCHES, seconds });
        hosts
    }

    /// Measures what operations through switches cost, unless somebody has set a threshold; all ranks call it. `None`
    /// where switches have not done them all.
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
        let count = std::cell::Cell::new(0);
        let run = |timed: Timed| {
            count.set(count.get() + u64::from(!matches!(timed, Timed::Hosts(_))));
            self.time(timed, context.until)
        };
        let order = self.core.order.load_full();
        let hosts_s = small_sum(WORD).host_seconds(&self.link(), order, |operation| {
            self.core.algorithms.get(operation).map(String::as_str)
        });
        let in_network =
            || counters.network_operations.load(Ordering::Relaxed) == done + count.get();
        let (core, what) = (&self.core, (trees, self.all_collectives));
        let cost = pace::measure_switches(core, context.until, what, run, hosts_s, in_network)?;
        // What a user counts begins now.
        counters.network_operations.store(0, Ordering::Relaxed);
        counters.operations.store(0, Ordering::Relaxed);
        Ok(cost)
    }

    /// Seconds of an operation that the user has not called.
    fn time(&self, timed: Timed, until: Instant) -> Result<f64, Error> {
        let (call, mut task) = match timed {
            Timed::Barrier => (Call::barrier(), Task::Barrier),
            Timed::Switches(bytes) | Timed::Hosts(bytes) => {
                let (dtype, how) = MEASURED;
                let numel = (bytes / dtype.size()) as u64;
                (Call::Allreduce { dtype, numel, how }, small_sum(bytes))
            }
        };
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
        if let Timed::Hosts(_) = timed {
            let order = self.core.order.load_full();
            self.on_host(issued, move |comm| task.run(comm, order));
        } else {
            self.give_to_switches(issued, task);
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

/// A sum of zeros.
fn small_sum(bytes: usize) -> Task {
    let (dtype, how) = MEASURED;
    Task::Allreduce { dtype, how, buffer: Buffer::from_vec(vec![0; bytes]) }
}

/// The measured sums.
const MEASURED: (Dtype, Combine) = (Dtype::F32, Combine::Plain(ReduceOp::Sum));
