//! Interface and Ethernet address of the path to a neighbour, from the system's tables.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

use super::WhyNot;
use crate::interface::{Interface, links};

/// The next hop to a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Outgoing interface.
    pub ifindex: u32,
    /// Address of the interface.
    pub own_mac: [u8; 6],
    /// Address of the neighbour, or of its gateway.
    pub mac: [u8; 6],
}

/// Tables of the calling thread's network namespace.
const ROUTES: &str = "/proc/thread-self/net/route";
const NEIGHBOURS: &str = "/proc/thread-self/net/arp";
/// The discard service.
const DISCARD: u16 = 9;

/// The next hop to `to`. If its Ethernet address is unknown, triggers the resolution and returns `Resolving`.
pub(super) fn resolve(own: SocketAddrV4, to: SocketAddrV4) -> Result<Hop, WhyNot> {
    let routes = fs::read_to_string(ROUTES).map_err(|e| WhyNot::System("reading routes", e))?;
    let (name, gateway) = route(&routes, *to.ip()).ok_or(WhyNot::Unreachable(to))?;
    let link = links().into_iter().find(|link| link.name == name);
    let Interface { ifindex, mac: own_mac, .. } = link.ok_or(WhyNot::Unreachable(to))?;
    let known =
        fs::read_to_string(NEIGHBOURS).map_err(|e| WhyNot::System("reading neighbours", e))?;
    match ethernet_address(&known, gateway, &name) {
        Some(mac) => Ok(Hop { ifindex, own_mac, mac }),
        None => {
            // Sending any packet triggers the resolution.
            let asked = UdpSocket::bind((*own.ip(), 0))
                .and_then(|socket| socket.send_to(&[], (*to.ip(), DISCARD)));
            match asked {
                Ok(_) => Err(WhyNot::Resolving(to)),
                Err(error) => Err(WhyNot::System("asking for an Ethernet address", error)),
            }
        }
    }
}

/// Interface and next address towards `to`, by the longest prefix.
fn route(table: &str, to: Ipv4Addr) -> Option<(String, Ipv4Addr)> {
    let number = |text: &str| u32::from_str_radix(text, 16).ok().map(u32::from_be);
    let rows = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let (destination, gateway) = (number(fields.get(1)?)?, number(fields.get(2)?)?);
        let mask = number(fields.get(7)?)?;
        let metric: u32 = fields.get(6)?.parse().ok()?;
        (u32::from(to) & mask == destination).then(|| (mask, metric, fields[0], gateway))
    });
    let best = rows.max_by_key(|&(mask, metric, ..)| (mask, u32::MAX - metric))?;
    let (_, _, name, gateway) = best;
    Some((name.to_owned(), if gateway == 0 { to } else { gateway.into() }))
}

/// The address of a complete entry.
fn ethernet_address(table: &str, of: Ipv4Addr, interface: &str) -> Option<[u8; 6]> {
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [address, _, flags, mac, _, name] = fields.as_slice() else { return None };
        let complete = *flags != "0x0" && *name == interface && address.parse() == Ok(of);
        let octets: Vec<_> = complete.then(|| mac.split(':'))?.collect();
        let octets: Option<Vec<u8>> =
            octets.iter().map(|o| u8::from_str_radix(o, 16).ok()).collect();
        octets?.try_into().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth1\t0001000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
eth2\t0201000A\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0
";

    #[test]
    fn the_longest_prefix_wins_and_a_gateway_is_named() {
        let to = |last: [u8; 4]| route(TABLE, last.into()).unwrap();
        assert_eq!(to([10, 0, 1, 2]), ("eth2".into(), [10, 0, 1, 2].into()));
        assert_eq!(to([10, 0, 1, 3]), ("eth1".into(), [10, 0, 1, 3].into()));
        assert_eq!(to([192, 0, 2, 1]), ("eth0".into(), [10, 0, 0, 1].into()));
        assert_eq!(route("", [10, 0, 0, 1].into()), None);
    }

    #[test]
    fn only_complete_entries_of_the_right_interface_count() {
        let table = "IP address HW type Flags HW address Mask Device\n\
            10.0.1.2 0x1 0x2 02:00:00:00:00:0a * eth1\n10.0.1.3 0x1 0x0 00:00:00:00:00:00 * eth1\n";
        let of = |last, name| ethernet_address(table, [10, 0, 1, last].into(), name);
        assert_eq!(of(2, "eth1"), Some([2, 0, 0, 0, 0, 10]));
        assert_eq!(of(2, "eth0"), None);
        assert_eq!(of(3, "eth1"), None);
    }
}
