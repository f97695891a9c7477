//! Allreduce: each lane handles a part of the buffer, in one or two steps between hosts.

use std::ops::Range;

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;
use netsum_wire::Format;

use super::cut::Cut;
use super::{BLOCK_MOST, RESULT, apart, portion_of, tag};
use crate::algorithm::in_memory::memory_s;
use crate::algorithm::{Algorithm, Allreduce, SumShape};
use crate::comm::{Comm, Ticket};
use crate::hosts::Hosts;
use crate::link_cost::Across;
use crate::link_cost::LinkCost;
use crate::order::Adder;
use crate::pieces::{CHUNK, pieces, share};
use crate::shared;

pub(in crate::algorithm) const ALLREDUCE: Algorithm<Allreduce> =
    Algorithm { name: "hierarchical", cost, run };

fn cost(link: &LinkCost, sum: &SumShape) -> Option<f64> {
    let across = link.across.as_ref()?;
    let cut = Cut::of(&sum.order, &across.hosts, sum.format);
    let memory = 2.0 * memory_s(sum.bytes.min(BLOCK_MOST));
    Some(memory + direct_s(across, sum, &cut).min(shares_s(across, sum, &cut)))
}

/// Every lane sends its host's partials to all lanes of the same index, which add them all.
fn direct_s(across: &Across, sum: &SumShape, cut: &Cut) -> f64 {
    let sent = across.portion(sum) * cut.widening(sum.format) * (across.count() - 1.0);
    across.latency_s + sent / across.bytes_per_s
}

/// Every lane adds a share for all lanes of the same index.
fn shares_s(across: &Across, sum: &SumShape, cut: &Cut) -> f64 {
    let others = (across.count() - 1.0) / across.count();
    let sent = across.portion(sum) * (cut.widening(sum.format) + 1.0) * others;
    2.0 * across.latency_s + sent / across.bytes_per_s
}

fn run(comm: &mut Comm<'_>, sum: &mut Allreduce) -> Result<(), MeshError> {
    let across = apart(comm)?;
    let Allreduce { order, format, buffer } = sum;
    let cut = Cut::of(order, &across.hosts, *format);
    let shape = SumShape { order: order.clone(), format: *format, bytes: buffer.len() };
    let direct = direct_s(&across, &shape, &cut) <= shares_s(&across, &shape, &cut);
    let (host, index) = across.hosts.place(comm.rank());
    let mut state = Exchange {
        adder: cut.whole(*format),
        partials: cut.partials(host, *format),
        hosts: &across.hosts,
        host,
        index,
        cut: &cut,
        format: *format,
        direct,
        buffer,
    };
    let blocks = state.blocks();
    let mut all: Vec<Block> = Vec::new();
    // While one block is in the network, the next is added in memory, and the previous one distributed within the host.
    for at in 0..blocks.len() + 2 {
        if let Some(range) = blocks.get(at) {
            all.push(state.begin(comm, at as u64, range.clone())?);
        }
        if let Some(block) = at.checked_sub(1).and_then(|at| all.get_mut(at)) {
            state.add(comm, block)?;
        }
        if let Some(block) = at.checked_sub(2).and_then(|at| all.get_mut(at)) {
            state.spread(comm, block)?;
        }
    }
    comm.finish()
}

/// One rank's state of an allreduce.
struct Exchange<'a> {
    hosts: &'a Hosts,
    host: usize,
    /// This rank's position on its host.
    index: usize,
    cut: &'a Cut,
    format: Format,
    /// Whether hosts exchange in one step instead of two.
    direct: bool,
    buffer: &'a mut Buffer,
    /// Adders for the parts of this host.
    partials: Vec<Adder>,
    /// Adder for all parts.
    adder: Adder,
}

/// A block of the buffer in progress.
struct Block {
    number: u64,
    range: Range<usize>,
    /// Received partials of this rank's share of the lane's portion, by part. Own partials cover the whole portion.
    ours: Vec<Buffer>,
    theirs: Vec<(usize, Buffer, Ticket)>,
    results: Vec<Ticket>,
}

