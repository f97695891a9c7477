//! Broadcast: from the root to one rank of each host, chunk by chunk, and within the host through shared memory.

use netsum_net::mesh::MeshError;

use crate::algorithm::in_memory::memory_s;
use crate::algorithm::{Algorithm, Broadcast, broadcast};
use crate::comm::Comm;
use crate::link_cost::LinkCost;
use crate::pieces::CHUNK;
use crate::shared;

pub(in crate::algorithm) const BROADCAST: Algorithm<Broadcast> =
    Algorithm { name: "hierarchical", cost, run };

fn cost(link: &LinkCost, bytes: &usize) -> Option<f64> {
    let across = link.across.as_ref()?;
    let depth = f64::from((across.hosts.all().len() as u32).next_power_of_two().ilog2());
    let chunk = (*bytes).min(CHUNK) as f64;
    // One rank of a host can use the rate of all its lanes.
    let rate = across.bytes_per_s * across.hosts.lanes() as f64;
    let sent = *bytes as f64 * depth + chunk * (depth - 1.0);
    Some(depth * across.latency_s + sent / rate + memory_s((*bytes).min(CHUNK)))
}

fn run(comm: &mut Comm<'_>, cast: &mut Broadcast) -> Result<(), MeshError> {
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
    broadcast::down(comm, &mut cast.buffer, parent, children, |comm, buffer, chunk| {
        match comm.host()? {
            Some(rounds) => shared::broadcast(rounds, buffer, chunk, source as u32),
            None => Ok(()),
        }
    })
}
