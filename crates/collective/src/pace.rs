//! What messages between the ranks of a group cost: measured when the group is connected, as its operations will use
//! the links, all ranks at once.
//!
//! The cost model must see the same values at all ranks, so each tells its own and all take the slowest. What the
//! options give is not measured.

use std::time::Instant;

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;

use crate::algorithm::{CHUNK, pieces};
use crate::comm::{Comm, Ticket};
use crate::core::Core;
use crate::{Error, Options};

/// Latency and rate of a rank's messages; see [`crate::Link`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pace {
    pub(crate) latency_s: f64,
    pub(crate) bytes_per_s: f64,
}

impl Pace {
    /// What the options give, and usual values where they give none.
    pub(crate) fn given(options: &Options) -> Pace {
        Pace {
            latency_s: options.link_latency_s.unwrap_or(USUAL.latency_s),
            bytes_per_s: options.link_bytes_per_s.unwrap_or(USUAL.bytes_per_s),
        }
    }
}

/// Measures what `options` do not give; all ranks call it, and get the same. Errors name ranks that were not heard
/// from until `deadline`.
pub(crate) fn measure(core: &Core, options: &Options, deadline: Instant) -> Result<Pace, Error> {
    let given = Pace::given(options);
    if core.size == 1 || options.link_latency_s.is_some() && options.link_bytes_per_s.is_some() {
        return Ok(given);
    }
    let begun = Instant::now();
    let mut probe = Probe { comm: Comm::new(core, SEQUENCE, 0, deadline), part: 0 };
    let measured = probe.measure(options, given);
    measured.map_err(|error| {
        let missing = probe.comm.missing();
        probe.comm.end();
        core.explain(error, "measuring the links", begun.elapsed(), &missing)
    })
}

/// Messages that are no operation's.
struct Probe<'a> {
    comm: Comm<'a>,
    /// Number of the next message between any two ranks.
    part: u64,
}

impl Probe<'_> {
    fn measure(&mut self, options: &Options, given: Pace) -> Result<Pace, MeshError> {
        let measured = self.latency()?;
        let latency_s = options.link_latency_s.unwrap_or(measured);
        let bytes_per_s = match options.link_bytes_per_s {
            Some(_) => given.bytes_per_s,
            None => self.rate(measured)?,
        };
        Ok(Pace { latency_s, bytes_per_s })
    }

    /// Of a step in which everybody sends a few bytes to one rank and waits for those of another.
    fn latency(&mut self) -> Result<f64, MeshError> {
        // The first waits for the slowest rank to come here.
        self.worst(0.0)?;
        let few = self.steps(STEPS_FIRST)?;
        if few > SLOW_S { Ok(few) } else { self.steps(STEPS) }
    }

    /// The median of so many steps, each over another distance, at the slowest rank.
    fn steps(&mut self, count: u32) -> Result<f64, MeshError> {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let word = Buffer::from_vec(vec![0; WORD]);
        let answer = Buffer::from_vec(vec![0; WORD]);
        let mut times = Vec::new();
        for step in 0..count {
            let distance = 1 + step % (size - 1);
            let begun = Instant::now();
            let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
            let heard = self.comm.receive(from, self.part, &answer, 0, WORD);
            self.comm.send(to, self.part, &word, 0, WORD);
            self.comm.wait(heard)?;
            times.push(begun.elapsed().as_secs_f64());
            self.part += 1;
        }
        self.comm.flush()?;
        times.sort_by(f64::total_cmp);
        Ok(self.worst(times[times.len() / 2])?.clamp(LATENCY_LEAST_S, LATENCY_MOST_S))
    }

    /// Bytes per second that a rank sends while all send to all others: ever more, until that takes long enough to tell.
    fn rate(&mut self, latency_s: f64) -> Result<f64, MeshError> {
        let mut bytes = BYTES_FIRST;
        loop {
            let mut seconds = self.burst(bytes)?;
            if seconds >= LONG_ENOUGH_S || bytes >= BYTES_MOST {
                // In short bursts a thread that had to wait for a core counts for much.
                for _ in 0..if seconds < LONG_ENOUGH_S { AGAIN } else { 0 } {
                    seconds = seconds.min(self.burst(bytes)?);
                }
                // Longer messages are announced first, which takes a message each way.
                let transfer = (seconds - latency_s).max(seconds / 2.0);
                return Ok((bytes as f64 / transfer).clamp(RATE_LEAST, RATE_MOST));
            }
            bytes *= 4;
        }
    }

    /// Seconds in which `bytes` of every rank are at the others, at the slowest rank.
    fn burst(&mut self, bytes: usize) -> Result<f64, MeshError> {
        let others = self.comm.size() as usize - 1;
        let len = bytes.div_ceil(others);
        let ours = Buffer::from_vec(vec![0; len]);
        let theirs = Buffer::from_vec(vec![0; len * others]);
        let begun = Instant::now();
        let mut tickets: Vec<Ticket> = Vec::new();
        for (number, chunk) in (self.part..).zip(pieces(0..len, CHUNK)) {
            for (place, from) in self.comm.others().enumerate() {
                let at = place * len + chunk.start;
                tickets.push(self.comm.receive(from, number, &theirs, at, chunk.len()));
            }
            for to in self.comm.others() {
                self.comm.send(to, number, &ours, chunk.start, chunk.len());
            }
        }
        for ticket in tickets {
            self.comm.wait(ticket)?;
        }
        self.comm.flush()?;
        self.part += len.div_ceil(CHUNK) as u64;
        self.worst(begun.elapsed().as_secs_f64())
    }

    /// The greatest of everybody's values.
    fn worst(&mut self, own: f64) -> Result<f64, MeshError> {
        let word = Buffer::from_vec(own.to_le_bytes().to_vec());
        let mut heard = Vec::new();
        for from in self.comm.others() {
            let answer = Buffer::from_vec(vec![0; WORD]);
            let ticket = self.comm.receive(from, self.part, &answer, 0, WORD);
            heard.push((ticket, answer));
        }
        for to in self.comm.others() {
            self.comm.send(to, self.part, &word, 0, WORD);
        }
        self.part += 1;
        let mut worst = own;
        for (ticket, answer) in heard {
            self.comm.wait(ticket)?;
            let mut bytes = [0; WORD];
            answer.read(0, &mut bytes);
            // What is not a number counts for nothing.
            worst = worst.max(f64::from_le_bytes(bytes));
        }
        self.comm.flush()?;
        Ok(worst)
    }
}

/// Of links that nobody has measured: a switch away, 10 Gbit/s.
pub(crate) const USUAL: Pace = Pace { latency_s: 30e-6, bytes_per_s: 1.25e9 };

/// No operation comes so far.
const SEQUENCE: u64 = u64::MAX;
const WORD: usize = 8;
const STEPS_FIRST: u32 = 4;
const STEPS: u32 = 16;
/// With a latency of so much, a few steps tell enough, and many take long.
const SLOW_S: f64 = 2e-3;
const BYTES_FIRST: usize = 64 << 10;
/// About a millisecond at 40 Gbit/s.
const BYTES_MOST: usize = 4 << 20;
const AGAIN: u32 = 2;
/// Long beside what threads and system calls take, and beside the burst that a shaped link lets pass at once.
const LONG_ENOUGH_S: f64 = 15e-3;
/// What ranks tell is bounded: nobody makes costs that overflow.
const LATENCY_LEAST_S: f64 = 1e-7;
const LATENCY_MOST_S: f64 = 100.0;
const RATE_LEAST: f64 = 1.0;
const RATE_MOST: f64 = 1e13;
