//! What NCCL's proxy threads do, without NCCL: the library is loaded by its symbols and called in the order of NCCL's
//! `transport/coll_net.cc` and `transport/net.cc`, with host memory, in a process per rank, over real switches.
//!
//! A schedule is drawn from its number: communicators, operations, sizes, how many run at once, delays. Several
//! schedules run at once, by the same processes and switches (NETSUM_COLLNET_AT_ONCE): most of a schedule is waiting.
//! NETSUM_COLLNET_SCHEDULES is the number of schedules per version (`make collnet SCHEDULES=n`), NETSUM_COLLNET_FIRST
//! the first one, and NETSUM_COLLNET_UNDER a command under which the ranks run (`make collnet
//! UNDER='valgrind --tool=helgrind'`). With `make collnet SANITIZER=thread` or `address`, ranks, library and switches
//! are instrumented.

mod api;
mod bootstrap;
mod counts;
mod fabric;
mod held;
mod oracle;
mod random;
mod rank;
mod schedule;

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use bootstrap::Bootstrap;
use counts::Sums;
use fabric::{Fabric, RANKS};

/// What a rank's process is told.
const RANK: &str = "NETSUM_COLLNET_RANK";
const MEETING: &str = "NETSUM_COLLNET_MEETING";
const FIRST: &str = "NETSUM_COLLNET_FIRST";
const SCHEDULES: &str = "NETSUM_COLLNET_SCHEDULES";
const AT_ONCE: &str = "NETSUM_COLLNET_AT_ONCE";
const VERSION: &str = "NETSUM_COLLNET_VERSION";
const TASK: &str = "NETSUM_COLLNET_TASK";
const UNDER: &str = "NETSUM_COLLNET_UNDER";
/// Of the plug-in.
const COLLECTIVES: &str = "NETSUM_COLLECTIVES";

/// The first of this program's loopback blocks 127.X.0.0/16, apart from those of other test programs.
const FIRST_BLOCK: u8 = 180;

/// Few in a run of all tests.
const FEW: u64 = 4;
/// While switches die: each death is a pause of all schedules.
const MANY: u64 = 200;
/// Schedules at once, of each version.
const LANES: u64 = 8;

/// A process per rank, each on a host of the fabric.
fn ranks(fabric: &Fabric, meeting: &Bootstrap, task: &str, more: &[(&str, String)]) -> Vec<Child> {
    let under = std::env::var(UNDER).unwrap_or_default();
    let start = |rank: usize| {
        let program = std::env::current_exe().unwrap();
        let mut words = under.split_whitespace();
        let mut command = match words.next() {
            None => Command::new(program),
            Some(first) => {
                let mut command = Command::new(first);
                command.args(words).arg(program);
                command
            }
        };
        command.args(["--exact", "a_rank", "--ignored", "--nocapture"]);
        command.env(RANK, rank.to_string()).env(MEETING, meeting.path()).env(TASK, task);
        command
            .env("NETSUM_CONTROLLER", fabric.controller())
            .env("NETSUM_HOST", format!("h{rank}"));
        command.env("NETSUM_TIMEOUT_S", "120");
        command.envs(more.iter().map(|(name, value)| (*name, value)));
        command.spawn().unwrap()
    };
    (0..RANKS).map(start).collect()
}

