//! Jobs that replay traces of PyTorch's profiler: closed forms of small traces, and what is refused.

mod common;

use std::sync::Arc;

use common::*;
use netsum_sim::config::parse;
use netsum_sim::job::{Bucket, HostAlgorithm, JobSpec, LocalLinks, Scheme, Work};
use netsum_sim::schedule::pytorch::{Profiles, parse as read};
use netsum_sim::schedule::{Collective, Op, Schedule};
use netsum_sim::tcp::TcpConfig;
use netsum_sim::{Simulation, Switching};
use serde_json::{Value, json};

const SWITCHING: Switching = Switching { latency_ns: 1_000, ..PLAIN };
/// Acknowledgements take no time on links, and windows hold nothing back.
const TCP: fn() -> TcpConfig =
    || TcpConfig { ack_bytes: 0, window_initial: 1e4, window_max: 1e4, ..TcpConfig::default() };
/// A message of this many full segments over two links.
const SEGMENTS: u64 = 300;
const TRAIN: u64 = (SEGMENTS + 1) * 1502 * 800 + 2 * US;
/// Elements of four bytes of an allreduce of two ranks whose two messages are such trains.
const ELEMENTS: u64 = 2 * SEGMENTS * 1448 / 4;
/// An allreduce by a ring of two ranks.
const SUM: u64 = 2 * TRAIN;

/// The trace of a rank.
fn trace(rank: u32, size: u32, events: &[Value]) -> Value {
    let ranks: Vec<u32> = (0..size).collect();
    json!({
        "schemaVersion": 1,
        "distributedInfo": {
            "backend": "x", "rank": rank, "world_size": size, "pg_count": 1,
            "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": size, "ranks": ranks}],
        },
        "traceEvents": events,
    })
}

fn parsed(traces: &[Value], operations: Option<[u64; 2]>) -> Result<Schedule, String> {
    let named = traces.iter().enumerate().map(|(at, of)| (format!("f/{at}.json"), of.to_string()));
    let files: Vec<(String, String)> = named.collect();
    let profiles = Profiles { files: &files, folder: "f", operations };
    read(&profiles).map_err(|error| error.to_string())
}

/// The schedule of ranks with the same events.
fn alike(size: u32, events: &[Value]) -> Schedule {
    let traces: Vec<Value> = (0..size).map(|rank| trace(rank, size, events)).collect();
    parsed(&traces, None).unwrap_or_else(|error| panic!("{error}"))
}

/// When one run of a schedule ends.
fn end(schedule: Schedule) -> u64 {
    let ranks = schedule.ranks.len() as u32;
    let mut simulation =
        Simulation::new(&single_switch(ranks.max(2)), SWITCHING, TCP(), 1).unwrap();
    simulation.check();
    simulation.add_job(JobSpec {
        start_ps: 0,
        placement: (0..ranks).collect(),
        steps: 1,
        period_ps: 0,
        buckets: vec![Bucket { ready_ps: 0, bytes: 0 }],
        scheme: Scheme::Hosts { algorithm: HostAlgorithm::Ring, ecn: true, rings: 1 },
        roots: vec![],
        servers: vec![],
        work: Some(Work {
            schedule: Arc::new(schedule),
            eager_bytes: 64 << 10,
            local: LocalLinks { rate_bps: 1_000_000_000_000, latency_ps: US },
        }),
    });
    assert!(simulation.run(100_000 * MS), "the job does not end: {:?}", simulation.refused());
    simulation.take_steps()[0].end_ps
}

/// What a rank's nodes communicate.
fn collectives(schedule: &Schedule, rank: usize) -> Vec<(Collective, Vec<u32>, u64)> {
    let nodes = schedule.ranks[rank].nodes.iter();
    let found = nodes.filter_map(|node| match node.op {
        Op::Collective { kind, group, bytes, .. } => {
            Some((kind, schedule.groups[group as usize].clone(), bytes))
        }
        _ => None,
    });
    found.collect()
}

fn event(cat: &str, name: &str, thread: u32, begin_us: f64, end_us: f64, args: Value) -> Value {
    // As late as the clocks of real traces, whose fractions have few digits left.
    let (ts, dur) = (4e12 + begin_us, end_us - begin_us);
    json!({"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": thread, "ts": ts, "dur": dur, "args": args})
}

