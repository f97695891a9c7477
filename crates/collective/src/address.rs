//! The address of a rank, which ranks exchange through the rendezvous before they are connected.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use netsum_identity::{Identity, SEAT_KEY_LEN};
use netsum_net::arena::ArenaSeat;
use netsum_net::mesh::{Listener, Occupant, Roster, SECRET_LEN, Seat};
use netsum_topo::links::TreePlan;
use serde::{Deserialize, Serialize};

use crate::hosts::Hosts;
use crate::planned::{Origin, PortAddress, Ports, Sharing};
use crate::{Error, GroupConfig};

/// A rank's address; opaque to the rendezvous.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Address {
    version: String,
    pub(crate) group: String,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    options: String,
    pub(crate) mesh: SocketAddr,
    secret: [u8; SECRET_LEN],
    /// Who the rank is, if it has credentials.
    occupant: Option<OccupantAddress>,
    /// UCX address, in a group over UCX.
    ucx: Option<Vec<u8>>,
    pub(crate) host: String,
    pub(crate) pid: u32,
    /// The job; set by rank 0 of a group with a controller.
    pub(crate) job: Option<JobNumber>,
    /// Address at which processes of this host can share memory with this one.
    pub(crate) memory: Option<MemoryAddress>,
    /// Listening address for peer links, in a group with a tree plan.
    pub(crate) port: Option<PortAddress>,
    /// Whether peer links are measured first.
    measures: bool,
    /// Number of networks over which a plan is made.
    networks: Option<usize>,
    /// The plan of rank 0, or why there is none.
    plan: Option<Result<FirstPlan, String>>,
}

/// An [`Occupant`] in serialized form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct OccupantAddress {
    #[serde(with = "identity_as_text")]
    identity: Identity,
    key: [u8; SEAT_KEY_LEN],
}

mod identity_as_text {
    use netsum_identity::Identity;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(identity: &Identity, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(identity)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Identity, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Identifies a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JobNumber {
    pub(crate) job: u32,
    /// The incarnation of the controller that assigned the number.
    pub(crate) incarnation: u64,
}

/// The initial plan of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct FirstPlan {
    pub(crate) plan: TreePlan,
    /// Smaller buffers use the host path.
    pub(crate) from_bytes: u64,
    pub(crate) sharing: Sharing,
}

/// An [`ArenaSeat`] in serialized form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct MemoryAddress {
    machine: String,
    name: String,
    cpus: Vec<usize>,
}

impl From<&ArenaSeat> for MemoryAddress {
    fn from(seat: &ArenaSeat) -> MemoryAddress {
        let ArenaSeat { machine, name, cpus } = seat.clone();
        MemoryAddress { machine, name, cpus }
    }
}

impl Address {
    pub(crate) fn new(
        config: &GroupConfig,
        listener: &Listener,
        host: String,
        job: Option<JobNumber>,
        memory: Option<&ArenaSeat>,
    ) -> Result<(Address, Option<Ports>), Error> {
        let (secret, mesh) = (secret()?, listener.address());
        let ports = config.plan.as_ref().map(|source| {
            let any = SocketAddr::new(mesh.ip(), 0);
            Ports::open(any, source.ways.clone(), secret).map_err(|e| Error::Connect {
                group: config.name.clone(),
                reason: format!("cannot listen for the peer links of a plan: {e}"),
            })
        });
        let ports = ports.transpose()?;
        let plan = config.plan.as_ref().filter(|_| config.rank == 0);
        let address = Address {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            group: config.name.clone(),
            rank: config.rank,
            size: config.size,
            options: config.options.agreed(),
            mesh,
            secret,
            occupant: listener
                .occupant()
                .map(|Occupant { identity, key }| OccupantAddress { identity, key }),
            ucx: listener.network_address().map(<[u8]>::to_vec),
            host,
            pid: std::process::id(),
            job,
            memory: memory.map(MemoryAddress::from),
            port: ports.as_ref().map(|ports| ports.address().clone()),
            networks: config.plan.as_ref().and_then(|source| match source.origin {
                Origin::Networks(count) => Some(count),
                Origin::File(_) => None,
            }),
            measures: config.plan.as_ref().is_some_and(|source| source.measure),
            plan: plan.map(|source| {
                let plan = source.read(config.size)?;
                let (from_bytes, sharing) = (source.least_bytes(&plan), source.sharing);
                Ok(FirstPlan { from_bytes, plan, sharing })
            }),
        };
        Ok((address, ports))
    }

