//! The controller's decisions, without sockets: each test passes events and checks actions.

mod children;
mod copies;
mod data_plane;
mod idle;
mod membership;
mod reservations;
mod slots;
mod transactions;
mod versions;
mod world;

use std::collections::BTreeSet;

use netsum_control::decide::{Action, Answer, Event, Phase, Settings};
use netsum_control::pb;
use netsum_control::pb::switch_command::Command;
use netsum_control::pb::worker_event::Event as WorkerMessage;
use netsum_topo::{Addressing, fat_tree, leaf_spine};
use proptest::prelude::*;

use world::{KEY, RATE, World, checked};

#[test]
fn the_first_plan_uses_every_spine() {
    let mut world = World::standard();
    let job = world.job();
    assert_eq!(world.roots(job), ["spine0", "spine1"]);
    let plan = world.plan(job).clone();
    assert_eq!((plan.epoch, plan.order.as_str(), plan.reason.as_str()), (1, "[[0,1],[2,3]]", ""));
    assert_eq!((plan.fragment_bytes, plan.window_max), (1408, 512));
    checked(&plan, 4).unwrap();
    assert!((0..4).all(|rank| world.workers[&(job, rank)].1.as_ref() == Some(&plan)));
    // Each rank has a key of its own.
    for rank in 0..4 {
        let key = netsum_lease::rank_key(&KEY, rank);
        assert_eq!(world.rank_keys[&(job, rank)], (plan.key_id, key));
    }
    world.check_leases();
}

#[test]
fn the_epoch_is_saved_before_switches_see_it() {
    let mut world = World::standard();
    let job = world.create(2);
    world.join(job, 0, "h0", 0).unwrap();
    let session = world.session();
    let join = pb::Join {
        job,
        rank: 1,
        host: "h2".to_owned(),
        udp_address: "127.77.1.3:9".to_owned(),
        ..Default::default()
    };
    let actions = world
        .state()
        .clone()
        .decide(0, Event::WorkerJoined { session, join, key: world::REBUILT }, 0.0)
        .actions;
    let first = |wanted: fn(&Action) -> bool| actions.iter().position(wanted).unwrap();
    let install = first(|action| matches!(action, Action::SendToSwitch(_, Command::Install(_))));
    assert!(first(|action| matches!(action, Action::SaveJob(_))) < install);
    assert!(
        !actions
            .iter()
            .any(|action| matches!(action, Action::SendToWorker(_, WorkerMessage::Plan(_)))),
        "not before leases are confirmed"
    );
}

#[test]
fn jobs_with_few_trees_spread_over_links_and_roots() {
    let fabric = fat_tree(4, RATE, Addressing::default()).unwrap();
    let mut world = World::new(fabric, Settings::default());
    world.all_up();
    // One host in each pod: four possible roots, and those of one group share all other links.
    let hosts = [0, 4, 8, 12];
    let jobs: Vec<u32> = (0..4).map(|_| world.job_on(&hosts, 1)).collect();
    let roots: Vec<String> = jobs.iter().map(|&job| world.roots(job).concat()).collect();
    assert_eq!(roots, ["core0.0", "core1.0", "core0.1", "core1.1"]);
    // A rank that leaves frees its links: two jobs are left on the links of the second group, one on those of the
    // first.
    for rank in 0..4 {
        let (session, _) = world.workers.remove(&(jobs[2], rank)).unwrap();
        world.play(Event::WorkerLeft { session }).unwrap();
    }
    let next = world.job_on(&hosts, 1);
    assert_eq!(world.roots(next), ["core0.1"]);
    // A job with two trees takes one of each group, and half of its traffic is on each.
    let wide = world.job_on(&hosts, 2);
    assert_eq!(world.plan(wide).trees.len(), 2);
    world.check_leases();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn the_fullest_link_of_a_job_has_the_least_possible_load(
        jobs in prop::collection::vec((prop::collection::btree_set(0usize..8, 2..5), 1u32..3), 1..7),
    ) {
        const STREAM: u64 = 12;
        let fabric = leaf_spine(4, 2, 4, RATE, RATE, Addressing::default()).unwrap();
        let mut world = World::new(fabric, Settings::default());
        world.all_up();
        // By link from a rack to a spine, the traffic of the jobs so far.
        let mut load = std::collections::BTreeMap::<(usize, usize), u64>::new();
        for (hosts, max_trees) in jobs {
            let hosts: Vec<usize> = hosts.into_iter().collect();
            let racks: BTreeSet<usize> = hosts.iter().map(|host| host / 2).collect();
            let job = world.job_on(&hosts, max_trees);
            if racks.len() == 1 {
                prop_assert_eq!(world.roots(job), [format!("rack{}", racks.first().unwrap())]);
                continue;
            }
            let spine = |root: &str| root.strip_prefix("spine").unwrap().parse::<usize>().unwrap();
            let chosen: BTreeSet<usize> = world.roots(job).into_iter().map(spine).collect();
            prop_assert_eq!(chosen.len(), max_trees as usize);
            let at = |rack: usize, spine: usize| load.get(&(rack, spine)).copied().unwrap_or(0);
            let fullest = |spine: usize| racks.iter().map(|&rack| at(rack, spine)).max().unwrap();
            let mut all: Vec<u64> = (0..4).map(fullest).collect();
            all.sort_unstable();
            let mut found: Vec<u64> = chosen.iter().map(|&spine| fullest(spine)).collect();
            found.sort_unstable();
            prop_assert_eq!(&found[..], &all[..found.len()]);
            for (&rack, &spine) in racks.iter().flat_map(|rack| chosen.iter().map(move |s| (rack, s))) {
                *load.entry((rack, spine)).or_default() += STREAM / u64::from(max_trees);
            }
        }
    }
}