/// An operator that computes.
fn computes(begin_us: f64, end_us: f64) -> Value {
    event("cpu_op", "aten::mm", 1, begin_us, end_us, json!({"Input Dims": [[2, 2], [2, 2]]}))
}

/// A call of an operation over Gloo, with its run.
fn gloo(
    name: &str,
    run: &str,
    called_us: f64,
    ended_us: f64,
    inputs: Value,
    tensors: Value,
) -> [Value; 2] {
    let types: Vec<&str> = tensors.as_array().unwrap().iter().map(|_| "float").collect();
    let args = json!({"Input Dims": tensors, "Input type": types});
    [
        event("cpu_op", &format!("c10d::{name}"), 1, called_us, called_us + 5.0, inputs),
        event("user_annotation", &format!("gloo:{run}"), 9, called_us + 1.0, ended_us, args),
    ]
}

/// An allreduce over Gloo.
fn sum(called_us: f64, ended_us: f64) -> [Value; 2] {
    gloo("allreduce_", "all_reduce", called_us, ended_us, json!({}), json!([[ELEMENTS]]))
}

fn of(parts: &[&[Value]]) -> Vec<Value> {
    parts.concat()
}

#[test]
fn gaps_that_an_end_interrupts_are_waits() {
    // 100 us of computing, a sum for which the rank waits, 50 us of computing of which 10 are between operators.
    let waits = of(&[
        &[computes(0.0, 100.0)],
        &sum(100.0, 900.0),
        &[computes(910.0, 950.0)],
        &sum(950.0, 1500.0),
    ]);
    assert_eq!(end(alike(2, &waits)), 100 * US + SUM + 50 * US + SUM);
}

#[test]
fn computing_hides_a_sum_that_ends_meanwhile() {
    // The second sum is called 5 ms after the first one, which took 0.2 ms then. Now it is longer, and still hidden.
    let hidden = of(&[
        &[computes(0.0, 100.0)],
        &sum(100.0, 300.0),
        &[computes(105.0, 5100.0)],
        &sum(5100.0, 5300.0),
        &[computes(5300.0, 5400.0)],
    ]);
    const { assert!(SUM < 5_000 * US) };
    assert_eq!(end(alike(2, &hidden)), 5_100 * US + SUM + 100 * US);
    // Where it takes longer than the computing beside it, computing after the next call waits for it, and the next sum.
    let longer = |tail_us: f64| {
        of(&[
            &sum(0.0, 20.0),
            &[computes(5.0, 100.0)],
            &sum(100.0, 190.0),
            &[computes(105.0, 150.0), computes(150.0, 100.0 + tail_us)],
        ])
    };
    const { assert!(SUM > 100 * US) };
    assert_eq!(end(alike(2, &longer(5000.0))), SUM + 5_000 * US);
    assert_eq!(end(alike(2, &longer(100.0))), 2 * SUM);
}

#[test]
fn computing_in_operators_that_wait_is_none() {
    // Functional collectives wait in an operator.
    let functional = of(&[
        &[computes(0.0, 100.0)],
        &sum(100.0, 900.0),
        &[event("cpu_op", "_c10d_functional::wait_tensor", 1, 106.0, 910.0, json!({}))],
        &[computes(910.0, 950.0)],
    ]);
    assert_eq!(end(alike(2, &functional)), 100 * US + SUM + 50 * US);
    // An operator around others may wait itself, here between them, and one of PyTorch's around a sum.
    let around = |name: &str| {
        of(&[
            &[event("cpu_op", name, 1, 0.0, 950.0, json!({})), computes(0.0, 100.0)],
            &sum(100.0, 900.0),
            &[computes(910.0, 950.0)],
        ])
    };
    assert_eq!(end(alike(2, &around("Layer"))), 100 * US + SUM + 50 * US);
    assert_eq!(end(alike(2, &around("aten::add"))), 100 * US + SUM + 50 * US);
    // Without one in it, it computes from its beginning to its end.
    let before = of(&[
        &sum(0.0, 300.0),
        &[event("cpu_op", "aten::add", 1, 10.0, 810.0, json!({})), computes(10.0, 20.0)],
    ]);
    const { assert!(SUM < 810 * US) };
    assert_eq!(end(alike(2, &before)), 810 * US);
}

