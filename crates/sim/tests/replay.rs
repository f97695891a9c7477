//! Jobs that replay schedules: closed forms, other jobs, and longest paths as oracles; what is refused; threads.

mod common;

use std::collections::HashMap;

use common::*;
use netsum_sim::aggregation::TreeConfig;
use netsum_sim::config::parse;
use netsum_sim::job::{Bucket, HostAlgorithm, JobSpec, Scheme, StepRecord};
use netsum_sim::schedule::{Builder, Collective, Names, Op, Schedule, chakra, goal};
use netsum_sim::tcp::TcpConfig;
use netsum_sim::{Simulation, Switching};
use netsum_topo::Topology;
use proptest::prelude::*;

const SWITCHING: Switching = Switching { latency_ns: 1_000, ..PLAIN };
/// Acknowledgements take no time on links, and windows hold nothing back.
const TCP: fn() -> TcpConfig =
    || TcpConfig { ack_bytes: 0, window_initial: 1e4, window_max: 1e4, ..TcpConfig::default() };
const RING: Scheme = Scheme::Hosts { algorithm: HostAlgorithm::Ring, ecn: true, rings: 1 };
const FULL_PS: u64 = 1502 * 800;
/// A message of one full segment over two links.
const ONE_WAY_PS: u64 = 2 * (FULL_PS + US);

fn steps(topology: &Topology, spec: JobSpec) -> Vec<StepRecord> {
    let mut simulation = Simulation::new(topology, SWITCHING, TCP(), 1).unwrap();
    simulation.check();
    simulation.add_job(spec);
    assert!(simulation.run(100_000 * MS), "the job does not end: {:?}", simulation.refused());
    assert_eq!(simulation.aggregation().violations(), []);
    assert_eq!(simulation.refused(), []);
    assert_eq!(simulation.take_jobs().len(), 1);
    simulation.take_steps()
}

/// The end of one run of a schedule in GOAL, with a host per rank.
fn end_of(text: &str) -> u64 {
    let schedule = goal::parse(text, "a.goal").unwrap_or_else(|error| panic!("{error}"));
    let ranks = schedule.ranks.len() as u32;
    steps(&single_switch(ranks.max(2)), scheduled(schedule, (0..ranks).collect(), 1, RING))[0]
        .end_ps
}

#[test]
fn messages_carry_dependencies_from_rank_to_rank() {
    let text = "num_ranks 3\n\
        rank 0 {\n  a: calc 5000\n  b: send 1448b to 1 tag 9\n  b requires a\n}\n\
        // Rank 1 computes for 2 µs in between.\n\
        rank 1 {\n  r: recv 1448b from 0 tag 9\n  c: calc 2000 cpu 0\n  s: send 1448b to 2\n\
          c requires r\n  s requires c\n}\n\
        rank 2 { /* waits */ recv 1448b from 1 }\n";
    assert_eq!(end_of(text), 5 * US + ONE_WAY_PS + 2 * US + ONE_WAY_PS);
}

#[test]
fn a_unit_computes_one_node_at_a_time() {
    let two = |cpu: u32| {
        format!(
            "num_ranks 1\nrank 0 {{\ncalc 1000 cpu 0\ncalc 3000 cpu {cpu}\ncalc 500 cpu 0\n}}\n"
        )
    };
    assert_eq!(end_of(&two(0)), 4_500_000);
    assert_eq!(end_of(&two(1)), 3_000_000);
}

#[test]
fn irequires_waits_for_the_start_only() {
    let text = |word: &str| {
        format!("num_ranks 1\nrank 0 {{\na: calc 4000\nb: calc 1000 cpu 1\nb {word} a\n}}\n")
    };
    assert_eq!(end_of(&text("requires")), 5_000_000);
    assert_eq!(end_of(&text("irequires")), 4_000_000);
}