#[test]
fn a_dead_spine_costs_a_tree_and_comes_back() {
    let mut world = World::standard();
    let job = world.job();
    world.down("spine1");
    assert_eq!(world.roots(job), ["spine0"]);
    assert_eq!(world.plan(job).epoch, 2);
    assert_eq!(world.plan(job).reason, "1 of 2 trees: spine1 is down");
    world.check_leases();
    world.up("spine1", &[(job, 1, 1)]).unwrap();
    assert_eq!(world.plan(job).epoch, 2, "a switch that just came back must hold for a while");
    world.wait(1_000);
    assert_eq!((world.plan(job).epoch, world.roots(job)), (3, vec!["spine0", "spine1"]));
    assert_eq!(world.plan(job).reason, "");
    world.check_leases();
}

#[test]
fn a_dead_rack_switch_leaves_the_host_path_with_a_reason() {
    let mut world = World::standard();
    let job = world.job();
    world.down("rack0");
    let plan = world.plan(job).clone();
    assert_eq!((plan.epoch, plan.trees.len(), plan.order.as_str()), (2, 0, "[[0,1],[2,3]]"));
    assert_eq!(plan.reason, "0 of 2 trees: host \"h0\" has no live switch: rack0 is down");
    checked(&plan, 4).unwrap();
    world.check_leases();
    world.up("rack0", &[]).unwrap();
    world.wait(1_000);
    assert_eq!((world.plan(job).epoch, world.plan(job).trees.len()), (3, 2));
}

#[test]
fn a_switch_that_keeps_failing_is_used_later_each_time() {
    let mut world = World::standard();
    let job = world.job();
    let mut epochs = Vec::new();
    for _ in 0..5 {
        world.down("spine1");
        world.up("spine1", &[]).unwrap();
        world.wait(1_000);
        epochs.push(world.plan(job).epoch);
    }
    assert_eq!(
        epochs,
        [3, 5, 6, 6, 6],
        "after two deaths it is left alone for longer than a second"
    );
    world.wait(30_000);
    assert_eq!(world.plan(job).trees.len(), 2);
}

#[test]
fn a_stream_that_ended_is_not_the_death_of_a_switch() {
    let mut world = World::standard();
    world.instance = 7;
    world.all_up();
    let job = world.job();
    for epoch in [3, 5, 7, 9] {
        world.down("spine1");
        assert_eq!(world.roots(job), ["spine0"]);
        world.up("spine1", &[]).unwrap();
        assert_eq!((world.plan(job).epoch, world.roots(job).len()), (epoch, 2));
    }
}

