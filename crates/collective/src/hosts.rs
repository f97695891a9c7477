//! Ranks of a group by host.

use netsum_topo::SumOrder;
use serde::Serialize;

/// The ranks of each host, ascending; hosts by their lowest rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Hosts(Vec<Vec<u32>>);

impl Hosts {
    /// Groups ranks with equal `key` as one host; `keys` by rank.
    pub(crate) fn of<K: PartialEq>(keys: &[K]) -> Hosts {
        let mut hosts: Vec<Vec<u32>> = Vec::new();
        for (rank, key) in keys.iter().enumerate() {
            let known = hosts.iter_mut().find(|host| keys[host[0] as usize] == *key);
            match known {
                Some(host) => host.push(rank as u32),
                None => hosts.push(vec![rank as u32]),
            }
        }
        Hosts(hosts)
    }

    /// Every rank on its own host.
    pub(crate) fn apart(size: u32) -> Hosts {
        Hosts((0..size).map(|rank| vec![rank]).collect())
    }

    /// Ranks by host.
    pub fn all(&self) -> &[Vec<u32>] {
        &self.0
    }

    /// Whether all ranks share memory.
    pub(crate) fn is_one(&self) -> bool {
        self.0.len() == 1 && self.0[0].len() > 1
    }

    /// Whether there are several hosts, at least one of them with several ranks.
    pub(crate) fn are_mixed(&self) -> bool {
        self.0.len() > 1 && self.0.iter().any(|host| host.len() > 1)
    }

    /// The order that adds each host's ranks first, then the hosts' sums.
    pub(crate) fn order(&self) -> SumOrder {
        let host =
            |ranks: &Vec<u32>| SumOrder::sum(ranks.iter().copied().map(SumOrder::Rank).collect());
        SumOrder::sum(self.0.iter().map(host).collect())
    }

    /// A rank's host, and its position there.
    pub(crate) fn place(&self, rank: u32) -> (usize, usize) {
        let found = self.0.iter().enumerate().find_map(|(number, host)| {
            Some((number, host.iter().position(|&other| other == rank)?))
        });
        found.expect("every rank is on a host")
    }

    /// Number of lanes: ranks of every host that exchange messages with the ranks of the same position on other hosts.
    pub(crate) fn lanes(&self) -> usize {
        self.0.iter().map(Vec::len).min().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_found_on_their_hosts() {
        let hosts = Hosts::of(&["b", "a", "b", "a", "b"]);
        assert_eq!(hosts.all(), [vec![0, 2, 4], vec![1, 3]]);
        assert_eq!((hosts.place(4), hosts.place(1)), ((0, 2), (1, 0)));
        assert_eq!(hosts.lanes(), 2);
        assert!(hosts.are_mixed() && !hosts.is_one() && !Hosts::apart(3).are_mixed());
        assert!(Hosts::of(&[7, 7]).is_one() && !Hosts::apart(1).is_one());
    }
}
