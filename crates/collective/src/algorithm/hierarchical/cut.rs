//! Sums cut at the hosts: partial sums of each host, and the rest of the order.

use netsum_topo::SumOrder;
use netsum_wire::{Encoding, Format};

use crate::hosts::Hosts;
use crate::order::Adder;

/// Encoding of partials between hosts.
pub(super) const PARTIAL: Encoding = Encoding::Accumulator;

/// A sum's order, cut where ranks are on different hosts.
#[derive(Debug)]
pub(super) struct Cut {
    /// Largest subtrees of one host, with the host; leaves are positions on the host.
    pub(super) parts: Vec<(usize, SumOrder)>,
    /// The rest of the tree; leaves are indices of parts.
    pub(super) top: SumOrder,
}

/// A subtree during the bottom-up traversal.
enum Subtree {
    Within(usize, SumOrder),
    Across(SumOrder),
}

impl Cut {
    pub(super) fn of(order: &SumOrder, hosts: &Hosts, format: Format) -> Cut {
        if format.any_order() {
            let whole =
                |(host, ranks): (usize, &Vec<u32>)| (host, SumOrder::flat(ranks.len() as u32));
            let parts: Vec<_> = hosts.all().iter().enumerate().map(whole).collect();
            return Cut { top: SumOrder::flat(parts.len() as u32), parts };
        }
        let mut parts = Vec::new();
        let subtree = grow(order, hosts, &mut parts);
        let top = settle(subtree, &mut parts);
        Cut { parts, top }
    }

    /// Adders for the parts of a host.
    pub(super) fn partials(&self, host: usize, format: Format) -> Vec<Adder> {
        let own = self.parts.iter().filter(|(at, _)| *at == host);
        own.map(|(_, order)| Adder::between(order, format, Encoding::Element, PARTIAL)).collect()
    }

    /// The adder for all parts.
    pub(super) fn whole(&self, format: Format) -> Adder {
        Adder::between(&self.top, format, PARTIAL, Encoding::Element)
    }

    /// Bytes of the busiest host's partials per byte of elements.
    pub(super) fn widening(&self, format: Format) -> f64 {
        let of = |host: usize| self.parts.iter().filter(|(at, _)| *at == host).count();
        let most = self.parts.iter().map(|(host, _)| of(*host)).max().unwrap_or(1);
        most as f64 * format.dtype.accumulator_size() as f64 / format.dtype.size() as f64
    }
}

fn grow(order: &SumOrder, hosts: &Hosts, parts: &mut Vec<(usize, SumOrder)>) -> Subtree {
    match order {
        SumOrder::Rank(rank) => {
            let (host, index) = hosts.place(*rank);
            Subtree::Within(host, SumOrder::Rank(index as u32))
        }
        SumOrder::Sum(children) => {
            let children: Vec<Subtree> =
                children.iter().map(|child| grow(child, hosts, parts)).collect();
            let width = children.len().next_power_of_two();
            join(children, width, parts)
        }
    }
}

/// Combines the children of a sum as the balanced binary tree over their positions (`netsum_wire::reduce`); an aligned
/// group on one host stays whole.
fn join(mut group: Vec<Subtree>, width: usize, parts: &mut Vec<(usize, SumOrder)>) -> Subtree {
    if group.len() == 1 {
        return group.remove(0);
    }
    let host = |subtree: &Subtree| match subtree {
        Subtree::Within(host, _) => Some(*host),
        Subtree::Across(_) => None,
    };
    let first = host(&group[0]);
    if let Some(first) = first.filter(|_| group.iter().all(|one| host(one) == first)) {
        let orders = group.into_iter().map(|one| match one {
            Subtree::Within(_, order) | Subtree::Across(order) => order,
        });
        return Subtree::Within(first, SumOrder::sum(orders.collect()));
    }
    let half = width / 2;
    if group.len() <= half {
        return join(group, half, parts);
    }
    let upper = group.split_off(half);
    let (left, right) = (join(group, half, parts), join(upper, half, parts));
    let sum = vec![settle(left, parts), settle(right, parts)];
    Subtree::Across(SumOrder::sum(sum))
}

/// Makes a part of a subtree that is on one host.
fn settle(subtree: Subtree, parts: &mut Vec<(usize, SumOrder)>) -> SumOrder {
    match subtree {
        Subtree::Across(order) => order,
        Subtree::Within(host, order) => {
            parts.push((host, order));
            SumOrder::Rank(parts.len() as u32 - 1)
        }
    }
}

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

    /// Adds each host's parts separately, then the top of the tree.
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

    /// A random nested order of the ranks.
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
        fn bits_do_not_depend_on_placement(
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
