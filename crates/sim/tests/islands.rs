//! Runs whose jobs and flows are partly on links of their own: every byte of the results equals that of a run that
//! simulates everything together.

mod common;

use std::fmt::Write;
use std::path::Path;

use common::{Files, assert_same_files};
use netsum_sim::config::Config;
use proptest::prelude::*;
use proptest::sample::select;

/// All files of a run. `period_us`: jobs whose steps begin together repeat themselves.
fn files(text: &str, folder: &Path, period_us: u64, change: impl FnOnce(&mut Config)) -> Files {
    common::files_with(text, folder, |config, built| {
        change(config);
        let jobs = built.jobs.iter_mut().filter(|(_, job)| job.work.is_none());
        jobs.for_each(|(_, job)| job.period_ps = period_us * 1_000_000);
    })
}

fn assert_same(text: &str, faults: &str, period_us: u64) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("faults.toml"), faults).unwrap();
    let together = files(text, folder.path(), period_us, |config| config.skip_repeats = false);
    let what = format!("period {period_us} us\n{text}\n{faults}");
    let apart = files(text, folder.path(), period_us, |_| {});
    assert_same_files(&apart, &together, &format!("with skips, {what}"));
    let threads = files(text, folder.path(), period_us, |config| config.threads = 2);
    assert_same_files(&threads, &together, &format!("two threads, {what}"));
}

/// With 16 hosts each, and the names of a link and of a switch's link.
const FABRICS: &[&str] = &[
    "kind = \"fat-tree\"\nk = 4",
    "kind = \"fat-tree\"\nk = 4",
    "kind = \"leaf-spine\"\nracks = 4\nhosts_per_rack = 4\nspines = 3",
    "kind = \"leaf-spine\"\nracks = 8\nhosts_per_rack = 2\nspines = 2\nuplink_rate = \"25Gbit/s\"",
    "kind = \"single-switch\"\nhosts = 16",
    "kind = \"dumbbell\"\npairs = 8",
];
const SCHEMES: &[&str] = &[
    "kind = \"ring\"",
    "kind = \"ring\"",
    "kind = \"halving-doubling\"",
    "kind = \"shares\"",
    "kind = \"panama\", window = 6",
    "kind = \"panama\", window = 30, trees = 1",
    "kind = \"switchml*\", window = 8",
    "kind = \"atp\"",
];
const BUFFERS: &[&str] = &[
    "",
    "",
    "queue_packets = 8",
    "pause = { high_packets = 6, low_packets = 3 }",
    "shared = { bytes = \"30kB\", alpha = 1.0 }",
];
const HOSTS: &[&str] = &[
    "",
    "[host]\nsmall_queue = \"6kB\"\n",
    "[host]\nqueue = \"fifo\"\n",
    "[tcp.swift]\ntarget = \"30us\"\nrange = \"50us\"\n",
];
const FAULTS: &[&str] = &[
    "",
    "",
    "",
    "kind = \"loss\"\nshare = 0.01\nat = \"1ms\"\nuntil = \"3ms\"",
    "kind = \"straggler\"\nhost = \"h2\"\nfactor = 2.5\nat = \"2ms\"\nuntil = \"5ms\"",
    "kind = \"switch-down\"\nswitch = \"spine0\"\nat = \"2ms\"\nuntil = \"4ms\"",
];

/// First host, number of hosts, and by how much they differ; scheme; start and compute time in microseconds; bytes, and
/// steps.
type Job = ((u32, u32, u32), &'static str, (u32, u32), u32, u32);

fn jobs() -> impl Strategy<Value = Vec<Job>> {
    let hosts = (0u32..16, 1u32..5, select(&[1u32, 1, 1, 2, 4][..]));
    let bytes = prop_oneof![10_000u32..200_000, (1u32..20).prop_map(|n| n * 27_720)];
    let times = (prop_oneof![Just(0), Just(0), 0u32..2_000], 0u32..300);
    proptest::collection::vec((hosts, select(SCHEMES), times, bytes, 3u32..40), 1..4)
}

/// Start in microseconds, source, distance of the destination, bytes.
fn flows() -> impl Strategy<Value = Vec<(u32, u32, u32, u32)>> {
    let near = prop_oneof![Just(1u32), Just(1), Just(2), 1u32..16];
    let bytes = prop_oneof![1u32..3_000, 10_000u32..2_000_000];
    proptest::collection::vec((0u32..4_000, 0u32..16, near, bytes), 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn islands_change_no_byte(
        fabric in select(FABRICS),
        latency in select(&["0ns", "150ns", "1us"][..]),
        (buffers, marks, host) in (select(BUFFERS), 4u32..80, select(HOSTS)),
        paths in select(&["flow", "flow", "flow", "destination", "packet"][..]),
        fault in select(FAULTS),
        samples in select(&["", "[samples]\nevery = \"1370us\"\nlinks = [\"*\"]\n"][..]),
        flows in flows(),
        jobs in jobs(),
        period_us in select(&[0u64, 1_000, 3_000][..]),
        (seed, stop, checked, ideal) in (1u32..1000, any::<bool>(), any::<bool>(), 0u32..8),
    ) {
        let mut text = format!(
            "duration = \"4ms\"\ndrain = \"300ms\"\nseed = {seed}\nstop_with_jobs = {stop}\nchecked = {checked}\n\
             scenario = \"faults.toml\"\n[fabric]\n{fabric}\nlatency = \"{latency}\"\n\
             [switch]\nmark_packets = {marks}\npaths = \"{paths}\"\n{buffers}\n{host}{samples}"
        );
        if ideal == 0 {
            text.push_str("[scheme]\nkind = \"ideal\"\n");
        }
        for (start, src, far, bytes) in flows {
            write!(
                text,
                "[[flows]]\nkind = \"one\"\nstart = \"{start}us\"\nsrc = {src}\ndst = {}\nbytes = {bytes}\n",
                (src + far) % 16
            ).unwrap();
        }
        for ((first, count, apart), scheme, (start, compute), bytes, steps) in jobs {
            let hosts: Vec<u32> = (0..count).map(|rank| (first + rank * apart) % 16).collect();
            write!(
                text,
                "[[jobs]]\nhosts = {hosts:?}\nstart = \"{start}us\"\ncompute = \"{compute}us\"\nbytes = {bytes}\n\
                 steps = {steps}\n"
            ).unwrap();
            if ideal > 0 {
                writeln!(text, "scheme = {{ {scheme} }}").unwrap();
            }
        }
        let fits = !fault.is_empty() && (!fault.contains("spine") || fabric.contains("spine"));
        let faults = match fits {
            true => format!("name = \"one\"\nconverges_after = \"120us\"\n[[faults]]\n{fault}\n"),
            false => "name = \"none\"\nfaults = []\n".to_owned(),
        };
        assert_same(&text, &faults, period_us);
    }
}
