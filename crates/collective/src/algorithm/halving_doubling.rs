//! Allreduce by recursive halving and doubling: ⌈log₂ N⌉ exchanges up, as many down, in the balanced order over ranks.
//!
//! In step d (1, 2, 4 …) ranks that differ in bit d exchange halves of what they hold, so that after it each holds the sum
//! of an aligned group of 2d ranks for its part: left half ∘ right half, which is the order of `netsum_wire::reduce`. The
//! sums go back in the opposite order of steps. Where the number of ranks is no power of two, the places that are
//! missing are played by the rank that is nearest below among the same group; they contribute nothing.
//! Source: Rabenseifner, Optimization of Collective Reduction Operations (ICCS 2004). Differs: distances grow, for the order.

use std::ops::Range;

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;
use netsum_topo::SumOrder;
use netsum_wire::{Encoding, Format, Input, reduce};

use super::{Algorithm, Allreduce, SumShape};
use crate::comm::Comm;
use crate::link_cost::LinkCost;

pub(super) const ALGORITHM: Algorithm<Allreduce> =
    Algorithm { name: "halving-doubling", cost, run };

/// All ranks send at once; a rank that plays others' places sends and receives for them.
fn cost(link: &LinkCost, sum: &SumShape) -> Option<f64> {
    if *sum.order != SumOrder::flat(link.ranks) {
        return None;
    }
    let steps = f64::from(link.ranks.next_power_of_two().ilog2());
    let places = f64::from(link.ranks.next_power_of_two());
    // Partials of 16-bit floats travel as float32.
    let up = sum.format.dtype.accumulator_size() as f64 / sum.format.dtype.size() as f64;
    let part = sum.bytes as f64 * (places - 1.0) / places;
    let plays = if link.ranks.is_power_of_two() { 1.0 } else { 2.0 };
    Some(2.0 * steps * link.latency_s + plays * (1.0 + up) * part / link.bytes_per_s)
}

fn run(comm: &mut Comm<'_>, sum: &mut Allreduce) -> Result<(), MeshError> {
    let (rank, size, format) = (comm.rank(), comm.size(), sum.format);
    let n = sum.buffer.len() / format.dtype.size();
    let own = sum.buffer.slice(0..sum.buffer.len());
    let places = size.next_power_of_two();
    let mut held: Vec<Position> = (0..places)
        .filter(|&place| player(place, size) == rank)
        .map(|place| Position {
            place,
            part: 0..n,
            partial: (place == rank).then(|| widened(own, format)),
        })
        .collect();
    let mut distance = 1;
    while distance < places {
        up(comm, &mut held, distance, format)?;
        distance *= 2;
    }
    // Every place has a part of the sum of all.
    for Position { part, partial, .. } in &held {
        let partial = partial.as_ref().expect("every group has a rank");
        let mut sums = vec![0; part.len() * format.dtype.size()];
        reduce(format, &[Some(accumulated(partial))], part.len(), &mut sums, Encoding::Element);
        sum.buffer.write(part.start * format.dtype.size(), &sums);
    }
    while distance > 1 {
        distance /= 2;
        down(comm, &mut held, distance, &mut sum.buffer, format.dtype.size())?;
    }
    comm.finish()
}

/// One of the places that this rank plays.
struct Position {
    place: u32,
    /// Elements that it holds.
    part: Range<usize>,
    /// Their sum over the group so far, as accumulators; `None` where the group has no rank.
    partial: Option<Vec<u8>>,
}

