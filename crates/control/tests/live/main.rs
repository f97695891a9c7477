//! A real controller on a real port, with switches and workers that use the real clients.

mod hostile;
mod sandboxed;
mod scene;
mod secure;
mod tls_check;

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use netsum_control::client::{self, SwitchClient, SwitchNotice, WorkerClient, WorkerNotice};
use netsum_control::decide::Settings;
use netsum_control::{Config, Controller, MemoryStore, Security, pb};

use scene::{
    FakeSwitch, FakeWorker, Leases, PATIENCE, SWITCHES, Scene, any_port, at, fabric, hello, join,
    settings, start, start_with,
};

#[test]
fn switches_die_and_come_back() {
    let controller = start(any_port(), None);
    let mut scene = Scene::set(controller.address());
    scene.leases_become([2, 2, 1, 1]);

    scene.kill(3);
    let plan = scene.plan();
    assert_eq!(
        (plan.epoch, plan.trees.len(), plan.reason.as_str()),
        (2, 1, "1 of 2 trees: spine1 is down")
    );

    scene.revive(3);
    let plan = scene.plan();
    assert_eq!((plan.epoch, plan.trees.len(), plan.reason.as_str()), (3, 2, ""));
    scene.leases_become([2, 2, 1, 1]);

    scene.kill(0);
    let plan = scene.plan();
    assert_eq!((plan.epoch, plan.trees.len()), (4, 0));
    assert_eq!(plan.reason, "0 of 2 trees: host \"h0\" has no live switch: rack0 is down");

    scene.revive(0);
    let plan = scene.plan();
    assert_eq!((plan.epoch, plan.trees.len()), (5, 2));
    assert_eq!(plan.order.to_string(), "[[0,1],[2,3]]");

    let (job, address) = (scene.job, at(scene.address));
    let Scene { workers, switches, .. } = scene;
    workers.into_iter().for_each(|worker| worker.client.leave());
    let jobs = client::list_jobs(&address, true, PATIENCE).unwrap().jobs;
    assert_eq!((jobs[0].job, jobs[0].state.as_str()), (job, "ended"));
    assert_eq!(client::list_jobs(&address, false, PATIENCE).unwrap().jobs, []);
    drop(switches);
    controller.stop();
}

#[test]
fn a_lost_worker_is_named_to_the_others() {
    let controller = start(any_port(), None);
    let mut scene = Scene::set(controller.address());
    drop(scene.workers.remove(2));
    let statistics = pb::WorkerHeartbeat { unreachable_ranks: vec![2], ..Default::default() };
    scene.workers.iter().for_each(|worker| worker.client.heartbeat(statistics.clone()));
    for worker in &scene.workers {
        match worker.next() {
            WorkerNotice::PeerLost(lost) => assert_eq!((lost.rank, lost.host.as_str()), (2, "h2")),
            other => panic!("{other:?} instead of a lost peer"),
        }
    }
    let ranks = scene.status().jobs[0].ranks.clone();
    let states: Vec<&str> = ranks.iter().map(|rank| rank.state.as_str()).collect();
    assert_eq!(states, ["connected", "connected", "lost", "connected"]);
    scene.workers.drain(..).for_each(|worker| worker.client.leave());
    scene.leases_become([0, 0, 0, 0]);
}

#[test]
fn a_rank_that_its_peers_reach_is_only_away() {
    let controller = start(any_port(), None);
    let mut scene = Scene::set(controller.address());
    drop(scene.workers.remove(2));
    // Several times the grace, and long enough for each of the others to report twice.
    scene.workers[0].receives_nothing_for(Duration::from_millis(2_500));
    let states: Vec<String> =
        scene.status().jobs[0].ranks.iter().map(|rank| rank.state.clone()).collect();
    assert_eq!(states, ["connected", "connected", "away", "connected"]);
    let join = pb::Join { known_epoch: 1, ..join(scene.job, 2) };
    scene.workers.insert(2, FakeWorker::join_as(scene.address, join));
    scene.workers[2].wait_for(|notice| *notice == WorkerNotice::Connected);
    assert_eq!(scene.status().jobs[0].epoch, 1);
}

