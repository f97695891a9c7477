//! An `atp` switch and server among hostile neighbours: each reason to drop is counted separately, nothing panics,
//! memory is bounded, and other jobs' sums are unaffected.

use netsum_proto::atp::*;
use netsum_proto::values::{Rows, Values};
use netsum_proto::{DropReason, PortId, Time};
use netsum_wire::atp::{Flags, HEADER_LEN, Header, Kind, Level};
use netsum_wire::*;
use proptest::prelude::*;

const NOW: Time = Time(0);
const ROW: u16 = 16;
const PARENT: PortId = PortId(99);
const WINDOW: u16 = 4;

/// Job 1 has workers at ports 10 and 11, job 2 at 20 and 21.
fn switch() -> Switch<Rows> {
    let config =
        SwitchConfig { slots: 8, row_bytes: ROW, policy: Policy::FirstCome, straggler_ns: 1 << 40 };
    let mut switch = Switch::new(config, Rows::new(64, ROW.into()));
    for job in [1, 2] {
        let workers = vec![PortId(job * 10), PortId(job * 10 + 1)];
        let members = Members::Rack { workers, rack: 0, racks: 1 };
        let claim = Claim { limit: 4, ..Claim::default() };
        switch.install(NOW, lease(job, members, claim)).unwrap();
    }
    switch
}

fn lease(job: u32, members: Members, claim: Claim) -> Lease {
    let (job, epoch, tree) = (JobId(job), Epoch(5), TreeId(0));
    Lease { job, epoch, tree, members, parent: PARENT, window: WINDOW, fragment_bytes: ROW, claim }
}

fn server() -> Server<Rows> {
    let mut server = Server::new(ROW, Rows::new(128, ROW.into()));
    for job in [1, 2] {
        server.install(NOW, server_lease(job)).unwrap();
    }
    server
}

fn server_lease(job: u32) -> ServerLease {
    let neighbour = |i: u32| Neighbour { port: PortId(job * 10 + i), racks: 1, workers: 1 << i };
    ServerLease {
        job: JobId(job),
        epoch: Epoch(5),
        tree: TreeId(0),
        racks: vec![vec![0, 1]],
        neighbours: vec![neighbour(0), neighbour(1)],
        window: WINDOW,
        fragment_bytes: ROW,
        slots: 8,
    }
}

fn header(job: u32, worker: u32, sequence: u32) -> Header {
    Header {
        kind: Kind::Contribution,
        level: Level::Rack,
        flags: Flags::default(),
        arithmetic: Arithmetic::Wrapping,
        tree: TreeId(0),
        job: JobId(job),
        sequence: Sequence(sequence),
        chunk: 77,
        epoch: Epoch(5),
        n_elems: 4,
        rack_fan_in: 2,
        server_fan_in: 1,
        slot: SlotIndex(job * 4 + sequence),
        workers: 1 << worker,
        racks: 1,
        next_slot: SlotIndex(0),
        others: 0,
        parties: Parties::All,
    }
}

fn down(kind: Kind, job: u32, sequence: u32) -> Header {
    let n_elems = if kind.has_payload() { 4 } else { 0 };
    Header { kind, n_elems, workers: 0, racks: 0, ..header(job, 0, sequence) }
}

const PAYLOAD: [u8; 16] = [1; 16];

/// Packets that both machines refuse for the same reason.
fn forgeries() -> Vec<(u32, Header, DropReason)> {
    let good = header(1, 0, 0);
    vec![
        (10, Header { job: JobId(3), ..good }, DropReason::NoLease),
        (10, Header { tree: TreeId(1), ..good }, DropReason::NoLease),
        (10, Header { epoch: Epoch(4), ..good }, DropReason::StaleEpoch),
        (10, Header { epoch: Epoch(6), ..good }, DropReason::FutureEpoch),
        (20, good, DropReason::NotANeighbour),
        (10, Header { workers: 0b10, ..good }, DropReason::Members),
        (10, Header { workers: 0b11, ..good }, DropReason::Members),
        (10, Header { rack_fan_in: 1, ..good }, DropReason::Members),
        (10, Header { server_fan_in: 2, ..good }, DropReason::Members),
        (10, Header { server_fan_in: 2, racks: 0b10, ..good }, DropReason::Members),
        (10, Header { kind: Kind::Result, ..good }, DropReason::WrongDirection),
        (10, Header { kind: Kind::Mismatch, n_elems: 0, ..good }, DropReason::WrongDirection),
        (10, header(1, 0, WINDOW.into()), DropReason::BeyondWindow),
        (10, header(1, 0, u32::MAX - 100), DropReason::TooOld),
        (10, Header { n_elems: 5, ..good }, DropReason::TooLarge),
    ]
}

