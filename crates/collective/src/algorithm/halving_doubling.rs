//! Allreduce by recursive halving and doubling: ⌈log₂ N⌉ exchanges up, as many down, in the balanced order over ranks.
//!
//! In step d (1, 2, 4 …) ranks that differ in bit d exchange halves of what they hold, so that after it each holds the sum
//! of an aligned group of 2d ranks for its part: left half ∘ right half, which is the order of `netsum_wire::reduce`. The
//! sums go back in the opposite order of steps. Where the number of ranks is no power of two, the places that are
//! missing are played by the rank that is nearest below among the same group; they contribute nothing.
//! Source: Rabenseifner, Optimization of Collective Reduction Operations (ICCS 2004). Differs: distances grow, for the
//! order; a large buffer goes in chunks, one step behind each other, so that links between racks, which only the last
//! distances use, are in use as long as those of the hosts.

use std::ops::Range;

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;
use netsum_wire::{Encoding, Format, Input, reduce};

use super::{Algorithm, Allreduce, SumShape};
use crate::comm::{Comm, Ticket};
use crate::link_cost::LinkCost;
use crate::pieces::{CHUNK, share};

pub(super) const ALGORITHM: Algorithm<Allreduce> =
    Algorithm { name: "halving-doubling", cost, run };

/// More would shorten the way of the first and the last one by little.
const CHUNKS_MOST: usize = 64;

/// Number of chunks of a buffer.
fn chunks(bytes: usize) -> usize {
    (bytes / CHUNK).clamp(1, CHUNKS_MOST)
}

/// All ranks send at once; a rank that plays others' places sends and receives for them.
fn cost(link: &LinkCost, sum: &SumShape) -> Option<f64> {
    if !sum.order.is_balanced(link.ranks) {
        return None;
    }
    let steps = link.ranks.next_power_of_two().ilog2();
    // Partials of 16-bit floats travel as float32.
    let up = sum.format.dtype.accumulator_size() as f64 / sum.format.dtype.size() as f64;
    let plays = if link.ranks.is_power_of_two() { 1.0 } else { 2.0 };
    let chunks = chunks(sum.bytes) as f64;
    let chunk = plays * (1.0 + up) * sum.bytes as f64 / chunks;
    let rate = |bit: u32| *link.by_distance.get(bit as usize).unwrap_or(&link.bytes_per_s);
    // Both exchanges of a chunk at a distance, over the links between, and over the rank's own.
    let part = |bit: u32| chunk / f64::from(2u32 << bit);
    let between = || (0..steps).map(|bit| part(bit) / rate(bit));
    let own: f64 = (0..steps).map(|bit| part(bit) / rate(0)).sum();
    let next = between().fold(own.max(link.latency_s), f64::max);
    Some(2.0 * f64::from(steps) * link.latency_s + between().sum::<f64>() + (chunks - 1.0) * next)
}

fn run(comm: &mut Comm<'_>, sum: &mut Allreduce) -> Result<(), MeshError> {
    let Allreduce { format, buffer, .. } = sum;
    let element = format.dtype.size();
    let count = chunks(buffer.len());
    let steps = comm.size().next_power_of_two().ilog2() as usize;
    let of = |index: usize| {
        let bytes = share(buffer.len(), element, index as u32, count as u32);
        let all = bytes.start / element..bytes.end / element;
        Chunk { index, all, held: Vec::new(), begun: None }
    };
    let mut all: Vec<Chunk> = (0..count).map(of).collect();
    // In each turn every chunk that is under way ends a step and begins the next one, and another chunk begins: its
    // messages travel while the others wait for theirs.
    for turn in 0..count + 2 * steps {
        let first = turn.saturating_sub(2 * steps);
        for chunk in &mut all[first..count.min(turn + 1)] {
            if let Some(step) = chunk.begun.take() {
                chunk.end(comm, step, steps, *format, buffer)?;
            }
            let next = turn - chunk.index;
            if next < 2 * steps {
                chunk.begun = Some(chunk.begin(comm, next, steps, *format, buffer));
            }
        }
    }
    comm.finish()
}

/// A part of the buffer.
struct Chunk {
    index: usize,
    /// Its elements.
    all: Range<usize>,
    held: Vec<Position>,
    /// The step that has begun and not ended.
    begun: Option<Step>,
}

/// One of the places that this rank plays.
struct Position {
    place: u32,
    /// Elements that it holds.
    part: Range<usize>,
    /// On the way up, their sum over the group so far, as accumulators; `None` where the group has no rank.
    partial: Option<Vec<u8>>,
}

