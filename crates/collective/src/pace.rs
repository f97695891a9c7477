//! Measurement of message costs when a group connects, under load from all ranks at once, as in operation.
//!
//! The cost model needs the same values at all ranks, so each rank sends its own values and all take the slowest.
//! Values that options give are not measured.

use std::time::Instant;

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;

use crate::comm::{Comm, Ticket};
use crate::core::Core;
use crate::hosts::Hosts;
use crate::link_cost::{Pace, Paces};
use crate::pieces::{CHUNK, pieces};
use crate::{Error, Options};

/// Measures the values that `options` do not give; all ranks call it, and get the same result. Errors name the ranks
/// that were not heard from before `deadline`.
pub(crate) fn measure(
    core: &Core,
    options: &Options,
    hosts: &Hosts,
    deadline: Instant,
) -> Result<Paces, Error> {
    let (latency_s, bytes_per_s) = (options.link_latency_s, options.link_bytes_per_s);
    if let Some((latency_s, bytes_per_s)) = latency_s.zip(bytes_per_s) {
        let given = Pace { latency_s, bytes_per_s };
        return Ok(Paces { all: given, by_distance: Vec::new(), across: given });
    }
    if core.size == 1 {
        return Ok(Paces::default());
    }
    let all_ranks: Vec<u32> = (0..core.size).collect();
    let (_, place) = hosts.place(core.rank);
    let lanes = hosts.all().iter().filter(|_| place < hosts.lanes()).map(|ranks| ranks[place]);
    let lanes: Vec<u32> = lanes.collect();
    with_probe(core, SEQUENCE, deadline, |probe| {
        let mut all = probe.pace(&all_ranks, options)?;
        if hosts.are_mixed() {
            let across = probe.pace(&lanes, options)?;
            return Ok(Paces { all, by_distance: Vec::new(), across });
        }
        let measures = options.link_bytes_per_s.is_none();
        let by_distance = if measures { probe.by_distance(&mut all)? } else { Vec::new() };
        Ok(Paces { all, by_distance, across: all })
    })
}

/// Exchanges of values among all ranks before the first operation.
pub(crate) struct Agreement<'a> {
    core: &'a Core,
    deadline: Instant,
    done: u64,
}

impl Agreement<'_> {
    pub(crate) fn new(core: &Core, deadline: Instant) -> Agreement<'_> {
        Agreement { core, deadline, done: 0 }
    }

    /// Replaces each value by the largest of all ranks'. All ranks call it with as many values. Errors as [`measure`].
    pub(crate) fn slowest(&mut self, values: &mut [f64]) -> Result<(), Error> {
        // Each exchange has a number of its own, among those that no operation has.
        self.done += 1;
        with_probe(self.core, SEQUENCE - 1 - self.done, self.deadline, |probe| {
            probe.worst_of(values)
        })
    }
}

/// Whether `yes` is true at all ranks; the same result at all of them.
pub(crate) fn all_agree(core: &Core, yes: bool, deadline: Instant) -> Result<bool, Error> {
    with_probe(core, SEQUENCE - 1, deadline, |probe| {
        Ok(probe.worst(if yes { 0.0 } else { 1.0 })? == 0.0)
    })
}

fn with_probe<T>(
    core: &Core,
    sequence: u64,
    deadline: Instant,
    body: impl FnOnce(&mut Probe<'_>) -> Result<T, MeshError>,
) -> Result<T, Error> {
    let begun = Instant::now();
    let mut probe = Probe { comm: Comm::new(core, sequence, 0, deadline), part: 0 };
    let outcome = body(&mut probe);
    outcome.map_err(|error| {
        let missing = probe.comm.missing();
        probe.comm.end();
        core.explain(error, "measuring the links", begun.elapsed(), &missing)
    })
}

/// Messages outside of operations.
struct Probe<'a> {
    comm: Comm<'a>,
    /// Number of the next message between any two ranks.
    part: u64,
}

