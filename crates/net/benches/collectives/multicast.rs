//! A switch that copies fragments under the copier's load.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use netsum_proto::panama::{Child, Lease};

use crate::load::{FRAGMENTS, Load};
use crate::workers::start_switch;
use crate::{CORES, Counted, FRAGMENT_BYTES, cores};

const BEFORE: Duration = Duration::from_millis(100);

pub(crate) fn run(time: Duration) -> Counted {
    let switch = start_switch(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let mut load = Load::new();
    let children = load.addresses().into_iter().enumerate();
    let child = |(rank, port): (usize, _)| Child { port, ranks: 1u64 << rank, branch: rank as u8 };
    let lease = Lease {
        job: netsum_wire::JobId(1),
        epoch: netsum_wire::Epoch(1),
        tree: netsum_wire::TreeId(0),
        children: children.map(child).collect(),
        parent: None,
        slots: FRAGMENTS,
        fragment_bytes: FRAGMENT_BYTES,
        release_permille: 1000,
    };
    switch.install(lease).expect("the lease fits");
    cores::pin(CORES[0]);
    let middle = switch.local_addr();
    load.run(middle, BEFORE);
    let cpu = || switch.snapshot().expect("the switch runs").cpu;
    let before = cpu();
    let packets = load.run(middle, time);
    let after = cpu();
    Counted { packets, cpu: after.user + after.system - before.user - before.system }
}
