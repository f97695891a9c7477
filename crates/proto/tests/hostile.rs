//! A switch among hostile neighbours: nothing panics, memory is bounded, and other jobs' sums are unaffected.

use netsum_proto::panama::*;
use netsum_proto::{DropReason, PortId, Time};
use netsum_wire::Parties;
use netsum_wire::panama::{HEADER_LEN, Header, Kind, NO_CAP};
use netsum_wire::*;
use proptest::prelude::*;

const NOW: Time = Time(0);
const SLOTS: u16 = 8;

fn lease(job: u32, ports: &[u32]) -> Lease {
    // Two ranks beneath each.
    let child =
        |(i, &p): (usize, &u32)| Child { port: PortId(p), ranks: 3 << (2 * i), branch: i as u8 };
    Lease {
        job: JobId(job),
        epoch: Epoch(5),
        tree: TreeId(0),
        children: ports.iter().enumerate().map(child).collect(),
        parent: None,
        slots: SLOTS,
        fragment_bytes: 64,
        release_permille: 1000,
    }
}

fn header(job: u32, vid: u32) -> Header {
    Header {
        kind: Kind::Contribution,
        resent: false,
        congested_down: false,
        tree: TreeId(0),
        format: Format { dtype: Dtype::I32, op: ReduceOp::Sum },
        job: JobId(job),
        vid: Vid(vid),
        chunk: 77,
        epoch: Epoch(5),
        window_cap: NO_CAP,
        n_elems: 16,
        marks: 0,
        missing: 0,
        parties: Parties::All,
        empty: false,
        asks: false,
        others: 0,
    }
}

fn switch() -> Switch<Slab> {
    let mut switch = Switch::new(Slab::new(1 << 20));
    switch.install(NOW, lease(1, &[10, 11])).unwrap();
    switch.install(NOW, lease(2, &[20, 21])).unwrap();
    switch
}

fn drain(switch: &mut Switch<Slab>) -> Vec<(PortId, Vec<u8>)> {
    let mut sent = Vec::new();
    while let Some(transmit) = switch.poll_transmit() {
        if let Transmit::Data { to, buffer } = transmit {
            sent.push((to, switch.memory().packet(buffer).to_vec()));
        }
    }
    switch.flushed();
    sent
}

#[test]
fn every_reason_to_drop_is_distinguished() {
    let mut switch = switch();
    let payload = [0; 64];
    let mut drop = |from: u32, header: Header, payload: &[u8]| {
        switch.handle(NOW, PortId(from), false, &header, payload).unwrap_err()
    };
    let good = header(1, 0);
    assert_eq!(drop(10, Header { job: JobId(3), ..good }, &payload), DropReason::NoLease);
    assert_eq!(drop(10, Header { tree: TreeId(1), ..good }, &payload), DropReason::NoLease);
    assert_eq!(drop(10, Header { epoch: Epoch(4), ..good }, &payload), DropReason::StaleEpoch);
    assert_eq!(drop(10, Header { epoch: Epoch(6), ..good }, &payload), DropReason::FutureEpoch);
    assert_eq!(drop(20, good, &payload), DropReason::NotANeighbour);
    assert_eq!(
        drop(10, Header { kind: Kind::Result, ..good }, &payload),
        DropReason::WrongDirection
    );
    assert_eq!(drop(10, Header { n_elems: 17, ..good }, &[0; 68]), DropReason::TooLarge);
    assert_eq!(drop(10, header(1, u32::MAX), &payload), DropReason::TooOld);
    let acknowledgement = Header { kind: Kind::Acknowledgement, n_elems: 0, ..good };
    assert_eq!(drop(10, acknowledgement, &[]), DropReason::Unexpected);
    switch.handle(NOW, PortId(10), false, &good, &payload).unwrap();
    let again = switch.handle(NOW, PortId(10), false, &good, &payload);
    assert_eq!(again, Err(DropReason::Duplicate));
    let other = Header { chunk: 78, ..good };
    assert_eq!(switch.handle(NOW, PortId(11), false, &other, &payload), Err(DropReason::Mismatch));
    assert_eq!(switch.drops().get(DropReason::NoLease), 2);
    assert_eq!(switch.drops().iter().map(|(_, n)| n).sum::<u64>(), 11);
}