/// A step under way.
enum Step {
    /// Of each position, the part that it keeps, and what its partner gives it for that.
    Up(u32, Vec<(Range<usize>, Given)>),
    /// Of each position, its part after the step, and the receive of what it lacked.
    Down(Vec<(Range<usize>, Option<Ticket>)>),
}

/// What a position gets for the part that it keeps.
enum Given {
    Nothing,
    Here(Vec<u8>),
    Message(Buffer, Ticket),
}

impl Chunk {
    /// Begins step `number`: first `steps` up, then as many down.
    fn begin(
        &mut self,
        comm: &mut Comm<'_>,
        number: usize,
        steps: usize,
        format: Format,
        buffer: &mut Buffer,
    ) -> Step {
        let (rank, size) = (comm.rank(), comm.size());
        if number == 0 {
            let element = format.dtype.size();
            let own = &buffer.slice(self.all.start * element..self.all.end * element);
            let places = (0..size.next_power_of_two()).filter(|&place| player(place, size) == rank);
            let held = places.map(|place| Position {
                place,
                part: self.all.clone(),
                partial: (place == rank).then(|| widened(own, format)),
            });
            self.held = held.collect();
        }
        match number < steps {
            true => self.begin_up(comm, number as u32, format),
            false => self.begin_down(comm, (2 * steps - 1 - number) as u32, format, buffer),
        }
    }

    /// Ends a step: its messages have arrived, and sums are up to date.
    fn end(
        &mut self,
        comm: &mut Comm<'_>,
        step: Step,
        steps: usize,
        format: Format,
        buffer: &mut Buffer,
    ) -> Result<(), MeshError> {
        match step {
            Step::Up(bit, given) => {
                for (one, (kept, theirs)) in self.held.iter_mut().zip(given) {
                    one.add(comm, bit, kept, theirs, format)?;
                }
                if bit as usize == steps - 1 {
                    self.write_sums(format, buffer);
                }
            }
            Step::Down(parts) => {
                for (one, (part, ticket)) in self.held.iter_mut().zip(parts) {
                    ticket.map_or(Ok(()), |ticket| comm.wait(ticket))?;
                    one.part = part;
                }
            }
        }
        Ok(())
    }

    /// Places exchange halves of their parts.
    fn begin_up(&mut self, comm: &mut Comm<'_>, bit: u32, format: Format) -> Step {
        let (size, rank, width) = (comm.size(), comm.rank(), format.dtype.accumulator_size());
        let distance = 1 << bit;
        let keeps = |place: u32, part: &Range<usize>| half(part, place & distance != 0);
        // What each of our places gives to its partner: to another rank, or to ourselves.
        let mut given: Vec<Option<Vec<u8>>> = Vec::new();
        for Position { place, part, partial } in &self.held {
            let theirs = within(&keeps(place ^ distance, part), part, width);
            let bytes = partial.as_ref().map(|partial| partial[theirs].to_vec());
            let to = player(place ^ distance, size);
            given.push(if to == rank {
                bytes
            } else {
                let bytes = bytes.map(Buffer::from_vec);
                bytes.iter().for_each(|bytes| {
                    comm.send(to, self.number(bit, *place, true), bytes, 0, bytes.len());
                });
                None
            });
        }
        let mut taken = Vec::new();
        for Position { place, part, .. } in &self.held {
            let partner = place ^ distance;
            let kept = keeps(*place, part);
            let theirs = match player(partner, size) {
                from if from == rank => {
                    let at = self.held.iter().position(|other| other.place == partner);
                    let here = at.and_then(|at| given[at].take());
                    here.map_or(Given::Nothing, Given::Here)
                }
                // The group of the partner begins at its place without the bits below this step's.
                from if partner & !(distance - 1) < size => {
                    let mut bytes = Buffer::from_vec(vec![0; kept.len() * width]);
                    let (number, len) = (self.number(bit, partner, true), bytes.len());
                    let ticket = comm.receive(from, number, &mut bytes, 0, len);
                    Given::Message(bytes, ticket)
                }
                _ => Given::Nothing,
            };
            taken.push((kept, theirs));
        }
        Step::Up(bit, taken)
    }