/// A short message ends its node when it is sent, a long one with the acknowledgement of its last segment.
#[test]
fn a_long_message_ends_with_its_acknowledgement() {
    let text = |bytes: u64| {
        format!(
            "num_ranks 2\nrank 0 {{\ns: send {bytes}b to 1\nc: calc 500000\nc requires s\n}}\n\
             rank 1 {{\nrecv {bytes}b from 0\n}}\n"
        )
    };
    assert_eq!(end_of(&text(45 * 1448)), 500 * US, "65,160 bytes are short");
    // 46 segments, one behind the other, and the way of the acknowledgement without bytes.
    assert_eq!(end_of(&text(46 * 1448)), 46 * FULL_PS + FULL_PS + 4 * US + 500 * US);
}

/// Two messages of one tag are taken in the order of their nodes; one of another tag overtakes.
#[test]
fn tags_decide_who_takes_a_message() {
    let text = "num_ranks 2\n\
        rank 0 {\ns1: send 1448b to 1 tag 1\ns2: send 1448b to 1 tag 2\ns2 requires s1\n}\n\
        rank 1 {\nr2: recv 1448b from 0 tag 2\nr1: recv 1448b from 0 tag 1\nc: calc 10000\n\
        c requires r1\n}\n";
    // The second message arrives while rank 1 computes.
    assert_eq!(end_of(text), ONE_WAY_PS + 10 * US);
}

/// A barrier by dissemination, as LogGOPSim's examples have it, against the number of its rounds.
#[test]
fn dissemination_takes_its_rounds() {
    for (ranks, rounds) in [(2u32, 1u32), (8, 3), (16, 4)] {
        let mut text = format!("num_ranks {ranks}\n");
        for rank in 0..ranks {
            text += &format!("rank {rank} {{\n");
            for round in 0..rounds {
                let (to, from) = (1 << round, ranks - (1 << round));
                text += &format!("s{round}: send 1448b to {} tag 0\n", (rank + to) % ranks);
                text += &format!("r{round}: recv 1448b from {} tag 0\n", (rank + from) % ranks);
                if round > 0 {
                    text += &format!("s{round} requires r{}\n", round - 1);
                }
            }
            text += "}\n";
        }
        assert_eq!(end_of(&text), u64::from(rounds) * ONE_WAY_PS, "{ranks} ranks");
    }
}

/// A schedule in which every rank computes, then takes part in one operation.
fn collective(kind: Collective, ranks: u32, bytes: u64, compute_ps: u64) -> Schedule {
    let mut builder = Builder::new(Names::Numbers("test".to_owned()), ranks).unwrap();
    let group = builder.group((0..ranks).collect()).unwrap();
    for rank in 0..ranks {
        let compute = Op::Compute { ps: compute_ps, unit: 0 };
        let first = builder.add(rank, 0, compute).unwrap();
        let op = Op::Collective { kind, group, bytes, number: 0 };
        let second = builder.add(rank, 1, op).unwrap();
        builder.wait(rank, second, first, false).unwrap();
    }
    builder.build().unwrap()
}

/// The closed forms of collectives between hosts on one switch, exact to the picosecond.
#[test]
fn collectives_take_their_steps() {
    let segments = 40;
    let train = segments * FULL_PS + FULL_PS + 2 * US;
    for n in [2u64, 3, 8] {
        let bytes = n * segments * 1448;
        let levels = u64::from((n - 1).ilog2() + 1);
        let cases = [
            (Collective::Allreduce, 2 * (n - 1) * train),
            (Collective::AllGather, (n - 1) * train),
            (Collective::ReduceScatter, (n - 1) * train),
            // The root's link carries everything.
            (Collective::Scatter { root: 0 }, (n - 1) * segments * FULL_PS + FULL_PS + 2 * US),
            (Collective::Gather { root: 0 }, (n - 1) * segments * FULL_PS + FULL_PS + 2 * US),
            (Collective::Barrier, levels * (2 * (1 + 54) * 800 + 2 * US)),
        ];
        for (kind, expected) in cases {
            let schedule = collective(kind, n as u32, bytes, 7 * US);
            let spec = scheduled(schedule, (0..n as u32).collect(), 2, RING);
            let records = steps(&single_switch(n as u32), spec);
            assert_eq!(records[0].start_ps, 0);
            assert_eq!(records[0].reduce_start_ps, 7 * US, "{kind:?} of {n}");
            assert_eq!(records[0].end_ps, 7 * US + expected, "{kind:?} of {n}");
        }
        // Ten pieces of 45 segments: the first rank of the chain sends one behind the other, each further rank adds a
        // piece.
        let (piece, hop) = (45 * FULL_PS, FULL_PS + 2 * US);
        for kind in [Collective::Broadcast { root: 1 }, Collective::Reduce { root: 1 }] {
            let schedule = collective(kind, n as u32, 10 * 45 * 1448, 0);
            let spec = scheduled(schedule, (0..n as u32).collect(), 1, RING);
            let end_ps = steps(&single_switch(n as u32), spec)[0].end_ps;
            assert_eq!(end_ps, 10 * piece + hop + (n - 2) * (piece + hop), "{kind:?} of {n}");
        }
        // Everyone sends to everyone: no link carries more than N−1 shares, nor less.
        let schedule = collective(Collective::AllToAll, n as u32, bytes, 0);
        let spec = scheduled(schedule, (0..n as u32).collect(), 1, RING);
        let end_ps = steps(&single_switch(n as u32), spec)[0].end_ps;
        let least = (n - 1) * segments * FULL_PS + FULL_PS + 2 * US;
        assert!(end_ps >= least && end_ps <= 2 * least, "{end_ps} against {least}");
    }
}