    /// The plan in rank 0's address, or why there is none.
    pub(crate) fn plan(&self) -> Result<FirstPlan, String> {
        let none = || Err("rank 0 has no plan; give all ranks the same settings".to_owned());
        self.plan.clone().unwrap_or_else(none)
    }

    /// The secret that the lowest rank of a host expects from ranks that join its shared memory.
    pub(crate) fn secret(&self) -> &[u8; SECRET_LEN] {
        &self.secret
    }

    /// The identity in the rank's certificate, if it has credentials.
    pub(crate) fn identity(&self) -> Option<&Identity> {
        self.occupant.as_ref().map(|occupant| &occupant.identity)
    }

    fn seat(&self) -> Option<ArenaSeat> {
        let MemoryAddress { machine, name, cpus } = self.memory.clone()?;
        Some(ArenaSeat { machine, name, cpus })
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain values")
    }

    pub(crate) fn place(&self) -> String {
        format!("host {}, pid {}", self.host, self.pid)
    }
}

/// Reads the addresses of all ranks and checks that they agree on the group.
pub(crate) fn read_all(own: &Address, addresses: &[Vec<u8>]) -> Result<Vec<Address>, Error> {
    let wrong = |reason: String| Error::Connect { group: own.group.clone(), reason };
    if addresses.len() != own.size as usize {
        let reason = format!("{} addresses for {} ranks", addresses.len(), own.size);
        return Err(wrong(reason));
    }
    let mut all = Vec::with_capacity(addresses.len());
    for (rank, bytes) in addresses.iter().enumerate() {
        let address: Address = serde_json::from_slice(bytes)
            .map_err(|_| wrong(format!("the address of rank {rank} is malformed")))?;
        if address.rank as usize != rank {
            return Err(wrong(format!("rank {} stands in place {rank}", address.rank)));
        }
        let pairs = [
            ("version", &address.version, &own.version),
            ("group", &address.group, &own.group),
            ("options", &address.options, &own.options),
            ("plan", &planned(&address), &planned(own)),
            ("size", &address.size.to_string(), &own.size.to_string()),
        ];
        if let Some((what, theirs, ours)) = pairs.into_iter().find(|(_, a, b)| a != b) {
            let own = own.rank;
            return Err(wrong(format!("rank {rank} has {what} {theirs}, rank {own} has {ours}")));
        }
        all.push(address);
    }
    Ok(all)
}

fn planned(address: &Address) -> String {
    let plan = match (&address.port, address.networks) {
        (None, _) => "unset".to_owned(),
        (Some(_), None) => "set".to_owned(),
        (Some(_), Some(count)) => format!("over {count} interfaces"),
    };
    if address.measures { format!("{plan}, to be measured") } else { plan }
}

/// Whether every rank is alone on its host; the same at all ranks.
pub(crate) fn are_apart(all: &[Address]) -> bool {
    let machines = || all.iter().filter_map(|address| Some(address.port.as_ref()?.machine()));
    let known = || machines().filter(|machine| !machine.is_empty());
    all.len() > 1 && known().collect::<BTreeSet<_>>().len() == known().count()
}

/// Whether all ranks are known to be on one machine, in whatever namespaces; the same at all ranks.
pub(crate) fn are_on_one_machine(all: &[Address]) -> bool {
    let boot = |address: &Address| {
        let machine = &address.memory.as_ref()?.machine;
        Some(machine.split_once('/').map_or(machine.clone(), |(boot, _)| boot.to_owned()))
    };
    let first = all.first().and_then(boot);
    first.is_some() && all.iter().all(|address| boot(address) == first)
        || all.iter().all(|address| address.mesh.ip().is_loopback())
}

/// The ranks that can share memory; the same at all ranks.
///
/// A host is a machine and a network namespace. In a fabric, where one machine may emulate several hosts, the name of
/// the host counts, too.
pub(crate) fn hosts(all: &[Address]) -> Hosts {
    let key = |address: &Address| match &address.memory {
        Some(memory) => (address.host.clone(), memory.machine.clone(), None),
        None => (String::new(), String::new(), Some(address.rank)),
    };
    Hosts::of(&all.iter().map(key).collect::<Vec<_>>())
}

