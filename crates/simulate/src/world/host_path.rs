//! Collectives on the host path: every rank sends its elements to every other, and each adds them in the plan's order. The
//! algorithms of `collective` are threads over blocking calls; the simulation models only who takes part in which
//! operation, and the resulting bits.

use std::collections::BTreeMap;
use std::ops::Range;

use netsum_wire::Parties;

use super::mesh::Message;
use super::{Place, World};
use crate::oracle;
use crate::report::Class;

/// Elements, and who contributes and takes them.
type Places = Vec<(Parties, Range<u64>)>;

/// A rank's operations on the host path.
#[derive(Default)]
pub(super) struct HostPath {
    sums: BTreeMap<u64, Sum>,
}

#[derive(Default)]
struct Sum {
    /// This rank's elements; `None` until the rank has started the operation.
    own: Option<(Places, Vec<u8>)>,
    /// Received elements, by process of the sender.
    parts: BTreeMap<Place, (Vec<Range<u64>>, Vec<u8>)>,
}

impl World {
    /// Starts to sum elements of an operation on the host path.
    pub(super) fn begin_on_hosts(
        &mut self,
        place: Place,
        operation: u64,
        places: Places,
        buffer: Vec<u8>,
    ) {
        let element = self.element_bytes(place, operation);
        let ranges: Vec<Range<u64>> = places.iter().map(|(_, range)| range.clone()).collect();
        let mut bytes = Vec::new();
        for range in &ranges {
            let at = range.start as usize * element..range.end as usize * element;
            bytes.extend_from_slice(&buffer[at]);
        }
        self.log(place, format_args!("sums operation {operation} on the host path: {ranges:?}"));
        for peer in self.peers(place) {
            let message =
                Message::Elements { operation, ranges: ranges.clone(), bytes: bytes.clone() };
            self.mesh_send(place, peer, message);
        }
        let rank = &mut self.ranks[place - self.first_rank];
        let sum = rank.hosts.sums.entry(operation).or_default();
        sum.parts.insert(place, (ranges, bytes));
        sum.own = Some((places, buffer));
        self.end_on_hosts(place, operation);
    }

    pub(super) fn elements_arrive(
        &mut self,
        from: Place,
        place: Place,
        operation: u64,
        ranges: Vec<Range<u64>>,
        bytes: Vec<u8>,
    ) {
        let rank = &mut self.ranks[place - self.first_rank];
        let sum = rank.hosts.sums.entry(operation).or_default();
        sum.parts.insert(from, (ranges, bytes));
        self.end_on_hosts(place, operation);
    }

    /// Adds the elements once those of all ranks have arrived.
    fn end_on_hosts(&mut self, place: Place, operation: u64) {
        let size = self.jobs[self.ranks[place - self.first_rank].job].size as usize;
        let rank = &mut self.ranks[place - self.first_rank];
        let Some(sum) = rank.hosts.sums.get(&operation) else { return };
        if sum.own.is_none() || sum.parts.len() < size {
            return;
        }
        let Some(Sum { own: Some((places, mut buffer)), parts }) =
            rank.hosts.sums.remove(&operation)
        else {
            return;
        };
        let ranges = &parts[&place].0;
        if let Some((other, (theirs, _))) = parts.iter().find(|(_, part)| part.0 != *ranges) {
            let other = &self.processes[*other].name;
            let own = &self.processes[place].name;
            let what = format!(
                "operation {operation} over the hosts: {own} sums elements {ranges:?}, {other} {theirs:?}"
            );
            return self.violation(Class::Correctness, "ranks sum the same elements", what);
        }
        let number = self.ranks[place - self.first_rank].job;
        let known = self.jobs[number].oracle.operation(operation);
        let order = self.order_of(place);
        let inputs: Vec<&[u8]> = parts.values().map(|part| part.1.as_slice()).collect();
        let result = oracle::sum(known.format, &order, &inputs);
        let me = 1 << self.ranks[place - self.first_rank].rank;
        let mut at = 0;
        for (parties, range) in &places {
            let bytes = known.bytes(range);
            let source = match parties {
                Parties::FromOne(rank) => inputs[usize::from(*rank)],
                _ => &result,
            };
            let len = bytes.len();
            if parties.takes(me) {
                buffer[bytes].copy_from_slice(&source[at..at + len]);
            }
            at += len;
        }
        self.operation_ends(place, operation, buffer, false);
    }
}
