//! Port numbers of neighbours' addresses: only leases create ports, so unknown senders cost no memory.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use netsum_proto::PortId;
use netsum_proto::policer::Thinned;
use rustc_hash::{FxHashMap, FxHashSet};

use super::Neighbour;
use crate::udp::{Sent, ThinnedSender, Traffic};

/// The ports in use and their received traffic.
#[derive(Default)]
pub(crate) struct Ports {
    by_address: FxHashMap<SocketAddr, PortId>,
    ports: Vec<Port>,
    free: Vec<u32>,
    /// Traffic of the last neighbours that no lease names any more, oldest first: switches come back.
    retired: VecDeque<Neighbour>,
    /// Traffic of earlier neighbours by host, since workers' ports do not come back. One entry per host of the fabric.
    hosts: FxHashMap<IpAddr, Neighbour>,
    /// The last sender found: datagrams of one sender arrive in a row.
    last: Option<(SocketAddr, PortId)>,
}

struct Port {
    /// Excludes traffic sent since the port was created, which the sender counts.
    account: Neighbour,
}

/// Maximum number of neighbours without leases that are remembered by port.
const RETIRED: usize = 256;

impl Ports {
    /// The port of a leased address.
    #[inline]
    pub(crate) fn find(&mut self, address: SocketAddr) -> Option<PortId> {
        match self.last {
            Some((last, port)) if last == address => Some(port),
            _ => {
                let port = *self.by_address.get(&address)?;
                self.last = Some((address, port));
                Some(port)
            }
        }
    }

    /// The port of an address that a lease names; true if it is new.
    pub(crate) fn intern(&mut self, address: SocketAddr) -> (PortId, bool) {
        if let Some(&port) = self.by_address.get(&address) {
            return (port, false);
        }
        let past = self.retired.iter().position(|n| n.address == address);
        let past = past.and_then(|i| self.retired.remove(i));
        let entry = Port { account: past.unwrap_or(Neighbour::silent(address)) };
        let port = match self.free.pop() {
            Some(index) => {
                self.ports[index as usize] = entry;
                PortId(index)
            }
            None => {
                self.ports.push(entry);
                PortId(self.ports.len() as u32 - 1)
            }
        };
        self.by_address.insert(address, port);
        (port, true)
    }

    /// Removes every port that is not in `leased`, but keeps its traffic.
    pub(crate) fn retain(&mut self, leased: &FxHashSet<PortId>, sent: impl Fn(PortId) -> Sent) {
        let gone = self.by_address.extract_if(|_, port| !leased.contains(port));
        for (_, port) in gone {
            let neighbour = self.ports[port.0 as usize].neighbour(sent(port));
            self.free.push(port.0);
            if neighbour.received.packets + neighbour.sent.packets > 0 {
                self.retired.push_back(neighbour);
            }
        }
        self.last = None;
        while self.retired.len() > RETIRED
            && let Some(oldest) = self.retired.pop_front()
        {
            let ip = oldest.address.ip();
            let host = self.hosts.entry(ip);
            let host = host.or_insert_with(|| Neighbour::silent(SocketAddr::new(ip, 0)));
            host.received += oldest.received;
            host.sent += oldest.sent;
            host.marked += oldest.marked;
        }
    }

    /// Address of a port in use.
    pub(crate) fn address(&self, port: PortId) -> SocketAddr {
        self.ports[port.0 as usize].account.address
    }

    /// Addresses of ports in use whose packets are thinned out.
    pub(crate) fn senders(&self, thinned: &[Thinned]) -> Vec<ThinnedSender> {
        let sender = |&Thinned { port, halvings }| {
            let address = self.address(port);
            ThinnedSender { address, halvings }
        };
        thinned.iter().map(sender).collect()
    }

    /// Counts received traffic.
    #[inline]
    pub(crate) fn received(&mut self, port: PortId, ce: bool, packets: u64, bytes: u64) {
        let entry = &mut self.ports[port.0 as usize].account;
        entry.received.count(packets, bytes);
        entry.marked += if ce { packets } else { 0 };
    }

    /// Every neighbour's traffic, including past neighbours.
    pub(crate) fn neighbours(&self, sent: impl Fn(PortId) -> Sent) -> Vec<Neighbour> {
        let now = self.by_address.values();
        let now = now.map(|&port| self.ports[port.0 as usize].neighbour(sent(port)));
        let mut all: Vec<_> = now.chain(self.past()).collect();
        all.sort_by_key(|n| n.address);
        all
    }

    fn past(&self) -> impl Iterator<Item = Neighbour> {
        self.retired.iter().chain(self.hosts.values()).copied()
    }
}

impl Port {
    fn neighbour(&self, since: Sent) -> Neighbour {
        let mut neighbour = self.account;
        neighbour.sent += since.into();
        neighbour
    }
}

impl Neighbour {
    fn silent(address: SocketAddr) -> Neighbour {
        Neighbour { address, received: Traffic::default(), sent: Traffic::default(), marked: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8, port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], port))
    }

    fn sent(_: PortId) -> Sent {
        Sent { packets: 1, bytes: 100 }
    }

    #[test]
    fn numbers_are_reused_and_old_traffic_is_kept_by_host() {
        let mut ports = Ports::default();
        for job in 0..1000 {
            let (port, new) = ports.intern(address(1, 40_000 + job));
            assert!(new && port.0 == 0, "{port:?}");
            assert_eq!(ports.find(address(1, 40_000 + job)), Some(port));
            ports.received(port, job % 2 == 0, 2, 10);
            ports.retain(&FxHashSet::default(), sent);
            assert_eq!(ports.find(address(1, 40_000 + job)), None);
        }
        let all = ports.neighbours(sent);
        assert_eq!(all.len(), RETIRED + 1);
        assert_eq!(all[0].address, address(1, 0));
        assert_eq!(all[0].received.packets, 2 * (1000 - RETIRED as u64));
        assert_eq!(all.iter().map(|n| n.marked).sum::<u64>(), 1000);
        assert_eq!(all.iter().map(|n| n.received.bytes).sum::<u64>(), 1000 * (10 + 2 * 28));
        assert_eq!(all.iter().map(|n| n.sent.bytes).sum::<u64>(), 1000 * 128);
    }

    #[test]
    fn a_switch_that_comes_back_continues_its_counters() {
        let mut ports = Ports::default();
        for life in 1..4 {
            let (port, new) = ports.intern(address(2, 7701));
            assert!(new);
            ports.retain(&FxHashSet::from_iter([port]), sent);
            assert_eq!(ports.intern(address(2, 7701)), (port, false));
            ports.received(port, false, 1, 0);
            assert_eq!(ports.neighbours(sent)[0].sent.packets, life);
            ports.retain(&FxHashSet::default(), sent);
            let all = ports.neighbours(sent);
            assert_eq!((all.len(), all[0].received.packets), (1, life));
        }
    }
}