#[test]
fn a_silent_switch_is_dead_after_five_seconds() {
    let mut world = World::standard();
    let job = world.job();
    world.now_ms += 4_900;
    world.play(Event::Tick).unwrap();
    assert_eq!(world.plan(job).epoch, 1);
    world.now_ms += 200;
    world.play(Event::Tick).unwrap();
    assert!(world.switches.is_empty(), "their streams are closed");
    assert_eq!(world.plan(job).trees.len(), 0);
}

#[test]
fn a_switch_that_restarted_unseen_makes_the_plan_void() {
    let mut world = World::standard();
    let job = world.job();
    world.up("spine0", &[]).unwrap();
    assert!(world.plan(job).epoch >= 2);
    world.wait(2_000);
    assert_eq!(world.plan(job).trees.len(), 2);
    world.check_leases();
}

#[test]
fn a_refused_lease_is_planned_around() {
    let mut world = World::standard();
    world.refusing.insert("spine0".to_owned(), "aggregation memory is full".to_owned());
    let job = world.job();
    assert_eq!(world.roots(job), ["spine1"]);
    assert_eq!(
        world.plan(job).reason,
        "1 of 2 trees: spine0 refused a lease: aggregation memory is full"
    );
    world.check_leases();
    world.refusing.clear();
    world.wait(11_000);
    assert_eq!(world.roots(job), ["spine0", "spine1"]);
    world.check_leases();
}

#[test]
fn a_lease_without_an_answer_is_planned_around() {
    let mut world = World::standard();
    world.mute.insert("spine1".to_owned());
    let job = world.job();
    assert!(world.workers[&(job, 0)].1.is_none(), "no plan before all leases are confirmed");
    world.wait(3_100);
    assert_eq!(world.roots(job), ["spine0"]);
    assert_eq!(world.plan(job).reason, "1 of 2 trees: spine1 did not confirm a lease within 3 s");
}

#[test]
fn a_late_answer_ends_the_refusal() {
    let mut world = World::standard();
    world.mute.insert("spine1".to_owned());
    let job = world.job();
    let late = world.granted.iter().rfind(|(name, _)| name == "spine1").unwrap().1.clone();
    world.wait(3_500);
    assert_eq!(world.roots(job), ["spine0"]);
    world.mute.clear();
    let ack =
        pb::LeaseAck { job, tree: late.tree, epoch: late.epoch, ok: true, reason: String::new() };
    let session = world.switches["spine1"].0;
    world.play(Event::LeaseAck { session, ack }).unwrap();
    world.wait(200);
    assert_eq!(world.roots(job), ["spine0", "spine1"]);
    world.check_leases();
}

#[test]
fn a_new_stream_ends_the_refusal_of_a_late_switch() {
    let mut world = World::standard();
    world.mute.insert("spine1".to_owned());
    let job = world.job();
    world.wait(3_500);
    world.down("spine1");
    world.mute.clear();
    world.up("spine1", &[]).unwrap();
    world.wait(700);
    assert_eq!(world.roots(job), ["spine0", "spine1"]);
}

#[test]
fn one_switch_that_refuses_does_not_keep_another_from_coming_back() {
    let fabric = leaf_spine(2, 2, 3, RATE, RATE, Addressing::default()).unwrap();
    let mut world = World::new(fabric, Settings::default());
    world.all_up();
    world.refusing.insert("spine0".to_owned(), "aggregation memory is full".to_owned());
    let job = world.job();
    world.down("spine2");
    assert_eq!(world.roots(job), ["spine1"]);
    world.up("spine2", &[]).unwrap();
    world.wait(700);
    assert_eq!(world.roots(job), ["spine1", "spine2"]);
    world.refusing.clear();
    world.wait(10_000);
    assert_eq!(world.roots(job), ["spine0", "spine1", "spine2"]);
}

#[test]
fn after_a_restart_a_plan_is_improved_as_soon_as_the_switches_are_there() {
    let mut world = World::standard();
    let job = world.job();
    world.down("spine1");
    let plan = world.plan(job).clone();
    world.restart_with_leases();
    (0..4).for_each(|rank| _ = world.join(job, rank, &format!("h{rank}"), plan.epoch).unwrap());
    world.up("spine1", &[]).unwrap();
    world.wait(200);
    assert_eq!(world.roots(job), ["spine0", "spine1"]);
}

