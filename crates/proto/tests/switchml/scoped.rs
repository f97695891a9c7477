//! Reduce-scatter, all-gather, broadcast, reduce and barrier of `switchml` against an oracle: on any network, every rank
//! gets exactly its part of the result.

use std::sync::Arc;

use netsum_proto::handover::{Resolution, Serve, resolve};
use netsum_proto::switchml::*;
use netsum_proto::{DropReason, Pattern, PortId, Time};
use netsum_wire::switchml::{Header, Kind};
use netsum_wire::*;
use proptest::prelude::*;

use super::network::{Faults, Random, Start, start};
use super::patterns::{COPIED, disagreements, is_copied, pattern};
use super::{BOUND, ROW, SECOND, SUM, World, bits, faults, format, place_of, seed_of};

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_rank_gets_its_part_on_any_network(
        seed: u64, jobs in 1..=2u32, workers in 1..=12u8, slots in 1..=24u16,
        faults in faults(), start in start(),
    ) {
        let mut world = World::starting_at(start, seed, faults, (jobs, true), workers, slots);
        let mut random = Random(seed ^ 1);
        for job in 0..jobs as usize {
            for _ in 0..=random.below(4) {
                let (pattern, numel) = pattern(&mut random, workers.into(), 40);
                let format = if is_copied(&pattern) { COPIED } else { format(&mut random) };
                world.submit_pattern(job, format, numel, &pattern);
            }
        }
        prop_assert!(world.run(BOUND, World::all_done), "not done in time");
        world.check()?;
        world.check_memory(jobs)?;
    }
}

/// Ends an epoch and begins the next one, as a group does: who has a result gives it to those that take it and lack it,
/// and what nobody has is contributed again, from what the workers retain.
fn hand_over(world: &mut World, epoch: u16) {
    let progress: Vec<_> = world.hosts.iter().map(|host| host.machine.progress()).collect();
    let Resolution { finished, serve } = resolve(&progress);
    for Serve { g, from, to } in serve {
        let result = world.hosts[from.0 as usize].retained[&g].clone();
        for rank in to {
            let host = &mut world.hosts[rank.0 as usize];
            let Some((id, elements)) = host.machine.place_of(g) else { continue };
            let size = result.len() / (elements.end - elements.start) as usize;
            let place = elements.start as usize * size..elements.end as usize * size;
            host.operations[id as usize].1[place].copy_from_slice(&result);
        }
    }
    for (old, host) in world.begin(0, epoch).into_iter().zip(&mut world.hosts) {
        let repeated = old.to_repeat(&finished);
        let rest = old.remaining(&finished);
        for again in repeated {
            let own = host.retained.get(&again.g).expect("it may lack its result elsewhere");
            host.operations[again.id as usize].1[place_of(&again)].copy_from_slice(own);
        }
        host.retained.clear();
        host.operations.iter_mut().for_each(|(.., done)| *done = true);
        for submission in rest {
            host.operations[submission.id as usize].2 = false;
            host.machine.submit(submission);
        }
        host.wake = None;
    }
    (0..world.hosts.len()).for_each(|host| world.pump(host));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn no_part_is_lost_when_epochs_end(
        seed: u64, workers in 2..=5u8, slots in 1..=6u16, loss in 0.0..0.3f64, start in start(),
    ) {
        let faults = Faults { loss, jitter_ns: 50_000, ..Faults::default() };
        let mut world = World::starting_at(start, seed, faults, (1, true), workers, slots);
        let mut random = Random(seed ^ 1);
        for _ in 0..=random.below(4) {
            // Of short operations a rank often has its part while another one lacks a fragment.
            let most = 1 + random.below(40);
            let (pattern, numel) = pattern(&mut random, workers.into(), most);
            let format = if is_copied(&pattern) { COPIED } else { format(&mut random) };
            world.submit_pattern(0, format, numel, &pattern);
        }
        for epoch in 2..5 {
            let until = world.network.now.0 + random.below(20_000_000);
            world.run(Time(until), World::all_done);
            hand_over(&mut world, epoch);
        }
        prop_assert!(world.run(BOUND, World::all_done), "not done in time");
        world.check()?;
    }
}

fn with_copies(faults: Faults, workers: u8, slots: u16) -> World {
    World::starting_at(Start::default(), 1, faults, (1, true), workers, slots)
}

#[test]
fn no_rank_leaves_a_barrier_before_the_last_has_come() {
    let mut world = with_copies(Faults { loss: 0.1, ..Faults::default() }, 6, 4);
    for host in 0..5 {
        world.submit_at(host, COPIED, 0, Vec::new(), Pattern::Barrier);
    }
    world.run(Time(SECOND / 2), World::all_done);
    assert!(world.hosts.iter().all(|host| host.operations.iter().all(|o| !o.2)));
    world.submit_at(5, COPIED, 0, Vec::new(), Pattern::Barrier);
    assert!(world.run(BOUND, World::all_done));
}

