//! Rules for lost ranks, ended jobs, and claims of a Join.

use std::collections::BTreeSet;

use netsum_control::decide::{Answer, Event, Phase, Settings};
use netsum_control::pb::worker_event::Event as WorkerMessage;
use netsum_control::{Failure, MemoryStore, pb};
use netsum_topo::Tenant;

use crate::world::{INCARNATION, KEY, REBUILT, World};

fn lost(world: &World) -> Vec<u32> {
    let lost = world.messages.iter().filter_map(|(_, message)| match message {
        WorkerMessage::PeerLost(lost) => Some(lost.rank),
        _ => None,
    });
    lost.collect()
}

fn state_of(world: &World, job: u32, rank: usize) -> String {
    let status = world.state().status(world.now_ms);
    let job = status.jobs.into_iter().find(|status| status.job == job).unwrap();
    job.ranks[rank].state.clone()
}

#[test]
fn a_rank_that_its_peers_reach_is_away_and_not_lost() {
    let mut world = World::standard();
    let job = world.job();
    world.messages.clear();
    world.worker_gone(job, 2);
    world.wait(120_000);
    assert_eq!((world.messages.len(), state_of(&world, job, 2).as_str()), (0, "away"));
    world.join(job, 2, "h2", 1).unwrap();
    assert_eq!(state_of(&world, job, 2), "connected");
    assert_eq!(world.plan(job).epoch, 1, "its job was not disturbed");
}

#[test]
fn one_peer_that_reaches_a_rank_keeps_it() {
    let mut world = World::standard();
    let job = world.job();
    world.worker_gone(job, 2);
    world.peers_report_unreachable(job, 2);
    world.reports.get_mut(&(job, 3)).unwrap().heartbeat.unreachable_ranks.clear();
    world.wait(30_000);
    assert!(lost(&world).is_empty());
    world.peers_report_unreachable(job, 2);
    world.wait(1_100);
    assert_eq!(lost(&world), [2, 2, 2]);
}

#[test]
fn reports_of_peers_without_a_connection_do_not_count() {
    let mut world = World::standard();
    let job = world.job();
    world.peers_report_unreachable(job, 2);
    world.worker_gone(job, 3);
    world.worker_gone(job, 2);
    world.reports.get_mut(&(job, 3)).unwrap().heartbeat.unreachable_ranks.clear();
    world.wait(4_500);
    assert_eq!(lost(&world), [2, 2]);
    assert_eq!(state_of(&world, job, 3), "away", "nobody said anything of it");
}

#[test]
fn a_job_without_connections_is_abandoned_and_resumed() {
    let mut world = World::standard();
    let job = world.job();
    (0..4).for_each(|rank| world.worker_gone(job, rank));
    world.wait(29_000);
    assert_eq!(world.state().job(job).unwrap().phase, Phase::Running);
    world.wait(2_000);
    assert_eq!(world.state().job(job).unwrap().phase, Phase::Abandoned);
    assert!(world.switches.values().all(|(_, leases)| leases.is_empty()), "leases are taken back");
    assert!(world.join(job, 1, "h1", 0).is_err(), "a new process has no part in it");
    for rank in 0..4 {
        world.join(job, rank, &format!("h{rank}"), 1).unwrap();
    }
    world.wait(200);
    assert_eq!(
        (world.plan(job).trees.len(), world.state().job(job).unwrap().phase),
        (2, Phase::Running)
    );
    assert!(world.plan(job).epoch > 1);
    world.check_leases();
}