#[test]
fn a_job_whose_ranks_all_died_leaves_nothing() {
    let controller = start(any_port(), None);
    let mut scene = Scene::set(controller.address());
    // Their connections end as the system ends those of a process that dies: nothing is said before.
    scene.workers.clear();
    scene.leases_become([0, 0, 0, 0]);
    assert_eq!(scene.status().jobs[0].state, "abandoned");
    // One that was only away for long finds the job again.
    let again = |rank| pb::Join { known_epoch: 1, ..join(scene.job, rank) };
    let ranks: Vec<_> =
        (0..4).map(|rank| FakeWorker::join_as(scene.address, again(rank))).collect();
    assert!(ranks.iter().all(|rank| rank.plan().epoch > 1));
    assert_eq!(scene.status().jobs[0].state, "running");
}

#[test]
fn ranks_that_give_their_streams_up_have_not_died() {
    let settings = Settings { vanish_ms: 100, ..settings() };
    let controller = start_with(any_port(), None, settings);
    let address = controller.address();
    let switches = SWITCHES.map(|name| FakeSwitch::start(address, name));
    let request = pb::CreateJobRequest { size: 4, ..Default::default() };
    let job = client::create_job(&at(address), request, PATIENCE).unwrap().job;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let streams = (0..4).map(|rank| runtime.block_on(raw_session(address, join(job, rank))));
    for mut stream in streams.collect::<Vec<_>>() {
        runtime.block_on(async {
            let is_plan = |event: pb::WorkerEvent| {
                matches!(event.event, Some(pb::worker_event::Event::Plan(_)))
            };
            while !is_plan(stream.1.message().await.unwrap().unwrap()) {}
        });
        // The stream ends, and its connection in order.
        drop(stream);
    }
    let end = Instant::now() + PATIENCE;
    let is_away = |rank: &pb::RankStatus| rank.state == "away";
    while !client::status(&at(address), PATIENCE).unwrap().jobs[0].ranks.iter().all(is_away) {
        assert!(Instant::now() < end, "the streams have not ended");
    }
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(client::status(&at(address), PATIENCE).unwrap().jobs[0].state, "running");
    assert!(switches.iter().all(|switch| !switch.leases.lock().unwrap().is_empty()));
}

/// The two directions of a rank's session.
async fn raw_session(
    controller: SocketAddr,
    join: pb::Join,
) -> (tokio::sync::mpsc::Sender<pb::WorkerReport>, tonic::Streaming<pb::WorkerEvent>) {
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{controller}"));
    let channel = channel.unwrap().connect().await.unwrap();
    let (reports, outgoing) = tokio::sync::mpsc::channel(4);
    let report = Some(pb::worker_report::Report::Join(join));
    reports.send(pb::WorkerReport { report }).await.unwrap();
    let mut client = pb::controller_client::ControllerClient::new(channel);
    let outgoing = tokio_stream::wrappers::ReceiverStream::new(outgoing);
    (reports, client.worker_session(outgoing).await.unwrap().into_inner())
}

#[test]
fn a_failing_store_changes_nothing_and_jobs_are_created_once_it_works() {
    let store = MemoryStore::drawn().unwrap();
    let config = Config {
        fabric: fabric(),
        listen: any_port(),
        store: None,
        settings: settings(),
        security: Security::Trusted,
    };
    let controller = Controller::start_with(config, Box::new(store.clone())).unwrap();
    let address = at(controller.address());
    let request = pb::CreateJobRequest { size: 4, ..Default::default() };
    let job = client::create_job(&address, request.clone(), PATIENCE).unwrap().job;
    store.fail(Some("its disk is full; make space"));
    for _ in 0..3 {
        let error =
            client::create_job(&address, request.clone(), PATIENCE).unwrap_err().to_string();
        assert!(
            error.contains("its disk is full; make space; nothing was changed, try again"),
            "{error}"
        );
    }
    // A worker waits for the store.
    let worker = FakeWorker::join(controller.address(), job, 0);
    worker.wait_for(|notice| matches!(notice, WorkerNotice::Away { .. }));
    let status = client::status(&address, PATIENCE).unwrap();
    let state = status.store.unwrap();
    assert!(state.problem.contains("its disk is full") && state.failures >= 4, "{state:?}");
    assert_eq!((status.jobs.len(), status.jobs[0].ranks[0].state.as_str()), (1, "awaited"));
    store.fail(None);
    worker.wait_for(|notice| *notice == WorkerNotice::Connected);
    assert_eq!(client::create_job(&address, request, PATIENCE).unwrap().job, job + 1);
    assert_eq!(client::status(&address, PATIENCE).unwrap().store.unwrap().problem, "");
}