/// Waits for all ranks. If one fails, the others wait for it in vain and are ended.
fn all_succeed(mut ranks: Vec<Child>, what: &str) {
    let mut running: Vec<usize> = (0..ranks.len()).collect();
    let mut failed = Vec::new();
    while !running.is_empty() {
        running.retain(|&rank| match ranks[rank].try_wait().unwrap() {
            None => true,
            Some(status) => {
                failed.extend((!status.success()).then_some(rank));
                false
            }
        });
        if !failed.is_empty() {
            running.drain(..).for_each(|rank| {
                let _ = ranks[rank].kill();
                let _ = ranks[rank].wait();
            });
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(failed.is_empty(), "{what}: ranks {failed:?} have failed");
}

/// Schedules of a version; in the second half, switches do reduce-scatters and all-gathers, too.
fn schedules(version: u32, mut kill: Option<&str>) {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let count = number(SCHEDULES).unwrap_or(FEW).min(if kill.is_some() { MANY } else { u64::MAX });
    let first = number(FIRST).unwrap_or(1);
    let mut fabric = Fabric::start();
    let half = count.div_ceil(2);
    for (collectives, first, count) in
        [("allreduce", first, half), ("all", first + half, count - half)]
    {
        let meeting = Bootstrap::start();
        let more = [
            (VERSION, version.to_string()),
            (SCHEDULES, u64::to_string(&count)),
            (FIRST, u64::to_string(&first)),
            (AT_ONCE, number(AT_ONCE).unwrap_or(LANES).to_string()),
            (COLLECTIVES, collectives.to_owned()),
        ];
        let started = Instant::now();
        let ranks = ranks(&fabric, &meeting, "schedules", &more);
        if let Some(switch) = kill.take() {
            meeting.wait_for_progress(RANKS as u64);
            fabric.kill(switch);
        }
        let last = first + count - 1;
        all_succeed(
            ranks,
            &format!("version {version}, schedules {first} to {last}, {collectives}"),
        );
        let seconds = started.elapsed().as_secs_f64();
        let sums = Sums::of(&meeting.path());
        println!(
            "version {version}: schedules {first} to {last} in {seconds:.1} s, switches do {collectives}: {sums}"
        );
    }
}

#[test]
fn schedules_of_version_8() {
    schedules(8, None);
}

#[test]
fn schedules_of_version_9() {
    schedules(9, None);
}

#[test]
fn schedules_of_version_10() {
    schedules(10, None);
}

#[test]
fn schedules_of_version_11() {
    schedules(11, None);
}

#[test]
fn schedules_of_version_12() {
    schedules(12, None);
}

#[test]
fn a_switch_dies_during_the_schedules() {
    schedules(12, Some("spine1"));
}

#[test]
fn a_rank_that_dies_is_an_error_at_the_others() {
    let fabric = Fabric::start();
    let meeting = Bootstrap::start();
    let ranks = ranks(&fabric, &meeting, "death", &[(VERSION, "12".to_owned())]);
    all_succeed(ranks, "a dead rank");
}

#[test]
fn switches_scatter_and_gather_where_they_may() {
    let fabric = Fabric::start();
    for collectives in ["allreduce", "all"] {
        let meeting = Bootstrap::start();
        let more = [(VERSION, "12".to_owned()), (COLLECTIVES, collectives.to_owned())];
        let ranks = ranks(&fabric, &meeting, collectives, &more);
        all_succeed(ranks, &format!("NETSUM_COLLECTIVES={collectives}"));
    }
}

#[test]
fn wrong_calls_are_errors_with_words() {
    let fabric = Fabric::start();
    let meeting = Bootstrap::start();
    let ranks = ranks(&fabric, &meeting, "errors", &[(VERSION, "12".to_owned())]);
    all_succeed(ranks, "wrong calls");
}

#[test]
#[ignore = "a process of the other tests"]
fn a_rank() {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let Some(rank) = number(RANK) else { return };
    // Others wait for the thread that has failed, here and in the other processes.
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        std::process::exit(101);
    }));
    let version = number(VERSION).unwrap() as u32;
    let rank = rank::Rank::new(rank as usize, std::env::var(MEETING).unwrap(), version);
    match std::env::var(TASK).unwrap().as_str() {
        "schedules" => {
            let [first, count, at_once] =
                [FIRST, SCHEDULES, AT_ONCE].map(|name| number(name).unwrap());
            rank.run(first, count, at_once);
        }
        "death" => rank.sees_a_death(),
        "errors" => rank.calls_wrongly(),
        "allreduce" => rank.scatters_and_gathers(false),
        "all" => rank.scatters_and_gathers(true),
        other => panic!("no task {other}"),
    }
}