#[test]
fn the_leases_of_a_job_whose_processes_all_died_are_free_a_second_later() {
    let mut world = World::standard();
    let job = world.job();
    (0..4).for_each(|rank| world.worker_dies(job, rank));
    world.wait(900);
    assert_eq!(world.state().job(job).unwrap().phase, Phase::Running);
    world.wait(200);
    assert_eq!(world.state().job(job).unwrap().phase, Phase::Abandoned);
    assert!(world.switches.values().all(|(_, leases)| leases.is_empty()), "leases are taken back");
    // The streams had only broken, and the ranks come late: they get leases again.
    for rank in 0..4 {
        world.join(job, rank, &format!("h{rank}"), 1).unwrap();
    }
    world.wait(200);
    assert_eq!(
        (world.plan(job).trees.len(), world.state().job(job).unwrap().phase),
        (2, Phase::Running)
    );
    world.check_leases();
}

#[test]
fn ranks_whose_streams_broke_for_a_moment_keep_their_leases() {
    let mut world = World::standard();
    let job = world.job();
    (0..4).for_each(|rank| world.worker_dies(job, rank));
    world.wait(900);
    world.join(job, 2, "h2", 1).unwrap();
    world.wait(20_000);
    assert_eq!(world.state().job(job).unwrap().phase, Phase::Running, "one of them lives");
    for rank in [0, 1, 3] {
        world.join(job, rank, &format!("h{rank}"), 1).unwrap();
    }
    world.wait(1_000);
    assert_eq!(world.state().job(job).unwrap().epoch, 1, "the job was not disturbed");
}

#[test]
fn a_rank_that_may_live_keeps_the_leases_of_its_dead_peers() {
    let mut world = World::standard();
    let job = world.job();
    (0..3).for_each(|rank| world.worker_dies(job, rank));
    world.worker_gone(job, 3);
    world.wait(29_000);
    assert_eq!(world.state().job(job).unwrap().phase, Phase::Running);
    world.wait(2_000);
    assert_eq!(world.state().job(job).unwrap().phase, Phase::Abandoned);
}

#[test]
fn packets_show_that_ranks_without_streams_live() {
    let mut world = World::standard();
    let job = world.job();
    (0..4).for_each(|rank| world.worker_dies(job, rank));
    let (session, _) = world.switches["rack0"];
    for contributions in 1..80 {
        world.now_ms += 200;
        let tree = pb::SwitchTree { job, tree: 1, contributions, ..Default::default() };
        let counters = pb::SwitchHeartbeat { trees: vec![tree], ..Default::default() };
        world.play(Event::SwitchHeartbeat { session, counters }).unwrap();
        world.play(Event::Tick).unwrap();
    }
    assert_eq!(world.state().job(job).unwrap().phase, Phase::Running);
    for _ in 0..6 {
        world.now_ms += 200;
        world.play(Event::Tick).unwrap();
    }
    assert_eq!(world.state().job(job).unwrap().phase, Phase::Abandoned);
}

#[test]
fn a_controller_that_did_not_run_waits_for_ranks_that_return_meanwhile() {
    let mut world = World::standard();
    let job = world.job();
    (0..4).for_each(|rank| world.worker_dies(job, rank));
    world.wait(500);
    // It is stopped; the ranks' attempts wait in its socket.
    world.now_ms += 4_000;
    world.play(Event::Tick).unwrap();
    assert_eq!(world.state().job(job).unwrap().phase, Phase::Running);
    for rank in 0..4 {
        world.join(job, rank, &format!("h{rank}"), 1).unwrap();
    }
    world.wait(1_000);
    assert_eq!(world.state().job(job).unwrap().epoch, 1, "the job was not disturbed");
}

#[test]
fn a_new_leader_does_not_take_ranks_that_are_away_for_dead() {
    let mut world = World::standard();
    let job = world.job();
    (0..4).for_each(|rank| world.worker_dies(job, rank));
    let store = world.store.clone();
    world.restart(Settings::default(), store);
    world.wait(29_000);
    assert_eq!(world.state().job(job).unwrap().phase, Phase::Running);
}

