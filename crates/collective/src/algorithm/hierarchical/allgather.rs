//! All-gather: every rank's piece is sent once to each other host, and distributed there through shared memory.

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;

use crate::algorithm::in_memory::memory_s;
use crate::algorithm::{Algorithm, Allgather, GatherShape};
use crate::comm::Comm;
use crate::link_cost::LinkCost;
use crate::pieces::copy;
use crate::shared;

pub(in crate::algorithm) const ALLGATHER: Algorithm<Allgather> =
    Algorithm { name: "hierarchical", cost, run };

fn cost(link: &LinkCost, pieces: &GatherShape) -> Option<f64> {
    let across = link.across.as_ref()?;
    let others = f64::from(link.ranks) - across.hosts.lanes() as f64;
    let lane = others / across.hosts.lanes() as f64;
    let sent = pieces.longest as f64 * lane.max(across.count() - 1.0);
    Some(across.latency_s + sent / across.bytes_per_s + memory_s(pieces.all))
}

fn run(comm: &mut Comm<'_>, gather: &mut Allgather) -> Result<(), MeshError> {
    let hosts = comm.hosts();
    let Allgather { input, outputs } = gather;
    let (own, index) = hosts.place(comm.rank());
    copy(input, &mut outputs[comm.rank() as usize]);
    let locals = hosts.all()[own].len();
    let others = || hosts.all().iter().enumerate().filter(|(host, _)| *host != own);
    for (_, ranks) in others() {
        for from in ranks.iter().skip(index).step_by(locals) {
            let output = &mut outputs[*from as usize];
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
            let nothing = || Buffer::from_vec(Vec::new());
            let piece = |place: usize| match turn.get(place) {
                Some(&rank) => outputs[rank as usize].lend_all(),
                None => nothing(),
            };
            let mut pieces: Vec<Buffer> = (0..locals).map(piece).collect();
            let own = std::mem::replace(&mut pieces[index], nothing());
            shared::allgather(rounds, own.slice(0..own.len()), &mut pieces)?;
        }
    }
    Ok(())
}