#[test]
fn steps_of_the_profiler_bound_the_time() {
    let step = |number: u32, begin_us, end_us| {
        event("user_annotation", &format!("ProfilerStep#{number}"), 1, begin_us, end_us, json!({}))
    };
    let steps = of(&[&[step(3, 0.0, 940.0), step(4, 940.0, 1000.0)], &sum(100.0, 900.0)]);
    assert_eq!(end(alike(2, &steps)), 100 * US + SUM + 100 * US);
    let none = sum(100.0, 900.0);
    assert_eq!(end(alike(2, &none)), SUM);
}

#[test]
fn sizes_over_gloo_are_those_of_whole_buffers() {
    let rooted = |at: usize| {
        let mut inputs = vec![""; 6];
        inputs[at] = "1";
        json!({"Concrete Inputs": inputs})
    };
    let cases = [
        (
            "allreduce_coalesced_",
            "all_reduce",
            json!({}),
            json!([[5], [2, 3]]),
            Collective::Allreduce,
            44,
        ),
        ("broadcast_", "broadcast", rooted(2), json!([[7]]), Collective::Broadcast { root: 1 }, 28),
        ("reduce_", "reduce", rooted(3), json!([[7]]), Collective::Reduce { root: 1 }, 28),
        ("allgather_", "all_gather", json!({}), json!([[10]]), Collective::AllGather, 120),
        (
            "_allgather_base_",
            "all_gather",
            json!({}),
            json!([[5], [6]]),
            Collective::AllGather,
            132,
        ),
        (
            "_reduce_scatter_base_",
            "all_reduce",
            json!({}),
            json!([[30]]),
            Collective::ReduceScatter,
            120,
        ),
        ("alltoall_base_", "all_to_all", json!({}), json!([[30]]), Collective::AllToAll, 120),
        ("gather_", "gather", rooted(3), json!([[10]]), Collective::Gather { root: 1 }, 120),
        ("barrier", "barrier", json!({}), json!([]), Collective::Barrier, 0),
    ];
    for (name, run, inputs, tensors, kind, bytes) in cases {
        let schedule = alike(3, &gloo(name, run, 1.0, 9.0, inputs, tensors));
        for rank in 0..3 {
            assert_eq!(collectives(&schedule, rank), [(kind, vec![0, 1, 2], bytes)], "{name}");
        }
    }
    // A reduce-scatter of lists has a run per share.
    let [call, run] = gloo("reduce_scatter_", "all_reduce", 1.0, 9.0, json!({}), json!([[10]]));
    let schedule = alike(3, &[call, run.clone(), run.clone(), run]);
    assert_eq!(collectives(&schedule, 2), [(Collective::ReduceScatter, vec![0, 1, 2], 120)]);
}

#[test]
fn runs_that_begin_at_nearly_the_same_time_are_told_apart_by_size() {
    let reduce = |called_us, ended_us, length: u64| {
        let inputs = json!({"Input Dims": [[[length, 2]], [], []]});
        gloo("allreduce_", "all_reduce", called_us, ended_us, inputs, json!([[2 * length]]))
    };
    let right = of(&[&reduce(0.0, 50.0, 8), &reduce(1.0, 60.0, 9)]);
    let mut late = right.clone();
    // The run of the first call is noted after that of the second one.
    late[1]["ts"] = json!(4e12 + 2.5);
    let schedule = parsed(&[trace(0, 2, &right), trace(1, 2, &late)], None).unwrap();
    let sums = [8, 9].map(|length| (Collective::Allreduce, vec![0, 1], 8 * length));
    assert_eq!(collectives(&schedule, 0), sums);
    assert_eq!(collectives(&schedule, 1), sums);
}