#[test]
fn a_controller_with_another_store_ignores_an_old_job() {
    let controller = start(any_port(), None);
    let address = controller.address();
    let scene = Scene::set(address);
    let status = scene.status();
    controller.kill();
    scene
        .workers
        .iter()
        .for_each(|worker| worker.wait_for(|notice| matches!(notice, WorkerNotice::Away { .. })));
    let _controller = start(address, None);
    for worker in &scene.workers {
        worker.wait_for(|notice| match notice {
            WorkerNotice::Refused { reason } => {
                assert!(reason.contains("with another store"), "{reason}");
                true
            }
            _ => false,
        });
    }
    let now = scene.status();
    assert_ne!(now.incarnation, status.incarnation);
    assert_eq!(now.jobs, []);
    scene.leases_become([0, 0, 0, 0]);
}

#[test]
fn a_job_that_the_store_lacks_is_resumed_by_the_real_clients() {
    let folder = tempfile::tempdir().unwrap();
    let (file, copy) = (folder.path().join("store"), folder.path().join("copy"));
    start(any_port(), Some(file.clone())).stop();
    std::fs::copy(&file, &copy).unwrap();
    let controller = start(any_port(), Some(file.clone()));
    let address = controller.address();
    let scene = Scene::set(address);
    controller.kill();
    scene
        .workers
        .iter()
        .for_each(|worker| worker.wait_for(|notice| matches!(notice, WorkerNotice::Away { .. })));
    let _controller = start(address, Some(copy));
    let plan = scene.plan();
    assert_eq!((plan.job, plan.epoch, plan.trees.len()), (scene.job, 2, 2));
    scene.leases_become([2, 2, 1, 1]);
}

#[test]
fn a_restarted_controller_disturbs_no_job() {
    let folder = tempfile::tempdir().unwrap();
    let store = Some(folder.path().join("store.sqlite"));
    let controller = start(any_port(), store.clone());
    let address = controller.address();
    let mut scene = Scene::set(address);
    scene.leases_become([2, 2, 1, 1]);
    let before: Vec<_> = scene
        .switches
        .iter()
        .flatten()
        .map(|switch| switch.leases.lock().unwrap().clone())
        .collect();

    controller.kill();
    scene
        .workers
        .iter()
        .for_each(|worker| worker.wait_for(|notice| matches!(notice, WorkerNotice::Away { .. })));
    let controller = start(address, store.clone());
    scene
        .workers
        .iter()
        .for_each(|worker| worker.wait_for(|notice| *notice == WorkerNotice::Connected));
    // Longer than the time for which switches are expected.
    scene.workers[0].receives_nothing_for(Duration::from_millis(2_500));
    scene.workers[1..]
        .iter()
        .for_each(|worker| worker.receives_nothing_for(Duration::from_millis(1)));
    let after: Vec<_> = scene
        .switches
        .iter()
        .flatten()
        .map(|switch| switch.leases.lock().unwrap().clone())
        .collect();
    assert_eq!(before, after, "switches keep their leases");
    let job = scene.status().jobs[0].clone();
    assert_eq!(
        (job.job, job.epoch, job.state.as_str(), job.trees.len()),
        (scene.job, 1, "running", 2)
    );

    scene.kill(2);
    assert_eq!(scene.plan().epoch, 2, "epochs go on where they were");
    controller.kill();

    // A switch that fails while the controller is down is detected after the restart.
    scene.kill(3);
    let controller = start(address, store);
    let plan = scene.plan();
    assert_eq!((plan.epoch, plan.trees.len()), (3, 0));
    let request = pb::CreateJobRequest { size: 1, ..Default::default() };
    let next = client::create_job(&at(address), request, PATIENCE).unwrap().job;
    assert_eq!(next, scene.job + 1, "numbers go on where they were");
    controller.stop();
}

