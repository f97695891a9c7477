//! Collectives of a group on several hosts: through memory within each host, over the network between them.
//!
//! The first ranks of every host, as many as the smallest host has, are its *lanes*: each handles a part of the buffer, with
//! its likes on the other hosts. A sum keeps the group's order: it is cut at the hosts ([`Cut`]), each host adds the largest
//! subtrees whose ranks are all its own, and sends their partials. Where the ranks of a host are an aligned block of the order
//! that is one partial, and otherwise more: at worst one per rank, which costs more, and the cost says so.

use std::ops::Range;
use std::sync::Arc;

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;
use netsum_topo::SumOrder;
use netsum_wire::{Encoding, Format};

use super::in_memory::memory_s;
use super::{
    Addition, Algorithm, CHUNK, Cast, Gather, Link, Pieces, Sum, broadcast, pieces, share,
};
use crate::comm::{Comm, Ticket};
use crate::hosts::Hosts;
use crate::order::Adder;
use crate::shared;

pub(super) const ALLREDUCE: Algorithm<Sum> =
    Algorithm { name: "hierarchical", cost: allreduce_cost, run: allreduce };
pub(super) const ALLGATHER: Algorithm<Gather> =
    Algorithm { name: "hierarchical", cost: allgather_cost, run: allgather };
pub(super) const BROADCAST: Algorithm<Cast> =
    Algorithm { name: "hierarchical", cost: broadcast_cost, run: cast };

/// What messages between hosts cost.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Across {
    /// Which ranks share memory.
    #[serde(serialize_with = "plain")]
    pub hosts: Arc<Hosts>,
    /// As [`Link::latency_s`], between lanes of different hosts.
    pub latency_s: f64,
    /// As [`Link::bytes_per_s`], of a lane while all lanes send to other hosts.
    pub bytes_per_s: f64,
}

fn plain<S: serde::Serializer>(hosts: &Arc<Hosts>, out: S) -> Result<S::Ok, S::Error> {
    serde::Serialize::serialize(hosts.as_ref(), out)
}

impl Across {
    /// Every lane sends its host's partials to all its likes, which add them all.
    fn direct_s(&self, sum: &Addition, cut: &Cut) -> f64 {
        let sent = self.portion(sum) * cut.widening(sum.format) * (self.count() - 1.0);
        self.latency_s + sent / self.bytes_per_s
    }

    /// Every lane adds a share for all its likes.
    fn shares_s(&self, sum: &Addition, cut: &Cut) -> f64 {
        let others = (self.count() - 1.0) / self.count();
        let sent = self.portion(sum) * (cut.widening(sum.format) + 1.0) * others;
        2.0 * self.latency_s + sent / self.bytes_per_s
    }

    fn portion(&self, sum: &Addition) -> f64 {
        sum.bytes as f64 / self.hosts.lanes() as f64
    }

    fn count(&self) -> f64 {
        self.hosts.all().len() as f64
    }
}

fn allreduce_cost(link: &Link, sum: &Addition) -> Option<f64> {
    let across = link.across.as_ref()?;
    let cut = Cut::of(&sum.order, &across.hosts, sum.format);
    let memory = 2.0 * memory_s(sum.bytes.min(BLOCK_MOST));
    Some(memory + across.direct_s(sum, &cut).min(across.shares_s(sum, &cut)))
}

fn allreduce(comm: &mut Comm<'_>, sum: &Sum) -> Result<(), MeshError> {
    let Some(across) = comm.link().across else {
        return Err(MeshError::Aborted("these ranks are not on several hosts".to_owned()));
    };
    let Sum { order, format, buffer } = sum;
    let cut = Cut::of(order, &across.hosts, *format);
    let shape = Addition { order: order.clone(), format: *format, bytes: buffer.len() };
    let direct = across.direct_s(&shape, &cut) <= across.shares_s(&shape, &cut);
    let (host, index) = across.hosts.place(comm.rank());
    let own = cut.parts.iter().filter(|(at, _)| *at == host);
    let partials =
        own.map(|(_, order)| Adder::between(order, *format, Encoding::Element, PARTIAL)).collect();
    let mut way = Way {
        adder: Adder::between(&cut.top, *format, PARTIAL, Encoding::Element),
        partials,
        hosts: &across.hosts,
        host,
        index,
        cut: &cut,
        format: *format,
        direct,
        buffer,
    };
    let blocks = way.blocks();
    let mut all: Vec<Block> = Vec::new();
    // While one block is in the network, the next is added in memory, and the one before spread.
    for at in 0..blocks.len() + 2 {
        if let Some(range) = blocks.get(at) {
            all.push(way.begin(comm, at as u64, range.clone())?);
        }
        if let Some(block) = at.checked_sub(1).and_then(|at| all.get_mut(at)) {
            way.add(comm, block)?;
        }
        if let Some(block) = at.checked_sub(2).and_then(|at| all.get_mut(at)) {
            way.spread(comm, block)?;
        }
    }
    comm.finish()
}

