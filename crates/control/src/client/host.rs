//! Determines the fabric's host on which a worker runs.

use std::net::{IpAddr, UdpSocket};

use crate::error::ControlError;
use crate::pb;

/// Whether this machine (or network namespace) has that address.
pub fn is_local(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// The hosts of the fabric that are on this machine, in the order of the fabric file.
pub fn local_hosts(hosts: &[pb::Host]) -> Vec<pb::Host> {
    let local = |host: &&pb::Host| host.address.parse().is_ok_and(is_local);
    hosts.iter().filter(local).cloned().collect()
}

/// The host of `rank` of `size`: the one called `named` if given, else of the H hosts on this machine the one at index
/// `rank * H / size`.
///
/// Errors name the host, or report that no host of the fabric has an address of this machine.
pub fn choose_host(
    fabric: &pb::FabricReply,
    named: Option<&str>,
    rank: u32,
    size: u32,
) -> Result<pb::Host, ControlError> {
    let wrong = |problem: String| ControlError::Malformed { what: "placement", problem };
    if let Some(name) = named {
        let found = fabric.hosts.iter().find(|host| host.name == name).cloned();
        let names: Vec<&str> = fabric.hosts.iter().map(|host| host.name.as_str()).collect();
        return found.ok_or_else(|| {
            wrong(format!(
                "fabric {:?} has no host {name:?}; it has {}",
                fabric.name,
                names.join(", ")
            ))
        });
    }
    let local = local_hosts(&fabric.hosts);
    if rank >= size || local.is_empty() {
        return Err(wrong(format!(
            "no host of fabric {:?} has an address of this machine (rank {rank} of {size}); \
             set NETSUM_HOST, or add the machine to the fabric file",
            fabric.name
        )));
    }
    Ok(local[(u64::from(rank) * local.len() as u64 / u64::from(size)) as usize].clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fabric(addresses: &[&str]) -> pb::FabricReply {
        let host = |(i, address): (usize, &&str)| pb::Host {
            name: format!("h{i}"),
            address: (*address).to_owned(),
        };
        let hosts = addresses.iter().enumerate().map(host).collect();
        pb::FabricReply { name: "f".to_owned(), hosts, ..Default::default() }
    }

    #[test]
    fn ranks_spread_over_local_hosts_in_order() {
        let fabric = fabric(&["127.77.1.1", "192.0.2.1", "127.77.1.2"]);
        let chosen = |rank| choose_host(&fabric, None, rank, 4).unwrap().name;
        assert_eq!([0, 1, 2, 3].map(chosen), ["h0", "h0", "h2", "h2"]);
        assert_eq!(choose_host(&fabric, Some("h1"), 0, 4).unwrap().address, "192.0.2.1");
    }

    #[test]
    fn a_wrong_place_is_named() {
        let away = fabric(&["192.0.2.1"]);
        let message = choose_host(&away, None, 0, 2).unwrap_err().to_string();
        assert!(
            message.contains("no host of fabric \"f\" has an address of this machine"),
            "{message}"
        );
        let message = choose_host(&away, Some("h7"), 0, 2).unwrap_err().to_string();
        assert!(message.contains("no host \"h7\"; it has h0"), "{message}");
    }
}
