//! Barrier by dissemination: in round k everybody hears from the rank 2ᵏ below.

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;

use crate::comm::Comm;
use crate::shared;

pub(crate) fn barrier(comm: &mut Comm<'_>) -> Result<(), MeshError> {
    if let Some(rounds) = comm.rounds()? {
        return shared::barrier(rounds);
    }
    let (rank, size) = (comm.rank(), comm.size());
    let nothing = Buffer::from_vec(Vec::new());
    let mut distance = 1;
    while distance < size {
        let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
        comm.send(to, u64::from(distance), &nothing, 0, 0);
        let heard = comm.receive(from, u64::from(distance), &nothing, 0, 0);
        comm.wait(heard)?;
        distance *= 2;
    }
    Ok(())
}