/// One rank's part of an allreduce.
struct Way<'a> {
    hosts: &'a Hosts,
    host: usize,
    /// Our place on the host.
    index: usize,
    cut: &'a Cut,
    format: Format,
    /// One step between hosts in place of two.
    direct: bool,
    buffer: &'a Buffer,
    /// Of our host's parts.
    partials: Vec<Adder>,
    /// Of all parts.
    adder: Adder,
}

/// A piece of the buffer that is under way.
struct Block {
    number: u64,
    range: Range<usize>,
    /// What is here of our share of the lane's portion: partials by part. Ours are of all the portion.
    ours: Vec<Buffer>,
    theirs: Vec<(usize, Buffer, Ticket)>,
    results: Vec<Ticket>,
}

impl Way<'_> {
    /// Messages of a block are about [`CHUNK`] long.
    fn blocks(&self) -> Vec<Range<usize>> {
        let element = self.format.dtype.size();
        let wanted = CHUNK * self.hosts.lanes() * self.hosts.all().len();
        let step = wanted.min(BLOCK_MOST) / element * element;
        let len = self.buffer.len();
        let nothing = (len == 0).then_some(0..0);
        nothing.into_iter().chain(pieces(0..len, step)).collect()
    }

    /// Adds within the host, and sends to the others what is theirs to add.
    fn begin(
        &mut self,
        comm: &mut Comm<'_>,
        number: u64,
        range: Range<usize>,
    ) -> Result<Block, MeshError> {
        let portions = self.portions(&range);
        let ours = shared::partials(comm.host()?, &mut self.partials, &portions, self.index)?;
        let ours: Vec<Buffer> = ours.into_iter().map(Buffer::from_vec).collect();
        let mut block = Block { number, range, ours, theirs: Vec::new(), results: Vec::new() };
        let parts = || self.cut.parts.iter().map(|(host, _)| *host).enumerate();
        let own = self.share(&block.range, self.host);
        for (part, host) in parts().filter(|&(_, host)| host != self.host) {
            let Some(peer) = self.peer(host) else { continue };
            let values = Buffer::from_vec(vec![0; self.widened(own.len())]);
            let ticket = comm.receive(peer, tag(number, part), &values, 0, values.len());
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

    /// Adds what all hosts have of our share, and tells the others.
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

    /// Waits for the others' shares, and gives the lane's portion to the ranks of the host.
    fn spread(&self, comm: &mut Comm<'_>, block: &mut Block) -> Result<(), MeshError> {
        for ticket in block.results.drain(..) {
            comm.wait(ticket)?;
        }
        // What was sent of it may still be on its way.
        if let Some(rounds) = comm.host()? {
            let portions = self.portions(&block.range);
            shared::allgather(rounds, &portions[self.index], &portions)?;
        }
        Ok(())
    }

    /// By place on our host, what of a range its lane handles.
    fn portions(&self, range: &Range<usize>) -> Vec<Buffer> {
        let ranks = self.hosts.all()[self.host].len();
        (0..ranks).map(|index| self.buffer.part(self.portion_of(range, index))).collect()
    }

    fn portion(&self, range: &Range<usize>) -> Range<usize> {
        self.portion_of(range, self.index)
    }

    fn portion_of(&self, range: &Range<usize>, index: usize) -> Range<usize> {
        let lanes = self.hosts.lanes();
        if index >= lanes {
            return range.end..range.end;
        }
        let part = share(range.len(), self.format.dtype.size(), index as u32, lanes as u32);
        range.start + part.start..range.start + part.end
    }

    /// What of our lane's portion a host adds, from the portion's start.
    fn share(&self, range: &Range<usize>, host: usize) -> Range<usize> {
        let portion = self.portion(range);
        if self.direct {
            return 0..portion.len();
        }
        let count = self.hosts.all().len() as u32;
        share(portion.len(), self.format.dtype.size(), host as u32, count)
    }

    /// The rank of our lane on a host; `None` if we are no lane.
    fn peer(&self, host: usize) -> Option<u32> {
        let lane = self.index < self.hosts.lanes();
        lane.then(|| self.hosts.all()[host][self.index])
    }

    /// All hosts but ours, beginning behind it.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (own, count) = (self.host, self.hosts.all().len());
        (1..count).map(move |step| (own + step) % count)
    }

    /// Bytes of partials for bytes of elements.
    fn widened(&self, bytes: usize) -> usize {
        bytes / self.format.dtype.size() * self.format.dtype.accumulator_size()
    }
}

