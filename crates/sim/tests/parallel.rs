//! Schedules of parallel training and of recordings, against closed forms.

mod common;

use std::sync::Arc;

use common::*;
use netsum_sim::config::parse;
use netsum_sim::job::{Bucket, HostAlgorithm, JobSpec, LocalLinks, Scheme, Work};
use netsum_sim::schedule::Schedule;
use netsum_sim::schedule::parallel::{Parallel, Sharding};
use netsum_sim::schedule::recorder::{Recording, parse as recording};
use netsum_sim::tcp::TcpConfig;
use netsum_sim::{Simulation, Switching};

const SWITCHING: Switching = Switching { latency_ns: 1_000, ..PLAIN };
const FULL_PS: u64 = 1502 * 800;
const F: u64 = 3 * MS;
const B: u64 = 7 * MS;
/// Segments of a share.
const SEGMENTS: u64 = 300;
/// One step of a ring with such shares.
const TRAIN: u64 = SEGMENTS * FULL_PS + FULL_PS + 2 * US;

/// One rank, one layer, one pass.
const ONE: Parallel = Parallel {
    tensor: 1,
    pipeline: 1,
    data: 1,
    expert: 1,
    layers: 1,
    microbatches: 1,
    forward_ps: F,
    backward_ps: B,
    optimizer_ps: 0,
    activation_bytes: 0,
    parameter_bytes: 0,
    token_bytes: 0,
    sharding: Sharding::None,
    prefetch: 1,
};

/// The end of each step, with a host per rank, or with all ranks on one host where messages take no time.
fn ends(schedule: Schedule, apart: bool, steps: u32) -> Vec<u64> {
    let ranks = schedule.ranks.len() as u32;
    let placement = (0..ranks).map(|rank| if apart { rank } else { 0 }).collect();
    let spec = JobSpec {
        start_ps: 0,
        placement,
        steps,
        period_ps: 0,
        buckets: vec![Bucket { ready_ps: 0, bytes: 0 }],
        scheme: Scheme::Hosts { algorithm: HostAlgorithm::Ring, ecn: true, rings: 1 },
        roots: vec![],
        servers: vec![],
        work: Some(Work {
            schedule: Arc::new(schedule),
            eager_bytes: u64::MAX,
            local: LocalLinks { rate_bps: u64::MAX, latency_ps: 0 },
        }),
    };
    // Acknowledgements take no time on links, and windows hold nothing back.
    let tcp =
        TcpConfig { ack_bytes: 0, window_initial: 1e5, window_max: 1e5, ..TcpConfig::default() };
    let topology = single_switch(ranks.max(2));
    let mut simulation = Simulation::new(&topology, SWITCHING, tcp, 1).unwrap();
    simulation.check();
    simulation.add_job(spec);
    assert!(simulation.run(100_000 * MS), "the job does not end: {:?}", simulation.refused());
    assert_eq!(simulation.refused(), []);
    simulation.take_steps().iter().map(|step| step.end_ps).collect()
}

fn end(step: &Parallel, apart: bool) -> u64 {
    ends(step.schedule("test").unwrap(), apart, 1)[0]
}

/// 1F1B has p − 1 passes of warming up and cooling down (Narayanan et al., SC 2021).
#[test]
fn a_pipeline_has_its_bubble() {
    for (pipeline, microbatches) in [(1u32, 1u32), (1, 5), (2, 1), (4, 8), (4, 2), (8, 16)] {
        let layers = 2 * pipeline;
        let step = Parallel {
            pipeline,
            microbatches,
            layers,
            optimizer_ps: 5 * US,
            activation_bytes: 1_000,
            ..ONE
        };
        let passes = u64::from(microbatches + pipeline - 1);
        assert_eq!(end(&step, false), passes * 2 * (F + B) + 5 * US, "{pipeline} stages");
    }
}