#[test]
fn every_reason_to_drop_is_distinguished() {
    let (mut switch, mut server) = (switch(), server());
    for (from, header, reason) in forgeries() {
        let payload = vec![0; header.payload_len()];
        let of_switch = switch.handle(NOW, PortId(from), false, &header, &payload);
        assert_eq!(of_switch, Err(reason), "switch: {header:?}");
        let of_server = server.handle(NOW, PortId(from), false, &header, &payload);
        assert_eq!(of_server, Err(reason), "server: {header:?}");
        assert!(switch.drops().get(reason) > 0 && server.drops().get(reason) > 0);
    }
    let up = header(1, 0, 0);
    assert_eq!(switch.handle(NOW, PARENT, false, &up, &PAYLOAD), Err(DropReason::WrongDirection));
    let late = down(Kind::Result, 1, 9);
    assert_eq!(switch.handle(NOW, PARENT, false, &late, &PAYLOAD), Err(DropReason::BeyondWindow));
    assert_eq!(switch.held(), 0);
    assert_eq!(server.values().used(), 0);
    switch.handle(NOW, PortId(10), false, &up, &PAYLOAD).unwrap();
    assert_eq!(switch.handle(NOW, PortId(10), false, &up, &PAYLOAD), Err(DropReason::Duplicate));
}

/// A replayed packet of an earlier epoch, or of a window long past, has no effect.
#[test]
fn replayed_packets_are_dropped() {
    let mut switch = switch();
    for sequence in 0..20 {
        for worker in 0..2 {
            let header = header(1, worker, sequence);
            switch.handle(NOW, PortId(10 + worker), false, &header, &PAYLOAD).unwrap();
        }
        switch.handle(NOW, PARENT, false, &down(Kind::Result, 1, sequence), &PAYLOAD).unwrap();
        while switch.poll_transmit().is_some() {}
        switch.values_mut().flushed();
    }
    for sequence in 0..16 {
        let again = switch.handle(NOW, PortId(10), false, &header(1, 0, sequence), &PAYLOAD);
        assert_eq!(again, Err(DropReason::TooOld), "{sequence}");
    }
    let members = Members::Rack { workers: vec![PortId(10), PortId(11)], rack: 0, racks: 1 };
    let next = Lease { epoch: Epoch(6), ..lease(1, members, Claim::default()) };
    switch.install(NOW, next.clone()).unwrap();
    let replayed = switch.handle(NOW, PortId(10), false, &header(1, 0, 19), &PAYLOAD);
    assert_eq!(replayed, Err(DropReason::StaleEpoch));
    let older = Lease { epoch: Epoch(5), ..next };
    assert!(matches!(switch.install(NOW, older), Err(LeaseError::Epoch { .. })));
    assert_eq!(switch.held(), 0);
}

#[test]
fn invalid_leases_are_refused() {
    let rack = |workers: Vec<u32>, rack, racks| Members::Rack {
        workers: workers.into_iter().map(PortId).collect(),
        rack,
        racks,
    };
    let refused = |members, change: fn(Lease) -> Lease| {
        switch().install(NOW, change(lease(9, members, Claim::default()))).unwrap_err()
    };
    let same = |lease| lease;
    assert_eq!(refused(rack(vec![], 0, 1), same), LeaseError::Members(0));
    assert_eq!(refused(rack((0..33).collect(), 0, 1), same), LeaseError::Members(33));
    assert_eq!(refused(rack(vec![1], 1, 1), same), LeaseError::Rack { rack: 1, racks: 1 });
    let twice = LeaseError::DuplicateNeighbour(PortId(1));
    assert_eq!(refused(rack(vec![1, 1], 0, 1), same), twice);
    let parent = LeaseError::DuplicateNeighbour(PARENT);
    assert_eq!(refused(rack(vec![99], 0, 1), same), parent);
    let empty = Members::Server { racks: vec![Rack { port: PortId(1), workers: 0 }] };
    assert_eq!(refused(empty, same), LeaseError::Members(0));
    let plain = || rack(vec![1], 0, 1);
    assert_eq!(refused(plain(), |l| Lease { window: 0, ..l }), LeaseError::Window(0));
    let size = |fragment| LeaseError::FragmentBytes { fragment, row: ROW };
    assert_eq!(refused(plain(), |l| Lease { fragment_bytes: 20, ..l }), size(20));
    assert_eq!(refused(plain(), |l| Lease { fragment_bytes: 6, ..l }), size(6));
    let greedy = |l| Lease { claim: Claim { guaranteed: 9, ..Claim::default() }, ..l };
    assert_eq!(refused(plain(), greedy), LeaseError::Slots { wanted: 9, free: 8, slots: 8 });
    let of_server = |change: fn(ServerLease) -> ServerLease| {
        server().install(NOW, change(server_lease(9))).unwrap_err()
    };
    assert_eq!(of_server(|l| ServerLease { racks: vec![], ..l }), LeaseError::Members(0));
    assert_eq!(of_server(|l| ServerLease { racks: vec![vec![0, 2]], ..l }), LeaseError::Ranks);
    let neighbours = |l: ServerLease| ServerLease { neighbours: l.neighbours[..1].to_vec(), ..l };
    assert_eq!(of_server(neighbours), LeaseError::Unreachable(0));
}