/// A schedule of one allreduce per step has the steps of a job that reduces one bucket, whatever the scheme.
#[test]
fn an_allreduce_is_that_of_a_job() {
    let tree = Scheme::Trees { trees: 2, config: TreeConfig::default() };
    let of = |algorithm| Scheme::Hosts { algorithm, ecn: true, rings: 1 };
    let hosts =
        [HostAlgorithm::HalvingDoubling, HostAlgorithm::ParameterServer, HostAlgorithm::Shares];
    for scheme in hosts.map(of).into_iter().chain([RING, tree]) {
        let placement: Vec<u32> = vec![0, 5, 2, 9, 14, 7];
        let schedule = collective(Collective::Allreduce, 6, 3_000_000, 40 * US);
        let replayed = scheduled(schedule, placement, 3, scheme);
        let bucket = Bucket { ready_ps: 40 * US, bytes: 3_000_000 };
        let direct = JobSpec { buckets: vec![bucket], work: None, ..replayed.clone() };
        let topology = fat_tree(4);
        assert_eq!(steps(&topology, replayed), steps(&topology, direct), "{scheme:?}");
    }
}

/// Two groups of ranks sum over trees of their own at the same time; a third one shares hosts and uses the ring.
#[test]
fn groups_have_trees_of_their_own() {
    let mut builder = Builder::new(Names::Numbers("test".to_owned()), 8).unwrap();
    let groups = [[0, 2, 4, 6], [1, 3, 5, 7]].map(|ranks| builder.group(ranks.into()).unwrap());
    let pairs = [0, 2, 4, 6].map(|rank| builder.group(vec![rank, rank + 1]).unwrap());
    for rank in 0..8u32 {
        let add = |builder: &mut Builder, group| {
            let kind = Collective::Allreduce;
            let op = Op::Collective { kind, group, bytes: 1_000_000, number: 0 };
            builder.add(rank, 0, op).unwrap()
        };
        let pair = add(&mut builder, pairs[rank as usize / 2]);
        let all = add(&mut builder, groups[rank as usize % 2]);
        builder.wait(rank, all, pair, false).unwrap();
    }
    let schedule = builder.build().unwrap();
    let tree = Scheme::Trees { trees: 1, config: TreeConfig::default() };
    let placement: Vec<u32> = (0..8).map(|rank| rank / 2).collect();
    let ring = steps(&single_switch(4), scheduled(schedule.clone(), placement.clone(), 2, RING));
    let trees = steps(&single_switch(4), scheduled(schedule, placement, 2, tree));
    // Both groups go over the same links: 2 MB up and down by trees, 2·3/4 of that and no overlap between steps by
    // rings.
    let wire_ps = 2 * 1_000_000u64.div_ceil(1408) * 1476 * 800;
    let duration = |records: &[StepRecord]| records[0].end_ps - records[0].start_ps;
    let local_ps = 2 * (8 * 500_000 + 3 * US);
    assert!(duration(&trees) >= wire_ps + local_ps, "{} < {wire_ps}", duration(&trees));
    assert!(duration(&trees) < duration(&ring) * 3 / 4, "{trees:?} against {ring:?}");
}