/// Without overlap to hide in, every operation adds its time.
#[test]
fn groups_add_the_times_of_their_operations() {
    let share = SEGMENTS * 1448;
    let tensor = Parallel { tensor: 2, layers: 3, activation_bytes: 2 * share, ..ONE };
    assert_eq!(end(&tensor, true), 3 * (F + B + 4 * 2 * TRAIN));
    let data = Parallel { data: 4, microbatches: 3, parameter_bytes: 4 * share, ..ONE };
    assert_eq!(end(&data, true), 3 * (F + B) + 2 * 3 * TRAIN);
    let optimizer =
        Parallel { sharding: Sharding::Optimizer, optimizer_ps: 9 * US, ..data.clone() };
    assert_eq!(end(&optimizer, true), 3 * (F + B) + 3 * TRAIN + 9 * US + 3 * TRAIN);
    let expert = Parallel { data: 2, expert: 2, token_bytes: 2 * share, ..ONE };
    let empty = 2 * (2 * (1 + 54) * 800 + 2 * US);
    assert_eq!(end(&expert, true), F + B + 4 * TRAIN + empty);
}

/// FSDP: what is gathered ahead hides behind computing, but for the first layer and the last gradients.
#[test]
fn sharded_parameters_are_gathered_ahead() {
    let step = Parallel {
        data: 4,
        layers: 5,
        parameter_bytes: 4 * SEGMENTS * 1448,
        sharding: Sharding::Full,
        ..ONE
    };
    let one = 3 * TRAIN;
    assert!(one < F && 2 * one < B, "it could not hide");
    assert_eq!(end(&step, true), one + 5 * (F + B) + one);
    let blocking = Parallel { prefetch: 0, ..step.clone() };
    assert_eq!(end(&blocking, true), 5 * (one + F) + (one + B) + 4 * (2 * one + B) + one);
    // Every microbatch gathers and scatters anew.
    let two = Parallel { microbatches: 2, ..step };
    assert_eq!(end(&two, true), one + 10 * (F + B) + one);
}

/// A step begins where the last one has ended at each rank, so that the bubble of a pipeline is not filled, and nothing
/// is lost.
#[test]
fn steps_follow_each_other() {
    let step = Parallel { pipeline: 3, microbatches: 4, layers: 3, activation_bytes: 8, ..ONE };
    let all = ends(step.schedule("test").unwrap(), false, 4);
    assert_eq!(all[0], 6 * (F + B));
    for (number, end) in (1..).zip(&all) {
        assert!(*end <= number * all[0] && *end >= number * 4 * (F + B), "{all:?}");
    }
}

#[test]
fn numbers_that_do_not_fit_are_refused() {
    let check = |parallel: &str| {
        let text = format!(
            "duration = \"1ms\"\n[fabric]\nkind = \"single-switch\"\nhosts = 8\n\
             [[jobs]]\nparallel = {{ {parallel}, forward = \"1us\", parameters = \"1MB\" }}\n"
        );
        let parsed = parse(&text, "run.toml", std::path::Path::new("."));
        parsed.map(|(_, built)| built.jobs[0].1.placement.len()).map_err(|error| error.to_string())
    };
    assert_eq!(check("layers = 4, tensor = 2, pipeline = 2, data = 2"), Ok(8));
    let cases = [
        ("layers = 4, tensor = 0", "jobs.0.parallel.tensor: there is at least one"),
        ("layers = 3, pipeline = 2", "jobs.0.parallel.layers: every stage"),
        ("layers = 1, data = 4, expert = 3", "jobs.0.parallel.expert: it divides"),
        ("layers = 1, data = 9", "9 ranks need 9 hosts, and there are 8"),
        ("layers = 1, data = 4000000000, tensor = 16", "jobs.0.parallel.data: these are more"),
        ("layers = 1, tensor = 70000", "jobs.0.parallel.pipeline: these are more than 65536 ranks"),
        ("layers = 4000000000, data = 2", "jobs.0.parallel.layers: ranks, layers and microbatches"),
        ("layers = 1, microbatches = 4000000000", "more than 2^24 nodes"),
    ];
    for (parallel, expected) in cases {
        let error = check(parallel).unwrap_err();
        assert!(error.contains(expected), "{parallel}: {error}");
    }
}

/// An operation of a recording: its number and call, when it was called, and how long it took, in microseconds.
type Called<'a> = (u64, &'a str, f64, f64);