/// Places exchange halves of their parts and add.
fn up(
    comm: &mut Comm<'_>,
    held: &mut [Position],
    distance: u32,
    format: Format,
) -> Result<(), MeshError> {
    let (size, rank, width) = (comm.size(), comm.rank(), format.dtype.accumulator_size());
    let half = |part: &Range<usize>, upper: bool| {
        let middle = part.start + part.len() / 2;
        if upper { middle..part.end } else { part.start..middle }
    };
    let keeps = |place: u32, part: &Range<usize>| half(part, place & distance != 0);
    let within = |part: &Range<usize>, of: &Range<usize>| {
        (part.start - of.start) * width..(part.end - of.start) * width
    };
    // What each of our places gives to its partner: to another rank, or to ourselves.
    let mut given: Vec<Option<Vec<u8>>> = Vec::new();
    for Position { place, part, partial } in held.iter() {
        let theirs = within(&keeps(place ^ distance, part), part);
        given.push(partial.as_ref().map(|partial| partial[theirs].to_vec()));
        let to = player(place ^ distance, size);
        if let Some(bytes) = given.last().and_then(Option::as_ref).filter(|_| to != rank) {
            let bytes = Buffer::from_vec(bytes.clone());
            comm.send(to, number(distance, *place, true), &bytes, 0, bytes.len());
        }
    }
    let mut taken = Vec::new();
    for Position { place, part, .. } in held.iter() {
        let partner = place ^ distance;
        let kept = keeps(*place, part);
        let theirs = match player(partner, size) {
            from if from == rank => {
                let at = held.iter().position(|other| other.place == partner);
                at.and_then(|at| given[at].clone())
            }
            // The group of the partner begins at its place without the bits below this step's.
            from if partner & !(distance - 1) < size => {
                let mut bytes = Buffer::from_vec(vec![0; kept.len() * width]);
                let (number, len) = (number(distance, partner, true), bytes.len());
                let ticket = comm.receive(from, number, &mut bytes, 0, len);
                comm.wait(ticket)?;
                Some(bytes.slice(0..bytes.len()).to_vec())
            }
            _ => None,
        };
        taken.push((kept, theirs));
    }
    for (one, (kept, theirs)) in held.iter_mut().zip(taken) {
        let ours = one.partial.take().map(|partial| partial[within(&kept, &one.part)].to_vec());
        let (left, right) = if one.place & distance == 0 { (ours, theirs) } else { (theirs, ours) };
        one.partial = match (left, right) {
            (Some(left), Some(right)) => {
                let mut sums = vec![0; left.len()];
                let inputs = [Some(accumulated(&left)), Some(accumulated(&right))];
                reduce(format, &inputs, kept.len(), &mut sums, Encoding::Accumulator);
                Some(sums)
            }
            (left, right) => left.or(right),
        };
        one.part = kept;
    }
    Ok(())
}

/// Places give their parts of the sums to each other.
fn down(
    comm: &mut Comm<'_>,
    held: &mut [Position],
    distance: u32,
    buffer: &mut Buffer,
    element: usize,
) -> Result<(), MeshError> {
    let (size, rank) = (comm.size(), comm.rank());
    let bytes = |part: &Range<usize>| (part.start * element, part.len() * element);
    for one in held.iter() {
        let to = player(one.place ^ distance, size);
        if to != rank {
            let (at, len) = bytes(&one.part);
            comm.send(to, number(distance, one.place, false), buffer, at, len);
        }
    }
    for one in held.iter_mut() {
        let partner = one.place ^ distance;
        let from = player(partner, size);
        // The two halves of a part of n elements: ⌊n/2⌋ below, the rest above.
        let (upper, len) = (one.place & distance != 0, one.part.len());
        let theirs = sibling(one.place, distance, size.next_power_of_two(), buffer.len() / element);
        if from != rank {
            let (at, len) = bytes(&theirs);
            let ticket = comm.receive(from, number(distance, partner, false), buffer, at, len);
            comm.wait(ticket)?;
        }
        one.part = match upper {
            true => theirs.start..one.part.start + len,
            false => one.part.start..theirs.end,
        };
    }
    Ok(())
}

/// The part that a place's partner of this step holds after it on the way up.
fn sibling(place: u32, distance: u32, places: u32, n: usize) -> Range<usize> {
    let mut part = 0..n;
    let mut step = 1;
    while step <= distance && step < places {
        let bit = if step == distance { place ^ distance } else { place } & step;
        let middle = part.start + part.len() / 2;
        part = if bit != 0 { middle..part.end } else { part.start..middle };
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

fn number(distance: u32, place: u32, up: bool) -> u64 {
    u64::from(distance) << 33 | u64::from(place) << 1 | u64::from(up)
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