/// Ranks of one host: a message takes its time on the sender's link and the latency, one after the other.
#[test]
fn ranks_of_a_host_use_its_links() {
    let text = "num_ranks 3\n\
        rank 0 {\nsend 1000000b to 1\nsend 1000000b to 2\n}\n\
        rank 1 { recv 1000000b from 0 }\nrank 2 { recv 1000000b from 0 }\n";
    let schedule = goal::parse(text, "a.goal").unwrap();
    let spec = scheduled(schedule, vec![1, 1, 1], 1, RING);
    let records = steps(&single_switch(2), spec);
    assert_eq!(records[0].end_ps, 2 * 8_000_000 + 3 * US);
}

/// Rank, time, and the nodes that it waits for: how far before it in the rank, and whether for the start.
type Computing = (u32, u64, Vec<(usize, bool)>);

/// A random schedule of computing and messages within a host, where nothing contends.
#[derive(Clone, Debug)]
struct Random {
    ranks: u32,
    nodes: Vec<Computing>,
    /// Positions in `nodes` of sender and receiver.
    messages: Vec<(usize, usize)>,
}

fn random() -> impl Strategy<Value = Random> {
    (2u32..6, 4usize..40).prop_flat_map(|(ranks, count)| {
        let waits = prop::collection::vec((1usize..6, any::<bool>()), 0..4);
        let node = (0..ranks, 0u64..5_000, waits);
        let messages = prop::collection::vec((0..count, 0..count), 0..30);
        (prop::collection::vec(node, count), messages).prop_map(move |(nodes, messages)| {
            // From earlier to later nodes, so that there is no cycle.
            let ordered = messages.into_iter().map(|(a, b): (usize, usize)| (a.min(b), a.max(b)));
            let apart = |&(a, b): &(usize, usize)| nodes[a].0 != nodes[b].0;
            let messages = ordered.filter(apart).collect();
            Random { ranks, nodes, messages }
        })
    })
}

/// The longest path through a random schedule: each message is sent by a node after the sender and received by a node
/// before the receiver.
fn longest_path(random: &Random, latency_ps: u64) -> u64 {
    let mut times: Vec<(u64, u64)> = Vec::new();
    let mut last = 0;
    for (at, (rank, ns, waits)) in random.nodes.iter().enumerate() {
        let own: Vec<usize> = (0..at).filter(|&other| random.nodes[other].0 == *rank).collect();
        let of = |&(back, at_start): &(usize, bool)| {
            let &other = own.get(own.len().checked_sub(back)?)?;
            Some(if at_start { times[other].0 } else { times[other].1 })
        };
        let local = waits.iter().filter_map(of);
        let arrivals = random.messages.iter().filter(|message| message.1 == at);
        let arrivals = arrivals.map(|&(from, _)| times[from].1 + latency_ps);
        let start = local.chain(arrivals).max().unwrap_or(0);
        times.push((start, start + ns * 1000));
        last = last.max(start + ns * 1000);
    }
    last
}