/// What one rank sends does not wait for sums, nor sums for it: each kind has a pool of its own.
#[test]
fn copies_overtake_sums() {
    let mut world = with_copies(Faults::default(), 3, 4);
    world.submit(0, SUM, 8 * 400);
    let sizes: Arc<[u64]> = vec![8; 3].into();
    world.submit_pattern(0, COPIED, 24, &Pattern::Allgather(sizes));
    assert!(world.run(BOUND, |world| world.hosts.iter().all(|host| host.operations[1].2)));
    assert!(world.hosts.iter().all(|host| !host.operations[0].2));
    assert!(world.run(BOUND, World::all_done));
    world.check().unwrap();
}

#[test]
fn disagreement_on_who_takes_is_reported_to_all_ranks() {
    for (most, other) in disagreements() {
        for differs in 0..4 {
            let mut world = with_copies(Faults::default(), 4, 8);
            for rank in 0..4 {
                let pattern = if rank == differs { &other } else { &most };
                let values = bits(COPIED, 200, seed_of(rank, 0));
                world.submit_at(rank, COPIED, 200, values, pattern.clone());
            }
            world.run(Time(5 * SECOND), |w| w.hosts.iter().all(|h| h.mismatch));
            let told: Vec<bool> = world.hosts.iter().map(|h| h.mismatch).collect();
            assert_eq!(told, [true; 4], "{most:?}, rank {differs}: {other:?}");
        }
    }
}

/// Who is not asked for elements cannot add any, and who is cannot say that it has none.
#[test]
fn a_worker_contributes_only_where_it_is_asked() {
    let mut world = with_copies(Faults::default(), 3, 4);
    let packet = |kind, worker: u8, parties| Header {
        kind,
        resent: false,
        arithmetic: Arithmetic::Wrapping,
        worker,
        job: JobId(1),
        round: 0,
        chunk: 5,
        epoch: Epoch(1),
        slot: 0,
        n_elems: 8,
        next_exponent: 0,
        tree: TreeId(1),
        parties,
    };
    let mut give = |header: Header| {
        let payload = &[7; ROW as usize][..header.payload_len()];
        let from = PortId(header.worker.into());
        world.switch.handle(Time(0), from, false, &header, payload)
    };
    let from_2 = Parties::FromOne(2);
    assert_eq!(give(packet(Kind::Contribution, 0, from_2)), Err(DropReason::Members));
    assert_eq!(give(packet(Kind::Ready, 2, from_2)), Err(DropReason::Members));
    assert_eq!(give(packet(Kind::Ready, 0, from_2)), Ok(()));
    assert_eq!(give(packet(Kind::Ready, 1, Parties::FromOne(0))), Err(DropReason::Mismatch));
    while world.switch.poll_transmit().is_some() {}
    for (kind, worker) in [(Kind::Ready, 1), (Kind::Contribution, 2)] {
        let mut header = packet(kind, worker, from_2);
        header.resent = true;
        let payload = &[7; ROW as usize][..header.payload_len()];
        let from = PortId(worker.into());
        world.switch.handle(Time(0), from, false, &header, payload).unwrap();
    }
    let mut got = Vec::new();
    while let Some(Transmit { header, payload, .. }) = world.switch.poll_transmit() {
        got.push((header.kind, payload.is_some()));
    }
    assert_eq!(got, [(Kind::Result, true), (Kind::Result, true), (Kind::Done, false)]);
}

#[test]
fn a_worker_takes_a_result_only_where_it_is_for_it() {
    for (worker, right, wrong) in [(0, Kind::Done, Kind::Result), (1, Kind::Result, Kind::Done)] {
        let config = WorkerConfig {
            job: JobId(1),
            epoch: Epoch(1),
            worker,
            workers: 2,
            copies: true,
            slots: 4,
            fragment_bytes: ROW,
            timeout_ns: 1000,
        };
        let mut machine = Worker::new(Time(0), config);
        machine.submit(Submission {
            id: 4,
            format: COPIED,
            numel: 8,
            fingerprint: 0,
            fragments: Fragments::All,
            pattern: Pattern::Reduce(Rank(1)),
        });
        let sent = machine.poll_transmit(Time(0)).unwrap().header;
        let answer = |kind| Header { kind, worker: u8::MAX, parties: Parties::All, ..sent };
        assert_eq!(machine.handle(Time(0), false, &answer(wrong)), Err(DropReason::Members));
        assert_eq!(machine.poll_event(), None);
        machine.handle(Time(0), false, &answer(right)).unwrap();
        assert_eq!(machine.poll_event(), Some(Event::Done { id: 4, missing: 0 }));
    }
}
