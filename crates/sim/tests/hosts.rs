//! Hosts' own output queues.

mod common;

use std::ops::ControlFlow;
use std::path::Path;

use common::*;
use netsum_sim::config::parse;
use netsum_sim::tcp::TcpConfig;
use netsum_sim::{Switching, run as whole};

/// Times in milliseconds beside a job on the same host that has windows of 512 fragments for each of four trees: of a
/// flow of 20 MB whose socket holds 256 KiB, of a flow of ten segments, and of the job's steps (mean).
fn beside_a_job(host: &str) -> [f64; 3] {
    let text = format!(
        "duration = \"400ms\"\n[fabric]\nkind = \"fat-tree\"\nk = 4\n[host]\n{host}\n\
         [tcp]\nsocket = \"256KiB\"\n\
         [scheme]\nkind = \"panama\"\ntrees = 4\nwindow = 512\n\
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
    let plain = beside_a_job("");
    let marks = beside_a_job("ce_threshold = \"100us\"");
    println!("long flow, short flow and step in ms: {plain:.2?}, with marks {marks:.2?}");
    assert!(marks[0] < 0.75 * plain[0] && marks[1] < plain[1] / 3.0);
    assert!((marks[2] / plain[2] - 1.0).abs() < 0.1, "the job is as fast");
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
