//! Runs on several threads, and those that look ahead: every byte of the results equals that of one thread that does
//! not.

mod common;

use std::fmt::Write;

use common::{FABRICS, assert_same_files, files};
use proptest::prelude::*;
use proptest::sample::select;

/// The configuration, which says whether a run is checked.
const EFFECTIVE: &str = "effective.toml";

fn assert_same(text: &str, faults: &str) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("faults.toml"), faults).unwrap();
    let run = |threads: u16, checked: bool| {
        files(text, folder.path(), |config| {
            (config.threads, config.checked) = (threads, config.checked ^ checked);
        })
    };
    let one = run(1, false);
    for threads in [2, 3] {
        let what = format!("{threads} threads\n{text}\n{faults}");
        assert_same_files(&run(threads, false), &one, &what);
    }
    // Small networks look ahead if they are checked.
    let mut ahead = run(1, true);
    ahead.insert(EFFECTIVE.into(), one[EFFECTIVE].clone());
    assert_same_files(&ahead, &one, &format!("looking ahead\n{text}\n{faults}"));
}

const SCHEMES: &[&str] = &[
    "panama",
    "panama-per-branch",
    "panama-coupled",
    "panama-0.88",
    "switchml*",
    "switchml",
    "atp",
    "atp-no-control",
    "ring",
    "ring-no-ecn",
    "halving-doubling",
    "ideal",
];
const BUFFERS: &[&str] = &[
    "",
    "",
    "queue_packets = 12",
    "pause = { high_packets = 12, low_packets = 6 }",
    "pause = { high_packets = 40, low_packets = 10 }\nmemory = \"200kB\"",
    "shared = { bytes = \"60kB\", alpha = 1.0 }",
    "slots = { count = 16 }",
];
/// Hosts' queues and transports.
const HOSTS: &[&str] = &[
    "",
    "[host]\nsmall_queue = \"6kB\"\n",
    "[host]\nce_threshold = \"7us\"\n",
    "[tcp.swift]\ntarget = \"30us\"\nrange = \"50us\"\n",
];
/// Faults for every fabric, for racks and spines, and none.
const FAULTS: &[(&str, bool)] = &[
    ("", false),
    ("kind = \"loss\"\nshare = 0.01", false),
    ("kind = \"straggler\"\nhost = \"h2\"\nfactor = 2.5\nat = \"50us\"\nuntil = \"400us\"", false),
    ("kind = \"switch-down\"\nswitch = \"spine0\"\nat = \"150us\"\nuntil = \"700us\"", true),
    ("kind = \"link-down\"\nlink = \"rack0-spine1\"\nat = \"90us\"\nuntil = \"300us\"", true),
];

fn flows() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        (20_000u32..200_000).prop_map(|bytes| format!("kind = \"permutation\"\nbytes = {bytes}")),
        (1u32..5).prop_map(|load| {
            format!("kind = \"poisson\"\nload = 0.{load}\nsizes = \"web-search\"")
        }),
        (0u32..100).prop_map(|start| {
            format!("kind = \"one\"\nstart = \"{start}us\"\nsrc = 0\ndst = 5\nbytes = 400000")
        }),
    ]
}

/// Start and compute time in microseconds, bytes, workers in per cent of the hosts, steps.
fn jobs() -> impl Strategy<Value = Vec<(u32, u32, u32, u32, u32)>> {
    let job = (0u32..200, 0u32..60, 10_000u32..300_000, 20u32..=100, 1u32..4);
    proptest::collection::vec(job, 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn results_do_not_depend_on_threads(
        (fabric, hosts) in select(FABRICS),
        latency in select(&["150ns", "1us", "2500ns"][..]),
        (scheme, window, trees) in (select(SCHEMES), 8u32..200, 1u32..4),
        (buffers, marks, host) in
            (select(BUFFERS), 4u32..80, select(HOSTS)),
        paths in select(&["flow", "packet", "destination"][..]),
        (fault, spines) in select(FAULTS),
        flows in proptest::collection::vec(flows(), 1..3),
        jobs in jobs(),
        (seed, stop, checked) in (1u32..1000, any::<bool>(), any::<bool>()),
    ) {
        let mut text = format!(
            "duration = \"1ms\"\ndrain = \"300ms\"\nseed = {seed}\nstop_with_jobs = {stop}\nchecked = {checked}\n\
             scenario = \"faults.toml\"\n[fabric]\n{fabric}\nlatency = \"{latency}\"\n\
             [switch]\nmark_packets = {marks}\npaths = \"{paths}\"\n{buffers}\n\
             {host}[scheme]\nkind = \"{scheme}\"\nwindow = {window}\ntrees = {trees}\n"
        );
        for flows in flows.iter().filter(|flows| !flows.is_empty()) {
            write!(text, "[[flows]]\n{flows}\n").unwrap();
        }
        for (start, compute, bytes, workers, steps) in jobs {
            let workers = (hosts * workers / 100).max(2);
            write!(
                text,
                "[[jobs]]\nstart = \"{start}us\"\ncompute = \"{compute}us\"\nbytes = {bytes}\n\
                 workers = {workers}\nsteps = {steps}\n"
            ).unwrap();
        }
        let fits = !fault.is_empty() && (!spines || fabric.contains("leaf-spine"));
        let faults = match fits {
            true => format!("name = \"one\"\nconverges_after = \"120us\"\n[[faults]]\n{fault}\n"),
            false => "name = \"none\"\nfaults = []\n".to_owned(),
        };
        assert_same(&text, &faults);
    }
}

/// Equal packets on equal links from one moment on: nearly all events are simultaneous.
#[test]
fn equal_times_have_one_order() {
    for (k, paths) in [(4, "flow"), (6, "packet")] {
        let text = format!(
            "duration = \"2ms\"\n[fabric]\nkind = \"fat-tree\"\nk = {k}\n[switch]\nmark_packets = 20\n\
             queue_packets = 40\npaths = \"{paths}\"\n[[flows]]\nkind = \"permutation\"\nbytes = 500000\n\
             [samples]\nevery = \"37us\"\nlinks = [\"rack0.0>agg0.1\", \"agg0.1>core1.0\"]\n"
        );
        assert_same(&text, "");
    }
}