/// A sum's order, cut where ranks are on different hosts.
#[derive(Debug)]
struct Cut {
    /// Largest subtrees of one host, with the host; ranks in them are places on the host.
    parts: Vec<(usize, SumOrder)>,
    /// The rest of the tree; its ranks are numbers of parts.
    top: SumOrder,
}

/// A subtree on its way up.
enum Grown {
    Within(usize, SumOrder),
    Across(SumOrder),
}

impl Cut {
    fn of(order: &SumOrder, hosts: &Hosts, format: Format) -> Cut {
        if format.any_order() {
            let whole =
                |(host, ranks): (usize, &Vec<u32>)| (host, SumOrder::flat(ranks.len() as u32));
            let parts: Vec<_> = hosts.all().iter().enumerate().map(whole).collect();
            return Cut { top: SumOrder::flat(parts.len() as u32), parts };
        }
        let mut parts = Vec::new();
        let grown = grow(order, hosts, &mut parts);
        let top = settle(grown, &mut parts);
        Cut { parts, top }
    }

    /// Bytes that the busiest host's partials take, for a byte of elements.
    fn widening(&self, format: Format) -> f64 {
        let of = |host: usize| self.parts.iter().filter(|(at, _)| *at == host).count();
        let most = self.parts.iter().map(|(host, _)| of(*host)).max().unwrap_or(1);
        most as f64 * format.dtype.accumulator_size() as f64 / format.dtype.size() as f64
    }
}

fn grow(order: &SumOrder, hosts: &Hosts, parts: &mut Vec<(usize, SumOrder)>) -> Grown {
    match order {
        SumOrder::Rank(rank) => {
            let (host, index) = hosts.place(*rank);
            Grown::Within(host, SumOrder::Rank(index as u32))
        }
        SumOrder::Sum(children) => {
            let children: Vec<Grown> =
                children.iter().map(|child| grow(child, hosts, parts)).collect();
            let width = children.len().next_power_of_two();
            join(children, width, parts)
        }
    }
}

/// The children of a sum combine as the balanced binary tree over their positions (`netsum_wire::reduce`), of which an aligned
/// group on one host stays whole.
fn join(mut group: Vec<Grown>, width: usize, parts: &mut Vec<(usize, SumOrder)>) -> Grown {
    if group.len() == 1 {
        return group.remove(0);
    }
    let host = |grown: &Grown| match grown {
        Grown::Within(host, _) => Some(*host),
        Grown::Across(_) => None,
    };
    let first = host(&group[0]);
    if let Some(first) = first.filter(|_| group.iter().all(|one| host(one) == first)) {
        let orders = group.into_iter().map(|one| match one {
            Grown::Within(_, order) | Grown::Across(order) => order,
        });
        return Grown::Within(first, SumOrder::sum(orders.collect()));
    }
    let half = width / 2;
    if group.len() <= half {
        return join(group, half, parts);
    }
    let upper = group.split_off(half);
    let (left, right) = (join(group, half, parts), join(upper, half, parts));
    let sum = vec![settle(left, parts), settle(right, parts)];
    Grown::Across(SumOrder::sum(sum))
}