#[test]
fn operations_that_had_ended_at_no_rank_are_left_out() {
    let whole = of(&[&sum(0.0, 10.0), &sum(20.0, 30.0), &sum(40.0, 50.0)]);
    let counts = |first: &[Value], second: &[Value]| {
        let schedule = parsed(&[trace(0, 2, first), trace(1, 2, second)], None).unwrap();
        assert!(end(schedule.clone()) >= SUM);
        (collectives(&schedule, 0).len(), collectives(&schedule, 1).len())
    };
    // Profiling ended within the second sum, and before the third one ran.
    let mut cut = whole.clone();
    cut[3]["args"]["finished"] = json!(false);
    cut.pop();
    assert_eq!(counts(&cut, &cut), (1, 1));
    // The other rank says that the second one ended.
    assert_eq!(counts(&whole, &cut), (2, 2));
    assert_eq!(counts(&whole, &whole), (3, 3));
    // A part, with the computing before it.
    let same = [trace(1, 2, &whole), trace(0, 2, &whole)];
    assert_eq!(end(parsed(&same, Some([1, 2])).unwrap()), 10 * US + SUM);
    let error = parsed(&same, Some([1, 4])).unwrap_err();
    assert!(error.contains("operations 1 to 4 are not there, only 0 to 3"), "{error}");
}

/// A kernel that computes, with its launch.
fn kernel(number: u32, launched_us: f64, begin_us: f64, end_us: f64) -> [Value; 2] {
    let args = json!({"correlation": number, "stream": 7});
    [
        event("cuda_runtime", "cudaLaunchKernel", 1, launched_us, launched_us + 1.0, args.clone()),
        event("kernel", "gemm", 7, begin_us, end_us, args),
    ]
}

/// An operation over NCCL.
fn nccl(number: u32, launched_us: f64, begin_us: f64, end_us: f64, said: Value) -> [Value; 2] {
    let mut args = json!({
        "correlation": number, "External id": number, "stream": 40, "dtype": "Float", "Group size": 2,
        "In msg nelems": ELEMENTS, "Out msg nelems": ELEMENTS, "Collective name": "allreduce",
        "Process Group Name": "0", "Process Group Ranks": "[0, 1]",
    });
    args.as_object_mut().unwrap().extend(said.as_object().unwrap().clone());
    let launch = json!({"correlation": number, "External id": number});
    [
        event("cuda_runtime", "cudaLaunchKernelExC", 2, launched_us, launched_us + 1.0, launch),
        event(
            "kernel",
            "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
            40,
            begin_us,
            end_us,
            args,
        ),
    ]
}

#[test]
fn kernels_beside_a_kernel_that_communicates_do_not_wait_for_it() {
    // Two buckets of a backward pass: the second one is ready at 150 us, and begins when the first one has ended. The
    // optimizer's kernel is launched early, and waits for it.
    let backward = of(&[
        &kernel(1, 0.0, 10.0, 100.0),
        &nccl(2, 20.0, 100.0, 300.0, json!({})),
        &kernel(3, 30.0, 100.0, 150.0),
        &nccl(4, 40.0, 300.0, 500.0, json!({})),
        &kernel(5, 50.0, 150.0, 200.0),
        &kernel(6, 60.0, 500.0, 520.0),
    ]);
    assert_eq!(end(alike(2, &backward)), 90 * US + SUM + SUM + 20 * US);
    // Of small ones nothing is left to see, but for the last one, and all kernels take their time.
    let mut small = backward;
    for event in &mut small {
        if !event["args"]["In msg nelems"].is_null() {
            event["args"]["In msg nelems"] = json!(2);
        }
    }
    assert_eq!(end(alike(2, &small)), 190 * US + 20 * US);
}

#[test]
fn a_gpu_without_work_does_not_wait_for_communication() {
    // The processor launches the next kernel 100 us after the last one has ended: no sum held the GPU up.
    let slow = of(&[
        &kernel(1, 0.0, 10.0, 100.0),
        &nccl(2, 20.0, 100.0, 150.0, json!({})),
        &kernel(3, 200.0, 210.0, 250.0),
    ]);
    assert_eq!(end(alike(2, &slow)), 90 * US + SUM);
    const { assert!(90 * US + SUM > 240 * US) };
    // The same kernel was launched before the sum had ended: it waited.
    let waits = of(&[
        &kernel(1, 0.0, 10.0, 100.0),
        &nccl(2, 20.0, 100.0, 200.0, json!({})),
        &kernel(3, 110.0, 210.0, 250.0),
    ]);
    // 90 us; 10 without work, beside the sum; 10 until the kernel begins, and 40.
    assert_eq!(end(alike(2, &waits)), 90 * US + SUM + 50 * US);
}

