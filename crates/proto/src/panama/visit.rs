//! Packets as a part of a state that is compared and moved.

use netsum_wire::Parties;
use netsum_wire::panama::{Header, Kind};

use crate::visit::{Counted, Visitor};

/// Visits the header of a packet that is stored or on its way. Only packets that carry contributions or results are
/// compared.
pub fn visit_header(header: &mut Header, v: &mut impl Visitor) {
    let Header {
        kind,
        resent,
        congested_down,
        tree,
        format,
        job,
        vid,
        chunk,
        epoch,
        window_cap,
        n_elems,
        marks,
        missing,
        parties,
        empty,
        asks,
        others,
    } = header;
    v.of_job(*job);
    v.of_tree(*tree);
    v.number_u32(&mut vid.0, Counted::Vids);
    if matches!(kind, Kind::Waiting | Kind::Mismatch | Kind::Acknowledgement | Kind::Fin) {
        v.unlike();
    }
    // Packets that are about vids alone have no position.
    match *chunk == 0 && *n_elems == 0 && *parties == Parties::All {
        true => v.same(0),
        false => v.number_u32(chunk, Counted::Chunks),
    }
    let flags = u64::from(*resent) << 1 | u64::from(*congested_down);
    let small = u64::from(tree.0) << 32 | u64::from(epoch.0) << 16 | u64::from(*n_elems);
    v.same((*kind as u64) << 50 | flags << 48 | small);
    v.format(*format);
    v.same(u64::from(*marks) << 32 | u64::from(*window_cap));
    v.same(*missing);
    let (code, rank) = (parties.code(), parties.rank());
    let flags = u64::from(*empty) << 1 | u64::from(*asks);
    v.same(flags << 16 | u64::from(code) << 8 | u64::from(rank));
    v.same(*others);
}