/// The schedule of a recording with these operations of each rank.
fn recorded(ranks: &[&[Called]], operations: Option<[u64; 2]>) -> Result<Schedule, String> {
    let bytes = 2 * SEGMENTS * 1448;
    let file = |(rank, all): (usize, &&[Called])| {
        let one = |&(number, call, called_us, lasts_us): &Called| {
            let (called, lasts) = (1000.0 + called_us * 1e-6, lasts_us * 1e-6);
            format!(
                "{{\"number\": {number}, \"call\": \"{call}\", \"called_unix_s\": {called:.9}, \
                 \"seconds\": {lasts:.9}, \"error\": null, \"dtype\": \"float32\", \"bytes\": {bytes}}}"
            )
        };
        let all: Vec<String> = all.iter().map(one).collect();
        let text = format!(
            "{{\"format\": 1, \"group\": \"g\", \"rank\": {rank}, \"size\": {}, \"place\": \"\", \"why\": \"\", \
             \"failure\": null, \"written_unix_s\": 0, \"operations\": [{}]}}",
            ranks.len(),
            all.join(",")
        );
        (format!("g/netsum-g-rank{rank}.json"), text)
    };
    let files: Vec<(String, String)> = ranks.iter().enumerate().map(file).collect();
    let recording_of = Recording { files: &files, folder: "g", operations };
    recording(&recording_of).map_err(|error| error.to_string())
}

const SUM: &str = "allreduce float32[217200] sum";

/// Times of recordings are fractions of seconds in binary.
fn about(found: u64, expected: u64) {
    assert!(found.abs_diff(expected) <= 2_000, "{found} against {expected}");
}

#[test]
fn a_recording_runs_with_other_times() {
    // What was waited for is waited for again, and takes as long as it takes now.
    let waiting: &[_] = &[(7, SUM, 0.0, 900.0), (8, SUM, 1_000.0, 900.0)];
    let end_ps = ends(recorded(&[waiting, waiting], None).unwrap(), true, 1)[0];
    about(end_ps, 2 * TRAIN + 100 * US + 2 * TRAIN);
    // What was still running runs on, behind each other.
    let ahead: &[_] = &[(7, SUM, 0.0, 900.0), (8, SUM, 50.0, 900.0), (9, SUM, 5_000.0, 1.0)];
    let end_ps = ends(recorded(&[ahead, ahead], None).unwrap(), true, 1)[0];
    about(end_ps, 2 * 2 * TRAIN + 4_050 * US + 2 * TRAIN);
    // A part, with the computing before it; ranks recorded different ones.
    let more: &[_] = &[(6, SUM, 0.0, 10.0), (7, SUM, 40.0, 10.0), (8, SUM, 70.0, 10.0)];
    let less: &[_] = &[(7, SUM, 0.0, 10.0), (8, SUM, 20.0, 10.0), (9, SUM, 50.0, 10.0)];
    let end_ps = ends(recorded(&[more, less], Some([8, 9])).unwrap(), true, 1)[0];
    about(end_ps, 20 * US + 2 * TRAIN);
    let end_ps = ends(recorded(&[more, less], None).unwrap(), true, 1)[0];
    about(end_ps, 30 * US + 2 * TRAIN + 20 * US + 2 * TRAIN);
}

#[test]
fn recordings_that_cannot_be_replayed_are_refused() {
    let one: &[_] = &[(7, SUM, 0.0, 9.0)];
    type Refused<'a> = (&'a [&'a [Called<'a>]], Option<[u64; 2]>, &'a str);
    let cases: [Refused; 6] = [
        (&[], None, "g: there are no files of a group"),
        (&[one, &[(8, SUM, 0.0, 9.0)]], None, "g: no operation is in the files of all ranks"),
        (&[one, one], Some([6, 8]), "operations 6 to 8 are not in all files, which have 7 to 8"),
        (&[&[(1, "sendrecv", 0.0, 1.0)]], None, "operation 1: \"sendrecv\" cannot be replayed"),
        (&[&[(1, "broadcast of 8 bytes", 0.0, 1.0)]], None, "names no root"),
        (
            &[one, &[(7, "barrier", 0.0, 9.0)]],
            None,
            "g: rank 1, node 7: operation 0 of group [0, 1] is Barrier",
        ),
    ];
    for (ranks, operations, expected) in cases {
        let error = recorded(ranks, operations).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    let text = "{\"format\": 2, \"rank\": 0, \"size\": 1, \"operations\": []}".to_owned();
    let files = [("f".to_owned(), text), ("g".to_owned(), "[".to_owned())];
    for (range, expected) in
        [(0..1, "f: format 2"), (1..2, "g: is not a file of netsum's recorder")]
    {
        let recording_of = Recording { files: &files[range], folder: "g", operations: None };
        let error = recording(&recording_of).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