#[test]
fn groups_and_sizes_of_kernels() {
    let said = |call: &str, input: u64, output: u64| {
        json!({"Collective name": call, "In msg nelems": input, "Out msg nelems": output, "dtype": "BFloat16",
               "Process Group Name": "tp", "Process Group Ranks": "[2, 3]"})
    };
    let mut events = of(&[
        &nccl(1, 0.0, 1.0, 2.0, said("_allgather_base", 8, 16)),
        &nccl(2, 3.0, 4.0, 5.0, said("_reduce_scatter_base", 16, 8)),
        &nccl(3, 6.0, 7.0, 8.0, said("broadcast", 9, 9)),
        &nccl(4, 9.0, 10.0, 11.0, said("all_to_allv", 16, 16)),
    ]);
    let parameters = json!({"External id": 3, "Collective name": "broadcast", "Rank": 1});
    events.push(event("cpu_op", "record_param_comms", 1, 6.0, 6.5, parameters));
    // Kernels of one operation.
    events.extend(nccl(4, 9.0, 11.0, 12.0, said("all_to_allv", 16, 16)));
    // Cut off in the kernel, and listed by the rank.
    let mut all = nccl(5, 13.0, 14.0, 15.0, json!({"Process Group Ranks": "[0, 1, ...]"}));
    let world = all.to_vec();
    events.extend(all.clone());
    all[1]["args"]["Process Group Name"] = json!("x");
    let traces: Vec<Value> =
        (0..4).map(|rank| trace(rank, 4, if rank > 1 { &events } else { &world })).collect();
    let schedule = parsed(&traces, None).unwrap();
    let pair = vec![2, 3];
    let sum = (Collective::Allreduce, vec![0, 1, 2, 3], 4 * ELEMENTS);
    let expected = [
        (Collective::AllGather, pair.clone(), 32),
        (Collective::ReduceScatter, pair.clone(), 32),
        (Collective::Broadcast { root: 1 }, pair.clone(), 18),
        (Collective::AllToAll, pair, 32),
        sum.clone(),
    ];
    assert_eq!(collectives(&schedule, 3), expected);
    assert_eq!(collectives(&schedule, 0), [sum]);
    let error = parsed(&[trace(0, 1, &all)], None).unwrap_err();
    assert!(error.contains("the ranks of its group \"x\" are unknown: [0, 1, ...]"), "{error}");
}

