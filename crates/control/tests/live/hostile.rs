//! What a stranger or a broken peer sends is refused, and costs the others nothing.

use netsum_control::client::{self, WorkerNotice};
use netsum_control::pb;

use crate::scene::{FakeWorker, PATIENCE, Scene, any_port, at, join, start};

#[test]
fn a_heartbeat_beyond_its_limits_ends_the_stream_with_the_reason() {
    let controller = start(any_port(), None);
    let scene = Scene::set(controller.address());
    let unreachable_ranks = vec![3; 5];
    scene.workers[0]
        .client
        .heartbeat(pb::WorkerHeartbeat { unreachable_ranks, ..Default::default() });
    let unreachable_ranks = vec![3; 4097];
    scene.workers[1]
        .client
        .heartbeat(pb::WorkerHeartbeat { unreachable_ranks, ..Default::default() });
    let job = scene.job;
    let reasons = [
        format!("unreachable_ranks of rank 0 of job {job} has 5 entries; the limit is 4"),
        "unreachable_ranks has 4097 entries; the limit is 4096".to_owned(),
    ];
    for (worker, expected) in scene.workers.iter().zip(reasons) {
        worker.wait_for(|notice| match notice {
            WorkerNotice::Refused { reason } => {
                assert_eq!(*reason, expected);
                true
            }
            _ => false,
        });
    }
    let ranks = &scene.status().jobs[0].ranks;
    let kept = |rank: &pb::RankStatus| rank.statistics.as_ref().unwrap().unreachable_ranks.len();
    assert_eq!(ranks.iter().map(kept).collect::<Vec<_>>(), [0; 4]);
}

#[test]
fn long_texts_are_refused_with_the_field_and_the_limit() {
    let controller = start(any_port(), None);
    let address = controller.address();
    let text = "x".repeat(500_000);
    let request = pb::CreateJobRequest { size: 1, tenant: text.clone(), ..Default::default() };
    let error = client::create_job(&at(address), request, PATIENCE).unwrap_err();
    assert!(error.to_string().contains("tenant has 500000 bytes; the limit is 128"), "{error}");
    let join = pb::Join { mesh_address: text, ..join(1, 0) };
    FakeWorker::join_as(address, join).wait_for(|notice| match notice {
        WorkerNotice::Refused { reason } => {
            assert_eq!(*reason, "mesh_address has 500000 bytes; the limit is 80");
            true
        }
        _ => false,
    });
}

#[test]
fn a_storm_of_status_calls_gets_replies_and_disturbs_no_switch() {
    let controller = start(any_port(), None);
    let _scene = Scene::set(controller.address());
    let address = &at(controller.address());
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(move || {
                for _ in 0..4 {
                    let status = client::status(address, PATIENCE).unwrap();
                    assert!(status.switches.iter().all(|switch| switch.state == "up"));
                    assert_eq!((status.jobs.len(), status.jobs[0].ranks.len()), (1, 4));
                }
            });
        }
    });
}
