//! Jobs whose trees have copies, for collectives other than allreduce.

use netsum_control::decide::{Event, Settings};
use netsum_control::pb;

use crate::world::{KEY, World, checked};

fn request(size: u32) -> pb::CreateJobRequest {
    pb::CreateJobRequest { size, min_bytes: Some(0), all_collectives: true, ..Default::default() }
}

fn job(world: &mut World, request: pb::CreateJobRequest) -> u32 {
    let size = request.size;
    let job = world.create_as(request);
    for rank in 0..size {
        world.join(job, rank, &format!("h{rank}"), 0).unwrap();
    }
    job
}

#[test]
fn every_tree_has_a_copy_with_leases_and_memory_of_its_own() {
    let mut world = World::standard();
    let with = job(&mut world, request(4));
    let plan = world.plan(with).clone();
    assert!(plan.copies);
    assert_eq!(world.roots(with), ["spine0", "spine1", "spine0", "spine1"]);
    assert_eq!(plan.trees[0].nodes, plan.trees[2].nodes);
    checked(&plan, 4).unwrap();
    world.check_leases();
    let trees: Vec<u32> = world.granted.iter().map(|(_, lease)| lease.tree).collect();
    assert!(
        (0..4).all(|tree| trees.iter().filter(|other| **other == tree).count() == 3),
        "{trees:?}"
    );

    // The memory that limits one job's window limits that of a job with copies to a half.
    let window = |all_collectives| {
        let mut world = World::standard();
        world.memory = 4 << 20;
        world.all_up();
        let job = job(&mut world, pb::CreateJobRequest { all_collectives, ..request(4) });
        world.plan(job).window_max
    };
    let (with, without) = (window(true), window(false));
    assert!((2 * with..2 * with + 2).contains(&without), "{with} and {without}");
}

#[test]
fn the_copy_of_a_pool_is_a_pool_at_the_same_switch() {
    let mut world = World::standard();
    let pools = pb::CreateJobRequest { protocol: "switchml".to_owned(), ..request(4) };
    let with = job(&mut world, pools.clone());
    let plan = world.plan(with).clone();
    assert!(plan.copies);
    let roots = world.roots(with);
    assert_eq!((roots.len(), &roots[0]), (2, &roots[1]));
    checked(&plan, 4).unwrap();
    world.check_leases();
    // Both take slots.
    let window = |all_collectives| {
        let mut world = World::standard();
        world.fabric.switches.iter_mut().for_each(|switch| switch.slots = 512);
        world.all_up();
        let job = job(&mut world, pb::CreateJobRequest { all_collectives, ..pools.clone() });
        world.plan(job).window_max
    };
    assert_eq!([window(true), window(false)], [128, 256]);
}

#[test]
fn the_limit_of_trees_is_without_copies() {
    let mut world = World::standard();
    let one = job(&mut world, pb::CreateJobRequest { max_trees: 1, ..request(4) });
    assert_eq!(world.roots(one).len(), 2);
    let trees = vec![pb::WorkerTree::default(); 2];
    let report = pb::WorkerHeartbeat { trees, plan_epoch: 1, ..Default::default() };
    let session = world.state().job(one).unwrap().members[0].session().unwrap();
    world.play(Event::WorkerHeartbeat { session, statistics: report }).unwrap();
}

#[test]
fn with_a_switch_that_adds_for_all_ranks_alone_trees_have_no_copies() {
    let mut world = World::standard();
    world.all_collectives = false;
    world.down("spine1");
    world.up("spine1", &[]).unwrap();
    let job = job(&mut world, request(4));
    assert!(!world.plan(job).copies);
    assert_eq!(world.roots(job), ["spine0", "spine1"]);
    // Without that switch all trees that are left have copies.
    world.down("spine1");
    world.wait(1_000);
    assert!(world.plan(job).copies);
    assert_eq!(world.roots(job), ["spine0", "spine0"]);
}

#[test]
fn what_cannot_have_copies_is_refused() {
    let mut world = World::standard();
    for (wrong, why) in [
        (request(65), "at most 64 ranks, and this job has 65"),
        (pb::CreateJobRequest { release_fraction: 0.5, ..request(4) }, "sums of all ranks"),
    ] {
        let answer = world.play(Event::CreateJob { request: wrong, key: KEY, from: None });
        let problem = format!("{:?}", answer.unwrap_err());
        assert!(problem.contains(why), "{problem}");
    }
}

#[test]
fn another_controller_knows_the_request() {
    let mut world = World::standard();
    let job = job(&mut world, request(4));
    let store = world.store.clone();
    world.restart(Settings::default(), store);
    assert!(world.state().job(job).unwrap().spec.all_collectives);
}