impl Probe<'_> {
    /// Measures messages within `circle`, which contains this rank or is empty; other circles are measured at the same
    /// time, and the slowest determines the result for all.
    fn pace(&mut self, circle: &[u32], options: &Options) -> Result<Pace, MeshError> {
        // Waits for the slowest rank.
        self.worst(0.0)?;
        let few = self.steps(circle, STEPS_FIRST)?;
        // Threads that had to wait for a core make the first few slow, too.
        let again = self.steps(circle, if few > SLOW_S { STEPS_FIRST } else { STEPS })?;
        let latency_s = few.min(again);
        let bytes_per_s = match options.link_bytes_per_s {
            Some(given) => given,
            None => {
                let is_other = |other: &u32| circle.contains(other);
                let others: Vec<u32> = self.comm.others().filter(is_other).collect();
                self.rate(&others, latency_s)?
            }
        };
        Ok(Pace { latency_s: options.link_latency_s.unwrap_or(latency_s), bytes_per_s })
    }

    /// Median time of `count` steps in which every rank sends a few bytes to one rank and waits for those of another,
    /// over a different distance in each step.
    fn steps(&mut self, circle: &[u32], count: u32) -> Result<f64, MeshError> {
        let own = circle.iter().position(|&rank| rank == self.comm.rank());
        let word = Buffer::from_vec(vec![0; WORD]);
        let mut answer = Buffer::from_vec(vec![0; WORD]);
        let mut times = Vec::new();
        for step in 0..count as usize {
            let Some(own) = own.filter(|_| circle.len() > 1) else { continue };
            let distance = 1 + step % (circle.len() - 1);
            let begun = Instant::now();
            let to = circle[(own + distance) % circle.len()];
            let from = circle[(own + circle.len() - distance) % circle.len()];
            let number = self.part + step as u64;
            let ticket = self.comm.receive(from, number, &mut answer, 0, WORD);
            self.comm.send(to, number, &word, 0, WORD);
            self.comm.wait(ticket)?;
            times.push(begun.elapsed().as_secs_f64());
        }
        self.part += u64::from(count);
        self.comm.flush()?;
        let median = lower_median(times).unwrap_or(0.0);
        Ok(self.worst(median)?.clamp(LATENCY_LEAST_S, LATENCY_MOST_S))
    }

    /// Rates as in [`crate::LinkCost`]. `all`: the pace of all with all, which is measured more exactly if it is to be
    /// compared.
    fn by_distance(&mut self, all: &mut Pace) -> Result<Vec<f64>, MeshError> {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let mut rates = Vec::new();
        if size < 4 || !size.is_power_of_two() {
            return Ok(rates);
        }
        // All ranks have the same rates, so that they go on alike.
        let bytes = ((SUSTAINED_S * all.bytes_per_s) as usize).clamp(BYTES_FIRST, SUSTAINED_MOST);
        let others: Vec<u32> = self.comm.others().collect();
        let sustained = self.sustained(&others, bytes, all.latency_s)?;
        all.bytes_per_s = all.bytes_per_s.max(sustained);
        for bit in 0..size.ilog2() {
            rates.push(self.sustained(&[rank ^ 1 << bit], bytes, all.latency_s)?);
            if rates[0] < SHARED * all.bytes_per_s {
                return Ok(Vec::new());
            }
        }
        Ok(rates)
    }

    /// Bytes per second of a rank while all send `bytes` to their `others`, the better of two times.
    fn sustained(
        &mut self,
        others: &[u32],
        bytes: usize,
        latency_s: f64,
    ) -> Result<f64, MeshError> {
        let seconds = self.burst(others, bytes)?.min(self.burst(others, bytes)?);
        Ok(per_second(bytes, seconds, latency_s))
    }

    /// Bytes per second of a rank while all send to their `others`: the size grows until the time can be measured.
    fn rate(&mut self, others: &[u32], latency_s: f64) -> Result<f64, MeshError> {
        let mut bytes = BYTES_FIRST;
        loop {
            let mut seconds = self.burst(others, bytes)?;
            if seconds >= LONG_ENOUGH_S || bytes >= BYTES_MOST {
                // In short bursts, a thread that had to wait for a core distorts the result.
                for _ in 0..if seconds < LONG_ENOUGH_S { AGAIN } else { 0 } {
                    seconds = seconds.min(self.burst(others, bytes)?);
                }
                return Ok(per_second(bytes, seconds, latency_s));
            }
            bytes *= 4;
        }
    }

    /// Seconds until `bytes` of every rank have arrived at its `others`, at the slowest rank.
    fn burst(&mut self, others: &[u32], bytes: usize) -> Result<f64, MeshError> {
        let len = bytes.div_ceil(others.len().max(1));
        let ours = Buffer::from_vec(vec![0; len]);
        let mut theirs = Buffer::from_vec(vec![0; len * others.len()]);
        let begun = Instant::now();
        let mut tickets: Vec<Ticket> = Vec::new();
        for (number, chunk) in (self.part..).zip(pieces(0..len, CHUNK)) {
            for (place, &from) in others.iter().enumerate() {
                let at = place * len + chunk.start;
                tickets.push(self.comm.receive(from, number, &mut theirs, at, chunk.len()));
                self.comm.send(from, number, &ours, chunk.start, chunk.len());
            }
        }
        for ticket in tickets {
            self.comm.wait(ticket)?;
        }
        self.comm.flush()?;
        // Circles have different numbers of messages; this is the maximum.
        self.part += bytes.div_ceil(CHUNK) as u64;
        let seconds = if others.is_empty() { 0.0 } else { begun.elapsed().as_secs_f64() };
        self.worst(seconds)
    }

    /// The maximum of all ranks' values.
    fn worst(&mut self, own: f64) -> Result<f64, MeshError> {
        let mut value = [own];
        self.worst_of(&mut value)?;
        Ok(value[0])
    }

    /// The maximum of each of all ranks' values, in place.
    fn worst_of(&mut self, values: &mut [f64]) -> Result<(), MeshError> {
        let own: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let len = own.len();
        let own = Buffer::from_vec(own);
        let mut received = Vec::new();
        for from in self.comm.others() {
            let mut answer = Buffer::from_vec(vec![0; len]);
            let ticket = self.comm.receive(from, self.part, &mut answer, 0, len);
            received.push((ticket, answer));
        }
        for to in self.comm.others() {
            self.comm.send(to, self.part, &own, 0, len);
        }
        self.part += 1;
        for (ticket, answer) in received {
            self.comm.wait(ticket)?;
            for (place, worst) in values.iter_mut().enumerate() {
                let mut bytes = [0; WORD];
                answer.read(place * WORD, &mut bytes);
                // NaN is ignored.
                *worst = worst.max(f64::from_le_bytes(bytes));
            }
        }
        self.comm.flush()
    }
}