#[test]
fn a_sender_that_ignores_its_window_gets_no_more_than_that() {
    let mut switch = switch();
    let mut taken = 0;
    for vid in 0..1000 {
        match switch.handle(NOW, PortId(10), false, &header(1, vid), &[1; 64]) {
            Ok(()) => taken += 1,
            Err(reason) => assert_eq!(reason, DropReason::BeyondWindow),
        }
    }
    assert_eq!(taken, SLOTS);
    let slot = switch.memory().cost(64);
    assert_eq!(switch.memory().used(), u64::from(SLOTS) * slot);
}

/// A switch's number, and one of its ports.
type Place = (usize, u32);

/// Sends all that is queued at switches whose ports are joined in pairs; returns how many packets that took, at most
/// `limit`. Ports without a peer belong to workers.
fn circulate(switches: &mut [Switch<Slab>], joined: &[(Place, Place)], limit: usize) -> usize {
    let other_end = |at: Place| {
        let either = joined.iter().flat_map(|&(a, b)| [(a, b), (b, a)]);
        either.into_iter().find(|(a, _)| *a == at).map(|(_, b)| b)
    };
    let mut sent = 0;
    loop {
        let before = sent;
        for number in 0..switches.len() {
            while let Some(Transmit::Control { to, header }) = switches[number].poll_transmit() {
                sent += 1;
                if sent == limit {
                    return sent;
                }
                if let Some((peer, port)) = other_end((number, to.0)) {
                    let _ = switches[peer].handle(NOW, PortId(port), false, &header, &[]);
                }
            }
        }
        if sent == before {
            return sent;
        }
    }
}

#[test]
fn notices_do_not_circulate_where_leases_form_a_circle() {
    // Two switches with a worker each and two links between them.
    let mut switches = [(); 2].map(|()| Switch::new(Slab::new(1 << 20)));
    for switch in &mut switches {
        switch.install(NOW, lease(1, &[10, 11, 12])).unwrap();
    }
    let joined = [((0, 11), (1, 11)), ((0, 12), (1, 12))];
    for vid in 0..u32::from(SLOTS) {
        let notice = Header { kind: Kind::Mismatch, n_elems: 0, ..header(1, vid) };
        switches[0].handle(NOW, PortId(10), false, &notice, &[]).unwrap();
        assert!(circulate(&mut switches, &joined, 1000) <= 6);
        let again = switches[0].handle(NOW, PortId(10), false, &notice, &[]);
        assert_eq!(again, Err(DropReason::Duplicate));
        assert_eq!(circulate(&mut switches, &joined, 1000), 0);
    }
    assert!(switches.iter().all(|switch| switch.drops().get(DropReason::Duplicate) > 0));
    let far = Header { kind: Kind::Mismatch, n_elems: 0, ..header(1, 1000) };
    let dropped = switches[0].handle(NOW, PortId(10), false, &far, &[]);
    assert_eq!(dropped, Err(DropReason::BeyondWindow), "the switch holds nothing of it");
}

#[test]
fn a_child_that_missed_a_notice_gets_it_when_it_sends_again() {
    let mut switch = switch();
    switch.handle(NOW, PortId(10), false, &header(1, 0), &[0; 64]).unwrap();
    let notice = Header { kind: Kind::Mismatch, n_elems: 0, ..header(1, 0) };
    switch.handle(NOW, PortId(11), false, &notice, &[]).unwrap();
    let passed_on = switch.poll_transmit();
    let told = |passed_on: Option<Transmit<_>>| match passed_on {
        Some(Transmit::Control { to, header }) => (to, header.kind),
        _ => panic!("no notice"),
    };
    assert_eq!(told(passed_on), (PortId(10), Kind::Mismatch));
    let again = Header { resent: true, ..header(1, 0) };
    let answer = switch.handle(NOW, PortId(10), false, &again, &[0; 64]);
    assert_eq!(answer, Err(DropReason::Duplicate));
    assert_eq!(told(switch.poll_transmit()), (PortId(10), Kind::Mismatch));
    assert!(switch.poll_transmit().is_none());
}

/// All notices of a switch, as port and ranks named.
fn notices(switch: &mut Switch<Slab>) -> Vec<(u32, u64)> {
    let mut sent = Vec::new();
    while let Some(transmit) = switch.poll_transmit() {
        if let Transmit::Control { to, header: Header { kind: Kind::Mismatch, missing, .. } } =
            transmit
        {
            sent.push((to.0, missing));
        }
    }
    sent
}