fn schedule_of(random: &Random) -> Schedule {
    let names = Names::Numbers("random".to_owned());
    let mut builder = Builder::new(names, random.ranks).unwrap();
    let mut own: HashMap<u32, Vec<u32>> = HashMap::new();
    let mut index = Vec::new();
    for (at, (rank, ns, waits)) in random.nodes.iter().enumerate() {
        // Every node has a unit of its own, so that none waits for another one's.
        let unit = own.get(rank).map_or(0, Vec::len) as u8;
        let compute = Op::Compute { ps: ns * 1000, unit };
        let node = builder.add(*rank, at as u64, compute).unwrap();
        let before = own.entry(*rank).or_default();
        for &(back, at_start) in waits {
            if let Some(other) = before.len().checked_sub(back).map(|other| before[other]) {
                builder.wait(*rank, node, other, at_start).unwrap();
            }
        }
        before.push(node);
        index.push(node);
    }
    for (tag, &(from, to)) in (0..).zip(&random.messages) {
        let [src, dst] = [from, to].map(|at| random.nodes[at].0);
        let send = builder.add(src, 1000, Op::Send { to: dst, bytes: 0, tag }).unwrap();
        builder.wait(src, send, index[from], false).unwrap();
        let receive = builder.add(dst, 1000, Op::Recv { from: src, bytes: 0, tag }).unwrap();
        builder.wait(dst, index[to], receive, false).unwrap();
    }
    builder.build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_schedule_takes_its_longest_path(random in random()) {
        let schedule = schedule_of(&random);
        let placement = vec![0; random.ranks as usize];
        let records = steps(&single_switch(2), scheduled(schedule, placement, 2, RING));
        let expected = longest_path(&random, 3 * US);
        prop_assert_eq!(records[0].end_ps, expected);
        prop_assert!(records[1].end_ps <= 2 * expected);
    }

    /// Whatever a file says, it is refused or read.
    #[test]
    fn any_text_is_refused_or_read(
        words in prop::collection::vec(
            prop::sample::select(&[
                "num_ranks", "rank", "0", "1", "2", "{", "}", "l1", "l2", ":", "calc", "send",
                "recv", "10b", "to", "from", "tag", "cpu", "requires", "irequires", "\n", "//", "-1",
                "99999999999999999999", "/*", "*/", "µ",
            ][..]),
            0..60,
        ),
    ) {
        let _ = goal::parse(&words.join(" "), "any");
        let _ = goal::parse(&format!("num_ranks 2 rank 0 {{ {}", words.join(" ")), "any");
    }

    #[test]
    fn any_bytes_are_refused_or_read(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        at in any::<prop::sample::Index>(),
        with in prop::collection::vec(any::<u8>(), 0..4),
    ) {
        let read = |files: &[Vec<u8>]| {
            let _ = chakra::parse(&chakra::Trace { files, prefix: "any", groups: None });
        };
        read(&[bytes]);
        let mut files = two_ranks();
        let at = at.index(files[0].len());
        let end = files[0].len().min(at + with.len());
        files[0].splice(at..end, with);
        read(&files);
    }
}

#[test]
fn what_cannot_run_is_refused_by_its_place() {
    let two = |first: &str, second: &str| {
        format!("num_ranks 2\nrank 0 {{\n{first}\n}}\nrank 1 {{\n{second}\n}}\n")
    };
    let cases = [
        (String::new(), "a.goal:1: the file is empty; GOAL begins with \"num_ranks\""),
        ("rank 0 {}".to_owned(), "a.goal:1: \"rank\" is not \"num_ranks\", with which GOAL begins"),
        ("num_ranks 0".to_owned(), "a.goal: it has 0 ranks; 1 to 65536 can be run"),
        ("num_ranks 99999999".to_owned(), "a.goal: it has 99999999 ranks; 1 to 65536 can be run"),
        ("num_ranks 2\nrank 0 {\n}\n".to_owned(), "a.goal: rank 1 is missing"),
        ("num_ranks 1\nrank 1 {\n}\n".to_owned(), "a.goal:2: there is no rank 1: num_ranks is 1"),
        ("num_ranks 1\nrank 0 {\n}\nrank 0 {\n}".to_owned(), "a.goal:4: rank 0 is there twice"),
        (two("calc -5", ""), "a.goal:3: \"-\" is not nanoseconds"),
        (two("a: calc 5\na: calc 6", ""), "a.goal:4: label \"a\" is there twice"),
        (two("a requires b", ""), "a.goal:3: rank 0 has no label \"a\""),
        (two("send 5b to 7", ""), "a.goal:3: rank 0: there is no rank 7, only 0 to 1"),
        (two("send 5b to 0", ""), "a.goal:3: rank 0: a rank has nothing to send to itself"),
        (
            two("calc 999999999999999999", ""),
            "a.goal:3: rank 0: it computes for more than 100000 s",
        ),
        (
            two("send 99999999999999b to 1", "recv 99999999999999b from 0"),
            "a.goal:3: rank 0: 99999999999999 bytes are more than 17592186044416",
        ),
        (
            two("recv 5b from -1", "send 5b to 0"),
            "a.goal:3: any rank is not taken: which message it would receive depends on times",
        ),
        (
            two("send 5b to 1 tag 4", "recv 5b from 0 tag 5"),
            "a.goal:3: rank 0: rank 1 does not receive this message (tag 4)",
        ),
        (
            two("calc 5", "recv 5b from 0 tag 5"),
            "a.goal:6: rank 1: rank 0 does not send this message (tag 5)",
        ),
        (
            two("send 6b to 1", "recv 5b from 0"),
            "a.goal:6: rank 1: it has room for 5 bytes, and the message of a.goal:3: rank 0 has 6",
        ),
        (
            two("a: calc 1\nb: calc 1\nc: calc 2\na requires c\nb requires a\nc irequires b", ""),
            "a.goal:3: rank 0: a cycle: it waits for 5, for 4, for 3",
        ),
        (two("a: calc 1\na requires a", ""), "a.goal:3: rank 0: it waits for itself"),
        (
            two(
                "r: recv 5b from 1\ns: send 5b to 1\ns requires r",
                "r: recv 5b from 0\ns: send 5b to 0\ns requires r",
            ),
            "a.goal:3: rank 0: ranks wait for each other: this message of rank 1 (tag 0) is never sent",
        ),
    ];
    for (text, expected) in cases {
        match goal::parse(&text, "a.goal") {
            Ok(_) => panic!("{text} is taken"),
            Err(error) => assert_eq!(error.to_string(), expected, "{text}"),
        }
    }
}