#[test]
fn a_job_whose_packets_switches_count_is_not_abandoned() {
    let mut world = World::standard();
    let job = world.job();
    (0..4).for_each(|rank| world.worker_gone(job, rank));
    for contributions in 0..60 {
        let tree = pb::SwitchTree { job, tree: 1, contributions, ..Default::default() };
        let counters = pb::SwitchHeartbeat { trees: vec![tree], ..Default::default() };
        let (session, _) = world.switches["rack0"];
        world.play(Event::SwitchHeartbeat { session, counters }).unwrap();
        for (session, _) in world.switches.values().cloned().collect::<Vec<_>>() {
            let counters = world.state().status(0).switches[0].trees.clone();
            let counters = pb::SwitchHeartbeat { trees: counters, ..Default::default() };
            world.play(Event::SwitchHeartbeat { session, counters }).unwrap();
        }
        world.now_ms += 1_000;
        world.play(Event::Tick).unwrap();
    }
    assert_eq!(world.state().job(job).unwrap().phase, Phase::Running);
}

#[test]
fn the_last_rank_of_a_job_that_others_have_left_is_lost_after_its_grace() {
    let mut world = World::standard();
    let job = world.job();
    for rank in 0..3 {
        let (session, _) = world.workers[&(job, rank)];
        world.play(Event::WorkerLeft { session }).unwrap();
    }
    world.worker_gone(job, 3);
    world.wait(3_200);
    assert_eq!(world.state().job(job).unwrap().phase, Phase::Ended);
}

#[test]
fn a_false_epoch_ends_no_job() {
    let mut world = World::standard();
    let job = world.job();
    world.worker_gone(job, 1);
    // Two behind, as numbers wrap around: an old plan. The rank receives the one in use.
    world.join(job, 1, "h1", 65_535).unwrap();
    assert_eq!(world.plan(job).epoch, 1);
    world.worker_gone(job, 1);
    for epoch in [65_536, u32::MAX, 32_000, 2_000] {
        let refusal = world.join(job, 1, "h1", epoch).unwrap_err().to_string();
        assert!(refusal.contains("claims to have a plan of epoch"), "{refusal}");
    }
    world.wait(1_000);
    world.join(job, 1, "h1", 1_000).unwrap();
    assert_eq!((world.plan(job).epoch, world.plan(job).trees.len()), (1_001, 2));
}

#[test]
fn epochs_wrap_around() {
    let mut world = World::standard();
    let job = world.job();
    for step in 1..=66 {
        // Each claim is within the bound, and each is followed by a plan that is newer for all.
        let claim = (step * 1_000 - 1) % 65_535 + 1;
        world.worker_gone(job, 3);
        world.join(job, 3, "h3", claim).unwrap();
        world.wait(200);
        assert_eq!(world.plan(job).epoch, claim % 65_535 + 1);
    }
    assert_eq!(world.state().job(job).unwrap().phase, Phase::Running);
    world.down("spine1");
    assert_eq!(world.roots(job), ["spine0"]);
    world.check_leases();
}

#[test]
fn plans_continue_past_the_last_epoch() {
    let mut world = World::standard();
    let job = world.job();
    let mut epoch = 1;
    while epoch < 65_530 {
        epoch = (epoch + 1_000).min(65_530);
        world.worker_gone(job, 3);
        world.join(job, 3, "h3", epoch).unwrap();
        world.wait(100);
    }
    let mut seen = Vec::new();
    for _ in 0..6 {
        world.down("spine1");
        seen.push(world.plan(job).epoch);
        world.up("spine1", &[]).unwrap();
        world.wait(60_000);
        seen.push(world.plan(job).epoch);
        assert_eq!(world.plan(job).trees.len(), 2);
    }
    assert!(seen.contains(&65_535) && seen.contains(&1) && !seen.contains(&0), "{seen:?}");
    world.check_leases();
}

