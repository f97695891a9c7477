//! The tuner and the profiler, loaded by their symbols and called as NCCL calls them, in every version.

#![allow(unsafe_code)] // The library is loaded by its symbols.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::process::Command;
use std::ptr::{null, null_mut};
use std::time::Duration;

use libloading::Library;
use nccl_net_netsum::interface::{
    Event, OfKind, ProfiledCollective, ProfiledMessage, ProfilerV4, ProfilerV5, TunerV3, TunerV4,
    TunerV5, TunerV6,
};
use netsum_collective::responder::{ask_process, socket_folder};
use serde_json::Value;

/// `ncclFuncAllReduce` and `ncclFuncAllGather`.
const ALLREDUCE: c_int = 4;
const ALLGATHER: c_int = 2;
/// Rows and columns of NCCL's table, and its rows of CollNet.
const ALGORITHMS: usize = 7;
const PROTOCOLS: usize = 3;
const COLLNET: std::ops::RangeInclusive<usize> = 2..=3;
/// `ncclProfileColl`, `ncclProfileP2p`, `ncclProfileProxyOp`.
const COLLECTIVE: u64 = 2;
const MESSAGE: u64 = 4;
const PROXY_OPERATION: u64 = 8;

fn library() -> Library {
    let built = std::env::current_exe().unwrap();
    let path = built.parent().unwrap().join("libnccl_net_netsum.so");
    // SAFETY: the library that cargo has just built.
    unsafe { Library::new(path) }.unwrap()
}

fn table<T>(library: &Library, name: &str) -> &'static T {
    // SAFETY: the symbol is a constant of that type, which `layouts` compares with NCCL's headers; the library stays.
    unsafe { &**library.get::<*const T>(name.as_bytes()).unwrap() }
}