/// Longer messages are announced first, which takes a message in each direction.
fn per_second(bytes: usize, seconds: f64, latency_s: f64) -> f64 {
    let transfer = (seconds - latency_s).max(seconds / 2.0);
    (bytes as f64 / transfer).clamp(RATE_LEAST, RATE_MOST)
}

/// The median, of an even number of times the lower one: whatever disturbs a step makes it longer.
pub(crate) fn lower_median(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len().saturating_sub(1) / 2).copied()
}

/// Beyond the number of any operation.
const SEQUENCE: u64 = u64::MAX;
pub(crate) const WORD: usize = 8;
const STEPS_FIRST: u32 = 4;
const STEPS: u32 = 16;
/// With such a latency a few steps are accurate enough, and many take long.
pub(crate) const SLOW_S: f64 = 2e-3;
const BYTES_FIRST: usize = 64 << 10;
/// About a millisecond at 40 Gbit/s.
const BYTES_MOST: usize = 4 << 20;
const AGAIN: u32 = 2;
/// Rates that are compared are of messages that take about this long, if all send to all; at most so many bytes.
const SUSTAINED_S: f64 = 50e-3;
const SUSTAINED_MOST: usize = 16 << 20;
/// How many times as fast neighbours exchange as all with all, at least, where links are shared.
const SHARED: f64 = 1.1;
/// Long compared with threads and system calls, and with the burst that a traffic shaper lets pass.
const LONG_ENOUGH_S: f64 = 15e-3;
/// Bounds on other ranks' values, so that costs cannot overflow.
pub(crate) const LATENCY_LEAST_S: f64 = 1e-7;
const LATENCY_MOST_S: f64 = 100.0;
const RATE_LEAST: f64 = 1.0;
const RATE_MOST: f64 = 1e13;