#[test]
fn a_notice_names_whose_packet_was_refused_and_nobody_else() {
    let mut switch = switch();
    switch.handle(NOW, PortId(10), false, &header(1, 0), &[0; 64]).unwrap();
    // The sender claims that others are missing in its contribution.
    let other = Header { chunk: 78, missing: 0b0001, ..header(1, 0) };
    let refused = switch.handle(NOW, PortId(11), false, &other, &[0; 64]);
    assert_eq!(refused, Err(DropReason::Mismatch));
    assert_eq!(notices(&mut switch), [(10, 0b1100), (11, 0b1100)]);
}

#[test]
fn a_child_that_contradicts_itself_is_named_to_all() {
    let mut switch = switch();
    let again = |n_elems| Header { resent: true, n_elems, ..header(1, 0) };
    switch.handle(NOW, PortId(10), false, &header(1, 0), &[1; 64]).unwrap();
    let same = switch.handle(NOW, PortId(10), false, &again(16), &[1; 64]);
    assert_eq!(same, Err(DropReason::Duplicate));
    assert_eq!(notices(&mut switch), [], "it waits for the other child");
    let other = switch.handle(NOW, PortId(10), false, &again(16), &[2; 64]);
    assert_eq!(other, Err(DropReason::Contradiction));
    assert_eq!(notices(&mut switch), [(10, 0b0011), (11, 0b0011)]);
    let shorter = switch.handle(NOW, PortId(10), false, &again(15), &[1; 60]);
    assert_eq!(shorter, Err(DropReason::Contradiction));
    assert_eq!(notices(&mut switch), [], "once for each fragment");
    // A rank that had not called the operation yet learns of it by asking.
    switch.handle(NOW, PortId(11), false, &header(1, 0), &[5; 64]).unwrap();
    let asked = switch.handle(NOW, PortId(11), false, &again(16), &[5; 64]);
    assert_eq!(asked, Err(DropReason::Duplicate));
    assert_eq!(notices(&mut switch), [(11, 0b0011)]);
    assert!(drain(&mut switch).is_empty(), "there is no sum");
    assert_eq!(switch.drops().get(DropReason::Contradiction), 2);
}

#[test]
fn once_a_fragment_is_summed_only_its_first_payload_counts() {
    let mut switch = switch();
    for port in [10, 11] {
        switch.handle(NOW, PortId(port), false, &header(1, 0), &[1; 64]).unwrap();
    }
    let sums = drain(&mut switch);
    let again = Header { resent: true, ..header(1, 0) };
    let late = switch.handle(NOW, PortId(10), false, &again, &[9; 64]);
    assert_eq!(late, Err(DropReason::Duplicate));
    assert_eq!(drain(&mut switch), [sums[0].clone()], "the same sum");
}

#[test]
fn a_child_names_only_ranks_beneath_it_and_each_once() {
    let mut switch = switch();
    let notice = |missing| Header { kind: Kind::Mismatch, missing, ..header(1, 0) };
    let mut give = |missing| {
        let taken = switch.handle(NOW, PortId(10), false, &notice(missing), &[]);
        (taken.is_ok(), notices(&mut switch))
    };
    assert_eq!(give(0b1101), (true, vec![(11, 0b0001)]), "2 and 3 are beneath the other child");
    assert_eq!(give(0b0001), (false, vec![]));
    assert_eq!(give(0b1100), (false, vec![]));
    assert_eq!(give(0b0011), (true, vec![(11, 0b0011)]), "a further rank");
}

#[test]
fn a_worker_cannot_claim_that_it_agrees_with_the_others() {
    let mut switch = Switch::new(Slab::new(1 << 20));
    let child = |i: u32| Child { port: PortId(10 + i), ranks: 1 << i, branch: i as u8 };
    let lease = Lease { children: (0..2).map(child).collect(), ..lease(1, &[]) };
    switch.install(NOW, lease).unwrap();
    let notice = Header { kind: Kind::Mismatch, missing: 1, ..header(1, 0) };
    let taken = switch.handle(NOW, PortId(10), false, &notice, &[]);
    assert_eq!(taken, Err(DropReason::WrongDirection));
    assert!(switch.poll_transmit().is_none());
}

#[test]
fn strangers_do_not_keep_a_lease_alive() {
    let mut switch = switch();
    let late = Time(1_000);
    for kind in [Kind::Contribution, Kind::Result, Kind::Mismatch, Kind::Fin] {
        let stranger =
            switch.handle(late, PortId(20), false, &Header { kind, ..header(1, 0) }, &[0; 64]);
        assert_eq!(stranger, Err(DropReason::NotANeighbour));
    }
    switch.handle(late, PortId(20), false, &header(2, 0), &[0; 64]).unwrap();
    let expired = switch.expire(late, 1_000);
    assert_eq!(expired.iter().map(|lease| lease.job).collect::<Vec<_>>(), [JobId(1)]);
}

