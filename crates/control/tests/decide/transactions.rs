//! Events and the store: both change, or neither.

use netsum_control::decide::{Answer, Event, Phase, Settings};
use netsum_control::{Failure, MemoryStore, Store, pb};

use crate::world::{INCARNATION, KEY, World};

fn request() -> pb::CreateJobRequest {
    pb::CreateJobRequest { size: 4, ..Default::default() }
}

#[test]
fn a_job_that_cannot_be_saved_does_not_exist() {
    let mut world = World::standard();
    world.store.fail(Some("the disk is full"));
    for _ in 0..1_100 {
        let refused =
            world.play(Event::CreateJob { request: request(), key: KEY, from: None }).unwrap_err();
        assert!(matches!(refused, Failure::Store(_)), "{refused}");
        let text = refused.to_string();
        assert!(text.contains("the disk is full") && text.contains("try again"), "{text}");
    }
    assert_eq!(world.state().job_list(true), []);
    world.store.fail(None);
    assert_eq!(
        world.play(Event::CreateJob { request: request(), key: KEY, from: None }).unwrap(),
        Answer::Created(1)
    );
    assert_eq!(world.store.load().unwrap().jobs.len(), 1);
}

#[test]
fn a_rank_that_cannot_be_saved_has_not_joined() {
    let mut world = World::standard();
    let job = world.create(2);
    world.store.fail(Some("read-only"));
    assert!(world.join(job, 0, "h0", 0).is_err());
    assert_eq!(world.state().status(0).jobs[0].ranks[0].state, "awaited");
    world.store.fail(None);
    world.join(job, 0, "h0", 0).unwrap();
}

#[test]
fn no_switch_sees_an_epoch_that_is_not_saved() {
    let mut world = World::standard();
    let job = world.job();
    let granted = world.granted.len();
    world.store.fail(Some("the disk is full"));
    world.down("spine1");
    world.wait(2_000);
    assert_eq!((world.granted.len(), world.plan(job).epoch), (granted, 1));
    let store = world.engine.status(world.now_ms).store.unwrap();
    assert!(store.problem.contains("the disk is full"), "{store:?}");
    assert!(
        store.failing_for_s > 1.5 && store.failures >= 4 && store.deferred_events == 1,
        "{store:?}"
    );
    world.store.fail(None);
    world.wait(600);
    assert_eq!((world.plan(job).epoch, world.roots(job)), (2, vec!["spine0"]));
    let store = world.engine.status(world.now_ms).store.unwrap();
    assert_eq!((store.problem.as_str(), store.deferred_events), ("", 0));
    world.check_leases();
}

#[test]
fn events_during_a_failure_of_the_store_take_effect_in_order() {
    let mut world = World::standard();
    let job = world.job();
    world.store.fail(Some("the disk is full"));
    for rank in 0..4 {
        let (session, _) = world.workers[&(job, rank)];
        world.play(Event::WorkerLeft { session }).unwrap();
        world.play(Event::WorkerClosed { session, hung_up: false }).unwrap();
    }
    assert_eq!(world.state().job(job).unwrap().phase, Phase::Running);
    // A request is answered with an error, not deferred.
    assert!(world.play(Event::StopJob { job, reason: String::new() }).is_err());
    world.store.fail(None);
    world.wait(600);
    assert_eq!(world.state().job(job).unwrap().phase, Phase::Ended);
    assert!(world.switches.values().all(|(_, leases)| leases.is_empty()));
    let saved = world.store.load().unwrap();
    assert_eq!(saved.jobs[0].phase, "ended");
    assert!(saved.members.iter().all(|member| member.state == "left"));
}

#[test]
fn a_refused_event_changes_nothing() {
    let mut world = World::standard();
    let job = world.job();
    let before = format!("{:?}", world.state());
    world.join(job, 0, "h9", 0).unwrap_err();
    world.join(job + 1, 0, "h0", 0).unwrap_err();
    world.play(Event::StopJob { job: 99, reason: String::new() }).unwrap_err();
    assert_eq!(format!("{:?}", world.state()), before);
}

#[test]
fn a_restart_loads_the_jobs_and_their_plans() {
    let mut world = World::standard();
    let job = world.job();
    let plan = world.plan(job).clone();
    world.restart_with_leases();
    for rank in 0..4 {
        world.join(job, rank, &format!("h{rank}"), 1).unwrap();
    }
    world.wait(20_000);
    assert!((0..4).all(|rank| world.workers[&(job, rank)].1.is_none()), "nobody gets a new plan");
    let kept = world.state().job(job).unwrap();
    assert_eq!((kept.epoch, kept.current.as_ref().unwrap().trees.len()), (1, plan.trees.len()));
}

#[test]
fn numbers_wrap_around_without_reusing_a_live_one() {
    let store = MemoryStore::new(INCARNATION);
    store.set_next_job(u32::MAX - 1);
    let mut world = World::standard();
    world.restart(Settings::default(), store.clone());
    let old: Vec<u32> = (0..3).map(|_| world.create(1)).collect();
    assert_eq!(old, [u32::MAX - 1, u32::MAX, 1]);
    store.set_next_job(u32::MAX - 1);
    world.restart(Settings::default(), store.clone());
    assert_eq!((0..2).map(|_| world.create(1)).collect::<Vec<_>>(), [2, 3]);
    world.restart(Settings::default(), store);
    assert_eq!(world.state().next_job(), 4);
    assert_eq!(world.state().job_list(true).len(), 5);
}

#[test]
fn a_request_that_is_repeated_creates_one_job() {
    let mut world = World::standard();
    let ask = |world: &mut World, request: pb::CreateJobRequest| {
        world.play(Event::CreateJob { request, key: KEY, from: None })
    };
    let numbered = pb::CreateJobRequest { request: u64::MAX, ..request() };
    let Ok(Answer::Created(job)) = ask(&mut world, numbered.clone()) else { panic!("no job") };
    assert_eq!(ask(&mut world, numbered.clone()).unwrap(), Answer::Created(job));
    // The answer was lost with the controller: the next one has the number from the store.
    let store = world.store.clone();
    world.restart(Settings::default(), store);
    assert_eq!(ask(&mut world, numbered.clone()).unwrap(), Answer::Created(job));
    assert_eq!(world.store.load().unwrap().jobs.len(), 1);
    let other = pb::CreateJobRequest { size: 3, ..numbered };
    let refused = ask(&mut world, other).unwrap_err().to_string();
    assert!(refused.contains("request ffffffffffffffff has created job"), "{refused}");
    // Without a number every call is a request of its own.
    assert_ne!(ask(&mut world, request()).unwrap(), ask(&mut world, request()).unwrap());
}