/// Runs one of the ignored tests below in a process with variables of its own.
fn in_a_process(test: &str, variables: &[(&str, &str)]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    command.env_remove("NETSUM_CONTROLLER").env_remove("NETSUM_RECORDER");
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn the_tuner_prefers_collnet_where_switches_pay() {
    let here = ("NETSUM_HOST", "127.0.0.1");
    in_a_process("with_switches", &[here, ("NETSUM_CONTROLLER", "127.0.0.1:9")]);
    in_a_process("without_switches", &[here]);
}

/// The row that NCCL would take.
fn chosen(costs: &[f32]) -> usize {
    let possible = costs.iter().enumerate().filter(|(_, time)| **time >= 0.0);
    possible.min_by(|a, b| a.1.total_cmp(b.1)).unwrap().0 / PROTOCOLS
}

/// The rows that NCCL would take for sizes and collectives by each version.
fn rows(nodes: usize) -> Vec<Vec<usize>> {
    let library = library();
    let cases =
        [(ALLREDUCE, 1 << 10), (ALLREDUCE, 1 << 22), (ALLREDUCE, 1 << 30), (ALLGATHER, 1 << 30)];
    let times = || -> Vec<f32> {
        (0..ALGORITHMS * PROTOCOLS)
            .map(|at| if at % 4 == 3 { -1.0 } else { 30.0 + at as f32 })
            .collect()
    };
    let mut context = 0;
    let mut answers = Vec::new();
    let ask = |costs: &dyn Fn(c_int, usize, *mut *mut f32) -> c_int| -> Vec<usize> {
        let row = |(collective, bytes)| {
            let mut times = times();
            assert_eq!(costs(collective, bytes, times.as_mut_ptr().cast()), 0);
            chosen(&times)
        };
        cases.into_iter().map(row).collect()
    };
    let (a, p, channels) = (ALGORITHMS as c_int, PROTOCOLS as c_int, null_mut());
    let v3: &TunerV3 = table(&library, "ncclTunerPlugin_v3");
    assert_eq!((v3.init)(nodes * 8, nodes, None, &mut context), 0);
    let costs = |f: c_int, n, t| (v3.get_coll_info)(context, f, n, 1, t, a, p, channels);
    answers.push(ask(&costs));
    assert_ne!((v3.get_coll_info)(context, ALLREDUCE, 1, 1, null_mut(), a, p, channels), 0);
    assert_ne!((v3.get_coll_info)(context, ALLREDUCE, 1, 1, null_mut(), -1, p, channels), 0);
    assert_eq!((v3.finalize)(context), 0);
    assert_ne!((v3.finalize)(context), 0, "a tuner that is gone");
    let v4: &TunerV4 = table(&library, "ncclTunerPlugin_v4");
    assert_eq!((v4.init)(nodes * 8, nodes, None, &mut context), 0);
    let costs = |f: c_int, n, t| (v4.get_coll_info)(context, f, n, 1, t, a, p, 0, channels);
    answers.push(ask(&costs));
    assert_eq!((v4.finalize)(context), 0);
    let v5: &TunerV5 = table(&library, "ncclTunerPlugin_v5");
    assert_eq!((v5.init)(&mut context, 7, nodes * 8, nodes, None, null_mut(), null_mut()), 0);
    let costs = |f: c_int, n, t| (v5.get_coll_info)(context, f, n, 1, t, a, p, 0, channels);
    answers.push(ask(&costs));
    assert_eq!((v5.finalize)(context), 0);
    let v6: &TunerV6 = table(&library, "ncclTunerPlugin_v6");
    assert_eq!((v6.init)(&mut context, 7, nodes * 8, nodes, None, null_mut(), null_mut()), 0);
    let costs = |f: c_int, n, t| (v6.get_coll_info)(context, f, n, 1, t, a, p, 0, channels);
    answers.push(ask(&costs));
    assert!(v6.get_chunk_size.is_none());
    assert_eq!((v6.finalize)(context), 0);
    answers
}

#[test]
#[ignore = "a process of another test"]
fn with_switches() {
    for rows in rows(8) {
        assert!(!COLLNET.contains(&rows[0]), "1 KiB: {rows:?}");
        assert!(COLLNET.contains(&rows[1]) && COLLNET.contains(&rows[2]), "{rows:?}");
        assert!(!COLLNET.contains(&rows[3]), "an all-gather: {rows:?}");
    }
    assert!(rows(1).concat().iter().all(|row| !COLLNET.contains(row)), "one node");
}

#[test]
#[ignore = "a process of another test"]
fn without_switches() {
    assert!(rows(8).concat().iter().all(|row| !COLLNET.contains(row)));
}

#[test]
fn the_profiler_writes_what_the_recorder_reads() {
    for version in 4..=7 {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("profiler{version}"));
        let _ = std::fs::remove_dir_all(&folder);
        let (folder, version) = (folder.to_str().unwrap(), version.to_string());
        in_a_process("two_ranks", &[("NETSUM_RECORDER", folder), ("VERSION", &version)]);
    }
}

/// The functions of any version.
struct Profiler {
    start: extern "C" fn(usize, *mut usize, *const c_void) -> c_int,
    stop: extern "C" fn(usize) -> c_int,
    state: extern "C" fn(usize, c_int, *mut c_void) -> c_int,
    finalize: extern "C" fn(usize) -> c_int,
}

/// The profiler of a version with a context of each of two ranks, and the kinds of events that it asks for.
fn profiler(version: u32, name: &CStr) -> (Profiler, [usize; 2], c_int) {
    let library = library();
    let (mut contexts, mut mask) = ([0; 2], -1);
    let of = |start, stop, state, finalize| Profiler { start, stop, state, finalize };
    if version == 4 {
        let v: &ProfilerV4 = table(&library, "ncclProfiler_v4");
        for (at, context) in (0..).zip(&mut contexts) {
            assert_eq!((v.init)(context, &mut mask, name.as_ptr(), 0xabc, 2, 2, at, None), 0);
        }
        return (of(v.start_event, v.stop_event, v.record_event_state, v.finalize), contexts, mask);
    }
    let v: &ProfilerV5 = table(&library, &format!("ncclProfiler_v{version}"));
    for (at, context) in (0..).zip(&mut contexts) {
        assert_eq!((v.init)(context, 0xabc, &mut mask, name.as_ptr(), 2, 2, at, None), 0);
    }
    (of(v.start_event, v.stop_event, v.record_event_state, v.finalize), contexts, mask)
}

