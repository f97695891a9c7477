//! Reduce: each host adds its partials, its lanes send them to those of the root's host, which send the sums to the
//! root.

use std::ops::Range;

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;
use netsum_wire::Format;

use super::cut::Cut;
use super::{BLOCK_MOST, apart, portion_of, tag};
use crate::algorithm::in_memory::memory_s;
use crate::algorithm::{Algorithm, Reduce, SumShape};
use crate::comm::{Comm, Ticket};
use crate::hosts::Hosts;
use crate::link_cost::LinkCost;
use crate::order::Adder;
use crate::pieces::{CHUNK, pieces};
use crate::shared;

pub(in crate::algorithm) const REDUCE: Algorithm<Reduce> =
    Algorithm { name: "hierarchical", cost, run };

/// A lane of the root's host receives from the lanes of the same index on all others.
fn cost(link: &LinkCost, sum: &SumShape) -> Option<f64> {
    let across = link.across.as_ref()?;
    let cut = Cut::of(&sum.order, &across.hosts, sum.format);
    let sent = across.portion(sum) * cut.widening(sum.format) * (across.count() - 1.0);
    let memory = 2.0 * memory_s(sum.bytes.min(BLOCK_MOST));
    Some(memory + across.latency_s + sent / across.bytes_per_s)
}

fn run(comm: &mut Comm<'_>, reduction: &mut Reduce) -> Result<(), MeshError> {
    let across = apart(comm)?;
    let Reduce { order, format, buffer, root } = reduction;
    let cut = Cut::of(order, &across.hosts, *format);
    let (home, seat) = across.hosts.place(*root);
    let (host, index) = across.hosts.place(comm.rank());
    let len = buffer.len();
    let mut state = Reduction {
        partials: cut.partials(host, *format),
        adder: cut.whole(*format),
        hosts: &across.hosts,
        host,
        index,
        home,
        seat,
        cut: &cut,
        format: *format,
        buffer,
    };
    let element = format.dtype.size();
    let wanted = CHUNK * across.hosts.lanes() * across.hosts.all().len();
    let step = wanted.min(BLOCK_MOST) / element * element;
    let nothing = (len == 0).then_some(0..0);
    let blocks = nothing.into_iter().chain(pieces(0..len, step));
    // While one block is in the network, the next is added in memory.
    let mut before = None;
    for (number, range) in blocks.enumerate() {
        let block = state.begin(comm, number as u64, range)?;
        if let Some(block) = before.replace(block) {
            state.end(comm, &block)?;
        }
    }
    if let Some(last) = before {
        state.end(comm, &last)?;
    }
    comm.finish()
}

/// One rank's state of a reduce.
struct Reduction<'a> {
    hosts: &'a Hosts,
    host: usize,
    /// This rank's position on its host.
    index: usize,
    /// Host and position of the root.
    home: usize,
    seat: usize,
    cut: &'a Cut,
    format: Format,
    buffer: &'a mut Buffer,
    partials: Vec<Adder>,
    adder: Adder,
}

/// A block of the buffer in progress.
struct Block {
    range: Range<usize>,
    /// Partials of this rank's portion, by part, of this and of other hosts.
    ours: Vec<Buffer>,
    theirs: Vec<(Buffer, Ticket)>,
}

impl Reduction<'_> {
    /// Adds within the host; other hosts send the partials to the root's.
    fn begin(
        &mut self,
        comm: &mut Comm<'_>,
        number: u64,
        range: Range<usize>,
    ) -> Result<Block, MeshError> {
        let dtype = self.format.dtype;
        let widened =
            self.portion(&range, self.index).len() / dtype.size() * dtype.accumulator_size();
        let lane = self.index < self.hosts.lanes();
        let parts = || self.cut.parts.iter().map(|(host, _)| *host).enumerate();
        let mut theirs = Vec::new();
        if lane && self.host == self.home {
            for (part, host) in parts().filter(|&(_, host)| host != self.home) {
                let mut values = Buffer::from_vec(vec![0; widened]);
                let peer = self.hosts.all()[host][self.index];
                let ticket = comm.receive(peer, tag(number, part), &mut values, 0, widened);
                theirs.push((values, ticket));
            }
        }
        let mut portions = self.portions(&range);
        let ours = shared::partials(comm.host()?, &mut self.partials, &mut portions, self.index)?;
        let ours: Vec<Buffer> = ours.into_iter().map(Buffer::from_vec).collect();
        if lane && self.host != self.home {
            let peer = self.hosts.all()[self.home][self.index];
            let own = parts().filter(|&(_, host)| host == self.host);
            for ((part, _), values) in own.zip(&ours) {
                comm.send(peer, tag(number, part), values, 0, widened);
            }
        }
        Ok(Block { range, ours, theirs })
    }

    /// On the root's host: adds all hosts' partials, and gives the sum to the root.
    fn end(&mut self, comm: &mut Comm<'_>, block: &Block) -> Result<(), MeshError> {
        if self.host != self.home {
            return Ok(());
        }
        for (_, ticket) in &block.theirs {
            comm.wait(*ticket)?;
        }
        let mut sums = vec![0; self.portion(&block.range, self.index).len()];
        if self.index < self.hosts.lanes() {
            let mut ours = block.ours.iter();
            let mut theirs = block.theirs.iter().map(|(values, _)| values);
            let values = self.cut.parts.iter().map(|(host, _)| {
                let found = if *host == self.home { ours.next() } else { theirs.next() };
                let values = found.expect("one for each part");
                values.slice(0..values.len())
            });
            let values: Vec<&[u8]> = values.collect();
            self.adder.add(&values, &mut sums);
        }
        let sums = Buffer::from_vec(sums);
        let at_root = self.index == self.seat;
        let mut portions = if at_root { self.portions(&block.range) } else { Vec::new() };
        match comm.host()? {
            Some(rounds) => shared::gather(rounds, &sums, &mut portions, self.seat as u32),
            None => {
                portions[self.seat].write(0, sums.slice(0..sums.len()));
                Ok(())
            }
        }
    }

    /// The portions of a range, by position on this host.
    fn portions(&mut self, range: &Range<usize>) -> Vec<Buffer> {
        let ranks = self.hosts.all()[self.host].len();
        let places: Vec<_> = (0..ranks).map(|index| self.portion(range, index)).collect();
        places.into_iter().map(|place| self.buffer.lend_mut(place)).collect()
    }

    fn portion(&self, range: &Range<usize>, index: usize) -> Range<usize> {
        portion_of(range, self.format, self.hosts.lanes(), index)
    }
}