/// Packets of job 1's neighbours and of unknown senders, some of them almost valid.
fn hostile() -> impl Strategy<Value = (u32, Vec<u8>)> {
    let raw = (0..40u32, prop::collection::vec(any::<u8>(), 0..80));
    let fields = (0..8u8, any::<u8>(), 0..4u32, any::<[u8; 4]>(), 0..6u16, any::<u32>());
    let port = prop_oneof![Just(10u32), Just(11), Just(99), 0..40u32];
    let almost = (port, fields).prop_map(|(port, (kind, flags, job, small, n_elems, large))| {
        let [sequence, members, fan_in, slot] = small;
        let mut bytes = vec![0x21, kind | flags & 0x10, flags & 0x4f, u8::from(small[0] > 250)];
        bytes.extend(job.to_be_bytes());
        let sequence = if sequence < 200 { u32::from(sequence % 8) } else { large };
        bytes.extend(sequence.to_be_bytes());
        bytes.extend(77u32.to_be_bytes());
        bytes.extend([0, 5 + (fan_in >> 7 & fan_in & 1)]);
        bytes.extend(n_elems.to_be_bytes());
        bytes.extend([2 + (fan_in & 1), 1 + (fan_in >> 1 & 1)]);
        bytes.extend(u32::from(slot).to_be_bytes());
        bytes.extend(u32::from(members & 3).to_be_bytes());
        bytes.extend(u32::from(1 + (members >> 7)).to_be_bytes());
        bytes.extend([0; 12]);
        let payload = if kind < 2 { usize::from(n_elems) * 4 } else { 0 };
        bytes.resize(HEADER_LEN + payload, slot);
        (port, bytes)
    });
    prop_oneof![1 => raw, 6 => almost]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Job 2 reduces while job 1's members attack: its sums are exact, and job 1 holds no more slots than its limit.
    #[test]
    fn a_hostile_tenant_does_not_change_other_sums(
        attack in prop::collection::vec(hostile(), 0..120),
        values in prop::collection::vec(any::<[[u8; 16]; 2]>(), 8),
    ) {
        let (mut switch, mut server) = (switch(), server());
        let mut attack = attack.into_iter();
        for (sequence, values) in (0..).zip(values) {
            let mut sums = Vec::new();
            for worker in 0..2u32 {
                for (from, packet) in attack.by_ref().take(8) {
                    // No attacker can use an address of job 2's neighbours.
                    let Ok((header, payload)) = Header::decode(&packet) else { continue };
                    if header.job != JobId(2) || from / 10 != 2 && from != 99 {
                        let _ = switch.handle(NOW, PortId(from), false, &header, payload);
                        let _ = server.handle(NOW, PortId(from), false, &header, payload);
                    }
                }
                let own = header(2, worker, sequence);
                let _ = switch.handle(NOW, PortId(20 + worker), false, &own, &values[worker as usize]);
                while let Some(Transmit { to, header, payload }) = switch.poll_transmit() {
                    if header.job == JobId(2) && to == PARENT {
                        sums.push((header.workers, switch.values().get(payload.unwrap()).to_vec()));
                    }
                }
                switch.values_mut().flushed();
                while server.poll_transmit().is_some() {}
                server.values_mut().flushed();
            }
            // Added in the network or sent one by one, depending on the slot: together they are the sum.
            let mut total = vec![0; 16];
            let workers = sums.iter().fold(0, |all, (workers, values)| {
                Arithmetic::Wrapping.combine(&mut total, values);
                assert_eq!(all & workers, 0, "nobody twice");
                all | workers
            });
            let mut expected = values[0].to_vec();
            Arithmetic::Wrapping.combine(&mut expected, &values[1]);
            prop_assert_eq!((workers, total), (0b11, expected));
            let _ = switch.handle(NOW, PARENT, false, &down(Kind::Result, 2, sequence), &PAYLOAD);
            while switch.poll_transmit().is_some() {}
            switch.values_mut().flushed();
            let greedy = switch.leases().find(|(l, ..)| l.job == JobId(1)).map(|(_, held, _)| held);
            prop_assert!(greedy <= Some(4));
        }
        switch.revoke(JobId(1), Epoch(9));
        prop_assert_eq!(switch.held(), 0);
        server.revoke(JobId(1), Epoch(9));
        server.values_mut().flushed();
        prop_assert_eq!(server.values().used(), 0);
    }
}