impl Profiler {
    fn begin(&self, context: usize, kind: u64, parent: usize, of: OfKind) -> usize {
        // Of version 4, the other bytes of the kind mean nothing.
        let noise = if std::env::var("VERSION").unwrap() == "4" { 0x5a5a_5a00 } else { 0 };
        let event = Event { kind: kind | noise, parent, rank: 0, of };
        let mut handle = 0;
        assert_eq!((self.start)(context, &mut handle, (&raw const event).cast()), 0);
        handle
    }

    fn collective(&self, context: usize, function: &CStr, count: usize) -> usize {
        let text = |text: &'static CStr| -> *const c_char { text.as_ptr() };
        let collective = ProfiledCollective {
            sequence: 9,
            function: function.as_ptr(),
            send: null(),
            receive: null_mut(),
            count,
            root: 1,
            datatype: text(c"ncclBfloat16"),
            channels: 2,
            warps: 4,
            algorithm: text(c"COLLNET_CHAIN"),
            protocol: text(c"SIMPLE"),
        };
        self.begin(context, COLLECTIVE, 0, OfKind { collective })
    }
}

#[test]
fn a_process_answers_with_nccls_operations() {
    for version in 4..=7 {
        // Sockets have short paths.
        let folder = std::env::temp_dir().join(format!("netsum-{}-{version}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let variables =
            [("XDG_RUNTIME_DIR", folder.to_str().unwrap()), ("VERSION", &version.to_string())];
        in_a_process("is_asked", &variables);
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
#[ignore = "a process of another test"]
fn is_asked() {
    let version: u32 = std::env::var("VERSION").unwrap().parse().unwrap();
    let (profiler, contexts, mask) = profiler(version, c"world");
    assert_eq!(mask as u64, COLLECTIVE | MESSAGE | PROXY_OPERATION);
    let of_part = || OfKind { message: NO_MESSAGE };
    let ended = profiler.collective(contexts[0], c"AllReduce", 10);
    assert_eq!((profiler.stop)(ended), 0);
    let sum = profiler.collective(contexts[0], c"AllReduce", 1000);
    let part = profiler.begin(contexts[0], PROXY_OPERATION, sum, of_part());
    assert_eq!((profiler.stop)(sum), 0);
    let ask = || -> Vec<Value> {
        let socket = socket_folder().join(format!("{}.sock", std::process::id()));
        let answer = ask_process(&socket, "", Duration::from_secs(5)).unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        answer["groups"].as_array().unwrap().clone()
    };
    let groups = ask();
    let name =
        |group: &Value| (group["name"].clone(), group["rank"].clone(), group["size"].clone());
    let expected = |rank: u32| (Value::from("nccl-world-abc"), Value::from(rank), Value::from(2));
    assert_eq!(groups.iter().map(name).collect::<Vec<_>>(), [expected(0), expected(1)]);
    let [first, second] = groups[0]["operations"].as_array().unwrap().as_slice() else { panic!() };
    assert!(first["seconds"].is_number() && second["seconds"].is_null(), "{groups:?}");
    assert_eq!(second["call"], "allreduce bfloat16[1000] by COLLNET_CHAIN, SIMPLE");
    assert_eq!((&groups[0]["next"], &groups[1]["next"]), (&Value::from(2), &Value::from(0)));
    assert_eq!(groups[0]["stats"], Value::Null);
    assert_eq!((profiler.stop)(part), 0);
    assert!(ask()[0]["operations"][1]["seconds"].is_number());
    // What has ended is in no answer.
    assert_eq!((profiler.finalize)(contexts[0]), 0);
    assert_eq!(ask().iter().map(name).collect::<Vec<_>>(), [expected(1)]);
    assert_eq!((profiler.finalize)(contexts[1]), 0);
    assert!(ask().is_empty());
}

/// What an event has that is neither a collective nor a message of interest.
const NO_MESSAGE: ProfiledMessage = ProfiledMessage {
    function: c"Recv".as_ptr(),
    memory: null_mut(),
    datatype: c"ncclFloat32".as_ptr(),
    count: 25,
    peer: 1,
};

#[test]
#[ignore = "a process of another test"]
fn two_ranks() {
    let version: u32 = std::env::var("VERSION").unwrap().parse().unwrap();
    let name = CString::new("a/b").unwrap();
    let (profiler, contexts, mask) = profiler(version, &name);
    assert_eq!(mask as u64, COLLECTIVE | MESSAGE | PROXY_OPERATION);
    let none = || OfKind { message: NO_MESSAGE };
    // Far more than are kept; the last one of rank 0 has a part that goes on.
    for _ in 0..600 {
        let sum = profiler.collective(contexts[0], c"AllReduce", 1000);
        let part = profiler.begin(contexts[0], PROXY_OPERATION, sum, none());
        assert_eq!((profiler.stop)(sum), 0);
        assert_eq!((profiler.state)(part, 9, null_mut()), 0);
        assert_eq!((profiler.stop)(part), 0);
    }
    let root = profiler.collective(contexts[0], c"Broadcast", 10);
    assert_eq!((profiler.stop)(root), 0);
    let sum = profiler.collective(contexts[0], c"AllReduce", 1000);
    let part = profiler.begin(contexts[0], PROXY_OPERATION, sum, none());
    assert_eq!((profiler.stop)(sum), 0);
    let message = profiler.begin(contexts[0], MESSAGE, 0, none());
    // What is not asked for, or belongs to nothing known, is left alone.
    assert_eq!(profiler.begin(contexts[0], 1, 0, none()), 0);
    assert_eq!(profiler.begin(contexts[0], PROXY_OPERATION, 12345, none()), 0);
    assert_eq!((profiler.stop)(0), 0);
    assert_eq!((profiler.finalize)(contexts[0]), 0);
    assert_eq!((profiler.stop)(part), 0, "an event of a communicator that has ended");
    assert_ne!((profiler.finalize)(contexts[0]), 0);
    assert_eq!((profiler.finalize)(contexts[1]), 0);
    assert_ne!(message, 0);

    let folder = std::env::var("NETSUM_RECORDER").unwrap();
    let read = |rank: usize| -> Value {
        let path = format!("{folder}/netsum-nccl-a-b-abc-rank{rank}.json");
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    };
    let (zero, one) = (read(0), read(1));
    assert_eq!((&zero["group"], &zero["size"]), (&Value::from("nccl-a/b-abc"), &Value::from(2)));
    let operations = zero["operations"].as_array().unwrap();
    assert_eq!(operations.len(), 512);
    let [.., before, root, sum, message] = operations.as_slice() else { panic!() };
    assert_eq!(before["call"], "allreduce bfloat16[1000] by COLLNET_CHAIN, SIMPLE");
    assert_eq!((&before["number"], &before["bytes"]), (&Value::from(599), &Value::from(2000)));
    assert!(before["seconds"].is_number());
    assert_eq!(root["call"], "broadcast bfloat16[10] by COLLNET_CHAIN, SIMPLE root 1");
    assert_eq!((&sum["number"], &sum["seconds"]), (&Value::from(601), &Value::Null));
    assert_eq!(message["call"], "receive of 100 bytes from rank 1 (tag 0)");
    assert_eq!(message["number"], Value::Null);
    assert!(one["operations"].as_array().unwrap().is_empty());
}