#[test]
fn after_a_start_plans_wait_for_switches() {
    let fabric = leaf_spine(2, 2, 2, RATE, RATE, Addressing::default()).unwrap();
    let mut world = World::new(fabric, Settings::default());
    for name in ["rack0", "rack1", "spine0"] {
        world.up(name, &[]).unwrap();
    }
    let job = world.job();
    assert!(world.workers[&(job, 0)].1.is_none());
    world.wait(3_000);
    assert_eq!(world.roots(job), ["spine0"]);
    assert_eq!(world.plan(job).reason, "1 of 2 trees: spine1 is down");
}

#[test]
fn a_first_plan_without_switches_fixes_the_order_nevertheless() {
    let fabric = leaf_spine(2, 2, 2, RATE, RATE, Addressing::default()).unwrap();
    let mut world = World::new(fabric, Settings::default());
    let job = world.job();
    world.wait(3_000);
    assert_eq!((world.plan(job).trees.len(), world.plan(job).order.as_str()), (0, "[[0,1],[2,3]]"));
    world.all_up();
    world.wait(500);
    assert_eq!(world.plan(job).trees.len(), 2);
}

#[test]
fn a_lost_worker_is_reported_to_the_others() {
    let mut world = World::standard();
    let job = world.job();
    world.messages.clear();
    world.worker_gone(job, 2);
    world.peers_report_unreachable(job, 2);
    world.wait(2_900);
    assert!(world.messages.is_empty());
    world.wait(200);
    let told: Vec<u32> = world.messages.iter().map(|(rank, _)| *rank).collect();
    assert_eq!(told, [0, 1, 3]);
    let WorkerMessage::PeerLost(lost) = &world.messages[0].1 else {
        panic!("{:?}", world.messages)
    };
    assert_eq!((lost.rank, lost.host.as_str(), lost.pid), (2, "h2", 1002));
    let refusal = world.join(job, 2, "h2", 1).unwrap_err().to_string();
    assert_eq!(refusal, format!("rank 2 of job {job} was lost: its peers could not reach it"));
    for rank in [0, 1, 3] {
        let (session, _) = world.workers[&(job, rank)];
        world.play(Event::WorkerLeft { session }).unwrap();
    }
    assert_eq!(world.state().job(job).unwrap().phase, Phase::Ended);
    assert!(world.switches.values().all(|(_, leases)| leases.is_empty()), "leases are taken back");
}

#[test]
fn a_returning_worker_receives_only_missed_messages() {
    let mut world = World::standard();
    let job = world.job();
    world.worker_gone(job, 1);
    world.wait(1_000);
    world.messages.clear();
    world.join(job, 1, "h1", 1).unwrap();
    assert_eq!(world.messages, []);
    world.worker_gone(job, 1);
    world.down("spine0");
    world.messages.clear();
    world.join(job, 1, "h1", 1).unwrap();
    let [(1, WorkerMessage::Plan(plan))] = &world.messages[..] else {
        panic!("{:?}", world.messages)
    };
    assert_eq!(plan.epoch, 2);
}

#[test]
fn a_worker_ahead_of_the_store_gets_a_newer_epoch() {
    let mut world = World::standard();
    let job = world.job();
    world.worker_gone(job, 1);
    world.join(job, 1, "h1", 7).unwrap();
    assert_eq!(world.workers[&(job, 1)].1.as_ref().map(|plan| plan.epoch), Some(8));
    assert_eq!(world.plan(job).epoch, 8);
    world.check_leases();
}

#[test]
fn when_all_have_left_the_job_is_over() {
    let mut world = World::standard();
    let job = world.job();
    for rank in 0..4 {
        let (session, _) = world.workers[&(job, rank)];
        world.play(Event::WorkerLeft { session }).unwrap();
        world.play(Event::WorkerClosed { session, hung_up: false }).unwrap();
    }
    assert_eq!(world.state().job(job).unwrap().phase, Phase::Ended);
    assert!(world.switches.values().all(|(_, leases)| leases.is_empty()));
    assert!(world.join(job, 0, "h0", 0).unwrap_err().to_string().contains("is over"));
    assert_ne!(world.create(1), job);
}