#[test]
fn ranks_that_disagree_on_collectives_are_refused() {
    let build = |of: &[&[(Collective, u64)]]| {
        let mut builder = Builder::new(Names::Numbers("t".to_owned()), of.len() as u32).unwrap();
        let group = builder.group((0..of.len() as u32).collect()).unwrap();
        for (rank, ops) in (0..).zip(of) {
            let mut last = None;
            for (name, &(kind, bytes)) in (0..).zip(*ops) {
                let op = Op::Collective { kind, group, bytes, number: 0 };
                let node = builder.add(rank, name, op).unwrap();
                if let Some(last) = last {
                    builder.wait(rank, node, last, false).unwrap();
                }
                last = Some(node);
            }
        }
        builder.build().map(|_| ()).map_err(|error| error.to_string())
    };
    let (sum, gather) = ((Collective::Allreduce, 8), (Collective::AllGather, 8));
    assert_eq!(build(&[&[sum, gather], &[sum, gather]]), Ok(()));
    let other = "t: rank 1, node 0: operation 0 of group [0, 1] is AllGather of 8 bytes here, and \
                 Allreduce of 8 bytes at t: rank 0, node 0";
    assert_eq!(build(&[&[sum], &[gather]]), Err(other.to_owned()));
    let fewer = "t: rank 1: it has 1 operations of group [0, 1], and Allreduce at t: rank 0, node 1 is \
                 one more";
    assert_eq!(build(&[&[sum, sum], &[sum]]), Err(fewer.to_owned()));
}