/// The arena seats of ranks that can share memory.
pub(crate) fn seats(all: &[Address], ranks: &[u32]) -> Option<Vec<ArenaSeat>> {
    ranks.iter().map(|&rank| all[rank as usize].seat()).collect()
}

/// The arena seats of all ranks that have one.
pub(crate) fn all_seats(all: &[Address]) -> Vec<ArenaSeat> {
    all.iter().filter_map(Address::seat).collect()
}

/// The mesh's roster of all ranks.
pub(crate) fn roster(own: &Address, all: &[Address]) -> Roster {
    // FNV-1a of the name distinguishes groups that use the same address by mistake; secrets exclude all others.
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let group = own.group.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    let occupant = |OccupantAddress { identity, key }: OccupantAddress| Occupant { identity, key };
    let seat = |a: &Address| Seat {
        address: a.mesh,
        secret: a.secret,
        network_address: a.ucx.clone(),
        occupant: a.occupant.clone().map(occupant),
    };
    Roster { group, rank: own.rank, seats: all.iter().map(seat).collect() }
}

/// The address and name of this machine, without a controller.
///
/// `host` if given (a name or an address of this machine), else the address from which `rendezvous` is reached, else
/// the loopback address.
pub(crate) fn local(config: &GroupConfig) -> Result<(IpAddr, String), Error> {
    let name = || {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        name.trim().to_owned()
    };
    if let Some(host) = &config.host {
        let found = (host.as_str(), 0).to_socket_addrs().ok().and_then(|mut all| all.next());
        let found = found.filter(|address| UdpSocket::bind((address.ip(), 0)).is_ok());
        let found = found.ok_or_else(|| Error::Connect {
            group: config.name.clone(),
            reason: format!("host {host:?} is not an address of this machine"),
        })?;
        return Ok((found.ip(), host.clone()));
    }
    let towards = config.options.rendezvous.as_deref().and_then(source_towards);
    Ok((towards.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)), name()))
}

/// The source address that the kernel would use; nothing is sent.
fn source_towards(rendezvous: &str) -> Option<IpAddr> {
    let to = (rendezvous, 9).to_socket_addrs().ok()?.next()?;
    let any: SocketAddr = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().ok()?;
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(to).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

fn secret() -> Result<[u8; SECRET_LEN], Error> {
    let mut secret = [0; SECRET_LEN];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut secret));
    read.map_err(|e| Error::Internal(format!("cannot read /dev/urandom: {e}")))?;
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use std::time::Duration;

    fn address(rank: u32, name: &str) -> Address {
        let config = GroupConfig {
            rank,
            size: 2,
            name: name.to_owned(),
            controller: None,
            host: None,
            timeout: Duration::from_secs(1),
            options: Options::default(),
            plan: None,
        };
        let (ip, host) = local(&config).unwrap();
        assert!(ip.is_loopback());
        let listener = Listener::bind(ip, config.options.network).unwrap();
        Address::new(&config, &listener, host, None, None).unwrap().0
    }

    #[test]
    fn disagreeing_ranks_are_named() {
        let own = address(0, "a");
        let read = |all: &[Vec<u8>]| read_all(&own, all).map_err(|e| e.to_string());
        let good = [own.to_bytes(), address(1, "a").to_bytes()];
        assert_eq!(read(&good).unwrap()[0], own);
        let other = read(&[own.to_bytes(), address(1, "b").to_bytes()]);
        let expected = "cannot connect group \"a\": rank 1 has group b, rank 0 has a";
        assert_eq!(other.unwrap_err(), expected);
        assert!(read(&good[..1]).unwrap_err().contains("1 addresses for 2 ranks"));
        assert!(read(&[good[1].clone(), good[0].clone()]).unwrap_err().contains("rank 1 stands"));
        assert!(read(&[b"x".to_vec(), good[1].clone()]).unwrap_err().contains("malformed"));
    }

    #[test]
    fn secrets_differ() {
        assert_ne!(address(0, "a").secret, address(0, "a").secret);
    }
}