#[test]
fn status_tells_loads_per_link() {
    let controller = start(any_port(), None);
    let scene = Scene::set(controller.address());
    let spine = fabric().switch("spine0").unwrap().address.to_string();
    let rack = fabric().switch("rack0").unwrap().address.to_string();
    let counted = |address: String, tx_bytes, rx_bytes| pb::Neighbour {
        address,
        tx_bytes,
        rx_bytes,
        ..Default::default()
    };
    let beat = |neighbours| pb::SwitchHeartbeat {
        neighbours,
        drops: [("stale epoch".to_owned(), 3)].into(),
        memory_used_bytes: 77,
        ..Default::default()
    };
    let rack0 = vec![counted(spine, 100, 40), counted("127.77.1.1:6000".to_owned(), 50, 70)];
    scene.switches[0].as_ref().unwrap().client().heartbeat(beat(rack0));
    scene.switches[2].as_ref().unwrap().client().heartbeat(beat(vec![counted(rack, 40, 100)]));
    scene.workers[3].client.heartbeat(pb::WorkerHeartbeat { operations: 5, ..Default::default() });
    let end = Instant::now() + PATIENCE;
    let status = loop {
        let status = scene.status();
        let bytes = |a: &str, b: &str| {
            let link = status
                .links
                .iter()
                .find(|link| (link.a.as_str(), link.b.as_str()) == (a, b))
                .unwrap();
            (link.bytes_ab, link.bytes_ba, link.up)
        };
        let operations =
            status.jobs[0].ranks[3].statistics.as_ref().map(|statistics| statistics.operations);
        let seen = (bytes("h0", "rack0"), bytes("rack0", "spine0"), operations);
        if seen == ((70, 50, true), (100, 40, true), Some(5)) {
            break status;
        }
        assert!(Instant::now() < end, "{seen:?}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let rack0 = &status.switches[0];
    assert_eq!(
        (rack0.name.as_str(), rack0.state.as_str(), rack0.memory_used_bytes),
        ("rack0", "up", 77)
    );
    assert_eq!(rack0.drops["stale epoch"], 3);
    assert_eq!(rack0.neighbours[1].name, "h0");
    assert!(rack0.memory_leased_bytes > 0);
    assert_eq!(status.address, controller.address().to_string());
    assert_eq!(status.fabric, "leaf-spine");
}

#[test]
fn refusals_end_a_worker_with_the_reason() {
    let controller = start(any_port(), None);
    let address = controller.address();
    let notice = FakeWorker::join(address, 42, 0).next();
    let WorkerNotice::Refused { reason } = notice else { panic!("{notice:?}") };
    assert_eq!(
        reason,
        "job 42 is unknown to the controller of fabric \"leaf-spine\"; was its store deleted?"
    );

    let request = pb::CreateJobRequest { size: 4, ..Default::default() };
    let job = client::create_job(&at(address), request, PATIENCE).unwrap().job;
    let worker = FakeWorker::join(address, job, 0);
    worker.wait_for(|notice| *notice == WorkerNotice::Connected);
    let mut other = join(job, 0);
    other.pid += 1;
    let (_client, notices) = WorkerClient::start(&at(address), other, 4).unwrap();
    match notices.recv_timeout(PATIENCE).unwrap() {
        WorkerNotice::Refused { reason } => assert!(reason.contains("is process"), "{reason}"),
        other => panic!("{other:?}"),
    }
    client::stop_job(&at(address), job, "enough", PATIENCE).unwrap();
    assert_eq!(worker.next(), WorkerNotice::JobFailed { reason: "enough".to_owned() });
}

#[test]
fn a_switch_of_another_fabric_is_refused_and_keeps_trying() {
    let controller = start(any_port(), None);
    let leases = Leases::default();
    let address = at(controller.address());
    let (_client, notices) =
        SwitchClient::start(&address, move || hello("spine7", &leases)).unwrap();
    match notices.recv_timeout(PATIENCE).unwrap() {
        SwitchNotice::Refused { reason } => {
            assert!(reason.contains("has no switch \"spine7\""), "{reason}")
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        notices.recv_timeout(Duration::from_millis(300)),
        Err(RecvTimeoutError::Timeout),
        "told once"
    );
}

#[test]
fn calls_without_a_controller_name_the_address() {
    let free =
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let message = client::status(&at(&free), PATIENCE).unwrap_err().to_string();
    assert!(message.starts_with(&format!("no controller answers at {free}: ")), "{message}");
    let message = client::status(&at("nowhere"), PATIENCE).unwrap_err().to_string();
    assert!(message.contains("write host:port"), "{message}");
    // A listener that never answers.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let message =
        client::status(&at(mute.local_addr().unwrap()), Duration::from_millis(300)).unwrap_err();
    assert!(message.to_string().contains("did not answer Status within 0.3 s"), "{message}");
}

#[test]
fn clients_work_inside_a_runtime() {
    let controller = start(any_port(), None);
    let address = at(controller.address());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let hosts = client::fabric(&address, PATIENCE).unwrap().hosts;
        assert_eq!(hosts.len(), 4);
        let (worker, mut notices) = WorkerClient::spawn(&address, join(9, 0), 4);
        let notice = tokio::time::timeout(PATIENCE, notices.recv()).await.unwrap();
        assert!(matches!(notice, Some(WorkerNotice::Refused { .. })), "{notice:?}");
        drop(worker);
    });
}

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netsum-controller"));
    command.args(["--store", "none"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn the_program_reports_errors() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fabric.toml");
    std::fs::write(&file, fabric().to_toml()).unwrap();
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, stdout, _) = run(program().arg("--fabric").arg(&file).arg("--check"));
    assert_eq!(code, Some(0));
    assert!(stdout.contains("4 hosts, 4 switches, 8 links"), "{stdout}");

    let (code, _, stderr) = run(program().args(["--fabric", "no.toml"]));
    assert_eq!(code, Some(1));
    assert!(stderr.contains("cannot read the fabric file no.toml"), "{stderr}");

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, _, stderr) = run(program().arg("--fabric").arg(&file).args(["--listen", &address]));
    assert_eq!(code, Some(1));
    assert!(
        stderr.contains(&format!("cannot listen at {address}: another process listens there")),
        "{stderr}"
    );

    let (code, _, stderr) =
        run(program().arg("--fabric").arg(&file).args(["--listen", "192.0.2.1:7700"]));
    assert_eq!(code, Some(1));
    assert!(stderr.contains("this machine does not have that address"), "{stderr}");
}

