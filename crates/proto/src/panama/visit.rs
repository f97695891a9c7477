//! Packets as a part of a state that is compared and moved.

use netsum_wire::Parties;
use netsum_wire::panama::{Header, Kind};

use crate::visit::{Counted, Visitor};

/// Visits the header of a packet that is stored or on its way. Only packets of allreduces that carry elements are
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
    let carries = matches!(kind, Kind::Contribution | Kind::Partial | Kind::Result);
    if !carries || *parties != Parties::All || *empty || *asks || *others != 0 {
        v.unlike();
    }
    v.of_job(*job);
    v.number_u32(&mut vid.0, Counted::Vids);
    v.number_u32(chunk, Counted::Chunks);
    let flags = u64::from(*resent) << 1 | u64::from(*congested_down);
    let small = u64::from(tree.0) << 32 | u64::from(epoch.0) << 16 | u64::from(*n_elems);
    v.same((*kind as u64) << 50 | flags << 48 | small);
    v.format(*format);
    v.same(u64::from(*marks) << 32 | u64::from(*window_cap));
    v.same(*missing);
}