#[test]
fn a_number_of_another_store_is_refused() {
    let mut world = World::standard();
    let job = world.job();
    let store = MemoryStore::new(INCARNATION + 1);
    world.workers.clear();
    world.restart(Settings::default(), store);
    let other = world.create(4);
    assert_ne!(other, job, "stores begin at different numbers");
    for number in [job, other] {
        let refusal = world.join(number, 0, "h0", 1).unwrap_err().to_string();
        assert!(
            refusal.contains("with another store; start the controller with that store"),
            "{refusal}"
        );
    }
}

#[test]
fn a_running_job_that_the_store_lacks_is_resumed() {
    let mut world = World::standard();
    let job = world.job();
    let plan = world.plan(job).clone();
    // The store was restored from a backup older than the job.
    let store = MemoryStore::new(INCARNATION);
    let installed: Vec<_> =
        world.switches.iter().map(|(name, (_, leases))| (name.clone(), leases.clone())).collect();
    world.workers.clear();
    world.restart(Settings::default(), store);
    for (name, leases) in installed {
        world.up(&name, &leases.into_iter().collect::<Vec<_>>()).unwrap();
    }
    let description = pb::CreateJobRequest { size: 4, min_bytes: Some(0), ..Default::default() };
    let join = |world: &World, rank: u32| pb::Join {
        description: Some(description.clone()),
        plan: Some(pb::Plan { trees: Vec::new(), ..plan.clone() }),
        ..world.join_message(job, rank, &format!("h{rank}"), 1)
    };
    assert!(world.join(job, 0, "h0", 1).is_err(), "without a description nobody knows what it is");
    for rank in 0..4 {
        let message = join(&world, rank);
        world.join_as(message).unwrap();
        world.wait(1_000);
    }
    let new = world.plan(job);
    assert_eq!((new.epoch, new.trees.len(), &new.order), (2, 2, &plan.order));
    // No rank knows the job's key, so the controller has drawn another.
    assert_eq!(plan.key_id, netsum_lease::key_id(&KEY));
    assert_eq!(new.key_id, netsum_lease::key_id(&REBUILT));
    let key = |rank| (new.key_id, netsum_lease::rank_key(&REBUILT, rank));
    assert!((0..4).all(|rank| world.rank_keys[&(job, rank)] == key(rank)));
    assert_eq!(new.fragment_bytes, plan.fragment_bytes);
    world.check_leases();
    assert_eq!(world.create(4), job + 1, "its number is taken");
}

/// Creates a job from an address.
fn create_from(world: &mut World, from: &str, tenant: &str, size: u32) -> Result<Answer, Failure> {
    let tenant = tenant.to_owned();
    let request = pb::CreateJobRequest { size, tenant, ..Default::default() };
    let from = Some(from.parse().unwrap());
    world.play(Event::CreateJob { request, key: KEY, from })
}

#[test]
fn jobs_that_nobody_joins_do_not_block_other_addresses() {
    let mut world = World::standard();
    for _ in 0..64 {
        create_from(&mut world, "10.0.0.1", "", 2).unwrap();
    }
    let refused = create_from(&mut world, "10.0.0.1", "", 2).unwrap_err().to_string();
    assert!(refused.contains("64 jobs created from 10.0.0.1 still wait"), "{refused}");
    create_from(&mut world, "10.0.0.2", "", 2).unwrap();
    // A job whose ranks have joined counts no more.
    for rank in 0..2 {
        world.join(1, rank, &format!("h{rank}"), 0).unwrap();
    }
    create_from(&mut world, "10.0.0.1", "", 2).unwrap();
    create_from(&mut world, "10.0.0.1", "", 2).unwrap_err();
    // A few jobs with many ranks are as many as many jobs.
    for _ in 0..4 {
        create_from(&mut world, "10.0.0.3", "", 4096).unwrap();
    }
    let refused = create_from(&mut world, "10.0.0.3", "", 1).unwrap_err().to_string();
    assert!(refused.contains("an address may have 64 such jobs with 16384 ranks"), "{refused}");
}