/// What stays within a host becomes a part.
fn settle(grown: Grown, parts: &mut Vec<(usize, SumOrder)>) -> SumOrder {
    match grown {
        Grown::Across(order) => order,
        Grown::Within(host, order) => {
            parts.push((host, order));
            SumOrder::Rank(parts.len() as u32 - 1)
        }
    }
}

fn allgather_cost(link: &Link, pieces: &Pieces) -> Option<f64> {
    let across = link.across.as_ref()?;
    let others = f64::from(link.ranks) - across.hosts.lanes() as f64;
    let lane = others / across.hosts.lanes() as f64;
    let sent = pieces.longest as f64 * lane.max(across.count() - 1.0);
    Some(across.latency_s + sent / across.bytes_per_s + memory_s(pieces.all))
}

/// Every rank's piece goes once to each other host, and there through memory.
fn allgather(comm: &mut Comm<'_>, gather: &Gather) -> Result<(), MeshError> {
    let hosts = comm.hosts();
    let Gather { input, outputs } = gather;
    let (own, index) = hosts.place(comm.rank());
    super::copy(input, &outputs[comm.rank() as usize]);
    let locals = hosts.all()[own].len();
    let others = || hosts.all().iter().enumerate().filter(|(host, _)| *host != own);
    for (_, ranks) in others() {
        for from in ranks.iter().skip(index).step_by(locals) {
            let output = &outputs[*from as usize];
            comm.receive(*from, 0, output, 0, output.len());
        }
    }
    for (_, ranks) in others() {
        comm.send(ranks[index % ranks.len()], 0, input, 0, input.len());
    }
    comm.finish()?;
    let Some(rounds) = comm.host()? else { return Ok(()) };
    for ranks in hosts.all() {
        for turn in ranks.chunks(locals) {
            let piece = |place: usize| match turn.get(place) {
                Some(&rank) => outputs[rank as usize].clone(),
                None => Buffer::from_vec(Vec::new()),
            };
            let pieces: Vec<Buffer> = (0..locals).map(piece).collect();
            shared::allgather(rounds, &pieces[index], &pieces)?;
        }
    }
    Ok(())
}

fn broadcast_cost(link: &Link, bytes: &usize) -> Option<f64> {
    let across = link.across.as_ref()?;
    let depth = f64::from((across.hosts.all().len() as u32).next_power_of_two().ilog2());
    let chunk = (*bytes).min(CHUNK) as f64;
    // One rank of a host has what its lanes have together.
    let rate = across.bytes_per_s * across.hosts.lanes() as f64;
    let sent = *bytes as f64 * depth + chunk * (depth - 1.0);
    Some(depth * across.latency_s + sent / rate + memory_s((*bytes).min(CHUNK)))
}

/// From the root to one rank of each host, chunk by chunk, and there through memory.
fn cast(comm: &mut Comm<'_>, cast: &Cast) -> Result<(), MeshError> {
    let hosts = comm.hosts();
    let (home, _) = hosts.place(cast.root);
    let (own, _) = hosts.place(comm.rank());
    let head = |host: usize| if host == home { cast.root } else { hosts.all()[host][0] };
    let count = hosts.all().len() as u32;
    let place = (own as u32 + count - home as u32) % count;
    let real = |place: u32| head(((place + home as u32) % count) as usize);
    let heads = comm.rank() == head(own);
    let parent = broadcast::parent(place).filter(|_| heads).map(real);
    let children: Vec<u32> =
        broadcast::children(place, count).filter(|_| heads).map(real).collect();
    let (_, source) = hosts.place(head(own));
    broadcast::down(comm, &cast.buffer, parent, children, |comm, chunk| match comm.host()? {
        Some(rounds) => shared::broadcast(rounds, &cast.buffer.part(chunk), source as u32),
        None => Ok(()),
    })
}

/// A message between two lanes: a part's partials of a block, or results.
fn tag(block: u64, part: usize) -> u64 {
    block << 32 | part as u64
}