    /// Every place has a part of the sum of all.
    fn write_sums(&mut self, format: Format, buffer: &mut Buffer) {
        for Position { part, partial, .. } in &mut self.held {
            let partial = partial.take().expect("every group has a rank");
            let mut sums = vec![0; part.len() * format.dtype.size()];
            let inputs = [Some(accumulated(&partial))];
            reduce(format, &inputs, part.len(), &mut sums, Encoding::Element);
            buffer.write(part.start * format.dtype.size(), &sums);
        }
    }

    /// Places give their parts of the sums to each other.
    fn begin_down(
        &mut self,
        comm: &mut Comm<'_>,
        bit: u32,
        format: Format,
        buffer: &mut Buffer,
    ) -> Step {
        let (size, rank, element) = (comm.size(), comm.rank(), format.dtype.size());
        let distance = 1 << bit;
        let bytes = |part: &Range<usize>| (part.start * element, part.len() * element);
        for one in &self.held {
            let to = player(one.place ^ distance, size);
            if to != rank {
                let (at, len) = bytes(&one.part);
                comm.send(to, self.number(bit, one.place, false), buffer, at, len);
            }
        }
        let mut parts = Vec::new();
        for one in &self.held {
            let partner = one.place ^ distance;
            let from = player(partner, size);
            let theirs = sibling(one.place, distance, &self.all);
            let ticket = (from != rank).then(|| {
                let (at, len) = bytes(&theirs);
                comm.receive(from, self.number(bit, partner, false), buffer, at, len)
            });
            let part = one.part.start.min(theirs.start)..one.part.end.max(theirs.end);
            parts.push((part, ticket));
        }
        Step::Down(parts)
    }

    fn number(&self, bit: u32, place: u32, up: bool) -> u64 {
        (self.index as u64) << 40 | u64::from(bit) << 33 | u64::from(place) << 1 | u64::from(up)
    }
}

impl Position {
    /// Keeps a part, and adds what the partner has of it.
    fn add(
        &mut self,
        comm: &mut Comm<'_>,
        bit: u32,
        kept: Range<usize>,
        theirs: Given,
        format: Format,
    ) -> Result<(), MeshError> {
        let theirs = match theirs {
            Given::Nothing => None,
            Given::Here(bytes) => Some(bytes),
            Given::Message(bytes, ticket) => {
                comm.wait(ticket)?;
                Some(bytes.slice(0..bytes.len()).to_vec())
            }
        };
        let place = within(&kept, &self.part, format.dtype.accumulator_size());
        let ours = self.partial.take().map(|partial| partial[place].to_vec());
        let (left, right) =
            if self.place & 1 << bit == 0 { (ours, theirs) } else { (theirs, ours) };
        self.partial = match (left, right) {
            (Some(left), Some(right)) => {
                let mut sums = vec![0; left.len()];
                let inputs = [Some(accumulated(&left)), Some(accumulated(&right))];
                reduce(format, &inputs, kept.len(), &mut sums, Encoding::Accumulator);
                Some(sums)
            }
            (left, right) => left.or(right),
        };
        self.part = kept;
        Ok(())
    }
}

/// Of n elements ⌊n/2⌋ are below, the rest above.
fn half(part: &Range<usize>, upper: bool) -> Range<usize> {
    let middle = part.start + part.len() / 2;
    if upper { middle..part.end } else { part.start..middle }
}

/// Where the elements of a part are in those of a larger one, in bytes.
fn within(part: &Range<usize>, of: &Range<usize>, width: usize) -> Range<usize> {
    (part.start - of.start) * width..(part.end - of.start) * width
}

/// The part of a chunk that a place's partner of this step holds after it on the way up.
fn sibling(place: u32, distance: u32, chunk: &Range<usize>) -> Range<usize> {
    let mut part = chunk.clone();
    let mut step = 1;
    while step <= distance {
        let place = if step == distance { place ^ distance } else { place };
        part = half(&part, place & step != 0);
        step *= 2;
    }
    part
}

/// Who plays a place: itself, or for one beyond the last rank the nearest below among the same group.
fn player(mut place: u32, size: u32) -> u32 {
    while place >= size {
        place &= place - 1;
    }
    place
}

fn widened(elements: &[u8], format: Format) -> Vec<u8> {
    let n = elements.len() / format.dtype.size();
    let mut out = vec![0; n * format.dtype.accumulator_size()];
    let input = Input { bytes: elements, encoding: Encoding::Element };
    reduce(format, &[Some(input)], n, &mut out, Encoding::Accumulator);
    out
}

fn accumulated(bytes: &[u8]) -> Input<'_> {
    Input { bytes, encoding: Encoding::Accumulator }
}