#[test]
fn a_notice_names_the_rank_that_differs_from_the_first() {
    let mut server = server();
    let mut give = |header: Header| {
        let from = PortId(10 + header.workers.trailing_zeros());
        server.handle(NOW, from, false, &Header { level: Level::Server, ..header }, &PAYLOAD)
    };
    assert_eq!(give(header(1, 0, 0)), Ok(()));
    assert_eq!(give(Header { chunk: 78, ..header(1, 1, 0) }), Err(DropReason::Mismatch));
    for _ in 0..2 {
        let notice = server.poll_transmit().unwrap().header;
        assert_eq!((notice.kind, notice.next_slot), (Kind::Mismatch, SlotIndex(2)), "rank 1");
    }
}

/// A member says of itself alone whether it contributes, and cannot say that it does not where it must.
#[test]
fn who_takes_part_without_elements_is_checked() {
    let mut server = server();
    let mut give = |worker: u32, sequence: u32, kind: Kind, parties: Parties, others: u32| {
        let header = Header { kind, parties, others, ..header(1, worker, sequence) };
        let slot = if kind == Kind::Ready { SlotIndex(0) } else { header.slot };
        let header = Header { level: Level::Server, slot, ..header };
        let payload = if kind.has_payload() { &PAYLOAD[..] } else { &[] };
        let outcome = server.handle(NOW, PortId(10 + worker), false, &header, payload);
        let sent = std::iter::from_fn(|| server.poll_transmit())
            .map(|sent| (sent.to.0, sent.header.kind))
            .collect::<Vec<_>>();
        (outcome, sent)
    };
    let (sent, ready) = (Kind::Contribution, Kind::Ready);
    let from_0 = Parties::FromOne(0);
    assert_eq!(give(1, 0, sent, from_0, 0), (Err(DropReason::Members), vec![]), "not its own");
    assert_eq!(give(0, 0, ready, from_0, 0), (Err(DropReason::Members), vec![]), "it contributes");
    assert_eq!(give(1, 0, ready, from_0, 0), (Ok(()), vec![]));
    let (outcome, results) = give(0, 0, sent, from_0, 0);
    assert_eq!((outcome, results.len()), (Ok(()), 2), "the sender gets it back");
    // A notice for a number of which nothing is known yet is forgotten if the rank's elements turn out to be due.
    assert_eq!(give(1, 2, ready, from_0, 0b1), (Ok(()), vec![]));
    assert_eq!(give(0, 1, sent, Parties::All, 0), (Ok(()), vec![]), "rank 1 is not in");
    let (_, results) = give(1, 1, sent, Parties::All, 0);
    assert!(results.iter().all(|(_, kind)| *kind == Kind::Result) && results.len() == 2);
    // The result for one, and done for the other.
    assert_eq!(give(0, 3, sent, Parties::ToOne(1), 0), (Ok(()), vec![]));
    let (_, results) = give(1, 3, sent, Parties::ToOne(1), 0);
    assert_eq!(results, [(10, Kind::Done), (11, Kind::Result)]);
    // Who names another taker is named.
    assert_eq!(give(0, 4, sent, Parties::ToOne(1), 0), (Ok(()), vec![]));
    let (outcome, notices) = give(1, 4, sent, Parties::ToOne(0), 0);
    assert_eq!((outcome, notices.len()), (Err(DropReason::Mismatch), 2));
}