/// No part has this number: there are no more parts than ranks.
const RESULT: usize = u32::MAX as usize;
const PARTIAL: Encoding = Encoding::Accumulator;
/// Several blocks are in memory at a time.
const BLOCK_MOST: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::tests::sum;
    use netsum_wire::{Dtype, ReduceOp};
    use proptest::prelude::*;

    const FORMATS: [Format; 3] = [
        Format { dtype: Dtype::F32, op: ReduceOp::Sum },
        Format { dtype: Dtype::Bf16, op: ReduceOp::Sum },
        Format { dtype: Dtype::I32, op: ReduceOp::Sum },
    ];

    /// Each host's parts added alone, then the top of the tree.
    fn cut_sum(cut: &Cut, hosts: &Hosts, format: Format, values: &[Vec<u8>]) -> Vec<u8> {
        let n = values[0].len() / format.dtype.size();
        let partial = |(host, order): &(usize, SumOrder)| {
            let ranks = &hosts.all()[*host];
            let own: Vec<&[u8]> = ranks.iter().map(|&rank| &values[rank as usize][..]).collect();
            let mut out = vec![0; n * format.dtype.accumulator_size()];
            Adder::between(order, format, Encoding::Element, PARTIAL).add(&own, &mut out);
            out
        };
        let partials: Vec<Vec<u8>> = cut.parts.iter().map(partial).collect();
        let partials: Vec<&[u8]> = partials.iter().map(Vec::as_slice).collect();
        let mut out = vec![0; values[0].len()];
        Adder::between(&cut.top, format, PARTIAL, Encoding::Element).add(&partials, &mut out);
        out
    }

    /// The ranks in a sum of random sums.
    fn nested(ranks: &[u32], choices: &[usize]) -> SumOrder {
        if ranks.len() < 2 || choices.is_empty() {
            return SumOrder::sum(ranks.iter().map(|&rank| SumOrder::Rank(rank)).collect());
        }
        let middle = 1 + choices[0] % (ranks.len() - 1);
        let (left, right) = ranks.split_at(middle);
        let rest = choices[1..].split_at(choices.len() / 2);
        SumOrder::sum(vec![nested(left, rest.0), nested(right, rest.1)])
    }

    proptest! {
        #[test]
        fn bits_do_not_depend_on_where_ranks_are(
            keys in prop::collection::vec(0..4, 1..20usize),
            choices in prop::collection::vec(0..100usize, 0..12),
            seed in any::<u64>(),
        ) {
            let size = keys.len() as u32;
            let hosts = Hosts::of(&keys);
            let ranks: Vec<u32> = (0..size).collect();
            let order = nested(&ranks, &choices);
            for format in FORMATS {
                let value = |rank: u64, i: u64| {
                    let x = (seed ^ rank << 17 ^ i << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    (x as i32 as f32) * 2f32.powi((x >> 40) as i32 % 20)
                };
                let bytes = |rank: u64| -> Vec<u8> {
                    let all = (0..5).map(|i| value(rank, i));
                    match format.dtype {
                        Dtype::Bf16 => all.flat_map(|x| half::bf16::from_f32(x).to_le_bytes()).collect(),
                        _ => all.flat_map(f32::to_le_bytes).collect(),
                    }
                };
                let values: Vec<Vec<u8>> = (0..u64::from(size)).map(bytes).collect();
                let cut = Cut::of(&order, &hosts, format);
                let right = sum(&order, format, &values);
                prop_assert_eq!(cut_sum(&cut, &hosts, format, &values), right, "{} {:?}", order, cut);
            }
        }
    }

    #[test]
    fn aligned_hosts_send_one_partial_each() {
        let parts = |keys: &[u32]| {
            let order = SumOrder::flat(keys.len() as u32);
            Cut::of(&order, &Hosts::of(keys), FORMATS[0]).parts.len()
        };
        assert_eq!(parts(&[0, 0, 1, 1]), 2);
        assert_eq!(parts(&[0, 0, 0, 0, 1, 1]), 2);
        assert_eq!(parts(&[0, 0, 1, 1, 1, 1, 2, 2]), 4);
        assert_eq!(parts(&[0, 0, 0, 1, 1, 1]), 4);
        assert_eq!(parts(&[0, 1, 0, 1]), 4);
    }
}