impl Exchange<'_> {
    /// Messages of a block are about [`CHUNK`] bytes long.
    fn blocks(&self) -> Vec<Range<usize>> {
        let element = self.format.dtype.size();
        let wanted = CHUNK * self.hosts.lanes() * self.hosts.all().len();
        let step = wanted.min(BLOCK_MOST) / element * element;
        let len = self.buffer.len();
        let nothing = (len == 0).then_some(0..0);
        nothing.into_iter().chain(pieces(0..len, step)).collect()
    }

    /// Adds within the host, and sends each other host the partials that it adds.
    fn begin(
        &mut self,
        comm: &mut Comm<'_>,
        number: u64,
        range: Range<usize>,
    ) -> Result<Block, MeshError> {
        let mut portions = self.portions(&range);
        let ours = shared::partials(comm.host()?, &mut self.partials, &mut portions, self.index)?;
        drop(portions);
        let ours: Vec<Buffer> = ours.into_iter().map(Buffer::from_vec).collect();
        let mut block = Block { number, range, ours, theirs: Vec::new(), results: Vec::new() };
        let parts = || self.cut.parts.iter().map(|(host, _)| *host).enumerate();
        let own = self.share(&block.range, self.host);
        for (part, host) in parts().filter(|&(_, host)| host != self.host) {
            let Some(peer) = self.peer(host) else { continue };
            let len = self.widened(own.len());
            let mut values = Buffer::from_vec(vec![0; len]);
            let ticket = comm.receive(peer, tag(number, part), &mut values, 0, len);
            block.theirs.push((part, values, ticket));
        }
        for ((part, _), values) in parts().filter(|&(_, host)| host == self.host).zip(&block.ours) {
            for host in self.others() {
                let Some(peer) = self.peer(host) else { continue };
                let theirs = self.share(&block.range, host);
                let (at, len) = (self.widened(theirs.start), self.widened(theirs.len()));
                comm.send(peer, tag(number, part), values, at, len);
            }
        }
        if !self.direct {
            let start = self.portion(&block.range).start;
            for host in self.others() {
                let Some(peer) = self.peer(host) else { continue };
                let share = self.share(&block.range, host);
                let at = start + share.start;
                let ticket = comm.receive(peer, tag(number, RESULT), self.buffer, at, share.len());
                block.results.push(ticket);
            }
        }
        Ok(block)
    }

    /// Adds all hosts' partials of this rank's share, and sends the sum to the others.
    fn add(&mut self, comm: &mut Comm<'_>, block: &mut Block) -> Result<(), MeshError> {
        if self.peer(self.host).is_none() {
            return Ok(());
        }
        for (_, _, ticket) in &block.theirs {
            comm.wait(*ticket)?;
        }
        let share = self.share(&block.range, self.host);
        let within = self.widened(share.start)..self.widened(share.end);
        let mut ours = block.ours.iter();
        let mut theirs = block.theirs.iter();
        let values = self.cut.parts.iter().map(|(host, _)| match *host == self.host {
            true => ours.next().map(|all| all.slice(within.clone())),
            false => theirs.next().map(|(_, values, _)| values.slice(0..values.len())),
        });
        let values: Vec<&[u8]> = values.map(|found| found.expect("one for each part")).collect();
        let mut sums = vec![0; share.len()];
        self.adder.add(&values, &mut sums);
        let at = self.portion(&block.range).start + share.start;
        self.buffer.write(at, &sums);
        block.theirs.clear();
        if !self.direct {
            for host in self.others() {
                if let Some(peer) = self.peer(host) {
                    let number = tag(block.number, RESULT);
                    comm.send(peer, number, self.buffer, at, share.len());
                }
            }
        }
        Ok(())
    }

    /// Waits for the other shares, and gives the lane's portion to the ranks of the host.
    fn spread(&mut self, comm: &mut Comm<'_>, block: &mut Block) -> Result<(), MeshError> {
        for ticket in block.results.drain(..) {
            comm.wait(ticket)?;
        }
        // Parts of the portion may still be lent to sends.
        if let Some(rounds) = comm.host()? {
            let nothing = || Buffer::from_vec(Vec::new());
            let place = |index| self.portion_of(&block.range, index);
            let places: Vec<_> = (0..self.hosts.all()[self.host].len()).map(place).collect();
            let own = places[self.index].clone();
            let portion = |(index, place)| match index == self.index {
                true => nothing(),
                false => self.buffer.lend_mut(place),
            };
            let mut others: Vec<Buffer> = places.into_iter().enumerate().map(portion).collect();
            shared::allgather(rounds, self.buffer.slice(own), &mut others)?;
        }
        Ok(())
    }

    /// The portions of a range that the lanes handle, by position on this host.
    fn portions(&mut self, range: &Range<usize>) -> Vec<Buffer> {
        let ranks = self.hosts.all()[self.host].len();
        let places: Vec<_> = (0..ranks).map(|index| self.portion_of(range, index)).collect();
        places.into_iter().map(|place| self.buffer.lend_mut(place)).collect()
    }

    fn portion(&self, range: &Range<usize>) -> Range<usize> {
        self.portion_of(range, self.index)
    }

    fn portion_of(&self, range: &Range<usize>, index: usize) -> Range<usize> {
        portion_of(range, self.format, self.hosts.lanes(), index)
    }

    /// The share of this lane's portion that a host adds, relative to the portion's start.
    fn share(&self, range: &Range<usize>, host: usize) -> Range<usize> {
        let portion = self.portion(range);
        if self.direct {
            return 0..portion.len();
        }
        let count = self.hosts.all().len() as u32;
        share(portion.len(), self.format.dtype.size(), host as u32, count)
    }

    /// The rank of this lane on a host; `None` if this rank is no lane.
    fn peer(&self, host: usize) -> Option<u32> {
        let lane = self.index < self.hosts.lanes();
        lane.then(|| self.hosts.all()[host][self.index])
    }

    /// All other hosts, starting after this one.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (own, count) = (self.host, self.hosts.all().len());
        (1..count).map(move |step| (own + step) % count)
    }

    /// Bytes of partials for `bytes` of elements.
    fn widened(&self, bytes: usize) -> usize {
        bytes / self.format.dtype.size() * self.format.dtype.accumulator_size()
    }
}