#[test]
fn jobs_that_nobody_joins_do_not_block_other_tenants() {
    let mut world = World::standard();
    world.fabric.tenants = vec![Tenant::named("blue"), Tenant::named("red")];
    let mut world = World::new(world.fabric, Settings::default());
    for job in 0..256 {
        create_from(&mut world, &format!("10.0.0.{}", job / 64), "blue", 2).unwrap();
    }
    let refused = create_from(&mut world, "10.0.0.9", "blue", 2).unwrap_err().to_string();
    assert!(refused.contains("256 jobs of tenant \"blue\" wait for their ranks"), "{refused}");
    create_from(&mut world, "10.0.0.9", "red", 2).unwrap();
}

#[test]
fn all_jobs_together_have_a_limited_number_of_ranks() {
    let mut world = World::standard();
    for job in 0..16 {
        create_from(&mut world, &format!("10.0.0.{job}"), "", 4096).unwrap();
    }
    let refused = create_from(&mut world, "10.0.1.1", "", 1).unwrap_err().to_string();
    assert!(refused.contains("have 65536 ranks, and all jobs may have 65536"), "{refused}");
    // Ended jobs are shown while their ranks are not too many.
    for job in 1..=16 {
        world.play(Event::StopJob { job, reason: String::new() }).unwrap();
    }
    assert_eq!(world.state().job_list(true).len(), 4);
}

#[test]
fn a_heartbeat_names_no_more_trees_and_ranks_than_the_job_has() {
    let mut world = World::standard();
    let job = world.job_on(&[0, 2], 1);
    let (session, _) = world.workers[&(job, 1)];
    let good = pb::WorkerHeartbeat {
        trees: vec![pb::WorkerTree::default()],
        silent_trees: vec![0],
        unreachable_ranks: vec![0, 1],
        operations: 7,
        ..Default::default()
    };
    world.play(Event::WorkerHeartbeat { session, statistics: good.clone() }).unwrap();
    let mut refused = |statistics: pb::WorkerHeartbeat| {
        world.play(Event::WorkerHeartbeat { session, statistics }).unwrap_err().to_string()
    };
    let wrong = pb::WorkerHeartbeat { unreachable_ranks: vec![0; 3], ..good.clone() };
    let text = format!("unreachable_ranks of rank 1 of job {job} has 3 entries; the limit is 2");
    assert_eq!(refused(wrong), text);
    let wrong = pb::WorkerHeartbeat { silent_trees: vec![0; 2], ..good.clone() };
    assert!(refused(wrong).starts_with("silent_trees of rank 1"));
    let trees = vec![pb::WorkerTree::default(); 2];
    assert!(refused(pb::WorkerHeartbeat { trees, ..good.clone() }).starts_with("trees of rank 1"));
    assert_eq!(world.state().job(job).unwrap().members[1].statistics, good);
}

#[test]
fn a_rank_receives_at_its_hosts_address_only() {
    let mut world = World::standard();
    let job = world.create(2);
    let switch = world.fabric.switches[0].address.to_string();
    let other = format!("{}:5000", world.fabric.hosts[1].address);
    for udp_address in [switch, other, "192.0.2.7:5000".to_owned()] {
        let join =
            pb::Join { udp_address: udp_address.clone(), ..world.join_message(job, 0, "h0", 0) };
        let refused = world.join_as(join).unwrap_err().to_string();
        let text = format!("rank 0 of job {job} receives at {udp_address}, but host \"h0\" has");
        assert!(refused.contains(&text), "{refused}");
    }
    assert_eq!(state_of(&world, job, 0), "awaited");
    // Several ranks of a host differ by port; a rank may leave its host to the controller.
    world.join(job, 0, "h0", 0).unwrap();
    let unnamed = pb::Join { host: String::new(), ..world.join_message(job, 1, "h0", 0) };
    world.join_as(unnamed).unwrap();
}

