//! Rows that a parameter server allocates, compared with those that its leases reserve.

use netsum_proto::atp::{LeaseError, Neighbour, Server, ServerLease};
use netsum_proto::values::Rows;
use netsum_proto::{Aggregator, PortId, Time};
use netsum_wire::atp::{Flags, Header, Kind, Level};
use netsum_wire::{Arithmetic, Epoch, JobId, Parties, Sequence, SlotIndex, TreeId};
use proptest::prelude::*;

const NOW: Time = Time(0);
const ROW: u16 = 8;

/// One rack of `workers`, each a neighbour.
fn lease(job: u32, workers: u32, window: u16) -> ServerLease {
    let neighbour =
        |worker: u32| Neighbour { port: PortId(worker), racks: 1, workers: 1 << worker };
    ServerLease {
        job: JobId(job),
        epoch: Epoch(1),
        tree: TreeId(0),
        racks: vec![(0..workers).collect()],
        neighbours: (0..workers).map(neighbour).collect(),
        window,
        fragment_bytes: ROW,
        slots: 4,
    }
}

/// A fragment as floats: the server keeps those of each rank until all have arrived.
fn floats(lease: &ServerLease, worker: u32, sequence: u32) -> Header {
    Header {
        kind: Kind::Contribution,
        level: Level::Server,
        flags: Flags::default(),
        arithmetic: Arithmetic::Float,
        tree: lease.tree,
        job: lease.job,
        sequence: Sequence(sequence),
        chunk: 0,
        epoch: lease.epoch,
        n_elems: ROW / 4,
        rack_fan_in: lease.ranks() as u8,
        server_fan_in: 1,
        slot: SlotIndex(0),
        workers: 1 << worker,
        racks: 1,
        next_slot: SlotIndex(0),
        others: 0,
        parties: Parties::All,
    }
}

proptest! {
    /// Workers send as far ahead as the window allows, in any order; the driver sends after each packet.
    #[test]
    fn a_server_allocates_no_more_than_its_leases_reserve(
        workers in 1..6u32,
        window in 1..40u16,
        order in prop::collection::vec(0..6u32, 1..800),
    ) {
        let lease = lease(1, workers, window);
        let mut server = Server::new(ROW, Rows::new(usize::MAX, ROW.into()));
        server.install(NOW, lease.clone()).unwrap();
        prop_assert_eq!(server.reserved(), lease.rows());
        let mut next = vec![0; workers as usize];
        for worker in order.into_iter().filter(|&worker| worker < workers) {
            // Fragments that all have sent have a result.
            let base = next.iter().min().copied().unwrap();
            let sequence = next[worker as usize];
            if sequence < base + u32::from(window) {
                let header = floats(&lease, worker, sequence);
                server.handle(NOW, PortId(worker), false, &header, &[0; ROW as usize]).unwrap();
                next[worker as usize] += 1;
            }
            let used = server.values().used() as u64;
            prop_assert!(used <= lease.rows(), "{} of {} rows", used, lease.rows());
            while server.poll_transmit().is_some() {}
        }
        server.revoke(JobId(1), Epoch(1));
        prop_assert_eq!((server.reserved(), server.values().used()), (0, 0));
    }
}

#[test]
fn a_lease_that_does_not_fit_is_refused() {
    let (first, second) = (lease(1, 4, 8), lease(2, 4, 8));
    // 16 entries and 4 ranks' floats of 8 fragments.
    assert_eq!((first.rows(), first.memory_bytes(ROW)), (48, 48 * (8 + 64)));
    let rows = Rows::new(usize::MAX, ROW.into());
    let mut server = Server::new(ROW, rows).with_rows(95);
    server.install(NOW, first.clone()).unwrap();
    let refused = server.install(NOW, second.clone()).unwrap_err();
    assert_eq!(refused, LeaseError::NoMemory { needed: 48, free: 47 });
    assert_eq!(server.reserved(), 48);
    // A later epoch replaces its own lease.
    server.install(NOW, ServerLease { epoch: Epoch(2), ..first }).unwrap();
    server.revoke(JobId(1), Epoch(2));
    server.install(NOW, second).unwrap();
}