/// Fields of protobuf messages, written here by hand.
fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 128 {
        out.push(value as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

fn bytes(field: u64, content: &[u8]) -> Vec<u8> {
    [varint(field << 3 | 2), varint(content.len() as u64), content.to_vec()].concat()
}

fn attribute(name: &str, value: &[u8]) -> Vec<u8> {
    bytes(10, &[bytes(1, name.as_bytes()), value.to_vec()].concat())
}

/// A node: its id, type, dependencies, duration in µs, and attributes.
fn node(id: u64, kind: u64, before: &[u64], micros: u64, rest: &[Vec<u8>]) -> Vec<u8> {
    let packed: Vec<u8> = before.iter().flat_map(|&id| varint(id)).collect();
    let fields = [
        number(1, id),
        bytes(2, b"name"),
        number(3, kind),
        bytes(5, &packed),
        number(7, micros),
        rest.concat(),
    ];
    fields.concat()
}

fn file(nodes: &[Vec<u8>]) -> Vec<u8> {
    let metadata = bytes(1, b"0.0.4");
    let messages = std::iter::once(&metadata).chain(nodes);
    messages.flat_map(|m| [varint(m.len() as u64), m.clone()].concat()).collect()
}

/// Both ranks compute for 10 µs, gather 1,448 bytes each, and rank 0 sends 1,448 bytes to rank 1.
fn two_ranks() -> Vec<Vec<u8>> {
    let groups = r#"[{"pg_name": "7", "ranks": [0, 1]}]"#;
    let inputs = bytes(8, &bytes(1, format!("['{groups}']").as_bytes()));
    let size = attribute("comm_size", &number(9, 1448));
    let gather = [
        attribute("is_cpu_op", &number(27, 0)),
        attribute("comm_type", &number(9, 2)),
        size.clone(),
        attribute("pg_name", &bytes(29, b"7")),
    ];
    let rank = |rank: u64| {
        let message = match rank {
            0 => node(12, 5, &[11], 0, &[size.clone(), attribute("comm_dst", &number(7, 1))]),
            _ => node(12, 6, &[11], 0, &[size.clone(), attribute("comm_src", &number(7, 0))]),
        };
        file(&[
            node(5, 1, &[], 0, std::slice::from_ref(&inputs)),
            node(10, 4, &[], 10, &[]),
            node(11, 7, &[10], 0, &gather),
            message,
        ])
    };
    vec![rank(0), rank(1)]
}

fn read_chakra(files: &[Vec<u8>]) -> Result<Schedule, String> {
    let trace = chakra::Trace { files, prefix: "t", groups: None };
    chakra::parse(&trace).map_err(|error| error.to_string())
}

#[test]
fn a_chakra_trace_runs() {
    let schedule = read_chakra(&two_ranks()).unwrap();
    assert_eq!(schedule.groups, [[0, 1]]);
    let records = steps(&single_switch(2), scheduled(schedule, vec![0, 1], 1, RING));
    assert_eq!(records[0].end_ps, 10 * US + 2 * ONE_WAY_PS);
}

#[test]
fn broken_chakra_traces_are_refused() {
    let with = |nodes: &[Vec<u8>]| read_chakra(&[file(nodes)]).unwrap_err();
    assert_eq!(
        read_chakra(&[vec![]]).unwrap_err(),
        "t.0.et: it is empty; a trace begins with metadata"
    );
    assert_eq!(
        read_chakra(&[two_ranks()[0][..40].to_vec()]).unwrap_err().split(" of ").next(),
        Some("t.0.et: it ends within a message")
    );
    let again = [node(1, 4, &[], 1, &[]), node(1, 4, &[], 1, &[])];
    assert_eq!(with(&again), "t.0.et: node 1: a second node has this id");
    assert_eq!(
        with(&[node(1, 4, &[9], 1, &[])]),
        "t.0.et: node 1: it depends on node 9, which is not there"
    );
    assert_eq!(with(&[node(1, 99, &[], 1, &[])]), "t.0.et: node 1: nodes of type 99 are not known");
    assert_eq!(with(&[node(1, 7, &[], 1, &[])]), "t.0.et: node 1: it has no comm_size");
    let size = attribute("comm_size", &number(9, 8));
    assert_eq!(
        with(&[node(1, 7, &[], 1, &[size.clone(), attribute("pg_name", &bytes(29, b"x"))])]),
        "t.0.et: node 1: the ranks of its group \"x\" are unknown"
    );
    let negative = attribute("comm_size", &number(9, u64::MAX));
    assert_eq!(
        with(&[node(1, 5, &[], 1, &[negative, attribute("comm_dst", &number(7, 0))])]),
        "t.0.et: node 1: its comm_size is negative or too large"
    );
    // The other rank's part is missing.
    let one = read_chakra(&two_ranks()[..1]).unwrap_err();
    assert_eq!(
        one,
        "t.0.et: a group names rank 1; there are ranks 0 to 0".replace("t.0.et", "t.RANK.et")
    );
}

/// A run with a trace beside flows: the same bytes for any number of threads, and with skips allowed or not.
#[test]
fn runs_do_not_depend_on_threads() {
    let folder = tempfile::tempdir().unwrap();
    for (rank, bytes) in two_ranks().iter().enumerate() {
        std::fs::write(folder.path().join(format!("trace.{rank}.et")), bytes).unwrap();
    }
    let mut text = "num_ranks 8\n".to_owned();
    for rank in 0..8 {
        let (next, last) = ((rank + 1) % 8, (rank + 7) % 8);
        text += &format!(
            "rank {rank} {{\nc: calc {}\ns: send 300000b to {next} tag 3\ns requires c\n\
             r: recv 300000b from {last} tag 3\nd: calc 2000\nd requires r\nd requires s\n}}\n",
            1000 * (rank + 1)
        );
    }
    std::fs::write(folder.path().join("ring.goal"), text).unwrap();
    for scheme in ["ring", "panama"] {
        let run = |threads: u32, skip: bool| {
            let text = format!(
                "duration = \"20ms\"\ndrain = \"1s\"\nthreads = {threads}\nskip_repeats = {skip}\nchecked = true\n\
                 [fabric]\nkind = \"leaf-spine\"\nracks = 3\nhosts_per_rack = 4\nspines = 2\n\
                 [scheme]\nkind = \"{scheme}\"\ntrees = 2\n\
                 [[flows]]\nkind = \"poisson\"\nload = 0.2\nsizes = \"web-search\"\n\
                 [[jobs]]\nreplay = {{ format = \"goal\", path = \"ring.goal\" }}\nsteps = 5\n\
                 ranks = {{ per_host = 2 }}\n\
                 [[jobs]]\nreplay = {{ format = \"chakra\", path = \"trace\" }}\nhosts = [0, 11]\nsteps = 3\n\
                 [[jobs]]\nmodel = \"resnet50\"\nworkers = 4\nsteps = 1\nstart = \"1ms\"\n"
            );
            files(&text, folder.path(), |_| {})
        };
        let one = run(1, true);
        assert!(String::from_utf8_lossy(&one["jobs.csv"]).contains("chakra,2,"));
        for (threads, skip) in [(2, true), (3, false), (1, false)] {
            let what = format!("{scheme}: {threads} threads, skips: {skip}");
            assert_same_files(&run(threads, skip), &one, &what);
        }
    }
}

/// Keys that do not go together, and errors of files, by key and file.
#[test]
fn configurations_of_replays_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("ok.goal"),
        "num_ranks 4\nrank 0 {}\nrank 1 {}\nrank 2 {}\nrank 3 {}",
    )
    .unwrap();
    std::fs::write(folder.path().join("bad.goal"), "num_ranks 1\nrank 0 {\nsleep 5\n}").unwrap();
    let check = |job: &str| {
        let text = format!(
            "duration = \"1ms\"\n[fabric]\nkind = \"single-switch\"\nhosts = 3\n[[jobs]]\n{job}\n"
        );
        parse(&text, "run.toml", folder.path()).map(|_| ()).unwrap_err().to_string()
    };
    let ok = "replay = { format = \"goal\", path = \"ok.goal\" }";
    let cases = [
        (format!("{ok}\nbytes = 5"), "jobs.0.bytes: the files say what ranks there are"),
        (ok.to_owned(), "jobs.0.ranks.per_host: 4 ranks need 4 hosts, and there are 3"),
        (format!("{ok}\nhosts = [0]"), "jobs.0.hosts: 4 ranks, 1 per host, need 4 hosts, not 1"),
        (
            format!("{ok}\nranks = {{ per_host = 2 }}\nhosts = [0, 7]"),
            "jobs.0.hosts: each is another one, from 0 to 2",
        ),
        (format!("{ok}\nranks = {{ per_host = 0 }}"), "a host has at least one rank"),
        (format!("{ok}\nsteps = 0"), "jobs.0.steps: a job has at least one step"),
        ("model = \"vgg16\"\nworkers = 2\nranks = {}".to_owned(), "of jobs that replay a schedule"),
        (
            "replay = { format = \"goal\", path = \"bad.goal\" }".to_owned(),
            "bad.goal:3: \"5\" is not \":\", \"requires\" or \"irequires\"",
        ),
        (
            "replay = { format = \"chakra\", path = \"none\" }".to_owned(),
            "none.0.et: No such file or directory",
        ),
        ("replay = { format = \"otf2\", path = \"x\" }".to_owned(), "unknown variant `otf2`"),
    ];
    for (job, expected) in cases {
        let error = check(&job);
        assert!(error.contains(expected), "{job}: {error}");
    }
}