fn hostile_header() -> impl Strategy<Value = Header> {
    let kinds = prop::sample::select(vec![
        Kind::Contribution,
        Kind::Partial,
        Kind::Result,
        Kind::Waiting,
        Kind::Mismatch,
        Kind::Acknowledgement,
        Kind::Fin,
        Kind::Empties,
    ]);
    let fields = (0..3u32, prop_oneof![0..12u32, any::<u32>()], any::<u16>(), 0..20u16);
    let one = 0..8u8;
    let parties = prop_oneof![
        Just(Parties::All),
        one.clone().prop_map(Parties::ToOne),
        one.prop_map(Parties::FromOne),
        Just(Parties::Nobody),
    ];
    let scope = (parties, any::<[bool; 2]>(), prop_oneof![Just(0), any::<u64>()]);
    (kinds, any::<bool>(), fields, any::<u64>(), 3..8u16, scope).prop_map(
        |(kind, resent, (job, vid, window_cap, n_elems), missing, epoch, scope)| {
            let (parties, [empty, asks], others) = scope;
            let plain = Header {
                kind,
                resent,
                vid: Vid(vid),
                window_cap,
                n_elems,
                missing,
                marks: missing as u32,
                chunk: if missing % 2 == 0 { 77 } else { missing as u32 },
                epoch: Epoch(epoch),
                ..header(job, 0)
            };
            // The decoder refuses what does not go together.
            let missing = if others == 0 { missing } else { 0 };
            let scoped = Header { parties, empty, asks, others, missing, ..plain };
            let mut bytes = [0; HEADER_LEN];
            scoped.encode(&mut bytes);
            match Header::decode(&bytes) {
                Err(DecodeError::Reserved) => plain,
                _ => scoped,
            }
        },
    )
}

/// A child beneath which nobody contributes, or everybody does, cannot pretend otherwise.
#[test]
fn a_child_speaks_only_for_the_ranks_beneath_it() {
    let mut switch = switch();
    let send = |switch: &mut Switch<Slab>, parties, empty| {
        let header = Header { parties, empty, ..header(1, 0) };
        let payload = vec![0; header.payload_len()];
        switch.handle(NOW, PortId(10), false, &header, &payload)
    };
    // Ranks 0 and 1 are beneath it.
    for (parties, empty) in [(Parties::FromOne(2), false), (Parties::FromOne(1), true)] {
        assert_eq!(send(&mut switch, parties, empty), Err(DropReason::Members), "{parties:?}");
    }
    assert_eq!(switch.memory().used(), 0);
    assert_eq!(send(&mut switch, Parties::FromOne(1), false), Ok(()));
    assert!(switch.poll_transmit().is_none(), "the other child is not ready");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Job 1's neighbours and unknown senders send arbitrary packets in the name of any job.
    #[test]
    fn another_jobs_sums_stay_exact(
        noise in prop::collection::vec((prop::sample::select(vec![10, 11, 99]), hostile_header()), 0..400),
        raw in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..120), 0..50),
    ) {
        let mut switch = switch();
        let mut noise = noise.into_iter();
        let mut results = 0;
        for vid in 0..40u32 {
            for (from, header) in noise.by_ref().take(10) {
                let payload = vec![0xa5; header.payload_len()];
                let _ = switch.handle(NOW, PortId(from), true, &header, &payload);
            }
            if let Some(bytes) = raw.get(vid as usize) {
                match Header::decode(bytes) {
                    Ok((header, payload)) => {
                        let _ = switch.handle(NOW, PortId(10), false, &header, payload);
                    }
                    Err(error) => switch.count_decode_error(error),
                }
            }
            for (child, value) in [(20, 3i32), (21, 4)] {
                let payload = value.to_le_bytes().repeat(16);
                switch.handle(NOW, PortId(child), false, &header(2, vid), &payload).unwrap();
            }
            for (to, packet) in drain(&mut switch) {
                if to == PortId(20) || to == PortId(21) {
                    prop_assert_eq!(&packet[HEADER_LEN..], &7i32.to_le_bytes().repeat(16)[..]);
                    results += 1;
                }
            }
            prop_assert!(switch.memory().used() <= 1 << 20);
        }
        prop_assert_eq!(results, 80);
    }
}
