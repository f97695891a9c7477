//! Hosts' own output queues.

mod common;

use std::ops::ControlFlow;
use std::path::Path;

use common::*;
use netsum_sim::config::parse;
use netsum_sim::tcp::TcpConfig;
use netsum_sim::{HostQueue, Pause, Switching, run as whole};

/// Times in milliseconds beside a job on the same host that has windows of `window` fragments for each of four trees: of
/// a flow of 20 MB whose socket holds 256 KiB, of a flow of ten segments, and of the job's steps (mean).
fn beside_a_job(host: &str, window: u32) -> [f64; 3] {
    let text = format!(
        "duration = \"400ms\"\n[fabric]\nkind = \"fat-tree\"\nk = 4\n[host]\n{host}\n\
         [tcp]\nsocket = \"256KiB\"\n\
         [scheme]\nkind = \"panama\"\ntrees = 4\nwindow = {window}\n\
         [[flows]]\nkind = \"one\"\nstart = \"2ms\"\nsrc = 0\ndst = 12\nbytes = 20000000\n\
         [[flows]]\nkind = \"one\"\nstart = \"8ms\"\nsrc = 0\ndst = 13\nbytes = 14480\n\
         [[jobs]]\ncompute = \"1us\"\nbytes = 20000000\nworkers = 8\nsteps = 20\n"
    );
    let (config, built) = parse(&text, "run.toml", Path::new(".")).unwrap();
    let out = tempfile::tempdir().unwrap();
    whole::run(&config, built, out.path(), None, |_| ControlFlow::Continue(())).unwrap();
    let column = |file: &str, name: &str| -> Vec<f64> {
        let text = std::fs::read_to_string(out.path().join(file)).unwrap();
        let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let at = lines.next().unwrap().iter().position(|&cell| cell == name).unwrap();
        lines.map(|line| line[at].parse().unwrap()).collect()
    };
    let (starts, ends) = (column("steps.csv", "start_us"), column("steps.csv", "end_us"));
    assert_eq!(ends.len(), 20);
    let mut flows = column("flows.csv", "fct_us");
    flows.sort_by(f64::total_cmp);
    [flows[1] / 1e3, flows[0] / 1e3, (ends[19] - starts[0]) / 20e3]
}

#[test]
fn a_host_that_marks_keeps_room_for_flows_beside_a_job() {
    let plain = beside_a_job("queue = \"fifo\"", 512);
    let marks = beside_a_job("queue = \"fifo\"\nce_threshold = \"100us\"", 512);
    println!("long flow, short flow and step in ms: {plain:.2?}, with marks {marks:.2?}");
    assert!(marks[0] < 0.75 * plain[0] && marks[1] < plain[1] / 3.0);
    assert!((marks[2] / plain[2] - 1.0).abs() < 0.1, "the job is as fast");
}

/// With a queue per flow a flow gets its half of the host's link, whatever the job's windows are, and a short flow does
/// not wait behind them. 20 MB take 16.6 ms alone.
#[test]
fn a_flow_gets_its_share_of_a_host_whatever_a_job_has_waiting() {
    let fifo = beside_a_job("queue = \"fifo\"", 512);
    for window in [16, 512] {
        let [long, short, step] = beside_a_job("", window);
        println!("windows of {window}: {long:.2} ms, {short:.3} ms, {step:.2} ms");
        assert!(long < 36.0, "two shares of one link: {long} ms");
        assert!(short < 0.1, "ten segments: {short} ms");
        assert!((step / fifo[2] - 1.0).abs() < 0.1, "the job is as fast: {step} ms");
    }
}

/// A burst of 20 segments of 1.2 µs: those that wait for 6 µs and more are marked, whether they were sent as one run.
#[test]
fn packets_that_wait_too_long_are_marked() {
    let host_mark_ps = 6_000_000;
    let switching = Switching { host_mark_ps, ..PLAIN };
    let tcp = TcpConfig { window_initial: 20.0, ..TcpConfig::default() };
    let (records, simulation) =
        run(&single_switch(2), switching, tcp, vec![flow(0, 0, 1, 20 * 1448)]);
    let marks = simulation.network().counters(simulation.network().uplink(0)).marks;
    assert_eq!((records.len(), marks), (1, 15));
}

/// Two flows of a host whose packets wait in queues of their own: a flow's packets wait from when its small queue has
/// room for them, and those that wait too long are marked.
#[test]
fn with_a_queue_per_flow_what_waits_too_long_is_marked() {
    let fair = |small_bytes, host_mark_ps| {
        let host_queue = HostQueue::Fair { small_bytes };
        let switching = Switching { host_queue, host_mark_ps, ..PLAIN };
        let tcp = TcpConfig { window_initial: 100.0, ..TcpConfig::default() };
        let flows = vec![flow(0, 0, 1, 100 * 1448), flow(0, 0, 2, 100 * 1448)];
        let (records, simulation) = run(&single_switch(3), switching, tcp, flows);
        let marks = simulation.network().counters(simulation.network().uplink(0)).marks;
        (records.iter().map(|record| record.fct_ps()).max().unwrap(), marks)
    };
    // 200 packets of 1.2 µs leave in turns.
    let (unmarked_ps, none) = fair(u32::MAX, u64::MAX);
    assert_eq!((none, unmarked_ps / US), (0, 261));
    // Eight packets of a flow are in the queue and wait for seven others and as many of the other flow, about 19 µs.
    assert_eq!(fair(8 * 1502, 25 * US).1, 0);
    let (_, marks) = fair(u32::MAX, 100 * US);
    assert!((90..130).contains(&marks), "{marks}");
}

/// Flows of one host that start together end together, and none is lost or repeated, with PAUSE also.
#[test]
fn flows_of_a_host_are_served_alike() {
    let host_queue = HostQueue::Fair { small_bytes: 1 << 17 };
    for pause in [None, Some(Pause { high_packets: 12, low_packets: 6 })] {
        let switching = Switching { host_queue, pause, latency_ns: 1_000, ..PLAIN };
        let flows: Vec<_> = (1..9).map(|to| flow(0, 0, to, 500_000)).collect();
        let crowd = (9..17).map(|from| flow(0, from, 1, 300_000));
        let all = flows.iter().copied().chain(crowd).collect();
        let (records, simulation) = run(&single_switch(17), switching, TcpConfig::default(), all);
        assert_eq!(simulation.network().balance().dropped, (0, 0));
        let ends: Vec<u64> = records[1..8].iter().map(|record| record.end_ps).collect();
        let (first, last) = (ends.iter().min().unwrap(), ends.iter().max().unwrap());
        assert!(last - first < 40 * US, "{first} to {last}");
    }
}