#[test]
fn traces_that_cannot_be_replayed_are_refused() {
    let one = trace(0, 1, &sum(0.0, 9.0));
    let with = |change: &dyn Fn(&mut Value)| {
        let mut changed = one.clone();
        change(&mut changed);
        parsed(&[changed], None).unwrap_err()
    };
    let only = |events: &[Value]| parsed(&[trace(0, 1, events)], None).unwrap_err();
    let message = gloo("send", "send", 0.0, 9.0, json!({}), json!([[4]]));
    let early = {
        let [call, mut run] = sum(0.0, 9.0);
        run["ts"] = json!(4e12 - 3.0);
        [call, run]
    };
    let kernels = |said: Value| nccl(1, 0.0, 1.0, 2.0, said);
    let cases = [
        (parsed(&[], None).unwrap_err(), "f: it has 0 ranks"),
        (
            parsed(&[one.clone(), one.clone()], None).unwrap_err(),
            "of a job of 1 ranks, and there are 2 files",
        ),
        (
            parsed(&[trace(1, 2, &[]), trace(1, 2, &[])], None).unwrap_err(),
            "f/0.json: it has no operations over Gloo or NCCL",
        ),
        (
            parsed(&[trace(1, 2, &sum(0.0, 9.0)), trace(1, 2, &[])], None).unwrap_err(),
            "f/1.json: a second file of rank 1",
        ),
        (with(&|of| of["distributedInfo"]["rank"] = json!(7)), "rank 7 of 1 is impossible"),
        (with(&|of| of["distributedInfo"] = Value::Null), "it has no distributedInfo"),
        (
            with(&|of| of["distributedInfo"]["pg_count"] = json!(2)),
            "there are 2 process groups, and operations over",
        ),
        (with(&|of| of["distributedInfo"]["pg_count"] = Value::Null), "how many process groups"),
        (with(&|of| of["distributedInfo"]["backend"] = json!("cpu:netsum")), "NETSUM_RECORDER"),
        (
            with(&|of| of["traceEvents"] = json!(5)),
            "is not a trace of PyTorch's profiler: invalid type",
        ),
        (
            with(&|of| of["traceEvents"][1]["dur"] = json!(1e30)),
            "\"gloo:all_reduce\" has impossible times",
        ),
        (
            with(&|of| _ = of["traceEvents"][1]["args"].take()),
            "\"gloo:all_reduce\" has no shapes: profile with",
        ),
        (
            with(&|of| of["traceEvents"][1]["args"]["Input type"][0] = json!("T")),
            "an unknown type \"T\"",
        ),
        (
            with(&|of| of["traceEvents"][1]["args"]["Input Dims"][0] = json!([-1])),
            "has a shape [-1]",
        ),
        (
            with(&|of| of["traceEvents"][0]["name"] = json!("c10d::new_")),
            "\"c10d::new_\" cannot be replayed",
        ),
        (
            with(&|of| of["traceEvents"][0]["name"] = json!("c10d::scatter_")),
            "does not say how large",
        ),
        (with(&|of| of["traceEvents"][0]["name"] = json!("c10d::broadcast_")), "has no shapes"),
        (
            with(&|of| of["traceEvents"][0]["name"] = json!("aten::mm")),
            "gloo:all_reduce belongs to no call",
        ),
        (only(&message), "\"c10d::send\" is a message between two ranks"),
        (only(&early), "a run of gloo:all_reduce began before \"c10d::allreduce_\" was called"),
        (only(&of(&[&sum(0.0, 9.0), &kernels(json!({}))])), "operations over NCCL and over Gloo"),
        (only(&kernels(json!({"Collective name": 5}))), "does not say what it does"),
        (
            only(&kernels(json!({"Collective name": "recv"}))),
            "\"recv\" is a message between two ranks",
        ),
        (only(&kernels(json!({"Collective name": "new"}))), "\"new\" cannot be replayed"),
        (only(&kernels(json!({"In msg nelems": []}))), "\"allreduce\" has no \"In msg nelems\""),
        (only(&kernels(json!({"dtype": "T"}))), "elements of an unknown type \"T\""),
        (
            only(&kernels(json!({"Process Group Name": "x"}))),
            "f/0.json: a group names rank 1; there are ranks 0 to 0",
        ),
        (
            parsed(&[trace(0, 2, &sum(0.0, 9.0)), trace(1, 2, &kernels(json!({})))], None)
                .unwrap_err(),
            "it has 0 operations of group [0, 1], and Allreduce at f: rank 0, node 0 is one more",
        ),
    ];
    for (error, expected) in cases {
        assert!(error.contains(expected), "{error:?} is not {expected:?}");
    }
}

#[test]
fn folders_of_traces_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let check = |more: &str| {
        let text = format!(
            "duration = \"1ms\"\n[fabric]\nkind = \"single-switch\"\nhosts = 2\n\
             [[jobs]]\nreplay = {{ format = \"pytorch\", path = \".\"{more} }}\n"
        );
        let parsed = parse(&text, "run.toml", folder.path());
        parsed.map(|(_, built)| built.jobs[0].1.placement.len()).map_err(|error| error.to_string())
    };
    assert!(check("").unwrap_err().contains("no files NAME.json, which export_chrome_trace"));
    for rank in 0..2 {
        write(&format!("host_{rank}.pt.trace.json"), &trace(rank, 2, &sum(0.0, 9.0)).to_string());
    }
    write("notes.txt", "are not read");
    assert_eq!(check(""), Ok(2));
    assert_eq!(check(", operations = [0, 1]"), Ok(2));
    let error = check(", group = \"x\"").unwrap_err();
    assert!(error.contains("jobs.0.replay.group: only files of \"recorder\""), "{error}");
    write("host_2.pt.trace.json.gz", "");
    let error = check("").unwrap_err();
    assert!(error.contains("host_2.pt.trace.json.gz: it is compressed"), "{error}");
    let goal = "duration = \"1ms\"\n[fabric]\nkind = \"single-switch\"\nhosts = 2\n\
                [[jobs]]\nreplay = { format = \"goal\", path = \"x\", operations = [0, 1] }\n";
    let error = parse(goal, "run.toml", folder.path()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("jobs.0.replay.operations: only files of \"recorder\" and"), "{error}");
}