#[test]
fn by_default_the_store_is_a_file_of_the_fabric() {
    use std::io::{BufRead, BufReader, Read};
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fabric.toml");
    std::fs::write(&file, fabric().to_toml()).unwrap();
    let run = |variable: &str, value: &std::path::Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netsum-controller"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env_remove("STATE_DIRECTORY").env_remove("XDG_STATE_HOME").env_remove("HOME");
        let command = command.env(variable, value).arg("--fabric").arg(&file);
        let mut child = command.args(["--listen", "127.0.0.1:0"]).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
        child.wait().unwrap();
        let mut log = String::new();
        child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        log
    };
    let places = [
        ("STATE_DIRECTORY", "systemd", "systemd/leaf-spine.db"),
        ("XDG_STATE_HOME", "xdg", "xdg/netsum/leaf-spine.db"),
        ("HOME", "home", "home/.local/state/netsum/leaf-spine.db"),
    ];
    for (variable, value, place) in places {
        let log = run(variable, &folder.path().join(value));
        let place = folder.path().join(place);
        assert!(place.exists() && log.contains(&*place.to_string_lossy()), "{log}");
    }
    let log = run("UNRELATED", folder.path());
    assert!(log.contains("--store"), "{log}");
}

#[test]
fn the_program_is_ready_and_ends_on_a_signal() {
    use std::io::{BufRead, BufReader, Read};
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fabric.toml");
    std::fs::write(&file, fabric().to_toml()).unwrap();
    let mut child = program()
        .arg("--fabric")
        .arg(&file)
        .args(["--listen", "127.0.0.1:0", "--json-log"])
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("ready ").unwrap().to_owned();
    assert_eq!(client::fabric(&at(&address), PATIENCE).unwrap().name, "leaf-spine");
    // A switch is connected: its open stream must not delay the program's end.
    let (_switch, notices) =
        SwitchClient::start(&at(&address), || hello("rack0", &Leases::default())).unwrap();
    assert_eq!(notices.recv_timeout(PATIENCE), Ok(SwitchNotice::Connected));
    let asked = Instant::now();
    assert!(
        Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success()
    );
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(asked.elapsed() < PATIENCE);
    let mut log = String::new();
    child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.lines().all(|line| line.starts_with('{')), "{log}");
}
