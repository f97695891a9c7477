//! Sums that go by the hosts: every rank gives its elements to every other, and each adds them in the plan's order. The
//! algorithms of `collective` are threads over blocking calls; what counts here is who takes part in what, and the bits.

use std::collections::BTreeMap;
use std::ops::Range;

use super::mesh::Message;
use super::{Place, World};
use crate::oracle;
use crate::report::Class;

/// Operations of a rank that go by the hosts.
#[derive(Default)]
pub(super) struct HostPath {
    sums: BTreeMap<u64, Sum>,
}

#[derive(Default)]
struct Sum {
    /// What this rank sums; `None` until it has begun.
    own: Option<(Vec<Range<u64>>, Vec<u8>)>,
    /// By place of the rank.
    parts: BTreeMap<Place, (Vec<Range<u64>>, Vec<u8>)>,
}

impl World {
    /// A rank begins to sum elements of an operation over the hosts.
    pub(super) fn begin_on_hosts(
        &mut self,
        place: Place,
        operation: u64,
        ranges: Vec<Range<u64>>,
        buffer: Vec<u8>,
    ) {
        let element = self.element_bytes(place, operation);
        let mut bytes = Vec::new();
        for range in &ranges {
            let at = range.start as usize * element..range.end as usize * element;
            bytes.extend_from_slice(&buffer[at]);
        }
        self.say(place, format_args!("sums operation {operation} over the hosts: {ranges:?}"));
        for peer in self.peers(place) {
            let message =
                Message::Elements { operation, ranges: ranges.clone(), bytes: bytes.clone() };
            self.mesh_send(place, peer, message);
        }
        let rank = &mut self.ranks[place - self.first_rank];
        let sum = rank.hosts.sums.entry(operation).or_default();
        sum.parts.insert(place, (ranges.clone(), bytes));
        sum.own = Some((ranges, buffer));
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

    /// With everybody's elements here, adds them.
    fn end_on_hosts(&mut self, place: Place, operation: u64) {
        let size = self.jobs[self.ranks[place - self.first_rank].job].size as usize;
        let rank = &mut self.ranks[place - self.first_rank];
        let Some(sum) = rank.hosts.sums.get(&operation) else { return };
        if sum.own.is_none() || sum.parts.len() < size {
            return;
        }
        let Some(Sum { own: Some((ranges, mut buffer)), parts }) =
            rank.hosts.sums.remove(&operation)
        else {
            return;
        };
        if let Some((other, (theirs, _))) = parts.iter().find(|(_, part)| part.0 != ranges) {
            let other = &self.processes[*other].name;
            let own = &self.processes[place].name;
            let what = format!(
                "operation {operation} over the hosts: {own} sums elements {ranges:?}, {other} {theirs:?}"
            );
            return self.violation(Class::Correctness, "ranks sum the same elements", what);
        }
        let number = self.ranks[place - self.first_rank].job;
        let truth = self.jobs[number].oracle.operation(operation);
        let order = self.order_of(place);
        let inputs: Vec<&[u8]> = parts.values().map(|part| part.1.as_slice()).collect();
        let result = oracle::sum(truth.format, &order, &inputs);
        let mut at = 0;
        for range in &ranges {
            let bytes = truth.bytes(range);
            let len = bytes.len();
            buffer[bytes].copy_from_slice(&result[at..at + len]);
            at += len;
        }
        self.operation_ends(place, operation, buffer, false);
    }
}