#[test]
fn a_rank_lost_while_joining_fails_the_job() {
    let mut world = World::standard();
    let job = world.create(3);
    world.join(job, 0, "h0", 0).unwrap();
    world.join(job, 1, "h1", 0).unwrap();
    world.worker_gone(job, 1);
    world.wait(3_100);
    let [(0, WorkerMessage::JobFailed(failed))] = &world.messages[..] else {
        panic!("{:?}", world.messages)
    };
    assert_eq!(failed.reason, "rank 1 was lost before all ranks had joined");
}

#[test]
fn a_job_that_never_completes_fails() {
    let mut world = World::standard();
    let job = world.create(4);
    world.join(job, 0, "h0", 0).unwrap();
    world.join(job, 2, "h2", 0).unwrap();
    world.now_ms += 600_000;
    world.play(Event::Tick).unwrap();
    let [(0, WorkerMessage::JobFailed(failed)), (2, _)] = &world.messages[..] else {
        panic!("{:?}", world.messages)
    };
    assert_eq!(failed.reason, "rank 1, 3 did not join within 600 s");
    assert_eq!(world.state().job(job).unwrap().phase, Phase::Ended);
}

#[test]
fn an_operator_can_stop_a_job() {
    let mut world = World::standard();
    let job = world.job();
    world.messages.clear();
    world.play(Event::StopJob { job, reason: String::new() }).unwrap();
    assert_eq!(world.messages.len(), 4);
    assert!(world.switches.values().all(|(_, leases)| leases.is_empty()));
    let again = world.play(Event::StopJob { job, reason: String::new() }).unwrap_err();
    assert_eq!(again.to_string(), format!("job {job} is over"));
    let unknown =
        world.play(Event::StopJob { job: 99, reason: String::new() }).unwrap_err().to_string();
    assert!(unknown.contains("job 99 is unknown"), "{unknown}");
}

#[test]
fn memory_is_shared_and_freed() {
    let mut world = World::standard();
    world.receive_buffer = 425_984;
    for name in ["rack0", "rack1", "spine0", "spine1"] {
        world.down(name);
    }
    world.all_up();
    world.wait(1_000);
    let first = world.job();
    let windows =
        |world: &World, job: u32| (world.plan(job).window_max, world.plan(job).trees.len());
    // A rack: 2 trees × 2 children × (2 × 1408 + 1000) = 15264 bytes per slot of half of 425984.
    assert_eq!(windows(&world, first), (13, 2));
    let mut jobs = vec![first];
    while world.plan(*jobs.last().unwrap()).trees.len() == 2 {
        assert!(jobs.len() < 20);
        jobs.push(world.job());
        world.check_leases();
    }
    let starved = *jobs.last().unwrap();
    assert!(
        world.plan(starved).reason.contains("is full: one fragment needs"),
        "{}",
        world.plan(starved).reason
    );
    world.play(Event::StopJob { job: first, reason: String::new() }).unwrap();
    world.wait(200);
    assert_eq!(world.plan(starved).trees.len(), 2, "what the first job had helps the last");
    world.check_leases();
}

#[test]
fn trees_of_another_job_make_the_next_one_use_other_links() {
    let mut world = World::standard();
    let request = pb::CreateJobRequest { size: 4, max_trees: 1, ..Default::default() };
    let mut roots = Vec::new();
    for _ in 0..2 {
        let Ok(Answer::Created(job)) =
            world.play(Event::CreateJob { request: request.clone(), key: KEY, from: None })
        else {
            panic!("refused")
        };
        for rank in 0..4 {
            world.join(job, rank, &format!("h{rank}"), 0).unwrap();
        }
        roots.extend(world.roots(job).iter().map(|root| (*root).to_owned()));
    }
    assert_eq!(roots, ["spine0", "spine1"]);
}

#[test]
fn one_rank_has_nothing_to_sum() {
    let mut world = World::standard();
    let job = world.create(1);
    world.join(job, 0, "h0", 0).unwrap();
    assert_eq!(world.plan(job).reason, "a job of 1 rank(s) has nothing to sum in the network");
    checked(world.plan(job), 1).unwrap();
}