#[test]
fn a_new_key_reaches_the_ranks_before_the_plan_that_needs_it() {
    let mut world = World::standard();
    let job = world.job();
    let before = world.plan(job).clone();
    world.rank_keys.clear();
    world.play(Event::RekeyJob { job, key: REBUILT }).unwrap();
    let new = |rank| (netsum_lease::key_id(&REBUILT), netsum_lease::rank_key(&REBUILT, rank));
    assert!((0..4).all(|rank| world.rank_keys[&(job, rank)] == new(rank)));
    assert_eq!(world.plan(job), &before, "the plan comes when the switches have its leases");
    world.granted.clear();
    world.wait(1_000);
    let plan = world.plan(job).clone();
    assert_eq!((plan.epoch, plan.key_id, &plan.trees), (2, new(0).0, &before.trees));
    assert!(world.granted.iter().all(|(_, lease)| lease.epoch == 2 && !lease.hop_keys.is_empty()));
    world.check_leases();

    let refused = |world: &mut World, job| {
        world.play(Event::RekeyJob { job, key: KEY }).unwrap_err().to_string()
    };
    assert!(refused(&mut world, 99).contains("99"));
    world.play(Event::StopJob { job, reason: String::new() }).unwrap();
    assert!(refused(&mut world, job).contains("is over"));
}

/// Epochs and keys of the plans that ranks were sent.
fn plans_sent(world: &World) -> BTreeSet<(u32, u64)> {
    let plans = world.messages.iter().filter_map(|(_, message)| match message {
        WorkerMessage::Plan(plan) => Some((plan.epoch, plan.key_id)),
        _ => None,
    });
    plans.collect()
}

#[test]
fn no_rank_gets_a_plan_under_another_key_than_its_leases() {
    let (old, new) = (netsum_lease::key_id(&KEY), netsum_lease::key_id(&REBUILT));
    // A rank returns before the plan of the new key is made.
    let mut world = World::standard();
    let job = world.job();
    world.play(Event::RekeyJob { job, key: REBUILT }).unwrap();
    world.worker_gone(job, 0);
    world.join(job, 0, "h0", 0).unwrap();
    world.wait(1_000);
    assert_eq!(plans_sent(&world), BTreeSet::from([(1, old), (2, new)]));

    // The last lease of a plan under the old key is confirmed after the new one has come.
    let mut world = World::standard();
    let job = world.job();
    world.mute = world.fabric.switches.iter().map(|switch| switch.name.clone()).collect();
    world.granted.clear();
    world.play(Event::RekeyJob { job, key: KEY }).unwrap();
    world.wait(100);
    world.mute.clear();
    let mut unconfirmed = std::mem::take(&mut world.granted);
    let last = unconfirmed.pop().expect("there are leases");
    let confirm = |world: &mut World, (switch, lease): (String, pb::Lease)| {
        let session = world.switches[&switch].0;
        let (job, tree, epoch) = (lease.job, lease.tree, lease.epoch);
        let ack = pb::LeaseAck { job, tree, epoch, ok: true, reason: String::new() };
        world.play(Event::LeaseAck { session, ack }).unwrap();
    };
    unconfirmed.into_iter().for_each(|lease| confirm(&mut world, lease));
    world.play(Event::RekeyJob { job, key: REBUILT }).unwrap();
    confirm(&mut world, last);
    world.wait(1_000);
    assert_eq!(plans_sent(&world), BTreeSet::from([(1, old), (3, new)]));
    world.check_leases();

    // The controller dies before the plan of the new key is made.
    let mut world = World::standard();
    let job = world.job();
    world.play(Event::RekeyJob { job, key: REBUILT }).unwrap();
    world.restart_with_leases();
    for rank in 0..4 {
        world.join(job, rank, &format!("h{rank}"), 1).unwrap();
    }
    world.wait(1_000);
    assert_eq!(plans_sent(&world), BTreeSet::from([(1, old), (2, new)]));
    world.check_leases();
}
