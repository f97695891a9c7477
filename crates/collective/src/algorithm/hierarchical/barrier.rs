//! Barrier: in shared memory within each host, then over the network among one rank per host, then in shared memory
//! again.

use netsum_net::mesh::MeshError;

use crate::algorithm::in_memory::memory_s;
use crate::algorithm::{Algorithm, Barrier, barrier};
use crate::comm::Comm;
use crate::link_cost::LinkCost;
use crate::shared;

pub(in crate::algorithm) const BARRIER: Algorithm<Barrier> =
    Algorithm { name: "hierarchical", cost, run };

fn cost(link: &LinkCost, (): &()) -> Option<f64> {
    let across = link.across.as_ref()?;
    let steps = barrier::steps(across.hosts.all().len() as u32);
    Some(f64::from(steps) * across.latency_s + 2.0 * memory_s(0))
}

fn run(comm: &mut Comm<'_>, _: &mut Barrier) -> Result<(), MeshError> {
    let hosts = comm.hosts();
    let (own, index) = hosts.place(comm.rank());
    if let Some(rounds) = comm.host()? {
        shared::barrier(rounds)?;
    }
    if index == 0 {
        let heads: Vec<u32> = hosts.all().iter().map(|ranks| ranks[0]).collect();
        barrier::disseminate(comm, &heads, own)?;
    }
    match comm.host()? {
        Some(rounds) => shared::barrier(rounds),
        None => Ok(()),
    }
}
