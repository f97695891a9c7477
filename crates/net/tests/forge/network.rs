//! Where the processes of a rig are: all on loopback, or each in a network namespace of its own, around one switch.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;

use crossbeam_channel::Receiver;
use netsum_net::switch::{Role, SwitchDriver, SwitchOptions};
use netsum_net::udp::SocketOptions;
use netsum_net::worker::{Event, WorkerDriver};

use crate::namespace::Namespace;
use crate::rigs::WORKERS;

pub const SWITCH: usize = 0;
pub const SERVER: usize = 1;
pub const WORKERS_FROM: usize = 2;
pub const OTHERS: usize = WORKERS_FROM + WORKERS;
pub const MEMBER: usize = OTHERS + WORKERS - 1;
pub const ATTACKER: usize = MEMBER + 1;
/// In namespaces: the address of node n is one more than n behind this.
const SUBNET: [u8; 3] = [10, 79, 0];

pub enum Network {
    Loopback,
    #[cfg_attr(not(feature = "xdp"), allow(dead_code))]
    Namespaces(Vec<Namespace>),
}

impl Network {
    /// Every other node has a link to the switch, which forwards what is not for itself. `None`, with a line, where
    /// there are no namespaces.
    #[cfg(feature = "xdp")]
    pub fn around_a_switch() -> Option<Network> {
        let spaces: Option<Vec<_>> = (SWITCH..=ATTACKER).map(|_| Namespace::new()).collect();
        let spaces = spaces?;
        let at = |node| in_subnet(node).to_string();
        spaces[SWITCH].run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap());
        for node in SERVER..=ATTACKER {
            let (to, here) = (interface(node), at(node));
            if !spaces[SWITCH].link(&to, &at(SWITCH), &spaces[node], "to0", &here)
                || !spaces[node].ip(&[format!("route add default via {}", at(SWITCH))])
            {
                return None;
            }
        }
        Some(Network::Namespaces(spaces))
    }

    pub fn ip(&self, node: usize) -> IpAddr {
        match self {
            Network::Loopback => Ipv4Addr::LOCALHOST.into(),
            Network::Namespaces(_) => in_subnet(node).into(),
        }
    }

    /// Runs `what` at a node; sockets and threads that it makes stay there.
    pub fn run<T: Send + 'static>(
        &self,
        node: usize,
        what: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        match self {
            Network::Loopback => what(),
            Network::Namespaces(spaces) => spaces[node].run(what),
        }
    }

    /// In namespaces, the switch is in the kernel, if it can be.
    pub fn switch(&self, node: usize, role: Role) -> SwitchDriver {
        let bind = SocketAddr::new(self.ip(node), 0);
        let socket = SocketOptions::default();
        let options = SwitchOptions { bind, memory: 16 << 20, role, socket, threads: 1 };
        let interfaces: Vec<_> = match self {
            Network::Namespaces(_) if node == SWITCH => {
                (SERVER..=ATTACKER).map(interface).collect()
            }
            _ => Vec::new(),
        };
        self.run(node, move || SwitchDriver::start_behind(&options, &interfaces).unwrap())
    }

    pub fn workers(&self, nodes: Range<usize>) -> Vec<(WorkerDriver, Receiver<Event>)> {
        let start = |node| {
            let ip = self.ip(node);
            self.run(node, move || WorkerDriver::start(ip).unwrap())
        };
        nodes.map(start).collect()
    }
}

fn in_subnet(node: usize) -> Ipv4Addr {
    let [a, b, c] = SUBNET;
    Ipv4Addr::new(a, b, c, node as u8 + 1)
}

/// Of the switch, towards a node.
fn interface(node: usize) -> String {
    format!("to{node}")
}