#[test]
fn invalid_requests_are_refused_with_the_cause() {
    let mut world = World::standard();
    let job = world.create(2);
    let refusal = |world: &mut World, job, rank, host: &str| {
        world.join(job, rank, host, 0).unwrap_err().to_string()
    };
    assert!(refusal(&mut world, 77, 0, "h0").contains("job 77 is unknown"));
    assert_eq!(refusal(&mut world, job, 2, "h0"), format!("job {job} has ranks 0 to 1, not 2"));
    assert!(refusal(&mut world, job, 0, "h9").contains("has no host h9; it has h0, h1, h2, h3"));
    let unknown = world.up("spine9", &[]).unwrap_err().to_string();
    assert!(
        unknown.contains("has no switch \"spine9\"; it has rack0, rack1, spine0, spine1"),
        "{unknown}"
    );
    let create = |world: &mut World, request| {
        world.play(Event::CreateJob { request, key: KEY, from: None }).unwrap_err().to_string()
    };
    let base = pb::CreateJobRequest { size: 2, ..Default::default() };
    let size = pb::CreateJobRequest { size: 0, ..base.clone() };
    assert!(create(&mut world, size).contains("1 to 4096 ranks"));
    let protocol = pb::CreateJobRequest { protocol: "tcp".to_owned(), ..base.clone() };
    assert!(create(&mut world, protocol).contains("use panama, atp or switchml"));
    let congestion = pb::CreateJobRequest { congestion: "bbr".to_owned(), ..base.clone() };
    assert!(create(&mut world, congestion).contains("use panama, per-branch, coupled or none"));
    let fraction = pb::CreateJobRequest { release_fraction: f32::NAN, ..base.clone() };
    assert!(create(&mut world, fraction).contains("is not between"));
    let wide = pb::CreateJobRequest { size: 65, release_fraction: 0.9, ..base };
    assert!(create(&mut world, wide).contains("this job has 65"));
}

#[derive(Debug, Clone)]
enum Step {
    Down(usize),
    Up(usize),
    Refuse(usize, bool),
    NewJob,
    WorkerGone(u32),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0usize..4).prop_map(Step::Down),
        3 => (0usize..4).prop_map(Step::Up),
        1 => (0usize..4, any::<bool>()).prop_map(|(switch, refuse)| Step::Refuse(switch, refuse)),
        1 => Just(Step::NewJob),
        1 => (0u32..12).prop_map(Step::WorkerGone),
        3 => (0u64..4_000).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// For any events in any order: epochs only grow, plans are valid and keep the order, and finally every job has all
    /// its trees and every switch exactly their leases.
    #[test]
    fn any_history_ends_well(steps in steps()) {
        const NAMES: [&str; 4] = ["rack0", "rack1", "spine0", "spine1"];
        let mut world = World::standard();
        let mut jobs = vec![world.job()];
        let mut hurt = BTreeSet::new();
        for step in steps {
            match step {
                Step::Down(i) if world.switches.contains_key(NAMES[i]) => world.down(NAMES[i]),
                Step::Up(i) => drop(world.up(NAMES[i], &[])),
                Step::Refuse(i, true) => drop(world.refusing.insert(NAMES[i].to_owned(), "no".to_owned())),
                Step::Refuse(i, false) => drop(world.refusing.remove(NAMES[i])),
                Step::NewJob if jobs.len() < 3 => jobs.push(world.job()),
                Step::WorkerGone(i) => {
                    let worker = (jobs[i as usize / 4 % jobs.len()], i % 4);
                    if world.workers.contains_key(&worker) {
                        world.worker_gone(worker.0, worker.1);
                        hurt.insert(worker.0);
                    }
                }
                Step::Wait(ms) => world.wait(ms),
                _ => {}
            }
            for ((job, _), (_, plan)) in &world.workers {
                if let Some(plan) = plan {
                    prop_assert!(checked(plan, 4).is_ok());
                    prop_assert_eq!(&plan.order, "[[0,1],[2,3]]", "job {}", job);
                }
            }
        }
        world.refusing.clear();
        for name in NAMES.iter().filter(|name| !world.switches.contains_key(**name)).collect::<Vec<_>>() {
            world.up(name, &[]).unwrap();
        }
        world.wait(60_000);
        for job in jobs {
            if hurt.contains(&job) {
                continue;
            }
            prop_assert_eq!(world.plan(job).trees.len(), 2, "{}", world.plan(job).reason);
            prop_assert_eq!(world.plan(job).reason.as_str(), "");
        }
        if hurt.is_empty() {
            world.check_leases();
        }
    }
}
